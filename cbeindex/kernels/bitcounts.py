"""Code for vector registers that counts the bits in which rows of a block differ from queries.

Rows are stored word by word (see `blocks.py`): a word of all rows fills whole registers, the same word of a query is
broadcast to all lanes, and no sum crosses lanes. How bits are counted depends on what numba compiles for:

- AVX-512 with VPOPCNTDQ: one instruction counts eight words. Full adders in front of it (three-input logic, half the
  counts) were 0.8 times as fast on Zen 5.
- AVX2: look-ups of nibbles. Four queries share the split of a word into nibbles, so each costs six instructions.
- Others: the ones of bytes, one instruction with NEON.
"""

from typing import Any, NamedTuple

from llvmlite import ir

from .target import Target, compiled_target
from .vectorcode import I8, I16, I32, I64, VectorCode, cgutils

NIBBLES = 0x0F0F0F0F0F0F0F0F
"""The lower nibbles of the bytes of a word."""

_BIT_COUNTS = [bin(i).count("1") for i in range(16)]
# Words whose ones a byte holds: 31 * 8 < 2**8.
_CHUNK = 31


def is_split(target: Target) -> bool:
    """Return whether queries are read as nibbles too."""
    return target.has("avx2") and not _counts_words(target)


def _counts_words(target: Target) -> bool:
    return target.has("avx512f", "avx512vpopcntdq")


IS_SPLIT = is_split(compiled_target())
"""Whether compiled kernels read queries as words, and as the lower and the upper nibbles of their bytes."""


class Differing(NamedTuple):
    """Some words of rows and of queries.

    Attributes
    ----------
    rows : address of the first word of the first row
        Words of a row are 128 bytes apart.
    n_rows : int
        8 or 16.
    queries : list of lists of addresses
        Of the words of each query, and of their nibbles if these are read.
    n_words : int64
    ahead : int64
        Bytes between a word that is read and the memory that is asked for.
    """

    rows: Any
    n_rows: int
    queries: list[list[Any]]
    n_words: Any
    ahead: Any


def count(code: VectorCode, differing: Differing) -> list[list[Any]]:
    """Return the counts of all rows for each query: int64, as many in a vector as a register holds."""
    if _counts_words(code.target):
        return _Words(code, differing).counts()
    if is_split(code.target):
        return _Nibbles(code, differing).counts()
    return _Bytes(code, differing).counts()


class _Counter:
    """Reads words of rows and queries in registers of `lanes` words."""

    lanes = 2

    def __init__(self, code: VectorCode, differing: Differing) -> None:
        self.code, self.builder, self.differing = code, code.builder, differing
        self.n_vectors, self.n_queries = differing.n_rows // self.lanes, len(differing.queries)
        self.words, self.bytes = ir.VectorType(I64, self.lanes), ir.VectorType(I8, 8 * self.lanes)

    def row_words(self, w: Any, vector: int) -> Any:
        """Read word w of the rows of a vector, and ask for the memory that will be read some time later."""
        code, place = self.code, 8 * self.lanes * vector
        address = code.at(code.at(self.differing.rows, w, 128), place)
        if place % 64 == 0:
            code.prefetch(self.builder.add(address, self.differing.ahead))
        return code.load(self.words, address)

    def query_word(self, w: Any, query: int, plane: int = 0) -> Any:
        """Read word w of a query, or of its nibbles, into all lanes."""
        code = self.code
        return code.splat(code.load(I64, code.at(self.differing.queries[query][plane], w, 8)), self.lanes)

    def sums(self, vectors: range) -> list[list[Any]]:
        """Make sums that start at 0, for each query and vector."""
        return [[self.code.variable(self.code.zeros(self.words)) for _ in vectors] for _ in range(self.n_queries)]


class _Words(_Counter):
    """Counts the ones of words (AVX-512)."""

    lanes = 8

    def counts(self) -> list[list[Any]]:
        """Count in all vectors at the same time."""
        code, vectors = self.code, range(self.n_vectors)
        sums = self.sums(vectors)
        with cgutils.for_range(self.builder, self.differing.n_words) as loop:
            rows = [self.row_words(loop.index, v) for v in vectors]
            for i, of_query in enumerate(sums):
                word = self.query_word(loop.index, i)
                for row, total in zip(rows, of_query, strict=True):
                    code.add_to(total, code.call("llvm.ctpop.v8i64", self.words, self.builder.xor(row, word)))
        return [[self.builder.load(total) for total in of_query] for of_query in sums]


