"""Sets by name or by file, with true neighbours: made-up ones, real ones that need no download, files of any format."""

from __future__ import annotations

import importlib.util
import json
import os
import sysconfig
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import datasets, truth
from benchmarks.datasets import Dataset

METRICS = ("cosine", "l2")
"""Metrics that sets have. Rows of a cosine set have norm 1, so that squared Euclidean distances serve both."""

# Queries that are held out where a file has none.
_HELD_OUT = 1_000


def names() -> list[str]:
    """Name the sets that `open_set` can make or find here."""
    made = ["docstrings", "synthetic"]
    return [*made, *(["wordllama"] if importlib.util.find_spec("wordllama") else []), *datasets.available()]


def check(name: str) -> None:
    """Raise ValueError if there is no such set and no such file."""
    if name not in names() and not os.path.isfile(name):
        if Path(name).suffix or os.sep in name:
            raise ValueError(f"there is no file {name}")
        raise ValueError(f"there is no set {name!r}: the sets are {', '.join(names())}; or give the path of a file")


def open_set(
    name: str,
    *,
    metric: str | None = None,
    n_rows: int | None = None,
    n_queries: int = 1_000,
    tell: Callable[[str], object] = lambda text: None,
) -> Dataset:
    """Open a set by its name or by the path of its file, with true neighbours: given, cached, or computed now.

    Parameters
    ----------
    name : str
        One of `names()`, or a path.
    metric : {"cosine", "l2"}, optional
        By default that of the set; cosine where it says none.
    n_rows, n_queries : int
        Rows and queries to take at most.
    tell : callable
        Is told what is going on.

    Raises
    ------
    ValueError, OSError
        There is no such set, or its file is malformed; the message has one line.
    """
    check(name)
    tell(f"{name}: reading")
    if name == "synthetic":
        data = synthetic(n_rows or 50_000, n_queries=n_queries)
    elif name == "docstrings":
        data = docstrings(n_rows or 50_000, tell=tell)
    elif name == "wordllama":
        data = wordllama()
    elif name in datasets.available():
        data = datasets.load(name)
    else:
        data = read(name, metric, n_rows)
    if n_rows is not None and n_rows < data.base.shape[0]:
        data = replace(data, base=data.base[:n_rows], truth=None)
    if metric is not None and metric != data.metric:
        if metric != "cosine":
            raise ValueError(f"{name} is a set for {data.metric}, not for {metric}")
        data = replace(data, base=unit(data.base), queries=unit(data.queries), truth=None, metric=metric)
    n_queries = min(n_queries, data.queries.shape[0])
    data = replace(data, queries=data.queries[:n_queries], truth=None if data.truth is None else data.truth[:n_queries])
    return truth.with_truth(data, tell)


