"""Files of vectors give back what was written, a part at a time; damaged ones are refused in a line."""

import errno
import itertools
import re
import struct
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from cbeindex._core.tuning import tuned
from cbeindex.data import npzfiles
from cbeindex.data.source import VectorSource
from cbeindex.data.vectorfiles import SUFFIXES, open_vectors
from tests.vector_file_bytes import binary, npy, npz, vecs

TYPES = {
    ".fvecs": "<f4",
    ".ivecs": "<i4",
    ".bvecs": "u1",
    ".fbin": "<f4",
    ".ibin": "<i4",
    ".u8bin": "u1",
    ".i8bin": "i1",
}
X = np.random.default_rng(0).integers(0, 100, (7, 5)).astype(np.float32)
S = np.where(X > 60, X, 0)


def npy_with(header, data=b"", version=b"\1\0"):
    """Bytes of a .npy file with a header of one's own."""
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode("latin-1") + data


def csr(**changes):
    """Bytes of a sparse .npz file, with some of its arrays replaced, or left out where None."""
    rows = scipy.sparse.csr_array(S)
    parts = {"indices": rows.indices, "indptr": rows.indptr, "format": np.array(b"csr"), "shape": rows.shape}
    parts |= {"data": rows.data, **changes}
    return npz(**{key: part for key, part in parts.items() if part is not None})


def coo(**changes):
    """Bytes of a sparse .npz file in format coo."""
    rows = scipy.sparse.coo_array(S)
    parts = {"row": rows.row, "col": rows.col, "format": np.array(b"coo"), "shape": rows.shape, "data": rows.data}
    return npz(**{key: part for key, part in (parts | changes).items() if part is not None})


def write(folder, suffix, content):
    path = Path(folder) / f"vectors{suffix}"
    path.write_bytes(content)
    return path


def is_mapped(array):
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def check_blocks(rows, expected, step=3):
    """Compare in blocks, as files are read, and through the class that reads them."""
    assert rows.shape == expected.shape
    source = VectorSource(rows, expected.shape[1])
    for start in range(0, rows.shape[0], step):
        block = rows[start : start + step]
        dense = block.toarray() if scipy.sparse.issparse(block) else block
        np.testing.assert_array_equal(dense, expected[start : start + step])
        np.testing.assert_array_equal(source.read(slice(start, start + step)), expected[start : start + step])


@pytest.mark.parametrize("suffix", TYPES)
def test_plain_formats(suffix, tmp_path):
    values = X.astype(TYPES[suffix])
    path = write(tmp_path, suffix, vecs(values) if suffix.endswith("vecs") else binary(values))
    rows = open_vectors(path)
    assert rows.dtype == values.dtype
    assert is_mapped(rows)
    assert not rows.flags.writeable
    check_blocks(rows, X)


def test_suffixes(tmp_path):
    assert set(SUFFIXES) == {".npy", ".npz", *TYPES, ".parquet", ".arrow", ".feather", ".ipc"}
    path = write(tmp_path, ".FVecs", vecs(X))
    np.testing.assert_array_equal(open_vectors(str(path)), X)


