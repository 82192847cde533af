"""Settings of all tests: hypothesis profiles, and a kernel cache that is never stale."""

import hashlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent

# numba's cache keys ignore edits of helpers in other files and whether bounds are checked, so both name the directory.
_kernels = sorted((ROOT / "cbeindex" / "kernels").glob("*.py"))
_hash = hashlib.sha256(b"".join(path.read_bytes() for path in _kernels)).hexdigest()[:16]
_has_bounds = os.environ.get("NUMBA_BOUNDSCHECK", "0") != "0"
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / (f"{_hash}-bounds" if _has_bounds else _hash)))

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Whether kernels are compiled, or run as plain Python."""
CHECKS_BOUNDS = _has_bounds or not COMPILED
"""Whether a kernel that reads or writes outside of an array raises IndexError."""

# Test runs draw the same examples every time. Fuzzing draws new ones, which --hypothesis-seed repeats: no database
# of earlier failures may add to them.
settings.register_profile(
    "cbeindex", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fuzz", settings.get_profile("cbeindex"), derandomize=False, database=None, max_examples=500, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "cbeindex"))
