"""Sums of table entries for blocks of 32 rows: what a query's product with coded rows is made of.

A block is stored byte by byte: byte j of its 32 rows side by side. A byte is two nibbles, and a nibble is 4 dimensions
of 1 bit, 2 of 2 bits, or 1 of 4 bits, so that one kernel serves all three. A query has a table of 16 entries for each
nibble (see `querytables.py`); 32 look-ups are one instruction (two on Arm). It is the fast scan of faiss (Andre et al.,
VLDB 2015), with sums that are exact for codes of any length.

Entries have 7 bits, so that those of two nibbles add in a byte. Precise tables have entries of 14 bits, as two tables:
the upper 7 bits, and the lower 7 bits. Their sums are exact up to 65,536 bytes a row, and cost what two queries cost.
"""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .vectorcode import I8, I16, I32, I64, VectorCode, cgutils

sum_block: Any
sum_block_precisely: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def sum_block(codes: Any, base: int, n_bytes: int, tables: Any, numbers: Any, out: Any) -> None:
        """Sum the entries that a block's nibbles choose, for each of some queries, into `out[:len(numbers)]`.

        Parameters
        ----------
        codes : uint8 array
            In which the block lies at [base, base + 32 * n_bytes).
        tables : uint8 array of shape (n_queries, 32 * n_bytes or more)
            Byte j of the rows chooses among [32 j, 32 j + 16) by its lower, [32 j + 16, 32 j + 32) by its upper nibble.
        numbers : tuple of int
            Which queries: they share the reading of the block.
        out : int32 array of shape (len(numbers) or more, 32)
        """
        block = codes.reshape(-1)[base : base + 32 * n_bytes].reshape(n_bytes, 32)
        for i, number in enumerate(numbers):
            entries = tables[number, : 32 * n_bytes].reshape(n_bytes, 2, 16).astype(np.int32)
            out[i] = 0
            for j in range(n_bytes):
                out[i] += entries[j, 0][block[j] & 15] + entries[j, 1][block[j] >> 4]

    def sum_block_precisely(codes: Any, base: int, n_bytes: int, tables: Any, numbers: Any, out: Any) -> None:
        """Do as `sum_block` with precise tables: upper parts of entries in the first half of a row, lower parts behind.

        `tables` has the shape (n_queries, 2 * size), with 32 * n_bytes or more for the size.
        """
        upper, lower = np.split(tables, 2, axis=1)
        more = np.empty_like(out)
        sum_block(codes, base, n_bytes, upper, numbers, out)
        sum_block(codes, base, n_bytes, lower, numbers, more)
        out[: len(numbers)] = 128 * out[: len(numbers)] + more[: len(numbers)]

