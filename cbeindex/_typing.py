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

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""Named arrays, as the index file stores them."""
