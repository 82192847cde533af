"""Encoding on the device of an array, by the array API standard: the projections and bits of the kernels."""

import subprocess
import sys

import numpy as np
import pytest

from cbeindex import BinaryIndex, CirculantEncoder
from cbeindex._core.tuning import tuned
from cbeindex.encoders.devices import is_device_array
from tests.array_libraries import library
from tests.vector_oracles import clustered


@pytest.fixture(params=["array_api_strict", "torch", "jax"])
def forms(request):
    return library(request.param)


# Below, at and above the length of a block, which is padded, prime, or one value.
ENCODERS = [
    (1, 5, "orthogonal", True),
    (2, 2, "random", True),
    (7, 7, "orthogonal", False),
    (97, 97, "random", False),
    (97, 300, "orthogonal", True),
    (128, 128, "learned", True),
    (384, 100, "random", True),
    (1000, 1024, "learned", False),
]


@pytest.mark.parametrize(("dim", "n_bits", "kind", "pad"), ENCODERS)
def test_projections_and_bits_are_those_of_the_kernels(dim, n_bits, kind, pad, forms):
    make, read = forms
    X = clustered(23, dim, seed=dim)
    encoder = CirculantEncoder(dim, n_bits, kind, seed=3, pad=pad, n_iter=2).fit(X)
    expected, codes = encoder.project(X), encoder.encode(X)
    with tuned(device_step_values=5 * max(n_bits, encoder.length)):  # five rows at a time
        found, packed = encoder.project(make(X)), encoder.encode(make(X))
    assert type(found) is type(packed) is type(make(X))
    assert (read(found).dtype, read(packed).dtype) == (np.float32, np.uint8)
    # Float32 transforms of so many values round to about 1e-6 of the norm of the projections.
    rounding = 1e-5 * np.linalg.norm(expected, axis=1, keepdims=True) / np.sqrt(n_bits)
    assert (np.abs(read(found) - expected) <= rounding).all()
    differs = np.unpackbits(read(packed) ^ codes, axis=1, bitorder="little")
    assert not differs[:, n_bits:].any()
    assert not (differs[:, :n_bits].astype(bool) & (np.abs(expected) > rounding)).any()
    assert read(encoder.project(make(X[4]))).shape == (n_bits,)
    np.testing.assert_array_equal(read(encoder.encode(make(X[4]))), read(encoder.encode(make(X[4:5])))[0])


def test_zero_has_all_ones(forms):
    make, read = forms
    encoder = CirculantEncoder(20, 30)
    np.testing.assert_array_equal(read(encoder.encode(make(np.zeros((2, 20), np.float32)))), [[255, 255, 255, 63]] * 2)


def test_no_rows(forms):
    make, read = forms
    encoder = CirculantEncoder(20, 30)
    none = make(np.zeros((0, 20), np.float32))
    assert (read(encoder.project(none)).shape, read(encoder.encode(none)).shape) == ((0, 30), (0, 4))


def test_other_types(forms):
    make, read = forms
    X = np.random.default_rng(0).integers(-100, 100, (5, 20)).astype(np.int32)
    encoder = CirculantEncoder(20)
    expected = encoder.project(X)
    for dtype in (np.int32, np.float64, np.bool_) if "jax" not in type(make(X)).__module__ else (np.int32,):
        rows = X > 0 if dtype is np.bool_ else X.astype(dtype)
        wanted = encoder.project(rows) if dtype is np.bool_ else expected
        np.testing.assert_allclose(read(encoder.project(make(rows))), wanted, rtol=1e-4, atol=1e-3)


def test_codes_go_into_an_index(forms):
    make, _ = forms
    X = clustered(40, 64)
    encoder = CirculantEncoder(64).fit(X)
    index = BinaryIndex(64)
    index.add(encoder.encode(make(X)))
    assert index.search(encoder.encode(make(X)), 1).distances.max() == 0


def test_an_encoder_that_is_fitted_again_forgets(forms):
    make, read = forms
    X = clustered(40, 16)
    encoder = CirculantEncoder(16)
    before = read(encoder.project(make(X)))
    encoder.fit(X)
    assert np.abs(read(encoder.project(make(X))) - before).max() > 0.1


ONES = np.ones((9, 8), dtype=np.float32)
BAD = {
    r"X must have shape \(n, 8\) or \(8,\), got \(9, 7\)": ONES[:, :7],
    r"X must have shape \(n, 8\) or \(8,\), got \(1, 9, 8\)": ONES[np.newaxis],
    "X must hold real numbers, got an array of dtype .*complex64": ONES.astype(np.complex64),
    "X must be finite in float32, row 0 is not": np.nan * ONES,
    "X must be finite in float32, row 6 is not": np.diag([1.0] * 6 + [np.inf] * 2).astype(np.float32),
    "X must be small enough for sums of 8 values in float32, row 0 has": 3e38 * ONES,
}


@pytest.mark.parametrize("message", list(BAD))
def test_bad_input(message, forms):
    with pytest.raises(TypeError if "real" in message else ValueError, match=message):
        CirculantEncoder(8).project(forms[0](BAD[message]))


def test_options_that_a_device_does_not_have(forms):
    rows = forms[0](ONES)
    with pytest.raises(ValueError, match="n_threads must be None for arrays of other libraries"):
        CirculantEncoder(8).encode(rows, n_threads=2)
    with pytest.raises(ValueError, match="must be fitted before it can project"):
        CirculantEncoder(8, kind="learned").encode(rows)


def test_rows_are_counted_through_parts(forms):
    make, _ = forms
    X = np.ones((9, 8), dtype=np.float32)
    X[7, 3] = np.nan
    with tuned(device_step_values=16), pytest.raises(ValueError, match="X must be finite in float32, row 7 is not"):
        CirculantEncoder(8).encode(make(X))


def test_arrays_of_numpy_stay_with_the_kernels():
    for array in (np.ones(3), np.float32(1), [1.0], np.ma.masked_array([1.0])):
        assert not is_device_array(array)


def test_without_the_extra(forms):
    """A clear error, and `add` takes such arrays all the same."""
    make, _ = forms
    script = f"""if True:
        import sys
        sys.modules["array_api_compat"] = None
        import numpy as np
        import {type(make(np.ones(3, np.float32))).__module__.split(".")[0].replace("jaxlib", "jax")}
        from tests.array_libraries import library
        from cbeindex import CBEIndex, CirculantEncoder
        for name in ("array_api_strict", "torch", "jax"):
            if name in sys.modules:
                make, _ = library(name)
        X = make(np.eye(8, dtype=np.float32))
        index = CBEIndex(8)
        index.add(X)
        assert index.search(X, 1).ids[:, 0].tolist() == list(range(8))
        try:
            CirculantEncoder(8).encode(X)
        except TypeError as error:
            assert 'pip install "cbeindex[gpu]"' in str(error), error
        else:
            raise AssertionError
    """
    subprocess.run([sys.executable, "-c", script], check=True)