def synthetic(
    n: int, dim: int = 384, n_queries: int = 1_000, *, angles: tuple[float, ...] = (60, 50, 40), seed: int = 0
) -> Dataset:
    """Clusters of clusters of rows: each level lies around those of the level above, at about the angle given.

    Single angles are spread evenly from half to one and a half times that of their level. A row, and a query alike,
    has about 16 siblings, and each cluster about 16 clusters in it. The ten nearest of a query are then at 45 to 60
    degrees, some of them in other clusters.
    """
    rng = np.random.default_rng(seed)
    n_all = n + n_queries
    n_groups = [max(1, n_all // 16**level) for level in range(len(angles) - 1, 0, -1)]
    points = unit(rng.standard_normal((1, dim), dtype=np.float32))
    for count, angle in zip([*n_groups, n_all], angles, strict=True):
        around = points[rng.integers(len(points), size=count)]
        away = rng.standard_normal((count, dim), dtype=np.float32)
        away = unit(away - (away * around).sum(axis=1, keepdims=True) * around)
        spread = np.radians(angle * rng.uniform(0.5, 1.5, (count, 1))).astype(np.float32)
        points = np.cos(spread) * around + np.sin(spread) * away
    points = unit(points)
    return Dataset("synthetic", points[n_queries:], points[:n_queries])


def docstrings(n: int, *, tell: Callable[[str], object] = lambda text: None) -> Dataset:
    """Docstrings of the functions of the installed packages as hashed n-grams: 25,600 dimensions, sparse."""
    from scipy import sparse

    from examples import docstrings as example

    installed = sorted(f"{one.name}=={one.version}" for one in metadata.distributions())
    path = truth.CACHE / f"docstrings-{truth.digest(str(n), *installed)}.npz"
    rows = truth.read_cached(path, sparse.load_npz)
    if rows is None:
        texts: dict[str, None] = {}
        with warnings.catch_warnings(action="ignore"):  # about how others write their strings
            for _, text in example.read_docstrings([Path(sysconfig.get_paths()["purelib"])]):
                texts.setdefault(text)
                if len(texts) % 500 == 0:
                    tell(f"docstrings: {len(texts):,} read")
                if len(texts) >= n + _HELD_OUT:
                    break
        rows = example.vectors(list(texts))
        rows = sparse.csr_array(rows @ sparse.diags_array(example.weigh(rows)), dtype=np.float32)
        rows = rows[np.flatnonzero(np.diff(rows.indptr))]
        truth.write_cached(path, lambda file: sparse.save_npz(file, rows))
    return _held_out("docstrings", unit(sparse.csr_array(rows)))


def wordllama() -> Dataset:
    """Embeddings of 32,000 tokens from the package of that name (MIT): 256 dimensions. Nothing of it is imported."""
    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError("the set wordllama needs the package: pip install --no-deps wordllama")
    path = Path(spec.submodule_search_locations[0]) / "weights" / "l2_supercat_256.safetensors"
    # https://github.com/huggingface/safetensors: length of the header, header, values.
    with path.open("rb") as file:
        n_bytes = int.from_bytes(file.read(8), "little")
        (tensor,) = (value for key, value in json.loads(file.read(n_bytes)).items() if key != "__metadata__")
    dtype = {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]]
    values = np.memmap(path, dtype, "r", 8 + n_bytes + tensor["data_offsets"][0], tuple(tensor["shape"]))
    return _held_out("wordllama", unit(np.asarray(values, dtype=np.float32)))


def read(path: str, metric: str | None = None, n_rows: int | None = None) -> Dataset:
    """Read a set from a file, in any format of `cbeindex.data.vectorfiles`, or from HDF5 in the form of ann-benchmarks.

    Queries are the array `queries` of an archive; or the file that has `query` or `queries` where the name of this one
    has `base`; or rows held out. True neighbours are the array `truth` of an archive, or the file that has
    `groundtruth` there. Of more than `n_rows` rows, only these and some to hold out are read and converted.
    """
    if Path(path).suffix.lower() in (".hdf5", ".h5"):
        base, queries, given, of_file = _read_hdf5(path, n_rows)
        given = given if metric in (None, of_file) else None
        metric = metric or of_file
    else:
        base, queries, given = _read_vectors(path)
        metric = metric or "cosine"
    name = Path(path).stem
    if n_rows is not None and base.ndim == 2:
        most = n_rows if queries is not None else n_rows + _HELD_OUT
        given = given if base.shape[0] <= most else None  # of all rows
        base = base[:most]
    base = _as_floats(base, path)
    if queries is not None:
        queries = _as_floats(queries, f"queries of {path}")
        if queries.shape[1] != base.shape[1]:
            raise ValueError(f"queries of {path} must have {base.shape[1]} dimensions, got {queries.shape[1]}")
    if metric == "cosine":
        sizes = base.shape[0], 0 if queries is None else queries.shape[0]
        base, queries = _directions(base), None if queries is None else _directions(queries)
        if sizes != (base.shape[0], 0 if queries is None else queries.shape[0]):
            given = None  # rows have other numbers now
    if queries is None:
        return _held_out(name, base, metric)
    if given is not None:
        given = np.asarray(given)
        if given.ndim != 2 or len(given) != queries.shape[0] or given.dtype.kind not in "iu":
            wanted = f"integers of shape ({queries.shape[0]}, n)"
            raise ValueError(f"true neighbours of {path} must be {wanted}, got {given.dtype} {given.shape}")
        given = given.astype(np.int64)
    return Dataset(name, base, queries, given, metric)


def _read_vectors(path: str) -> tuple[Any, Any, Any]:
    """Read base, queries and true neighbours; what is not there is None."""
    from cbeindex.data.vectorfiles import open_vectors

    if path.lower().endswith(".npz"):
        try:
            with zipfile.ZipFile(path) as archive:
                keys = {name.removesuffix(".npy") for name in archive.namelist()}
        except zipfile.BadZipFile:
            keys = set()  # what is wrong with it is said below
        if "base" in keys:
            others = (open_vectors(path, key) if key in keys else None for key in ("queries", "truth"))
            return open_vectors(path, "base"), *others
    return open_vectors(path), *(_companion(path, words) for words in (("queries", "query"), ("groundtruth", "gt")))


def _companion(path: str, words: tuple[str, ...]) -> Any:
    """Open the file whose name has one of the words where this one has "base"."""
    from cbeindex.data.vectorfiles import SUFFIXES, open_vectors

    file = Path(path)
    head, found, tail = file.name.rpartition("base")
    if not found:
        return None
    stem = tail[: len(tail) - len(file.suffix)]
    for word in words:
        for suffix in dict.fromkeys([file.suffix, *SUFFIXES]):
            other = file.with_name(f"{head}{word}{stem}{suffix}")
            # Archives may hold anything, so only the one that the vectors are in is taken for them.
            if other.exists() and (suffix != ".npz" or (file.suffix == ".npz" and word in ("queries", "query"))):
                return open_vectors(other)
    return None


def _read_hdf5(path: str, n_rows: int | None) -> tuple[Any, Any, Any, str]:
    """Read train, test, neighbors and the metric, as ann-benchmarks names them; of train, `n_rows` at most."""
    try:
        import h5py
    except ImportError:
        raise ValueError(f"reading {path} needs h5py: pip install h5py") from None
    try:
        with h5py.File(path, "r") as file:
            distance = file.attrs.get("distance", "angular")
            distance = distance.decode() if isinstance(distance, bytes) else str(distance)
            missing = [key for key in ("train", "test") if not isinstance(file.get(key), h5py.Dataset)]
            arrays = []
            if not missing:
                train = file["train"]
                is_cut = n_rows is not None and train.ndim == 2 and n_rows < len(train)
                arrays = [train[:n_rows] if is_cut else train[()], file["test"][()]]
                if "neighbors" in file and not is_cut:  # which are those of all rows
                    arrays.append(file["neighbors"][()])
    except (OSError, KeyError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None and not os.access(path, os.R_OK):
            raise
        raise ValueError(f"{path} must be HDF5: {' '.join(str(error).split())}") from None
    if missing:
        raise ValueError(f"{path} must have the arrays train and test, got no {' and no '.join(missing)}")
    metrics = {"angular": "cosine", "cosine": "cosine", "euclidean": "l2"}
    if distance not in metrics:
        raise ValueError(f"{path} must be a set for angular or euclidean distance, got {distance!r}")
    return arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, metrics[distance]


def _as_floats(rows: Any, name: str) -> Any:
    """Return rows as float32, C order or CSR, all finite."""
    if getattr(rows, "ndim", 0) != 2 or rows.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers of shape (n, dim), got {rows.dtype} {rows.shape}")
    if hasattr(rows, "tocsr"):
        rows = rows.tocsr().astype(np.float32)
        finite = bool(np.isfinite(rows.data).all())
    else:
        rows = np.ascontiguousarray(rows, dtype=np.float32)
        finite = bool(np.isfinite(rows).all())
    if not finite:
        raise ValueError(f"{name} must be finite, and some values are not")
    return rows


def _held_out(name: str, rows: Any, metric: str = "cosine") -> Dataset:
    """Make queries of some rows, at most one in ten, chosen at random."""
    n = rows.shape[0]
    if n < 2:
        raise ValueError(f"{name} must have 2 or more rows to hold some out as queries, got {n}")
    order = np.random.default_rng(0).permutation(n)
    n_out = min(_HELD_OUT, max(1, n // 10))
    return Dataset(name, rows[np.sort(order[n_out:])], rows[np.sort(order[:n_out])], metric=metric)


def _directions(rows: Any) -> Any:
    """Rows of norm 1, without rows of zeros, which have no direction."""
    is_zero = truth.squared_norms(rows) == 0
    return unit(rows[~is_zero] if is_zero.any() else rows)


def unit(rows: Any) -> Any:
    """Rows of norm 1, dense or sparse; zero rows stay."""
    norms = np.sqrt(truth.squared_norms(rows))
    if not hasattr(rows, "toarray"):
        return rows / np.where(norms == 0, 1, norms)[:, np.newaxis]
    from scipy import sparse

    return sparse.csr_array(sparse.diags_array(1 / np.where(norms == 0, 1, norms)) @ rows, dtype=np.float32)
