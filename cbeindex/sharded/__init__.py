"""`ShardedIndex`: an index over many processes and machines, on Ray. Needs the extra "ray"."""

try:
    import ray as _ray
except ImportError:
    raise ImportError('cbeindex.sharded needs Ray: pip install "cbeindex[ray]"') from None

from .build import build
from .client import ShardedIndex
from .errors import LostWritesError, ShardError, ShardTimeoutError

__all__ = ["LostWritesError", "ShardError", "ShardTimeoutError", "ShardedIndex", "build"]

del _ray