@pytest.mark.parametrize("dtype", ["f2", "<f4", ">f4", "f8", "longdouble", "i1", "u2", ">i8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(dtype, order, tmp_path):
    values = np.asarray(X % 2 if dtype == "?" else X, dtype=dtype, order=order)
    rows = open_vectors(write(tmp_path, ".npy", npy(values)))
    assert rows.dtype == values.dtype
    assert is_mapped(rows)
    check_blocks(rows, values.astype(np.float32))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version, tmp_path):
    check_blocks(open_vectors(write(tmp_path, ".npy", npy(X, version))), X)


def test_npy_at_an_odd_address(tmp_path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (7, 5)}"
    content = npy_with(header + " " * ((len(header) + 1) % 2), X.tobytes())
    assert (len(content) - X.nbytes) % 2
    check_blocks(open_vectors(write(tmp_path, ".npy", content)), X)


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(".npy", npy(X[0])), (".npz", npz(x=X[0])), (".npz", npz(True, x=X[0])), (".fvecs", vecs(X[:1]))],
)
def test_one_vector_is_one_row(suffix, content, tmp_path):
    check_blocks(open_vectors(write(tmp_path, suffix, content)), X[:1])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npz(compressed, order, tmp_path):
    base = np.asarray(X, order=order)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "several.npz", base=base, queries=X[:2])
    rows = open_vectors(tmp_path / "several.npz", "base")
    check_blocks(rows, X)
    assert is_mapped(rows) == (not compressed)
    check_blocks(open_vectors(tmp_path / "several.npz", key="queries"), X[:2])
    (np.savez_compressed if compressed else np.savez)(tmp_path / "single.npz", base)
    check_blocks(open_vectors(tmp_path / "single.npz"), X)
    check_blocks(open_vectors(tmp_path / "single.npz", "arr_0"), X)


def test_npz_behind_other_bytes(tmp_path):
    """Places in an archive count from its start, which need not be the start of the file."""
    check_blocks(open_vectors(write(tmp_path, ".npz", b"#!" + npz(base=X))), X)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_sparse(compressed, form, kind, dtype, tmp_path):
    stored = getattr(scipy.sparse, f"{form}_{kind}")(S.astype(dtype))
    scipy.sparse.save_npz(tmp_path / "vectors.npz", stored, compressed=compressed)
    rows = open_vectors(tmp_path / "vectors.npz")
    assert isinstance(rows, scipy.sparse.csr_array)
    assert rows.dtype == dtype
    check_blocks(rows, S)


@pytest.mark.parametrize(
    "content",
    [
        csr(data=scipy.sparse.csr_array(S).data.astype(">f8")),
        csr(data=scipy.sparse.csr_array(S).data.astype("f2")),
        coo(data=scipy.sparse.coo_array(S).data.astype("f2")),
        csr(indices=scipy.sparse.csr_array(S).indices.astype(">u8")),
        csr(indptr=scipy.sparse.csr_array(S).indptr.astype("u2")),
        csr(format=np.array("csr")),
        coo(row=None, col=None, coords=np.stack(scipy.sparse.coo_array(S).coords)),
    ],
)
def test_sparse_in_other_hands(content, tmp_path):
    check_blocks(open_vectors(write(tmp_path, ".npz", content)), S)


def test_sparse_vectors_and_zeros(tmp_path):
    one = csr(indptr=scipy.sparse.csr_array(S).indptr[:2], shape=[5])
    check_blocks(open_vectors(write(tmp_path, ".npz", one)), S[:1])
    columns = np.flatnonzero(S[0])[np.newaxis]
    one = coo(row=None, col=None, coords=columns, data=S[0, columns[0]], shape=[5])
    check_blocks(open_vectors(write(tmp_path, ".npz", one)), S[:1])
    for form in ("csr", "csc", "coo"):
        scipy.sparse.save_npz(tmp_path / "zeros.npz", scipy.sparse.coo_array((7, 5), dtype=np.float32).asformat(form))
        check_blocks(open_vectors(tmp_path / "zeros.npz"), np.zeros_like(X))


@st.composite
def tables(draw, dtype):
    n, dim = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    n_bytes = n * dim * np.dtype(dtype).itemsize
    return np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), dtype=dtype).reshape(n, dim)


@pytest.mark.parametrize("suffix", [".fvecs", ".bvecs", ".fbin", ".i8bin"])
@given(data=st.data(), step=st.integers(1, 9))
def test_any_values_come_back(suffix, data, step):
    """All bits of them, NaN and infinity too."""
    values = data.draw(tables(TYPES[suffix]))
    with tempfile.TemporaryDirectory() as folder:
        rows = open_vectors(write(folder, suffix, vecs(values) if suffix.endswith("vecs") else binary(values)))
    assert rows.shape == values.shape
    blocks = [rows[start : start + step].tobytes() for start in range(0, rows.shape[0], step)]
    assert b"".join(blocks) == values.tobytes()


