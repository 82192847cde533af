"""faiss indexes to cbeindex and back, with their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.extras import needs_extra
from .._core.typing import Ids
from ..binary import BinaryIndex
from ..data.codes import n_bytes
from ..data.source import is_sparse
from ..index import CBEIndex
from .ids import integer_ids

# Bytes of rows that are copied to faiss at a time.
_BLOCK_BYTES = 2**26
# Rows that a faiss index is trained on: 256 for each of 256 lists, as many as its k-means uses.
_TRAINING_ROWS = 65_536


def from_faiss(index: Any, **options: Any) -> BinaryIndex | CBEIndex:
    """Make an index of the rows of a faiss index. Ids are kept, and distances are those of faiss.

    Parameters
    ----------
    index : faiss index
        `IndexBinaryFlat` and `IndexBinaryIVF` become a `BinaryIndex` with the same Hamming distances. `IndexFlat` and
        `IndexIVFFlat` become a `CBEIndex` of metric "l2" or "ip", whose exact distances are those of faiss up to
        rounding (1 - inner product for "ip"). All of them may be wrapped in an `IDMap` or `IDMap2`.
    **options
        Arguments of the index that is made, for example `buckets="cells"`. By default a `CBEIndex` keeps float32
        vectors.

    Returns
    -------
    BinaryIndex or CBEIndex

    Examples
    --------
    >>> import faiss, numpy as np
    >>> codes = np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8)
    >>> flat = faiss.IndexBinaryFlat(64)
    >>> flat.add(codes)
    >>> from_faiss(flat)
    BinaryIndex(n_bits=64): 100 codes
    """
    faiss = _faiss()
    if isinstance(index, faiss.IndexBinary):
        binary = BinaryIndex(index.d, **options)
        ids, codes = _binary_rows(faiss, index)
        binary.add(codes, _checked(ids))
        return binary
    if not isinstance(index, faiss.Index):
        raise TypeError(f"index must be a faiss index, got {type(index).__name__}")
    ids, rows = _vector_rows(faiss, index)
    vectors = CBEIndex(index.d, **{"metric": _metric_of(faiss, index), "vectors": "float32", "buckets": None} | options)
    vectors.add(rows, _checked(ids))
    return vectors


def to_faiss(index: BinaryIndex | CBEIndex, into: Any = None) -> Any:
    """Copy the rows of an index, with their ids, to a faiss index.

    Parameters
    ----------
    index : BinaryIndex or CBEIndex
        A `CBEIndex` must keep vectors, of metric "l2" or "ip", unless `into` takes codes. Vectors are those that `get`
        returns.
    into : faiss index, optional
        An empty index to fill, which is trained first if it needs training. By default an `IndexBinaryIDMap2` of an
        `IndexBinaryFlat` for a `BinaryIndex`, and an `IndexIDMap2` of an `IndexFlat` for a `CBEIndex`. A binary index
        gets the Hamming codes of a `CBEIndex`. Indexes that have no ids, such as `IndexFlat`, take the ids 0, 1, 2, ...
        only.

    Returns
    -------
    faiss index
        `into`, or the new index. faiss codes have whole bytes: `d` is `n_bits` rounded up, and the spare bits are 0.

    Examples
    --------
    >>> import numpy as np
    >>> index = BinaryIndex(64)
    >>> ids = index.add(np.arange(80, dtype=np.uint8).reshape(10, 8), ids=np.arange(10) + 100)
    >>> distances, ids = to_faiss(index).search(index.get([104]), 1)
    >>> ids
    array([[104]])
    """
    faiss = _faiss()
    if not isinstance(index, BinaryIndex | CBEIndex):
        raise TypeError(f"index must be a BinaryIndex or a CBEIndex, got {type(index).__name__}")
    target = _default_target(faiss, index) if into is None else into
    takes_codes = isinstance(target, faiss.IndexBinary)
    _check_target(faiss, index, target, takes_codes)
    ids = integer_ids(index, "a faiss index")
    has_ids = isinstance(target, (faiss.IndexBinaryIDMap, faiss.IndexBinaryIVF, faiss.IndexIDMap, faiss.IndexIVF))
    if not has_ids and not np.array_equal(ids, np.arange(len(ids))):
        kind = type(target).__name__
        raise ValueError(f"into must have ids, and {kind} numbers its rows from 0 on: wrap it in an IDMap")
    if not target.is_trained:
        sample = ids[np.linspace(0, len(ids) - 1, min(len(ids), _TRAINING_ROWS)).astype(np.int64)]
        target.train(_rows_of(index, sample, takes_codes))
    step = max(1, _BLOCK_BYTES // (target.d // 8 if takes_codes else 4 * target.d))
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        rows = _rows_of(index, some, takes_codes)
        if has_ids:
            target.add_with_ids(rows, some)
        else:
            target.add(rows)
    return target


def _faiss() -> Any:
    with needs_extra("faiss"):
        import faiss
    return faiss


def _binary_rows(faiss: Any, index: Any) -> tuple[Ids, NDArray[np.uint8]]:
    """Return the ids and codes of a binary faiss index."""
    index = faiss.downcast_IndexBinary(index)
    if isinstance(index, faiss.IndexBinaryIDMap):
        places, codes = _binary_rows(faiss, index.index)
        return faiss.vector_to_array(index.id_map)[places], codes
    if isinstance(index, faiss.IndexBinaryFlat):
        return np.arange(index.ntotal), faiss.vector_to_array(index.xb).reshape(-1, index.d // 8)
    if isinstance(index, faiss.IndexBinaryIVF):
        return _list_rows(faiss, index)
    kinds = "IndexBinaryFlat or IndexBinaryIVF, or an IDMap of one"
    raise TypeError(f"index must be an {kinds}, got {type(index).__name__}")


def _vector_rows(faiss: Any, index: Any) -> tuple[Ids, NDArray[np.float32]]:
    """Return the ids and vectors of a faiss index that stores vectors as they are."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIDMap):
        places, rows = _vector_rows(faiss, index.index)
        return faiss.vector_to_array(index.id_map)[places], rows
    if isinstance(index, faiss.IndexFlat):
        n_values = index.ntotal * index.d
        values = faiss.rev_swig_ptr(index.get_xb(), n_values) if n_values else np.empty(0, np.float32)
        return np.arange(index.ntotal), values.reshape(-1, index.d)
    if isinstance(index, faiss.IndexIVFFlat):
        ids, codes = _list_rows(faiss, index)
        return ids, codes.view(np.float32)
    kinds = "IndexFlat or IndexIVFFlat, or an IDMap of one"
    raise TypeError(f"index must be an {kinds}: others do not keep vectors as they are, got {type(index).__name__}")


