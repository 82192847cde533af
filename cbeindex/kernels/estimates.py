"""Estimated distances of blocks of 32 rows.

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

from .jit import njit
from .prefetch import prefetch
from .vectorcode import F32, I32, VectorCode

Records: TypeAlias = NDArray[np.uint8]
"""Blocks with the numbers of their rows, (n_blocks, bytes of a record)."""

estimate_block: Any

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


@njit(cache=True, nogil=True)
def prefetch_record(records: Records, number: int) -> None:
    """Ask for the first 16 KB of a record, which may lie beyond the end; the processor itself asks for what follows."""
    size = records.shape[1]
    for byte in range(0, min(size, 16_384), 64):
        prefetch(records, number * size + byte)
