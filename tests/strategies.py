"""What hypothesis draws: batches of codes at the widths, sizes and degrees of likeness where layouts change."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

# Around a byte, a word, the 8 words of a prefix, the longest code that is short (1,024 bits), and above.
WIDTHS = (1, 7, 8, 9, 63, 64, 65, 127, 129, 255, 256, 300, 511, 512, 513, 575, 1_023, 1_024, 1_025, 1_089, 1_600)
# Around a block of 16 rows, and a task of 512 rows.
SIZES = (1, 2, 15, 16, 17, 40, 511, 512, 513, 1_030)


class CodeBatch(NamedTuple):
    """Codes as users give them, and queries that are like some of them."""

    n_bits: int
    codes: np.ndarray
    queries: np.ndarray


def some_codes(rng, n, n_bits, n_centres=None, flipped=0.0):
    """Packed codes: copies of `n_centres` random ones (default: n) with a share of their bits flipped."""
    centres = rng.random((n if n_centres is None else n_centres, n_bits)) < 0.5
    bits = centres[rng.integers(0, len(centres), n)] if n_centres is not None else centres
    return np.packbits(bits ^ (rng.random((n, n_bits)) < flipped), axis=1, bitorder="little")


@st.composite
def code_batches(draw, widths=WIDTHS, sizes=SIZES, max_queries=6):
    """Code batches: few centres and few flipped bits make ties and equal rows, many make ordinary codes."""
    n_bits, n = draw(st.sampled_from(widths)), draw(st.sampled_from(sizes))
    n_centres = draw(st.sampled_from([1, 2, 5, 1_000]))
    flipped = draw(st.sampled_from([0.0, 0.01, 0.1, 0.5]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    n_queries = draw(st.integers(1, max_queries))
    both = some_codes(rng, n + n_queries, n_bits, n_centres, flipped)
    return CodeBatch(n_bits, both[:n], both[n:])


@st.composite
def rankings(draw, n):
    """Places of n rows in the order of their ids: that of the rows (an empty array, as segments have it), or any."""
    if draw(st.booleans()):
        return np.zeros(0, dtype=np.int32)
    return np.random.default_rng(draw(st.integers(0, 2**16))).permutation(n).astype(np.int32)


@st.composite
def masks(draw, n):
    """Flags for n rows: none (an empty array, as segments have it), few, many, or all of them."""
    share = draw(st.sampled_from([None, 0.0, 0.1, 0.9, 1.0]))
    if share is None:
        return np.zeros(0, dtype=np.bool_)
    return np.random.default_rng(draw(st.integers(0, 2**16))).random(n) < share