def _list_rows(faiss: Any, index: Any) -> tuple[Ids, NDArray[np.uint8]]:
    """Return the ids and codes in the inverted lists of a faiss index, in the order of ids."""
    lists = index.invlists
    ids, codes = [np.empty(0, np.int64)], [np.empty((0, index.code_size), np.uint8)]
    for number in range(index.nlist):
        n_rows = lists.list_size(number)
        if n_rows:
            ids.append(faiss.rev_swig_ptr(lists.get_ids(number), n_rows))
            codes.append(faiss.rev_swig_ptr(lists.get_codes(number), n_rows * index.code_size).reshape(n_rows, -1))
    all_ids = np.concatenate(ids)
    order = np.argsort(all_ids, kind="stable")
    return all_ids[order], np.concatenate(codes)[order]


def _checked(ids: Ids) -> Ids:
    """Return the ids of a faiss index if an index can have them: faiss takes negative and repeated ids."""
    if ids.size and ids.min() < 0:
        raise ValueError(f"ids of the faiss index must be 0 or more, got {ids.min()}")
    distinct, counts = np.unique(ids, return_counts=True)
    if len(distinct) != len(ids):
        repeated = distinct[counts > 1]
        raise ValueError(f"ids of the faiss index must not repeat, {repeated[0]} and {len(repeated) - 1} others do")
    return ids


def _metric_of(faiss: Any, index: Any) -> str:
    """Return the metric of a faiss index of vectors."""
    metrics = {faiss.METRIC_L2: "l2", faiss.METRIC_INNER_PRODUCT: "ip"}
    if index.metric_type not in metrics:
        raise ValueError(f"metric_type must be METRIC_L2 or METRIC_INNER_PRODUCT, got number {index.metric_type}")
    return metrics[index.metric_type]


def _default_target(faiss: Any, index: BinaryIndex | CBEIndex) -> Any:
    """Return an empty faiss index for the rows of an index."""
    if isinstance(index, BinaryIndex):
        return faiss.IndexBinaryIDMap2(faiss.IndexBinaryFlat(8 * n_bytes(index.n_bits)))
    kind = faiss.IndexFlatL2 if index.metric == "l2" else faiss.IndexFlatIP
    return faiss.IndexIDMap2(kind(index.dim))


def _check_target(faiss: Any, index: BinaryIndex | CBEIndex, target: Any, takes_codes: bool) -> None:
    """Check that a faiss index is empty and can hold the rows of an index."""
    if not takes_codes and not isinstance(target, faiss.Index):
        raise TypeError(f"into must be a faiss index, got {type(target).__name__}")
    if not takes_codes and isinstance(index, BinaryIndex):
        raise TypeError(
            f"into must be a binary faiss index for the codes of a BinaryIndex, got {type(target).__name__}"
        )
    if target.ntotal:
        raise ValueError(f"into must be empty, got an index of {target.ntotal:,} rows")
    width = 8 * n_bytes(index.n_bits) if takes_codes or isinstance(index, BinaryIndex) else index.dim
    if target.d != width:
        raise ValueError(f"into must have d = {width}, got {target.d}")
    if takes_codes or isinstance(index, BinaryIndex):
        return
    if index.metric == "cosine":
        raise ValueError(
            'faiss has no cosine distance: add vectors of norm 1 to an index of metric="ip", and export that'
        )
    if _metric_of(faiss, target) != index.metric:
        raise ValueError(f"into must have metric {index.metric!r}, got {_metric_of(faiss, target)!r}")


def _rows_of(index: BinaryIndex | CBEIndex, ids: Ids, takes_codes: bool) -> NDArray[Any]:
    """Return the codes or vectors of `ids`."""
    if takes_codes:
        return index.get(ids) if isinstance(index, BinaryIndex) else index.codes(ids)
    rows = index.get(ids)
    if is_sparse(rows):
        raise ValueError("faiss takes dense vectors, and this index keeps sparse ones")
    return np.ascontiguousarray(rows)
