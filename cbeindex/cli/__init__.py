"""The command line: `cbeindex build`, `search`, `info`, `verify` and `shard`. Each command is a module."""

from .app import main

__all__ = ["main"]