class _Bytes(_Counter):
    """Counts the ones of bytes, with NEON or whatever LLVM makes of it, and adds bytes up to words."""

    n_kept = 8
    """Vectors of counts that are kept in registers at the same time; with NEON, twice as many."""

    def counts(self) -> list[list[Any]]:
        """Count in some vectors at a time; bytes are widened before they overflow."""
        n_kept = 2 * self.n_kept if self.code.target.is_arm else self.n_kept
        size = min(self.n_vectors, max(1, n_kept // self.n_queries))
        totals: list[list[Any]] = [[] for _ in range(self.n_queries)]
        for first in range(0, self.n_vectors, size):
            for of_query, more in zip(totals, self._counts_of(range(first, first + size)), strict=True):
                of_query += more
        return totals

    def _counts_of(self, vectors: range) -> list[list[Any]]:
        b, code, n_words = self.builder, self.code, self.differing.n_words
        sums, none = self.sums(vectors), code.zeros(self.bytes)
        counts = [[code.variable(none) for _ in vectors] for _ in sums]
        with cgutils.for_range(b, b.udiv(b.add(n_words, I64(_CHUNK - 1)), I64(_CHUNK))) as chunk:
            first = b.mul(chunk.index, I64(_CHUNK))
            end = b.add(first, I64(_CHUNK))
            end = b.select(b.icmp_signed("<", end, n_words), end, n_words)
            for of_query in counts:
                for count in of_query:
                    b.store(none, count)
            with cgutils.for_range(b, end, first) as loop:
                for at, v in enumerate(vectors):
                    row = self.shared(self.row_words(loop.index, v))
                    for i, of_query in enumerate(counts):
                        b.store(self.add_ones(b.load(of_query[at]), row, loop.index, i), of_query[at])
            for totals, of_query in zip(sums, counts, strict=True):
                for total, count in zip(totals, of_query, strict=True):
                    code.add_to(total, self.widen(b.load(count)))
        return [[b.load(total) for total in of_query] for of_query in sums]

    def shared(self, row: Any) -> Any:
        """Return what all queries read of a register of rows."""
        return row

    def add_ones(self, total: Any, row: Any, w: Any, query: int) -> Any:
        """Add the ones of each byte in which rows and a query differ."""
        differing = self.builder.bitcast(self.builder.xor(row, self.query_word(w, query)), self.bytes)
        return self.builder.add(total, self.code.call(f"llvm.ctpop.v{8 * self.lanes}i8", self.bytes, differing))

    def widen(self, total: Any) -> Any:
        """Sum up the bytes of each word."""
        b, code = self.builder, self.code
        if code.target.is_arm:
            for kind in (I16, I32, I64):
                n = 128 // kind.width
                name = f"llvm.aarch64.neon.uaddlp.v{n}i{kind.width}.v{2 * n}i{kind.width // 2}"
                total = code.call(name, ir.VectorType(kind, n), total)
            return total
        words = b.bitcast(total, self.words)
        for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0xFFFFFFFF)):
            masks, shifted = code.filled(self.words, mask), b.lshr(words, code.filled(self.words, bits))
            words = b.add(b.and_(words, masks), b.and_(shifted, masks))
        return words


class _Nibbles(_Bytes):
    """Counts the ones of nibbles by look-ups (AVX2)."""

    lanes = 4

    def shared(self, row: Any) -> Any:
        return row if self.n_queries == 1 else self._split(row)

    def add_ones(self, total: Any, row: Any, w: Any, query: int) -> Any:
        b, code = self.builder, self.code
        if self.n_queries == 1:
            halves = self._split(b.xor(row, self.query_word(w, query)))
        else:
            halves = [b.xor(half, self.query_word(w, query, 1 + i)) for i, half in enumerate(row)]
        for nibbles in halves:
            ones = code.look_up(code.constant(I8, _BIT_COUNTS * 2), b.bitcast(nibbles, self.bytes))
            total = b.add(total, ones)
        return total

    def widen(self, total: Any) -> Any:
        return self.code.call("llvm.x86.avx2.psad.bw", self.words, total, self.code.zeros(self.bytes))

    def _split(self, words: Any) -> list[Any]:
        b, mask = self.builder, self.code.filled(self.words, NIBBLES)
        return [b.and_(words, mask), b.and_(b.lshr(words, self.code.filled(self.words, 4)), mask)]
