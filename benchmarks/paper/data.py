"""Vectors for the paper's experiments: labelled, with training rows, in full length and in fewer dimensions."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import datasets, sources, truth
from benchmarks.datasets import Dataset

# As in the paper.
N_TRAIN, N_QUERIES, LOW_DIM = 10_000, 500, 2_048
# Rows of a set that are searched: a full matrix takes three minutes for this many.
N_ROWS = 12_000
# The same for a quick run.
QUICK_TRAIN, QUICK_QUERIES, QUICK_ROWS, QUICK_DIM, QUICK_LOW_DIM = 1_000, 100, 2_000, 2_048, 256


@dataclass
class Material:
    """A set as the experiments need it.

    Attributes
    ----------
    data : Dataset
        With true neighbours.
    labels, query_labels : int arrays, or None
        Classes of rows and queries.
    train_rows : int array
        Rows that encoders are trained on, ascending.
    full_dim : int
        Dimensions before some were taken.
    """

    data: Dataset
    labels: NDArray[np.int64] | None
    query_labels: NDArray[np.int64] | None
    train_rows: NDArray[np.int64]
    full_dim: int

    @property
    def train(self) -> Any:
        """The vectors that encoders are trained on."""
        return self.data.base[self.train_rows]

    @cached_property
    def near_pairs(self) -> NDArray[np.int64]:
        """Pairs of a query and a true neighbour, see `datasets.near_pairs`: the same for all codes of the set."""
        return datasets.near_pairs(self.data, truth.N_TRUE)


def long_sets() -> list[str]:
    """Name the sets of long vectors: real ones where they are there."""
    real: list[str] = [name for name in ("fashion-vlad-25600", "debian-desc-25600") if name in datasets.available()]
    return real or ["docstrings"]


def short_sets() -> list[str]:
    """Name the sets for few dimensions: with pixels, which are not negative, as one of the methods asks for."""
    return [*long_sets(), *(name for name in ("fashion-mnist-784",) if name in datasets.available())]


def labelled_sets() -> list[str]:
    """Name the sets of long vectors that have labels: a made-up one where the real ones are not there."""
    return [name for name in long_sets() if name != "docstrings"] or ["clusters"]


@cache
def material(name: str, quick: bool, dim: int | None = None) -> Material:
    """Open a set, cut to the size of a run and to at most `dim` dimensions."""
    n_rows, n_train, n_queries = sizes(quick)
    opened, labels, query_labels = _opened(name, n_rows, n_queries)
    base, queries = opened.base[:n_rows], opened.queries[:n_queries]
    dim = min(opened.dim, dim or opened.dim, QUICK_DIM if quick else opened.dim)
    if dim < opened.dim:
        shorten = _shortener(opened.dim, dim, is_sparse=hasattr(base, "toarray"))
        base, queries = sources.unit(shorten(base)), sources.unit(shorten(queries))
    n = base.shape[0]
    return Material(
        truth.with_truth(Dataset(name, base, queries)),
        None if labels is None else labels[:n],
        None if query_labels is None else query_labels[:n_queries],
        np.sort(np.random.default_rng(0).permutation(n)[:n_train]),
        opened.dim,
    )


def sizes(quick: bool) -> tuple[int, int, int]:
    """Numbers of rows, training rows and queries of a run."""
    return (QUICK_ROWS, QUICK_TRAIN, QUICK_QUERIES) if quick else (N_ROWS, N_TRAIN, N_QUERIES)


def label(name: str, quick: bool) -> str:
    """Name a set and what a run takes of it, for a result that is kept."""
    return f"{name} ({' / '.join(map(str, sizes(quick)))})"


def facts(name: str, quick: bool, dim: int | None = None) -> dict[str, int]:
    """Sizes of a set as it is: kept with the results, which are shown without opening it."""
    found = material(name, quick, dim)
    return {
        "rows": found.data.base.shape[0],
        "train": len(found.train_rows),
        "queries": found.data.queries.shape[0],
        "dim": found.data.dim,
        "full_dim": found.full_dim,
        "is_sparse": int(hasattr(found.data.base, "toarray")),
    }


def note(of_set: dict[str, int]) -> str:
    """Say the sizes of a set, and how its vectors were made shorter, by its `facts`."""
    dim, full = of_set["dim"], of_set["full_dim"]
    text = f"{of_set['rows']:,} rows, {of_set['train']:,} of them for training, {of_set['queries']:,} queries."
    if dim == full:
        return text
    if of_set["is_sparse"]:
        return (
            f"{text} The {full:,} dimensions of the text are folded into {dim:,}, added up with random signs: a random "
            "choice of them would leave rows empty."
        )
    return f"{text} {dim:,} of the {full:,} dimensions, chosen at random."


@cache
def _opened(
    name: str, n_rows: int, n_queries: int
) -> tuple[Dataset, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Open a set with its labels; it may have more rows and queries."""
    if name == "clusters":
        return _clusters(n_rows, n_queries)
    if name == "docstrings":
        return sources.docstrings(n_rows), None, None
    opened = datasets.vlad(name, n_rows, n_queries) if name == "fashion-vlad-25600" else datasets.load(name)
    if name.startswith("fashion"):
        with np.load(datasets.SHARED / "fashion-mnist-784.npz") as arrays:
            return opened, arrays["base_labels"].astype(np.int64), arrays["query_labels"].astype(np.int64)
    with gzip.open(datasets.SHARED / f"{name}.names.txt.gz", "rt") as lines:
        sections = [line.rstrip("\n").split("\t")[2] for line in lines]
    numbers = np.unique(sections, return_inverse=True)[1]
    return opened, numbers[: opened.base.shape[0]], numbers[opened.base.shape[0] :]


def _clusters(n_rows: int, n_queries: int) -> tuple[Dataset, NDArray[np.int64], NDArray[np.int64]]:
    """Make ten overlapping classes: points of 32 dimensions, bent into 4,096."""
    rng = np.random.default_rng(0)
    labels = rng.integers(10, size=n_rows + n_queries)
    points = rng.standard_normal((10, 32))[labels] + 1.5 * rng.standard_normal((len(labels), 32))
    rows = sources.unit(np.tanh(points @ rng.standard_normal((32, 4_096)) / 4).astype(np.float32))
    return Dataset("clusters", rows[:n_rows], rows[n_rows:]), labels[:n_rows], labels[n_rows:]


def _shortener(dim: int, n_columns: int, *, is_sparse: bool) -> Callable[[Any], Any]:
    """Return a function that takes `n_columns` columns at random.

    Sparse rows would keep two or three values. Their columns are added up instead, with random signs, into
    `n_columns` bins, which is feature hashing.
    """
    rng = np.random.default_rng(0)
    if not is_sparse:
        columns = np.sort(rng.choice(dim, n_columns, replace=False))
        return lambda rows: np.ascontiguousarray(rows[:, columns])
    from scipy import sparse

    signs = rng.choice(np.array([-1, 1], dtype=np.float32), dim)
    folding = sparse.csr_array((signs, (np.arange(dim), rng.integers(n_columns, size=dim))), shape=(dim, n_columns))
    return lambda rows: sparse.csr_array(rows @ folding)
