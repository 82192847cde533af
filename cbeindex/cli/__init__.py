"""The command line: `cbeindex build`, `search`, `info` and `verify`. Each command is a module."""

from .app import main

__all__ = ["main"]