# fmt: off
BIG = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}"
NOT_NPY = "must be in the format of numpy.save: "
NOT_ZIP = "must be an archive of numpy.savez or scipy.sparse.save_npz: "
DAMAGED = [
    (".fvecs", vecs(X)[:3], r"must start with the length of a vector, got \d+ in a file of 3 bytes"),
    (".fvecs", vecs(X)[:-1], "must be a multiple of 24 bytes for vectors of length 5, got 167"),
    (".fvecs", vecs(X)[:4], "must be a multiple of 24 bytes for vectors of length 5, got 4"),
    (".ivecs", vecs(X) + b"\5\0\0\0", "must be a multiple of 24 bytes .*, got 172"),
    (".fvecs", struct.pack("<i", 0), "must start with the length of a vector, got 0"),
    (".fvecs", struct.pack("<ii", -1, -1), "must start with the length of a vector, got -1 in a file of 8 bytes"),
    (".fvecs", struct.pack("<i", 2**31 - 1) + bytes(60), "must be a multiple of 8589934592 bytes .*, got 64"),
    (".fvecs", vecs(X[:3]) + vecs(X[:, :2]) * 2, "must have vectors of length 5, row 3 has length 2"),
    (".bvecs", b"\2\0\0\0ab" * 5 + b"\2\1\0\0ab", "must have vectors of length 2, row 5 has length 258"),
    (".bvecs", b"\2\0\0\0ab" + b"\2\0\0\x80ab", "must have vectors of length 2, row 1 has length -2147483646"),
    (".fbin", binary(X)[:7], "must start with 8 bytes of header, got 7 bytes"),
    (".fbin", binary(X)[:8], "must have 148 bytes for 7 vectors of length 5, got 8"),
    (".fbin", binary(X)[:-1], "must have 148 bytes for 7 vectors of length 5, got 147"),
    (".fbin", binary(X) + b"\0", "must have 148 bytes for 7 vectors of length 5, got 149"),
    (".u8bin", binary(X), "must have 43 bytes for 7 vectors of length 5, got 148"),
    (".ibin", struct.pack("<II", 0, 5), r"must hold 1 or more vectors of length 1 to .*, got shape \(0, 5\)"),
    (".fbin", struct.pack("<II", 7, 0), r"must hold 1 or more vectors .*, got shape \(7, 0\)"),
    (".fbin", struct.pack("<ii", 7, -1), r"must hold 1 or more vectors .*, got shape \(7, 4294967295\)"),
    (".fbin", struct.pack("<ii", -1, 2**31 - 1), r"must have 368\d{17} bytes .*, got 8"),
    (".npy", vecs(X), NOT_NPY + "the magic string is not correct"),
    (".npy", b"\x93NUM", NOT_NPY + "EOF"),
    (".npy", npz(x=X), NOT_NPY + "the magic string is not correct"),
    (".npy", npy(X)[:100], NOT_NPY + "EOF"),
    (".npy", npy(X)[:-1], r"must have 268 bytes for its header and shape \(7, 5\), got 267"),
    (".npy", npy(X) + npy(X), r"must have 268 bytes for its header and shape \(7, 5\), got 536"),
    (".npy", npy(np.array([[1, None]])), "must hold numbers, got pickled objects"),
    (".npy", npy(X * 1j), "must hold real numbers, got dtype complex64"),
    (".npy", npy([["a", "b"]]), "must hold real numbers, got dtype <U1"),
    (".npy", npy(np.zeros(3, "f4,i4")), "must hold real numbers, got dtype .*f0"),
    (".npy", npy(np.zeros((2, 2), "M8[s]")), "must hold real numbers, got dtype datetime64"),
    (".npy", npy(X[np.newaxis]), r"must have shape \(n, dim\) or \(dim,\), got 3 axes"),
    (".npy", npy(3.0), r"must have shape \(n, dim\) or \(dim,\), got \(\)"),
    (".npy", npy(X[:0]), r"must hold 1 or more vectors .*, got shape \(0, 5\)"),
    (".npy", npy(X[:, :0]), r"must hold 1 or more vectors .*, got shape \(7, 0\)"),
    (".npy", npy(X[0, :0]), r"must hold 1 or more vectors .*, got shape \(1, 0\)"),
    (".npy", npy_with(BIG % "2**40, 5"), NOT_NPY),
    (".npy", npy_with(BIG % "1_000_000_000_000, 5"), r"must have 20000000000\d\d\d bytes .*, got \d\d$"),
    (".npy", npy_with(BIG % "-7, -5", X.tobytes()), r"must have axes of 0 to 2\*\*63 - 1, got others in its header"),
    (".npy", npy_with(BIG % ("0x" + "f" * 9_000 + ", 1")), "must have axes of 0 to .*, got others"),
    (".npy", npy_with(BIG % ("-" * 9_000 + "1,")), NOT_NPY + "nested too deep"),
    (".npy", npy_with(BIG % ("1, " * 5_000)), NOT_NPY + "Header info length .* is large"),
    (".npy", npy_with(BIG % "7, 5", X.tobytes(), b"\7\0"), NOT_NPY + r"version \(7, 0\)"),
    (".npy", b"\x93NUMPY\2\0\xff\xff\xff\xff{", NOT_NPY + "EOF: reading array header, expected 4294967295 bytes got 1"),
    (".npy", npy_with("{'descr': [], 'fortran_order': 0}"), NOT_NPY + "Header does not contain the correct keys"),
    (".npy", npy_with("7" + "\n" * 300), NOT_NPY + "Header is not a dictionary"),
    (".npz", npy(X), NOT_ZIP + "File is not a zip file"),
    (".npz", npz(x=X)[:-1], NOT_ZIP),
    (".npz", npz(), "must be opened with a key out of none, as it holds no arrays, got None"),
    (".npz", npz(base=X, queries=X), "must be opened with a key out of 'base', 'queries', got None"),
    (".npz", npz(x=X * 1j), r"\['x'\] must hold real numbers, got dtype complex64"),
    (".npz", npz(True, x=X * 1j), r"\['x'\] must hold real numbers, got dtype complex64"),
    (".npz", npz(x=X[np.newaxis]), r"\['x'\] must have shape \(n, dim\) or \(dim,\), got 3 axes"),
    (".npz", npz(True, x=X[:0]), r"\['x'\] must hold 1 or more vectors .*, got shape \(0, 5\)"),
    (".npz", npz(x=np.array([None])), r"\['x'\] must hold numbers, got pickled objects"),
    (".npz", npz(True, x=np.array([None])), r"\['x'\] must hold numbers, got pickled objects"),
    (".npz", npz(x=b"1 2 3"), r"\['x'\] must be in the format of numpy.save"),
    (".npz", npz(x=npy(X)[:-1]), r"\['x'\] must have 268 bytes .*, got 267"),
    (".npz", npz(True, x=npy(X)[:-1]), r"\['x'\] must have 268 bytes .*, got 267"),
    (".npz", npz(x=X).replace(X.tobytes(), X[::-1].tobytes()), r"\['x'\] must be readable: Bad CRC-32"),
    (".npz", npz(x=X).replace(b"PK\3\4", b"PK\3\5"), r"\['x'\] must be readable: Bad magic number"),
    (".npz", npz(**{"a\nb": X, "c" * 300: X}), r"must be opened with a key out of 'a\\nb', 'c{180,}\.\.\., got None"),
    (".npz", npz(**{"c" * 9_000: X[np.newaxis]}), r"\['c{180,}\.\.\.\] must have shape \(n, dim\) .*, got 3 axes"),
    (".npz", csr(format=npy_with("{'descr': '|S0', 'fortran_order': False, 'shape': (10_000_000_000_000,)}")),
        r"\['format'\] must hold numbers, got values of 0 bytes"),
    (".npz", csr(format=np.array(b"dia")), "must be sparse in format csr, csc or coo, got 'dia'"),
    (".npz", csr(format=np.array(3)), r"\['format'\] must hold text, got dtype int64"),
    (".npz", csr(format=np.array(b"\xff")), r"\['format'\] must be ASCII"),
    (".npz", csr(format=np.array(["csr"] * 200)), r"must be sparse in format csr, .*, got '(csr){65,}c?s?\.\.\.'"),
    (".npz", csr(shape=[7, 5, 1]), r"must have shape \(n, dim\) or \(dim,\), got 3 axes"),
    (".npz", csr(shape=[7.0, 5.0]), r"\['shape'\] must hold integers, got dtype float64"),
    (".npz", csr(shape=[0, 5], indptr=[0]), r"must hold 1 or more vectors .*, got shape \(0, 5\)"),
    (".npz", csr(shape=[-7, 5]), r"must hold 1 or more vectors .*, got shape \(-7, 5\)"),
    (".npz", csr(shape=[7, 2**31]), r"must hold 1 or more vectors .*, got shape \(7, 2147483648\)"),
    (".npz", csr(shape=[6, 5]), "must be a valid csr array: index pointer size"),
    (".npz", csr(shape=[10**12, 5]), "must be a valid csr array: index pointer size"),
    (".npz", csr(shape=[7, 4]), "must be a valid csr array: .* < 4"),
    (".npz", csr(indptr=None), "must have an array 'indptr' for its sparse format, got none"),
    (".npz", csr(indptr=[0] * 7 + [10**6]), "must be a valid csr array: "),
    (".npz", csr(indptr=[1] + [2] * 7), "must be a valid csr array: index pointer should start with 0"),
    (".npz", csr(indptr=[0, 3, 1, 3, 4, 5, 6, 7]), "must be a valid csr array: .*non-decreasing"),
    (".npz", csr(indptr=[0, 10**7, 0, 0, 0, 0, 0, 0]), "must be a valid csr array: .*non-decreasing"),
    (".npz", csr(indptr=np.int32([0, 2**31 - 1, -2**31, -1, 0, 0, 0, 0])), "a valid csr array: .*non-decreasing"),
    (".npz", csr(indptr=np.zeros((2, 4), int)), "must be a valid csr array: "),
    (".npz", csr(indptr=np.zeros(8)), r"\['indptr'\] must hold integers, got dtype float64"),
    (".npz", csr(indices=-np.sign(scipy.sparse.csr_array(S).data).astype(int)), "must be a valid csr array: .*>= 0"),
    (".npz", csr(indices=[0]), "must be a valid csr array: "),
    (".npz", csr(indices=np.uint64([2**63] * np.count_nonzero(S))), "must be a valid csr array: "),
    (".npz", csr(data=[1.0]), "must be a valid csr array: "),
    (".npz", csr(data=np.ones((2, 3))), "must be a valid csr array: "),
    (".npz", csr(data=np.array([None])), r"\['data'\] must hold numbers, got pickled objects"),
    (".npz", csr(data=scipy.sparse.csr_array(S).data * 1j), r"\['data'\] must hold real numbers, got dtype complex64"),
    (".npz", csr(data=npy(X[0])[:-1]), r"\['data'\] must have 148 bytes .*, got 147"),
    (".npz", csr(format=np.array(b"csc")), "must be a valid csc array: index pointer size"),
    (".npz", csr(format=np.array(b"csc"), shape=[4, 7]), "must be a valid csc array: .* < 4"),
    (".npz", csr(format=np.array(b"csc"), shape=[10**12, 7]), "must be in format csr to have 1000000000000 rows"),
    (".npz", coo(shape=[10**12, 5]), r"must be in format csr to have 1000000000000 rows for \d+ entries, got coo"),
    (".npz", coo(shape=[6, 5]), "must be a valid coo array: "),
    (".npz", coo(shape=[7, 4]), "must be a valid coo array: "),
    (".npz", coo(row=-np.ones(np.count_nonzero(S), int)), "must be a valid coo array: negative"),
    (".npz", coo(row=[0]), "must be a valid coo array: "),
    (".npz", coo(row=None), "must have an array 'row' for its sparse format, got none"),
    (".npz", coo(col=np.ones(np.count_nonzero(S))), r"\['col'\] must hold integers, got dtype float64"),
    (".npz", coo(coords=np.zeros((3, 2), int)), r"\['coords'\] must have shape \(2, n\), got \(3, 2\)"),
    (".npz", coo(coords=np.zeros((10**9, 0), int)), r"\['coords'\] must have shape \(2, n\), got \(1000000000, 0\)"),
]
# fmt: on


