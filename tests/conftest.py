"""What all tests share: derandomised hypothesis, and a kernel cache that notices every edit."""

import hashlib
import os
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parent.parent

# numba's cache misses edits of helpers in other files, so the directory is named after all kernel sources.
_kernels = sorted((ROOT / "cbeindex" / "kernels").glob("*.py"))
_hash = hashlib.sha256(b"".join(path.read_bytes() for path in _kernels)).hexdigest()[:16]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".numba_cache" / _hash))

settings.register_profile(
    "cbeindex", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cbeindex")
