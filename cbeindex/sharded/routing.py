"""Which shard an id belongs to: a hash that is the same in every process, release and machine."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Rows

ROUTING = "splitmix64"
"""Name of the hash in manifests: splitmix64 of integers, BLAKE2b of the UTF-8 bytes of strings, modulo the shards."""


def shard_of(ids: Any, n_shards: int) -> Rows:
    """Return the shard of each id.

    Parameters
    ----------
    ids : int64 array, or a sequence of str, of shape (n,)
    n_shards : int

    Returns
    -------
    int64 array of shape (n,)

    Examples
    --------
    >>> shard_of(np.arange(6), 4)
    array([3, 1, 2, 1, 2, 2])
    >>> shard_of(["a", "b", "c"], 4)
    array([0, 0, 3])
    """
    array = np.asarray(ids)
    hashes = _mixed(array.astype(np.int64).view(np.uint64)) if array.dtype.kind in "iu" else _hashed(ids)
    return (hashes % np.uint64(n_shards)).astype(np.int64)


def rows_by_shard(ids: Any, n_shards: int) -> dict[int, Rows]:
    """Return the positions of the ids of each shard that has any, in ascending order."""
    shards = shard_of(ids, n_shards)
    order = np.argsort(shards, kind="stable")
    bounds = np.searchsorted(shards[order], np.arange(n_shards + 1))
    return {
        number: order[bounds[number] : bounds[number + 1]]
        for number in range(n_shards)
        if bounds[number] < bounds[number + 1]
    }


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of integers by the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _hashed(texts: Any) -> NDArray[np.uint64]:
    """Return 64 bits of a hash of each string."""
    digests = b"".join(blake2b(str(text).encode(errors="surrogatepass"), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)