else:
    # Bytes whose entries a 16-bit sum holds: 256 * 2 * 127 < 2**16.
    _CHUNK = 256
    # Steps in a turn of the loop. With one step, the time depends on the alignment of the loop (AVX2, 784 bits: 57 or
    # 87 ns).
    _UNROLLED = 2
    _SUMS = ir.VectorType(I32, 32)

    class _Block:
        """A block whose bytes are looked up in several tables at a time."""

        def __init__(self, code: VectorCode, start: Any, tables: list[Any]) -> None:
            self.code, self._start, self._tables = code, start, tables
            # Two bytes of each row fill a register of AVX-512.
            self.n_together = 2 if code.target.has("avx512bw") else 1

        def look_up(self, j: Any, n: int) -> list[Any]:
            """Return 32 n sums of two entries, those of bytes j to j + n, from each of the tables."""
            code, builder = self.code, self.code.builder
            rows = code.load(ir.VectorType(I8, 32 * n), code.at(self._start, j, 32))
            lower = builder.and_(rows, code.filled(rows.type, 15))
            upper = builder.lshr(rows, code.filled(rows.type, 4))
            sums = []
            for table in self._tables:
                of_lower, of_upper = self._spread(code.at(table, j, 32), n)
                sums.append(builder.add(code.look_up(of_lower, lower), code.look_up(of_upper, upper)))
            return sums

        def _spread(self, table: Any, n: int) -> list[Any]:
            """Read n pairs of tables; repeat the lower ones, and the upper ones, for each 16 rows."""
            code = self.code
            if n == 1:  # read apart, each is spread by the load
                read = [code.load(ir.VectorType(I8, 16), code.at(table, 16 * i)) for i in range(2)]
                return [code.pick(part, list(range(16)) * 2) for part in read]
            all_of_them = code.load(ir.VectorType(I8, 32 * n), table)
            starts = [[32 * pair + first for pair in range(n) for _ in range(2)] for first in (0, 16)]
            return [code.pick(all_of_them, [start + i for start in some for i in range(16)]) for some in starts]

    def _sum_chunk(block: _Block, begin: Any, n: Any, totals: list[Any]) -> None:
        """Add the entries of bytes [begin, begin + n) to 32 int32 for each table; n is a multiple of `n_together`.

        Two neighbouring rows share a 16-bit sum. A second sum of the odd ones alone tells them apart at the end.
        """
        code, builder = block.code, block.code.builder
        count = 16 * block.n_together
        pairs, eight = ir.VectorType(I16, count), code.constant(I16, [8] * count)
        both, odd = ([code.variable(code.zeros(pairs)) for _ in totals] for _ in range(2))
        for n_steps in (_UNROLLED, 1):
            size = n_steps * block.n_together
            with cgutils.for_range(builder, builder.udiv(n, I64(size))) as loop:
                for step in range(n_steps):
                    j = code.at(code.at(begin, loop.index, size), step, block.n_together)
                    for i, found in enumerate(block.look_up(j, block.n_together)):
                        found = builder.bitcast(found, pairs)
                        code.add_to(both[i], found)
                        code.add_to(odd[i], builder.lshr(found, eight))
            n_left = builder.urem(n, I64(size))
            begin, n = builder.add(begin, builder.sub(n, n_left)), n_left
        for i, total in enumerate(totals):
            of_odd = builder.load(odd[i])
            of_even = builder.sub(builder.load(both[i]), builder.shl(of_odd, eight))
            sums = [code.split(part, 16) for part in (of_even, of_odd)]
            even, odds = (parts[0] if len(parts) == 1 else builder.add(*parts) for parts in sums)
            in_order = code.pick(even, [k // 2 + 16 * (k % 2) for k in range(32)], odds)
            code.add_to(total, builder.zext(in_order, _SUMS))

    def _sum_bytes(block: _Block, n_bytes: Any, n_tables: int) -> list[Any]:
        """Return 32 int32 for each table."""
        code, builder = block.code, block.code.builder
        totals = [code.variable(code.zeros(_SUMS)) for _ in range(n_tables)]
        n_even = builder.sub(n_bytes, builder.urem(n_bytes, I64(block.n_together)))
        n_chunks = builder.udiv(builder.add(n_even, I64(_CHUNK - 1)), I64(_CHUNK))
        with cgutils.for_range(builder, n_chunks) as loop:
            begin = builder.mul(loop.index, I64(_CHUNK))
            left = builder.sub(n_even, begin)
            is_last = builder.icmp_unsigned("<", left, I64(_CHUNK))
            _sum_chunk(block, begin, builder.select(is_last, left, I64(_CHUNK)), totals)
        if block.n_together == 2:
            with builder.if_then(builder.icmp_unsigned("!=", n_even, n_bytes)):
                for total, found in zip(totals, block.look_up(n_even, 1), strict=True):
                    code.add_to(total, builder.zext(found, _SUMS))
        return [builder.load(total) for total in totals]

    def _define(n_parts: int, summary: str) -> Any:
        """Make an intrinsic for tables of `n_parts` parts of 7 bits."""

        def typed(typing_context: Any, codes: Any, base: Any, n_bytes: Any, tables: Any, numbers: Any, out: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                code = VectorCode(context, builder)
                codes, tables, out = (code.address(signature.args[i], arguments[i]) for i in (0, 3, 5))
                size, _ = code.strides(signature.args[3], arguments[3])
                parts = []
                for number in cgutils.unpack_tuple(builder, arguments[4]):
                    table = builder.add(tables, builder.mul(number, size))
                    for i in range(n_parts):
                        parts.append(builder.add(table, builder.mul(I64(i), builder.udiv(size, I64(n_parts)))))
                block = _Block(code, builder.add(codes, arguments[1]), parts)
                sums = _sum_bytes(block, arguments[2], len(parts))
                for i in range(0, len(parts), n_parts):
                    total = sums[i]
                    for lower in sums[i + 1 : i + n_parts]:
                        total = builder.add(builder.shl(total, code.filled(_SUMS, 7)), lower)
                    code.store(total, code.at(out, i // n_parts, 128))
                return context.get_dummy_value()

            return types.void(codes, types.int64, types.int64, tables, numbers, out), generate

        typed.__doc__ = summary
        return intrinsic(typed)

    sum_block = _define(1, "Sum the entries that a block's nibbles choose, for each of some queries.")
    sum_block_precisely = _define(2, "Do as `sum_block` with precise tables.")