@pytest.mark.parametrize(
    ("suffix", "content", "message"), DAMAGED, ids=[f"{row[0]}-{number}" for number, row in enumerate(DAMAGED)]
)
def test_damage(suffix, content, message, tmp_path):
    path = write(tmp_path, suffix, content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{message}") as caught:
            open_vectors(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))
    # Files are small, sizes that they claim are not: what is allocated goes by the files (and a first import of scipy).
    assert peak < 2**26


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_missing_or_no_file(suffix, tmp_path):
    with pytest.raises(ValueError, match=f"vectors{suffix} must hold vectors, got an empty file"):
        open_vectors(write(tmp_path, suffix, b""))
    with pytest.raises(FileNotFoundError):
        open_vectors(tmp_path / f"missing{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(IsADirectoryError):
        open_vectors(tmp_path / f"folder{suffix}")


@pytest.mark.parametrize("name", ["vectors.txt", "vectors", ".npy", "vectors.npy.gz"])
def test_unknown_suffix(name, tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of \.npy, \.npz, \.fvecs, .*, \.ipc, got '(\.txt|\.gz|)'"):
        open_vectors(tmp_path / name)


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        (".npy", npy(X), "holds one array, so key must be None, got 'base'"),
        (".fbin", binary(X), "holds one array, so key must be None, got 'base'"),
        (".npz", csr(), "holds one sparse array, so key must be None, got 'base'"),
        (".npz", npz(x=X), "must be opened with a key out of 'x', got 'base'"),
        (".npz", npz(x=X, y=X), "must be opened with a key out of 'x', 'y', got 'base'"),
    ],
)
def test_wrong_key(suffix, content, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        open_vectors(write(tmp_path, suffix, content), "base")


@pytest.mark.parametrize("n_bytes", [1, 24, 50, 100])
def test_lengths_are_compared_in_blocks(n_bytes, tmp_path):
    with tuned(length_check_bytes=n_bytes):
        check_blocks(open_vectors(write(tmp_path, ".fvecs", vecs(X))), X)
        for row in range(1, 7):
            damaged = bytearray(vecs(X))
            damaged[24 * row] = 6
            with pytest.raises(ValueError, match=f"must have vectors of length 5, row {row} has length 6"):
                open_vectors(write(tmp_path, ".fvecs", damaged))


def test_member_that_ends_behind_the_file(tmp_path):
    """The directory of an archive says that a stored array goes on where there are no more bytes."""
    header = npy_with(BIG % "1_000_000,")
    member = header + bytes(100_000)
    content = npz(x=member)
    real, claimed = ([len(header) + n_bytes] * 2 for n_bytes in (100_000, 4_000_000))
    assert content.count(struct.pack("<II", *real)) == 2
    content = content.replace(struct.pack("<II", *real), struct.pack("<II", *claimed))
    # Newer versions of zipfile notice it first: overlapped entries.
    with pytest.raises(ValueError, match=rf"\['x'\] must (be readable: Over|end within {len(content)} bytes)"):
        open_vectors(write(tmp_path, ".npz", content))


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(".npy", npy(X)), (".fbin", binary(X)), (".npz", npz(x=X)), (".npz", npz(True, x=X)), (".npz", csr())],
)
def test_every_truncation(suffix, content, tmp_path):
    for size in range(len(content)):
        with pytest.raises(ValueError, match="must"):
            open_vectors(write(tmp_path, suffix, content[:size]))


