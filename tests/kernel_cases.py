"""What tests of kernels share: codes as kernels take them, and their expected keys."""

import numpy as np

from cbeindex.data.codes import CodeRows, to_words

NO_KEY = np.uint64(2**64 - 1)
LONG = (1_025, 1_087, 1_089, 1_535, 1_600, 2_100)
"""Widths of codes that have tails."""
SMALL = (1, 2, 15, 16, 17, 40)
"""Numbers of rows."""


def keys_of(distances, rows, ranks=None):
    """Keys of rows, or of their ranks if they have such."""
    places = np.asarray(rows).astype(np.int64)
    if ranks is not None and ranks.size:
        places = ranks[places]
    return np.asarray(distances).astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)


def stored(batch):
    """Queries and codes of a batch as words, and the codes as stored rows."""
    words = to_words(batch.codes, batch.n_bits)
    return to_words(batch.queries, batch.n_bits), words, CodeRows.of(words, batch.n_bits)


def tails_of(queries, rows):
    return np.ascontiguousarray(queries[:, rows.n_head :])
