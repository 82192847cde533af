"""Exceptions of an index in shards."""

from __future__ import annotations

from collections.abc import Mapping


class ShardError(Exception):
    """Some shards cannot answer.

    Attributes
    ----------
    causes : dict of int to Exception
        What went wrong, by the number of the shard.
    """

    def __init__(self, causes: Mapping[int, BaseException], n_shards: int, what: str = "did not answer") -> None:
        super().__init__(dict(causes), n_shards, what)
        self.causes, self.n_shards, self.what = dict(causes), n_shards, what

    def __str__(self) -> str:
        lines = [f"shard {number}: {str(cause) or type(cause).__name__}" for number, cause in self.causes.items()]
        return f"{len(self.causes)} of {self.n_shards} shards {self.what}: " + "; ".join(lines)


class ShardTimeoutError(ShardError, TimeoutError):
    """Some shards did not answer in time."""


class LostWritesError(Exception):
    """A shard has acknowledged writes that neither its file nor its log holds.

    This happens if a machine loses data that was not synced: `sync=False`, or a folder that does not keep its promise.
    """


class NotFittedError(Exception):
    """A shard would have to fit an encoder of its own: the index has to be fitted first."""


class FrozenError(Exception):
    """A shard takes no writes, because its rows are being moved to another layout."""


class StaleLayoutError(Exception):
    """A worker belongs to a layout that the manifest no longer names."""
