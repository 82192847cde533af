"""What stands where there is no result."""

from __future__ import annotations

import numpy as np

NO_ID = -1

NO_KEY = np.uint64(np.iinfo(np.uint64).max)
"""The key that stands where there is no row; it sorts behind all others."""

NO_HAMMING_DISTANCE = np.iinfo(np.int32).max