@pytest.mark.parametrize(
    ("suffix", "content"),
    [(".npy", npy(X)), (".npz", npz(x=X)), (".npz", npz(True, x=X))],
    ids=["npy", "npz-stored", "npz-compressed"],
)
def test_every_byte_changed(suffix, content, tmp_path):
    """Refused, or opened as an array that lies within the file; never another error, nor a crash."""
    for place, change in itertools.product(range(len(content)), (1, 0x80, 0xFF)):
        damaged = bytearray(content)
        damaged[place] ^= change
        try:
            rows = open_vectors(write(tmp_path, suffix, damaged))
        except ValueError as error:
            message = str(error)
            assert message.startswith(str(tmp_path))
            assert "\n" not in message
        else:
            assert len(rows.tobytes()) <= X.nbytes


def test_failing_disk(tmp_path, monkeypatch):
    """An OSError passes, also out of the middle of an archive."""

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    for content in (npz(x=X), npz(True, x=X), csr()):
        with pytest.raises(OSError, match="Input/output error"):
            open_vectors(write(tmp_path, ".npz", content))


class TestExpansion:
    """What a few compressed bytes become must fit memory."""

    def test_zeros_of_moderate_size(self, tmp_path):
        zeros = np.zeros((3000, 1000), dtype=np.float32)
        np.savez_compressed(tmp_path / "zeros.npz", zeros)
        np.testing.assert_array_equal(open_vectors(tmp_path / "zeros.npz"), zeros)

    def test_a_thousand_times(self, tmp_path):
        path = tmp_path / "zeros.npz"
        np.savez_compressed(path, np.zeros((3000, 1000), dtype=np.float32))
        message = r"must not expand by more than 1000 times, .*; save it without"
        with tuned(free_expansion_bytes=2**20), pytest.raises(ValueError, match=message):
            open_vectors(path)
        np.savez(path, np.zeros((3000, 1000), dtype=np.float32))  # as the message says
        assert open_vectors(path).shape == (3000, 1000)

    @pytest.mark.parametrize("is_sparse", [False, True])
    def test_more_than_memory(self, tmp_path, monkeypatch, is_sparse):
        """Also where the parts of a sparse array fit one by one; and it is found before they are read."""
        path, rows = tmp_path / "rows.npz", np.random.default_rng(0).standard_normal((30, 40))
        if is_sparse:
            scipy.sparse.save_npz(path, scipy.sparse.csr_array(rows))
        else:
            np.savez_compressed(path, rows)
        monkeypatch.setattr(npzfiles, "memory_bytes", lambda: 2 * 12_000)
        with zipfile.ZipFile(path) as archive:
            sizes = [info.file_size for info in archive.infolist()]
        assert is_sparse == (max(sizes) < 12_000 < sum(sizes))
        if not is_sparse:
            monkeypatch.setattr(npzfiles, "memory_bytes", lambda: 2 * 5_000)
        with pytest.raises(ValueError, match=r"must fit half of the memory, got \d+ bytes; save it"):
            open_vectors(path)

    def test_a_lack_of_memory_is_no_fault_of_the_file(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "rows.npz", np.ones((3, 4)))

        def fail(*args):
            raise MemoryError

        monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
        with pytest.raises(MemoryError):
            open_vectors(tmp_path / "rows.npz")
