"""Names of the arrays that pass between the stages; STYLE words, one alias each."""

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
"""Packed signs as users see them, (n, ceil(n_bits / 8)); bit j is bit j % 8 of byte j // 8."""

Codes: TypeAlias = NDArray[np.uint64]
"""Packed signs as kernels see them, (n, n_words); bit j is bit j % 64 of word j // 64; bits past n_bits are 0."""

Keys: TypeAlias = NDArray[np.uint64]
"""Candidates, distance << 32 | row."""

Distances: TypeAlias = NDArray[np.int32]
"""Hamming distances."""

Floats: TypeAlias = NDArray[np.float32]
"""Distances that are not counts, and the numbers they are made of."""

HeadDistances: TypeAlias = NDArray[np.uint16]
"""Hamming distances over the first words of codes."""

Ids: TypeAlias = NDArray[np.int64]
"""The callers' names of vectors."""

Rows: TypeAlias = NDArray[np.int64]
"""Places in a segment, and counts of such."""

SparseIndices: TypeAlias = NDArray[np.int32]
"""Columns of the entries of sparse vectors."""

Ranks: TypeAlias = NDArray[np.int32]
"""Places of rows in the order of their ids; empty where rows are in that order."""

Mask: TypeAlias = NDArray[np.bool_]
"""A flag for each row; empty where no row has it."""

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Named arrays, as the index file stores them."""

Doubles: TypeAlias = NDArray[np.float64]
"""Sums that are rounded later."""
