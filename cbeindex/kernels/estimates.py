"""Estimated distances of blocks of 32 rows, and the best of them.

A record is a block with what its rows need: the codes, 32 * n_bytes bytes as `lookup.py` reads them, then float32
numbers: 32 factors, 32 offsets and, where rows store them, 32 spreads. The estimate of a row is

    offset + shift - factor * (step * sum + product_offset) - margin * spread

with the step and the product offset of the query's tables, the query's shift (which may differ from cell to cell), and
its margin in standard errors: with a margin it is a lower bound. The error of an estimate is nearly proportional to the
row's factor, so rows without spreads use their factors for them.

Rows that do not exist have the offset infinity: bounds are finite, so they are never within one.
"""

from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from .._core.typing import Floats, Keys, Mask, Rows
from .asymmetric import float_of_key, key_of
from .jit import njit
from .lookup import sum_block, sum_block_precisely
from .popcount import popcount64
from .prefetch import prefetch
from .querytables import Tables
from .topk import keep_smallest
from .vectorcode import F32, I8, I32, VectorCode
from .views import view_as

Records: TypeAlias = NDArray[np.uint8]
"""Blocks with the numbers of their rows, (n_blocks, bytes of a record)."""

estimate_block: Any
shown_of_block: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def estimate_block(
        sums: Any, place: int, records: Any, at: int, spreads_at: int, step: Any, product_offset: Any, shift: Any,
        margin: Any, bound: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Estimate 32 distances into `out`; return which are at most `bound`, that of row i in bit i.

        Parameters
        ----------
        sums : int32 array of shape (any, 32)
            Of which row `place` counts.
        records : uint8 array
            With the factors at byte `at`, the offsets behind them, and the spreads at byte `spreads_at`.
        out : float32 array of shape (32,)
        """
        step, product_offset, shift, margin = (np.float32(x) for x in (step, product_offset, shift, margin))
        flat = records.reshape(-1)
        factors, offsets = flat[at : at + 256].view(np.float32).reshape(2, 32)
        spreads = flat[spreads_at : spreads_at + 128].view(np.float32)
        products = step * sums[place].astype(np.float32) + product_offset
        out[:] = (offsets + shift) - factors * products - margin * spreads
        return np.packbits(out <= np.float32(bound), bitorder="little").view("<u4")[0].astype(np.uint64)

    def shown_of_block(hidden: Any, first: int) -> Any:
        """Return which of 32 rows from `first` on are not hidden, that of row i in bit i."""
        return np.packbits(~hidden[first : first + 32], bitorder="little").view("<u4")[0].astype(np.uint64)

else:
    _FLOATS = ir.VectorType(F32, 32)

    @intrinsic
    def estimate_block(
        typing_context: Any, sums: Any, place: Any, records: Any, at: Any, spreads_at: Any, step: Any,
        product_offset: Any, shift: Any, margin: Any, bound: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Estimate 32 distances into `out`; return which are at most `bound`, that of row i in bit i."""
        index, number = types.int64, types.float32

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            sums, records, out = (code.address(signature.args[i], arguments[i]) for i in (0, 2, 10))
            step, product_offset, shift, margin, bound = (code.splat(arguments[i], 32) for i in range(5, 10))
            factors, offsets, spreads = (
                code.load(_FLOATS, builder.add(records, place))
                for place in (arguments[3], code.at(arguments[3], 128), arguments[4])
            )
            sums = builder.sitofp(code.load(ir.VectorType(I32, 32), code.at(sums, arguments[1], 128)), _FLOATS)
            products = builder.fadd(builder.fmul(step, sums), product_offset)
            estimates = builder.fsub(builder.fadd(offsets, shift), builder.fmul(factors, products))
            estimates = builder.fsub(estimates, builder.fmul(margin, spreads))
            code.store(estimates, out)
            return code.bits(builder.fcmp_ordered("<=", estimates, bound))

        signature = types.uint64(sums, index, records, index, index, number, number, number, number, number, out)
        return signature, generate

    @intrinsic
    def shown_of_block(typing_context: Any, hidden: Any, first: Any) -> Any:
        """Return which of 32 rows from `first` on are not hidden, that of row i in bit i."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            start = code.address(signature.args[0], arguments[0])
            flags = code.load(ir.VectorType(I8, 32), code.at(start, arguments[1]))
            return code.bits(builder.icmp_unsigned("==", flags, code.zeros(flags.type)))

        return types.uint64(hidden, types.int64), generate


@njit(cache=True, nogil=True)
def prefetch_record(records: Records, number: int) -> None:
    """Ask for the first 16 KB of a record, which may lie beyond the end; the processor itself asks for what follows."""
    size = records.shape[1]
    for byte in range(0, min(size, 16_384), 64):
        prefetch(records, number * size + byte)


@njit(cache=True, nogil=True)
def append_rows(near: Any, estimates: Floats, first: int, rows: Rows, keys: Keys, count: int) -> int:
    """Append the keys of the rows of a block whose bits are set; return how many keys there are then.

    Place `first + i` is row `rows[first + i]`, or is the row itself where `rows` is empty.
    """
    bits = view_as(estimates, np.int32)
    while near != 0:
        lowest = near & (~near + np.uint64(1))
        place = np.int64(popcount64(lowest - np.uint64(1)))
        keys[count] = key_of(bits[place], rows[first + place] if rows.size > 0 else first + place)
        count += 1
        near ^= lowest
    return count


@njit(cache=True, nogil=True)
def scan_records(
    numbers: tuple[int, ...], tables: Tables, is_precise: bool, steps: Floats, product_offsets: Floats, shifts: Floats,
    margins: Floats, records: Records, n_bytes: int, has_spreads: bool, start: int, stop: int, hidden: Mask, rows: Rows,
    k: int, found: Keys, counts: Rows, bounds: Floats,
) -> None:  # fmt: skip
    """Estimate the rows of records [start, stop) for some queries, and keep the keys of the `k` nearest of each.

    Calls add to what earlier ones found. The `k` smallest keys of a query, among the first `counts[query]` of
    `found[query]`, do not depend on the order of the calls, nor on which queries share them.

    Parameters
    ----------
    numbers : tuple of int
        Queries, one to four: they share the reading of the records. All arrays of queries are indexed by them.
    shifts : float32 array of shape (n_queries,)
        What a query adds to all distances of these records.
    hidden : bool array
        A flag for each place 32 * record + i, or empty.
    rows : int64 array
        The row at each place, or empty where they are the same. Rows are less than 2**32.
    found : uint64 array of shape (n_queries, k + 64 or more)
        The bound is lowered whenever the room is full. Of the 20 nearest of 6,400 rows at 384 bits, a block takes 44 ns
        with room for 84 keys, 48 with 200 and 66 with 400.
    counts, bounds : int64 and float32 arrays of shape (n_queries,)
        How many keys there are, and the largest distance that may be among the `k` nearest: at first 0, and the limit
        of distances or the largest float32.
    """
    numbers_at, last = 32 * n_bytes, found.shape[1] - 32
    spreads_at = numbers_at + 256 if has_spreads else numbers_at
    sums = np.empty((len(numbers), 32), dtype=np.int32)
    estimates = np.empty(32, dtype=np.float32)
    size = records.shape[1]
    for record in range(start, stop):
        base = record * size
        if is_precise:
            sum_block_precisely(records, base, n_bytes, tables, numbers, sums)
        else:
            sum_block(records, base, n_bytes, tables, numbers, sums)
        shown = shown_of_block(hidden, 32 * record) if hidden.size > 0 else np.uint64(0xFFFFFFFF)
        for i in range(len(numbers)):
            query = numbers[i]
            near = shown & estimate_block(
                sums, i, records, base + numbers_at, base + spreads_at, steps[query], product_offsets[query],
                shifts[query], margins[query], bounds[query], estimates,
            )  # fmt: skip
            if near != 0:
                count = append_rows(near, estimates, 32 * record, rows, found[query], counts[query])
                if count > last:
                    bounds[query] = float_of_key(keep_smallest(found[query], count, k))
                    count = k
                counts[query] = count
