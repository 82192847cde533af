"""What tests of kernels share: codes as kernels take them, and their expected keys."""

import numpy as np

NO_KEY = np.uint64(2**64 - 1)
NOT_HIDDEN, NO_RANKS = np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int32)


def keys_of(distances, rows, ranks=NO_RANKS):
    """Keys of rows, or of their ranks if they have such."""
    places = ranks[rows] if ranks.size else np.asarray(rows)
    return np.asarray(distances).astype(np.uint64) << np.uint64(32) | places.astype(np.uint64)


def in_blocks(words):
    """Store rows of words as blocks, the last of which is filled up with ones: padding must never be a result."""
    padded = np.full((-(-len(words) // 16) * 16, words.shape[1]), 2**64 - 1, dtype=np.uint64)
    padded[: len(words)] = words
    return np.ascontiguousarray(padded.reshape(-1, 16, words.shape[1]).transpose(0, 2, 1))


def expected_keys(queries, words, hidden, ranks, rows, bound=2**31):
    """Ascending keys of those of `rows` that may be results, one array for each query."""
    rows = np.array([row for row in rows if not (hidden.size and hidden[row])], dtype=np.int64)
    distances = np.bitwise_count(queries[:, np.newaxis] ^ words[rows][np.newaxis]).sum(axis=2, dtype=np.int64)
    return [np.sort(keys_of(d[d < bound], rows[d < bound], ranks)) for d in distances]


def check_keys(keys, expected):
    """The first keys of each query are those expected, and nothing else is there."""
    for found, wanted in zip(keys, expected, strict=True):
        np.testing.assert_array_equal(found[: len(wanted)], wanted[: len(found)])
        assert (found[len(wanted) :] == NO_KEY).all()
