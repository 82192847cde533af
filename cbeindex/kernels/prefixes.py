"""Distances over the first words of all rows, which the cascade compares first.

Distances of the rows of block b from query q are `prefix[b * n_queries + q]`, int32 of shape (n_blocks * n_queries,
16). Hidden rows have a distance beyond all limits. `least`, uint16 of shape (n_queries, any multiple of 64), has the
least distance of each half of a block (see `blocks.py`), and the largest uint16 behind the last half.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .._core.typing import Codes, Distances, LeastDistances, Mask, Rows
from .blocks import planes_of, prefix_distances
from .jit import njit
from .popcount import popcount64
from .vectorcode import I16, VectorCode

up_to: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def up_to(least: Any, query: int, first: int, high: int) -> Any:
        """Tell which of 64 halves from `first` on have a least distance of at most `high`: that of half i in bit i."""
        return np.packbits(least[query, first : first + 64] <= high, bitorder="little").view("<u8")[0]

else:

    @intrinsic
    def up_to(typing_context: Any, least: Any, query: Any, first: Any, high: Any) -> Any:
        """Tell which of 64 halves from `first` on have a least distance of at most `high`: that of half i in bit i."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code, (least, query, first, high) = VectorCode(context, builder), arguments
            values = code.load(ir.VectorType(I16, 64), code.at(code.row(signature.args[0], least, query), first, 2))
            return code.bits(builder.icmp_unsigned("<=", values, code.splat(builder.trunc(high, I16), 64)))

        index = types.int64
        return types.uint64(least, index, index, index), generate


@njit(cache=True, nogil=True)
def hide_rows(hidden: Mask, block: int, n_queries: int, prefix: Distances, least: LeastDistances) -> None:
    """Put hidden rows of a block beyond all limits, for all queries."""
    for query in range(n_queries):
        distances = prefix[block * n_queries + query]
        for side in range(2):
            low = np.int32(65535)
            for i in range(8 * side, min(8 * side + 8, hidden.size - 16 * block)):
                if hidden[16 * block + i]:
                    distances[i] = 1 << 30
                low = min(low, distances[i])
            least[query, 2 * block + side] = low


@njit(cache=True, nogil=True)
def prefix_scan(
    queries: Codes, blocks: Codes, hidden: Mask, n_words: int, begin: int, end: int, prefix: Distances,
    least: LeastDistances,
) -> None:  # fmt: skip
    """Put the distances of blocks [begin, end) over their first words into `prefix`, and the least into `least`."""
    n_queries = queries.shape[0]
    planes = planes_of(queries)
    # Memory is asked for some blocks ahead, as it is read by 4 KiB; as many blocks as fit the cache serve all queries.
    ahead = 128 * blocks.shape[1] * max(1, 4096 // (128 * n_words))
    group = max(1, 65536 // (128 * n_words))
    for first in range(begin, end, group):
        query, last = 0, min(first + group, end)
        while query + 4 <= n_queries:
            four = query, query + 1, query + 2, query + 3
            for block in range(first, last):
                at = block * n_queries + query
                prefix_distances(planes, four, blocks, block, 0, n_words, ahead, least, prefix, at)
            query += 4
        while query < n_queries:
            for block in range(first, last):
                at = block * n_queries + query
                prefix_distances(planes, (query,), blocks, block, 0, n_words, ahead, least, prefix, at)
            query += 1
        if hidden.size > 0:
            for block in range(first, last):
                hide_rows(hidden, block, n_queries, prefix, least)


@njit(cache=True, nogil=True)
def halves_up_to(least: LeastDistances, query: int, high: int, halves: Rows) -> int:
    """Put the halves with a least distance of at most `high` into `halves`, ascending; return their number."""
    n = 0
    for first in range(0, least.shape[1], 64):
        near = up_to(least, query, first, high)
        while near != 0:
            lowest = near & (~near + np.uint64(1))
            near ^= lowest
            halves[n] = first + np.int64(popcount64(lowest - np.uint64(1)))
            n += 1
    return n


@njit(cache=True, nogil=True)
def count_up_to(least: LeastDistances, query: int, high: int) -> int:
    """Count the halves with a least distance of at most `high`."""
    n = np.uint64(0)
    for first in range(0, least.shape[1], 64):
        n += popcount64(up_to(least, query, first, high))
    return int(np.int64(n))


@njit(cache=True, nogil=True)
def reach_of(least: LeastDistances, query: int, n: int, low: int, high: int) -> int:
    """Return the smallest distance in [low, high] within which there are `n` halves; `high` if there are fewer."""
    while low < high:
        middle = (low + high) // 2
        if count_up_to(least, query, middle) >= n:
            high = middle
        else:
            low = middle + 1
    return low
