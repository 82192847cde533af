"""Vectors of other libraries: the same rows whatever brings them, and clear errors where rows cannot be read."""

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

from cbeindex import BinaryIndex, CBEIndex
from cbeindex.data.foreign import as_native
from cbeindex.data.source import VectorSource

pa = pytest.importorskip("pyarrow", reason="no wheel of pyarrow for this platform")
pd = pytest.importorskip("pandas", reason="no wheel of pandas for this platform")
pl = pytest.importorskip("polars", reason="no wheel of polars for this platform")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="no wheel of ml_dtypes for this platform")

DIM = 6
X = np.random.default_rng(0).standard_normal((10, DIM)).astype(np.float32)
LISTS = X.tolist()


def fixed(rows=X):
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIM)


def tensors(rows=X):
    return pa.FixedShapeTensorArray.from_numpy_ndarray(rows)


def kind_of(column):
    """The name of a test of a column."""
    return f"{type(column).__module__}.{type(column).__name__} {getattr(column, 'dtype', getattr(column, 'type', ''))}"


class OnlyDlpack:
    """An array of a library that numpy knows nothing of."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        if self.device[0] != 1:
            raise BufferError("data are on another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


FORMS = {
    "fixed-size lists": fixed,
    "sliced fixed-size lists": lambda: fixed(np.vstack([X[:3], X, X[:2]]))[3:13],
    "lists": lambda: pa.array(LISTS),
    "sliced lists": lambda: pa.array([[1.0], *LISTS, []])[1:11],
    "large lists": lambda: pa.array(LISTS, pa.large_list(pa.float32())),
    "float64 lists": lambda: pa.array(LISTS, pa.list_(pa.float64(), DIM)),
    "tensors": tensors,
    "chunked": lambda: pa.chunked_array([fixed(X[:3]), fixed(X[3:])]),
    "chunked tensors": lambda: pa.chunked_array([tensors(X[:5]), tensors(X[5:])]),
    "chunks without rows": lambda: pa.chunked_array([fixed(X[:0]), pa.array(LISTS, pa.list_(pa.float32(), DIM))]),
    "table of lists": lambda: pa.table({"vectors": fixed()}),
    "table of numbers": lambda: pa.table({str(i): X[:, i] for i in range(DIM)}),
    "record batch": lambda: pa.RecordBatch.from_arrays([fixed()], ["vectors"]),
    "series of arrays": lambda: pd.Series(list(X)),
    "series of lists": lambda: pd.Series(LISTS),
    "values of a series": lambda: pd.Series(list(X)).to_numpy(),
    "frame with a column of arrays": lambda: pd.DataFrame({"vectors": list(X)}),
    "Arrow series": lambda: pd.Series(fixed(), dtype=pd.ArrowDtype(fixed().type)),
    "frame of numbers": lambda: pd.DataFrame(X),
    "nullable frame": lambda: pd.DataFrame(X).astype("Float32"),
    "frame of several types": lambda: pd.DataFrame(X).astype({0: "Float64", 1: np.float64}),
    "Arrow frame": lambda: pd.DataFrame(X).astype(pd.ArrowDtype(pa.float32())),
    "polars lists": lambda: pl.Series(LISTS),
    "polars arrays": lambda: pl.Series(LISTS, dtype=pl.Array(pl.Float32, DIM)),
    "polars frame with a column of lists": lambda: pl.DataFrame({"vectors": LISTS}),
    "polars frame of numbers": lambda: pl.DataFrame(X),
    "list of Arrow arrays": lambda: [pa.array(row) for row in X],
    "list of series": lambda: [pd.Series(row) for row in X],
    "DLPack": lambda: OnlyDlpack(X),
}  # fmt: skip


@pytest.mark.parametrize("form", list(FORMS))
def test_forms(form):
    array = FORMS[form]()
    found = VectorSource(array, DIM).read(slice(None))
    np.testing.assert_array_equal(found, X)
    index, expected = CBEIndex(DIM, vectors="float32", buckets=None), CBEIndex(DIM, vectors="float32", buckets=None)
    index.fit(array).add(array)
    expected.fit(X).add(X)
    np.testing.assert_array_equal(index.search(array, 3).ids, expected.search(X, 3).ids)
    np.testing.assert_array_equal(index.get(index.ids), X)


@pytest.mark.parametrize("form", ["fixed-size lists", "sliced fixed-size lists", "table of lists", "DLPack"])
def test_data_are_shared_where_they_can_be(form):
    array = FORMS[form]()
    assert np.shares_memory(as_native(array, "X"), as_native(array, "X"))


def test_numbers_of_other_types():
    integers = np.arange(60).reshape(10, 6)
    assert as_native(pd.DataFrame(integers).astype("UInt8"), "X").dtype == np.uint8
    np.testing.assert_array_equal(as_native(pl.DataFrame(integers), "X"), integers)
    np.testing.assert_array_equal(as_native(pa.array(integers.tolist()), "X"), integers)
    halves = X.astype(np.float16)
    np.testing.assert_array_equal(
        as_native(pa.FixedSizeListArray.from_arrays(pa.array(halves.ravel()), DIM), "X"), halves
    )
    short = X.astype(ml_dtypes.bfloat16)
    found = as_native(short, "X")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, short.astype(np.float32))


def test_single_vectors():
    for array in (pa.array(X[0]), pd.Series(X[0]), pl.Series(X[0]), pd.Series(X[0]).astype("Float32")):
        source = VectorSource(array, DIM)
        assert source.is_single
        np.testing.assert_array_equal(source.read(slice(None)), X[:1])


def test_sparse_frames():
    rows = np.where(X > 0.5, X, 0)
    frame = pd.DataFrame(rows).astype(pd.SparseDtype(np.float32, 0))
    found = as_native(frame, "X")
    assert scipy.sparse.issparse(found)
    np.testing.assert_array_equal(found.toarray(), rows)


def test_no_rows():
    for array in (
        fixed(X[:0]),
        pa.chunked_array([], type=fixed().type),
        pa.array([], pa.list_(pa.float32())),
        pl.Series([], dtype=pl.List(pl.Float32)),
        pl.Series([], dtype=pl.Array(pl.Float32, DIM)),
        pd.Series([], dtype=object),
        pl.DataFrame(X)[:0],
        pd.DataFrame(X)[:0],
    ):
        index = CBEIndex(DIM, vectors=None, buckets=None)
        if np.shape(as_native(array, "X")) in ((0,), (0, DIM)):
            assert index.add(array).tolist() == []


def test_packed_codes():
    codes = np.random.default_rng(0).integers(0, 256, (20, 8), dtype=np.uint8)
    index = BinaryIndex(64)
    index.add(pa.FixedSizeListArray.from_arrays(pa.array(codes.ravel()), 8))
    np.testing.assert_array_equal(index.get(index.ids), codes)
    series = pl.Series(codes.tolist(), dtype=pl.Array(pl.UInt8, 8))
    np.testing.assert_array_equal(index.search(series, 1).ids[:, 0], np.arange(20))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"]),
        pa.chunked_array([["a"], ["b"]]),
        pd.Series(["a", "b"]),
        pd.Series(["a", "b"], dtype="string"),
        pd.Series(["a", "b"], dtype=pd.ArrowDtype(pa.string())),
        pd.Index(["a", "b"]),
        pl.Series(["a", "b"]),
    ],
    ids=kind_of,
)
def test_columns_of_string_ids(column):
    index = CBEIndex(DIM, vectors=None, buckets=None)
    assert index.add(X[:2], column).tolist() == ["a", "b"]
    assert index.search(X[0], 2, allow=column[:1]).ids.tolist() == ["a", None]
    index.remove(column)
    assert len(index) == 0


@pytest.mark.parametrize(
    "column", [pa.array([4, 7]), pd.Series([4, 7]), pd.Series([4, 7], dtype="Int64"), pl.Series([4, 7])], ids=kind_of
)
def test_columns_of_integer_ids(column):
    index = CBEIndex(DIM, vectors=None, buckets=None)
    assert index.add(X[:2], column).tolist() == [4, 7]
    assert index.search(X[0], 2, deny=column[:1]).ids.tolist() == [7, -1]


@pytest.mark.parametrize(
    "column",
    [pa.array(["a", None]), pd.Series(["a", None]), pl.Series(["a", None]), pd.Series(["a", None], dtype="string")],
    ids=kind_of,
)
def test_missing_ids(column):
    with pytest.raises(
        TypeError, match="ids must be all strings or all integers, got a missing value beside strings, at 1"
    ):
        CBEIndex(DIM, vectors=None, buckets=None).add(X[:2], column)


def with_none(row=4):
    return [*LISTS[:row], None, *LISTS[row + 1 :]]


def with_null_inside(row=4):
    return [*LISTS[:row], [None, *LISTS[row][1:]], *LISTS[row + 1 :]]


def ragged(row=4):
    return [*LISTS[:row], LISTS[row][1:], *LISTS[row + 1 :]]


MIXED = {"id": ["a", "b"], "size": [1, 2], "vectors": [[1.0, 2.0], [3.0, 4.0]]}
NOT_NUMBERS = (
    r"a table of 3 columns where 'id', 'vectors' are not: pass the column of vectors alone, as table\[column\]"
)
MISSING = r"X must not have missing values; drop or fill such rows first, row 4 has one"
RAGGED = r"X must be vectors of length 6, as row 0 is, row 4 has length 5"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: pa.array(with_none()), ValueError, MISSING),
        (lambda: pa.array(with_null_inside()), ValueError, MISSING),
        (lambda: pa.array(with_none(), pa.list_(pa.float32(), DIM)), ValueError, MISSING),
        (lambda: pa.array(with_null_inside(), pa.list_(pa.float32(), DIM)), ValueError, MISSING),
        (lambda: pa.chunked_array([pa.array(LISTS[:3]), pa.array(with_none()[3:])]), ValueError, MISSING),
        (lambda: pa.array(ragged()), ValueError, RAGGED),
        (lambda: pa.chunked_array([pa.array(LISTS), pa.array([[1.0]])]), ValueError, "one length, got 6 and 1"),
        (lambda: pa.array(["a"]), TypeError, "X must be Arrow lists of numbers, got string; cast"),
        (lambda: pa.array([["a"]]), TypeError, "X must be Arrow lists of numbers, got string"),
        (lambda: pa.array([[[1.0]]]), TypeError, "X must be Arrow lists of numbers, got lists of list<"),
        (lambda: pa.table({"a": [1.0, 2], "b": [3.0, None]}), ValueError, "missing values; .* row 1 has one"),
        (lambda: pa.table(MIXED), TypeError, NOT_NUMBERS),
        (lambda: pd.DataFrame(MIXED), TypeError, NOT_NUMBERS),
        (lambda: pl.DataFrame(MIXED), TypeError, NOT_NUMBERS),
        (lambda: pd.DataFrame({str(i): ["a"] for i in range(6)}), TypeError, r"'3', '4', \.\.\. are not: pass"),
        (lambda: pd.Series(with_none()), ValueError, MISSING),
        (lambda: pd.Series(ragged()), ValueError, RAGGED),
        (lambda: pd.Series(ragged()).to_numpy(), ValueError, RAGGED),
        (lambda: pd.DataFrame(X).astype("Float32").drop(4).reindex(range(10)), ValueError, MISSING),
        (lambda: pd.Series(with_none(), dtype=pd.ArrowDtype(pa.list_(pa.float32()))), ValueError, MISSING),
        (lambda: pd.DataFrame({"text": ["a"] * 9}), TypeError, "X must hold real numbers"),
        (lambda: pl.Series(with_none()), ValueError, MISSING),
        (lambda: pl.Series(with_null_inside()), ValueError, MISSING),
        (lambda: pl.Series(with_null_inside(), dtype=pl.Array(pl.Float32, DIM)), ValueError, MISSING),
        (lambda: pl.Series(ragged()), ValueError, RAGGED),
        (lambda: pl.DataFrame({"a": [1, None], "b": [1, 2]}), ValueError, "missing values; .* row 1 has one"),
        (lambda: pl.DataFrame(X).lazy(), TypeError, r"got a LazyFrame; call collect\(\) first"),
        (lambda: [pa.array(row) for row in ragged()], ValueError, RAGGED),
        (lambda: OnlyDlpack(X, (2, 0)), TypeError, "must be readable by numpy, got .*OnlyDlpack: .* to the CPU"),
        (lambda: np.array([object()] * 3), TypeError, "got an array of dtype object that begins with object"),
        (lambda: np.array(["a"]), TypeError, "X must hold real numbers, got an array of dtype <U1"),
        (lambda: np.zeros(3, dtype=[("a", np.float32)]), TypeError, "X must hold real numbers"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(make, error, message):
    index = CBEIndex(DIM, vectors=None, buckets=None)
    with pytest.raises(error, match=message):
        index.add(make())
    assert len(index) == 0


def test_nothing_is_imported():
    """Neither by an import of the package, nor by adding and searching arrays of numpy."""
    script = """if True:
        import sys
        import numpy as np
        from cbeindex import CBEIndex
        index = CBEIndex(8)
        index.add(np.eye(8), ids=list("abcdefgh"))
        index.search([1.0] * 8)
        libraries = {"pyarrow", "pandas", "polars", "torch", "cupy", "jax", "array_api_compat"}
        assert not libraries & sys.modules.keys(), libraries & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", script], check=True)
