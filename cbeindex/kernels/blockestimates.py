"""Estimated distances of blocks of 16 rows, from weights, compared with bounds in registers.

The estimate of a row is

    offset + shift - factor * step * (total - 2 * weight) - margin * spread

in float32, each operation rounded, with the offset, factor and spread of the row, and the others of the query. With a
margin it is a lower confidence bound.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from . import weights as weighing
from .vectorcode import F32, I32, I64, VectorCode, cgutils

estimates_within: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def estimates_within(
        prepared: Any, numbers: Any, blocks: Any, block: int, first: int, of_rows: Any, of_queries: Any, totals: Any,
        bounds: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block have estimates within bounds: bit 16 * i + row for query numbers[i].

        Parameters
        ----------
        prepared, numbers, blocks, block
            As for `weights.weights_by_planes`; `prepared` from `weights.prepare`.
        first : int
            Number of the first row of the block.
        of_rows : tuple of three float32 arrays of shape (n_rows,)
            Offsets, factors, spreads.
        of_queries : tuple of three float32 arrays of shape (n_queries,)
            Steps, shifts, margins.
        totals, bounds : int32 and float32 arrays of shape (n_queries,)
        out : float32 array of shape (len(numbers), 16)
            Gets the estimates if any is within its bound; otherwise it may be left as it is.
        """
        weights = np.empty((len(numbers), 16), dtype=np.int32)
        weighing.weights_by_planes(prepared, numbers, blocks, block, weights)
        offsets, factors, spreads = (values[first : first + 16] for values in of_rows)
        found, n = 0, len(offsets)
        for i, number in enumerate(numbers):
            step, shift, margin = (values[number] for values in of_queries)
            products = step * (totals[number] - 2 * weights[i, :n]).astype(np.float32)
            out[i, :n] = ((offsets + shift) - factors * products) - margin * spreads
            near = np.flatnonzero(out[i, :n] <= bounds[number])
            found |= sum(1 << (16 * i + int(row)) for row in near)
        return np.uint64(found)

else:
    _ROWS, _FLOATS = ir.VectorType(I32, 16), ir.VectorType(F32, 16)

    class _Estimates:
        """The distances of a block's rows to queries, from weights."""

        def __init__(self, code: VectorCode, signature: Any, arguments: Any) -> None:
            self._code, self._signature, self._arguments = code, signature, arguments
            first, builder = arguments[4], code.builder
            kinds, arrays = signature.args[5].types, cgutils.unpack_tuple(builder, arguments[5])
            self._n_left = builder.sub(code.shape(kinds[0], arrays[0])[0], first)
            self._offsets, self._factors, self._spreads = (
                code.load_some(_FLOATS, code.at(code.address(kind, array), first, 4), self._n_left)
                for kind, array in zip(kinds, arrays, strict=True)
            )

        def exists(self) -> Any:
            """Flag the rows that exist."""
            code, builder = self._code, self._code.builder
            n_left = builder.select(builder.icmp_signed("<", self._n_left, I64(16)), self._n_left, I64(16))
            return builder.icmp_signed("<", code.constant(I32, range(16)), code.splat(builder.trunc(n_left, I32), 16))

        def of_query(self, number: Any, weights: Any) -> tuple[Any, Any]:
            """Return the estimates of a query, and the flags of those within its bound."""
            code, builder = self._code, self._code.builder
            kinds, arrays = self._signature.args[6].types, cgutils.unpack_tuple(builder, self._arguments[6])
            step, shift, margin = (
                self._value(kind, array, number, F32) for kind, array in zip(kinds, arrays, strict=True)
            )
            total = self._value(self._signature.args[7], self._arguments[7], number, I32)
            bound = self._value(self._signature.args[8], self._arguments[8], number, F32)
            doubled = builder.shl(weights, code.filled(_ROWS, 1))
            products = builder.fmul(step, builder.sitofp(builder.sub(total, doubled), _FLOATS))
            near = builder.fsub(builder.fadd(self._offsets, shift), builder.fmul(self._factors, products))
            near = builder.fsub(near, builder.fmul(margin, self._spreads))
            return near, builder.fcmp_ordered("<=", near, bound)

        def _value(self, kind: Any, array: Any, number: Any, element: Any) -> Any:
            """Read the value of a query into all lanes."""
            code = self._code
            return code.splat(code.load(element, code.at(code.address(kind, array), number, 4)), 16)

    @intrinsic
    def estimates_within(
        typing_context: Any, prepared: Any, numbers: Any, blocks: Any, block: Any, first: Any, of_rows: Any,
        of_queries: Any, totals: Any, bounds: Any, out: Any,
    ) -> Any:  # fmt: skip
        """Tell which rows of a block have estimates within bounds: bit 16 * i + row for query numbers[i]."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            code = VectorCode(context, builder)
            estimates = _Estimates(code, signature, arguments)
            weights = weighing.weigh(code, signature, arguments, weighing.TOGETHER)
            numbers = cgutils.unpack_tuple(builder, arguments[1])
            near = [estimates.of_query(*pair) for pair in zip(numbers, weights, strict=True)]
            any_of_them = near[0][1]
            for _, flags in near[1:]:
                any_of_them = builder.or_(any_of_them, flags)
            found = code.variable(I64(0))
            with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", code.bits(any_of_them), I64(0))):
                exists = estimates.exists()
                for i, (values, flags) in enumerate(near):
                    code.store(values, code.row(signature.args[9], arguments[9], I64(i)))
                    bits = code.bits(builder.and_(flags, exists))
                    builder.store(builder.or_(builder.load(found), builder.shl(bits, I64(16 * i))), found)
            return builder.load(found)

        index = types.int64
        return types.uint64(prepared, numbers, blocks, index, index, of_rows, of_queries, totals, bounds, out), generate
