"""Type aliases of the arrays that pass between the stages."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]
"""Database or query vectors, (n, dim), C order."""

Projections: TypeAlias = NDArray[np.float32]
"""Projections before the sign, (n, n_bits)."""

Spectrum: TypeAlias = NDArray[np.complex64]
"""Half spectra of circulant vectors, (n_blocks, length // 2 + 1)."""

CodeBytes: TypeAlias = NDArray[np.uint8]
"""Packed signs for users, (n, ceil(n_bits / 8)); bit j is bit j % 8 of byte j // 8."""

Codes: TypeAlias = NDArray[np.uint64]
"""Packed signs for kernels, (n, n_words); bit j is bit j % 64 of word j // 64; bits past n_bits are 0."""

Keys: TypeAlias = NDArray[np.uint64]
"""Search keys of candidates: distance << 32 | row."""

Distances: TypeAlias = NDArray[np.int32]
"""Hamming distances."""

Floats: TypeAlias = NDArray[np.float32]
"""Distances that are not counts, and the terms of such distances."""

LeastDistances: TypeAlias = NDArray[np.uint16]
"""The least Hamming distance of each block of rows."""

Ids: TypeAlias = NDArray[np.int64]
"""Ids of vectors, chosen by the caller."""

StringIds: TypeAlias = NDArray[np.object_]
"""Ids of vectors that are strings; None for a missing result."""

Rows: TypeAlias = NDArray[np.int64]
"""Row numbers in a segment, and counts of rows."""

SparseIndices: TypeAlias = NDArray[np.int32]
"""Columns of the entries of sparse vectors, ascending within a vector."""

Ranks: TypeAlias = NDArray[np.int32]
"""Positions of rows in the order of their ids; empty if rows are stored in that order."""

Mask: TypeAlias = NDArray[np.bool_]
"""A flag for each row; empty if no flag is set."""

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Named arrays, as stored in index files."""

Doubles: TypeAlias = NDArray[np.float64]
"""Sums in float64, rounded to float32 later."""
