"""Tensors of torch as vectors, codes and ids: any dtype and layout, with and without gradients."""

import numpy as np
import pytest
import scipy.sparse

from cbeindex import BinaryIndex, CBEIndex, CirculantEncoder
from cbeindex.data.foreign import as_native
from cbeindex.data.source import VectorSource

torch = pytest.importorskip("torch", reason="make test-torch installs it")

DIM = 6
X = np.random.default_rng(0).standard_normal((10, DIM)).astype(np.float32)
T = torch.from_numpy(X)

DENSE = {
    "float32": T,
    "float64": T.double(),
    "with gradients": T.clone().requires_grad_(),
    "computed with gradients": T.clone().requires_grad_() * 1,
    "a parameter": torch.nn.Parameter(T.clone()),
    "transposed": T.T.contiguous().T,
    "negated lazily": torch.complex(torch.zeros(10, DIM), -T).conj().imag,
    "list of tensors": list(T),
}


@pytest.mark.parametrize("form", list(DENSE))
def test_dense_tensors(form):
    np.testing.assert_array_equal(VectorSource(DENSE[form], DIM).read(slice(None)), X)
    index = CBEIndex(DIM, vectors="float32", buckets=None)
    index.fit(DENSE[form]).add(DENSE[form])
    np.testing.assert_array_equal(index.search(DENSE[form], 1).ids[:, 0], np.arange(10))


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.bool]
)
def test_other_dtypes(dtype):
    tensor = (10 * T).to(dtype)
    np.testing.assert_array_equal(VectorSource(tensor, DIM).read(slice(None)), tensor.float().numpy())
    encoder = CirculantEncoder(DIM)
    np.testing.assert_allclose(
        encoder.project(tensor).numpy(), encoder.project(tensor.float().numpy()), rtol=1e-4, atol=1e-4
    )


def test_data_are_shared():
    assert np.shares_memory(as_native(T, "X"), X)
    assert np.shares_memory(as_native(T.requires_grad_(False), "X"), X)


SPARSE = np.where(X > 0.3, X, 0)


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state:UserWarning")
@pytest.mark.parametrize(
    "convert",
    [
        lambda t: t.to_sparse(),
        lambda t: t.to_sparse_csr(),
        lambda t: t.to_sparse_csc(),
        lambda t: t.to_sparse_bsr((2, 3)),
        lambda t: t.to_sparse_bsc((2, 3)),
        lambda t: t.clone().requires_grad_().to_sparse(),
        lambda t: torch.sparse_coo_tensor([[0, 0, 9], [1, 1, 5]], [1.0, 2.0, 3.0], (10, DIM), check_invariants=True),
    ],
)
def test_sparse_layouts(convert):
    tensor = convert(torch.from_numpy(SPARSE))
    native = as_native(tensor, "X")
    assert scipy.sparse.issparse(native)
    np.testing.assert_array_equal(native.toarray(), tensor.detach().to_dense().numpy())
    index = CBEIndex(DIM, vectors=None, buckets=None)
    index.add(tensor)
    assert index.stats()["rows"] == 10
    encoder = CirculantEncoder(DIM)
    assert isinstance(encoder.encode(tensor), np.ndarray)  # by entries, not on the device


def test_sparse_tensors_of_other_shapes():
    with pytest.raises(ValueError, match=r"X must have shape \(n, dim\), got a sparse tensor of shape \(6,\)"):
        CBEIndex(DIM, vectors=None, buckets=None).add(T[0].to_sparse())


def test_codes_and_ids():
    encoder = CirculantEncoder(64)
    rows = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    codes = encoder.encode(rows)
    assert isinstance(codes, torch.Tensor)
    index = BinaryIndex(64)
    assert index.add(codes, torch.arange(100, 120)).tolist() == list(range(100, 120))
    assert index.search(codes, 1, deny=torch.tensor([100])).ids[0, 0] != 100
    index.remove(torch.tensor([101, 102]))
    assert len(index) == 18


def test_projections_have_gradients():
    encoder = CirculantEncoder(DIM)
    rows = T.clone().requires_grad_()
    encoder.project(rows).pow(2).sum().backward()
    # The projection is orthogonal up to padding, so the gradient of the squared norm is twice the vector.
    expected = 2 * X if encoder.length == DIM else None
    assert expected is not None
    np.testing.assert_allclose(rows.grad.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_benchmark_of_a_device_runs(tmp_path, capsys):
    from benchmarks.encode import main

    main(["--device", "cpu", "--quick", "--dims", "128", "--output", str(tmp_path / "out.jsonl")])
    out = capsys.readouterr().out
    assert "x cpu" in out
    assert "is left out" not in out
    main(["--device", "meta-nothing", "--quick", "--dims", "128", "--output", str(tmp_path / "out.jsonl")])
    assert "meta-nothing is left out at 128" in capsys.readouterr().out
