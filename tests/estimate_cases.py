"""Quantised queries and codes in blocks, and their weights and estimates in plain numpy."""

import numpy as np

from cbeindex.data.codes import to_words


def packed(bits):
    """Bits, (n, n_bits), as words."""
    return to_words(np.packbits(bits, axis=-1, bitorder="little"), bits.shape[-1])


def blocks_of(words):
    """Words, (n, n_words), in blocks of 16 rows, zeros behind the last row."""
    n, n_words = words.shape
    padded = np.zeros((-(-n // 16) * 16, n_words), dtype=np.uint64)
    padded[:n] = words
    return np.ascontiguousarray(padded.reshape(-1, 16, n_words).transpose(0, 2, 1))


def levels_of(projections):
    """Steps and signed levels of projections, unpadded."""
    magnitudes = np.abs(projections)
    steps = magnitudes.max(axis=1, initial=0) / np.float32(15)
    whole = np.minimum(np.rint(magnitudes / np.where(steps == 0, np.float32(1), steps)[:, np.newaxis]), 15)
    return steps, np.where(projections >= 0, whole, -whole).astype(np.int8)


class Case:
    """Random rows and queries, in the forms of the kernels and in plain ones; `most` is the largest level."""

    def __init__(self, n_bits, n_rows, n_queries, most, seed, by_row=False):
        rng = np.random.default_rng(seed)
        self.rng, self.n_rows, self.n_queries = rng, n_rows, n_queries
        self.bits = rng.random((n_rows, n_bits)) < 0.5
        self.signed = rng.integers(-most, most, (n_queries, n_bits), endpoint=True)
        self.blocks = packed(self.bits)[:, :, np.newaxis] if by_row else blocks_of(packed(self.bits))
        self.levels = np.zeros((n_queries, 64 * self.blocks.shape[1]), dtype=np.int8)
        self.levels[:, :n_bits] = self.signed
        self.totals = np.abs(self.signed).sum(axis=1, dtype=np.int32)

    def weights(self):
        """Sums of the magnitudes of levels whose signs differ from the bits of rows, (n_queries, n_rows)."""
        differ = (self.signed > 0)[:, np.newaxis] != self.bits[np.newaxis]
        return (differ * np.abs(self.signed)[:, np.newaxis]).sum(axis=2)


class Estimates:
    """A case with all that distances are made of; equal factors and few levels give equal ones."""

    def __init__(self, case, n_factors, margin, share_hidden, is_ranked):
        rng, n_rows, n_queries = case.rng, case.n_rows, case.n_queries
        offsets = np.full(n_rows, 0.5) if n_factors == 1 else rng.normal(size=n_rows)
        factors = rng.uniform(0, 2, n_factors)[rng.integers(0, n_factors, n_rows)]
        steps, shifts = rng.uniform(0.01, 1, n_queries), rng.normal(size=n_queries)
        spreads, margins = rng.uniform(0, 1, n_rows), np.full(n_queries, margin)
        self.of_rows = tuple(values.astype(np.float32) for values in (offsets, factors, spreads))
        self.of_queries = tuple(values.astype(np.float32) for values in (steps, shifts, margins))
        offsets, factors, spreads = self.of_rows
        steps, shifts, margins = (values[:, np.newaxis] for values in self.of_queries)
        products = steps * (case.totals[:, np.newaxis] - 2 * case.weights()).astype(np.float32)
        self.plain = (offsets + shifts) - factors * products
        self.distances = self.plain - margins * spreads
        assert self.distances.dtype == np.float32
        self.hidden = np.zeros(0, dtype=np.bool_) if share_hidden is None else rng.random(n_rows) < share_hidden
        self.ranks = rng.permutation(n_rows).astype(np.int32) if is_ranked else np.zeros(0, dtype=np.int32)
        self.before = (
            case.levels, case.totals, *self.of_queries, case.blocks, *self.of_rows, self.hidden, self.ranks,
        )  # fmt: skip
