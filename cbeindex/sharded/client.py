"""ShardedIndex: the index as its users see it. Sends calls to shards and puts the answers together."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
from numpy.typing import ArrayLike

from .._core.checks import as_count, as_flag, as_missing, as_positive
from .._core.typing import CodeBytes
from ..data.ids import listed
from ..data.source import VectorSource, is_sparse
from ..index import CBEIndex
from ..search.results import RangeResult, SearchResult
from ..storage.saveable import verify
from .calls import Call, Outcomes
from .connection import Connection, View
from .errors import ShardError
from .folder import prepare_folder, rows_of
from .ids import checked_ids
from .manifest import MOST_REPLICAS, MOST_SHARDS, TEMPLATE, Manifest
from .merging import merge_ranges, merge_results
from .reading import all_ids, contained, rows_by_id
from .writing import Writer

# Arguments of calls above this size are put into the object store once instead of being sent to each shard.
_SHARED_BYTES = 2**16


class ShardedExplanation(str):
    """What a search does in each shard, as text.

    Attributes
    ----------
    shards : tuple of Explanation
    """

    shards: tuple[Any, ...]

    def __new__(cls, shards: tuple[Any, ...]) -> ShardedExplanation:
        """Join the explanations of shards."""
        text = "\n".join(f"shard {number}: {explanation}" for number, explanation in enumerate(shards))
        made = super().__new__(cls, text)
        made.shards = shards
        return made


class ShardedIndex:
    """An index over many processes and machines, with the methods of `CBEIndex`.

    Rows are divided among shards by a hash of their ids. A shard is a `CBEIndex` in a worker (an actor of Ray), with a
    file and a log in a folder that all machines see. Make an index by `create` or `build`, and open it by `open`.

    A write is in the log of its shard when the call returns, so that a worker that dies loses nothing. Searches are
    retried when a worker dies, and passed to another replica if there is one. Any number of threads and clients may
    search and write at the same time.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((200, 32), dtype=np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ShardedIndex.create(f"{folder}/items", dim=32, n_shards=2, vectors="float32") as index:
    ...         ids = index.add(X)
    ...         index.search(X[:2], k=3).ids[:, 0]
    array([0, 1])
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        dim: int,
        *,
        n_shards: int,
        replicas: int = 1,
        sync: bool = True,
        address: str | None = None,
        ray_options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> ShardedIndex:
        """Make an index without rows.

        Parameters
        ----------
        folder : str or path-like
            A new folder, or an empty one, that all machines of the cluster see under the same path.
        dim : int
        n_shards : int
            Number of workers that rows are divided among.
        replicas : int
            Workers that hold the same shard. With 2, searches go on without a pause when a worker dies.
        sync : bool
            Whether a write is synced to disk before it is acknowledged. Without it, a machine that loses power, or that
            disappears before a network folder has its bytes, loses writes. The loss is reported (LostWritesError).
        address : str, optional
            The Ray cluster. By default the one that the process is connected to, or that Ray finds. If there is none,
            one is started, and ended by `close`.
        ray_options : dict, optional
            Options of Ray for workers: `num_cpus`, `memory`, `resources`. With `lifetime="detached"`, workers go on
            when the client ends, until `stop` is called. `checkpoint_bytes`: length of a log at which a shard saves
            itself.
        **arguments
            Those of `CBEIndex`.
        """
        index = CBEIndex(dim, **arguments)
        root = prepare_folder(folder, n_shards=n_shards, replicas=replicas, sync=sync, index=index)
        return cls.open(root, address=address, ray_options=ray_options)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        replicas: int | None = None,
        address: str | None = None,
        ray_options: dict[str, Any] | None = None,
    ) -> ShardedIndex:
        """Open an index. Clients of one cluster share its workers.

        Parameters
        ----------
        folder : str or path-like
        replicas : int, optional
            Workers that hold the same shard, from now on. By default as many as before.
        address, ray_options
            As in `create`.
        """
        root = str(Path(folder).resolve())
        manifest = Manifest.read(root)
        if replicas is not None:
            manifest.changed(replicas=as_count(replicas, "replicas", most=MOST_REPLICAS)).write(root)
        return cls(Connection.open(root, address, dict(ray_options or {})))

    @classmethod
    def build(cls, folder: str | os.PathLike[str], source: Any, **options: Any) -> ShardedIndex:
        """Make an index of vector files or of a Ray dataset, in bounded memory; see `cbeindex.sharded.build`."""
        from .build import build

        return build(folder, source, **options)

    # What is known without asking shards.

    @property
    def folder(self) -> str:
        """The folder of the index."""
        return self._connection.folder

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._connection.manifest.dim

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return self._connection.manifest.n_shards

    @property
    def replicas(self) -> int:
        """Workers that hold the same shard."""
        return self._connection.manifest.replicas

    def __repr__(self) -> str:
        about = self._connection.manifest
        return f"ShardedIndex({self.folder!r}, dim={about.dim}, n_shards={about.n_shards}, replicas={about.replicas})"

    # Reading.

    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        *args: Any,
        timeout: float | None = None,
        partial: bool = False,
        **options: Any,
    ) -> SearchResult:
        """Find the `k` nearest vectors of each query.

        Parameters
        ----------
        queries : array_like or sparse of shape (n_queries, dim) or (dim,)
        k : int
        *args, **options
            As in `CBEIndex.search`; each shard gets them unchanged.
        timeout : float, optional
            Seconds after which a ShardTimeoutError is raised. By default as long as it takes, unless a worker is out of
            reach for two minutes.
        partial : bool
            Leave out shards that are damaged, out of reach or too slow, instead of raising an error. `stats` then has
            their numbers as "missing_shards".

        Returns
        -------
        SearchResult
            In the order of (distance, id). In Hamming order, and for exact or estimated distances of all rows, it is
            the result of one `CBEIndex` with the same rows and encoder.
        """
        as_count(k, "k")
        found = self._read("search", (_as_queries(queries, self.dim), k, *args), options, timeout, partial)
        merged = merge_results([reply.value for reply in found.answers.values()], k)
        merged.stats = {**merged.stats, "shards": len(found.answers), "missing_shards": list(found.failures)}
        return merged

    async def search_async(self, queries: ArrayLike, k: int = 10, *args: Any, **options: Any) -> SearchResult:
        """Do as `search`, without blocking the event loop: for web services."""
        return await asyncio.to_thread(self.search, queries, k, *args, **options)

    def range_search(
        self,
        queries: ArrayLike,
        radius: float,
        *args: Any,
        timeout: float | None = None,
        partial: bool = False,
        **options: Any,
    ) -> RangeResult:
        """Find all vectors within a distance of each query; arguments as in `CBEIndex.range_search` and `search`."""
        queries = _as_queries(queries, self.dim)
        found = self._read("range_search", (queries, radius, *args), options, timeout, partial)
        return merge_ranges([reply.value for reply in found.answers.values()])

    def explain(self, queries: ArrayLike, k: int = 10, *args: Any, **options: Any) -> ShardedExplanation:
        """Say what `search` with these arguments does in each shard, and why."""
        found = self._read("explain", (_as_queries(queries, self.dim), k, *args), options)
        return ShardedExplanation(tuple(reply.value for reply in found.answers.values()))

    def get(self, ids: ArrayLike) -> Any:
        """Return the vectors of `ids`: float32 (n, dim), or (dim,) for a single id; a CSR array if stored sparse."""
        given = listed(ids, "ids")
        checked, _ = checked_ids(given)
        if len(checked) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        found = rows_by_id(self._connection, "get", checked)
        return found[0] if given.ndim == 0 and isinstance(found, np.ndarray) else found

    def codes(self, ids: ArrayLike) -> CodeBytes:
        """Return the Hamming codes of `ids`: uint8 (n, ceil(n_bits / 8)), or one code for a single id."""
        given = listed(ids, "ids")
        checked, _ = checked_ids(given)
        if len(checked) == 0:
            return self._connection.template.codes([])
        found: CodeBytes = rows_by_id(self._connection, "codes", checked)
        return found[0] if given.ndim == 0 else found

    def __len__(self) -> int:
        return sum(reply.value[0] for reply in self._connection.ask_all("count").answers.values())

    def __contains__(self, id_: object) -> bool:
        try:
            checked, _ = checked_ids(id_)
        except (TypeError, ValueError):
            return False
        return bool(len(checked) == 1 and contained(self._connection, checked)[0])

    @property
    def ids(self) -> Any:
        """All ids in ascending order."""
        return all_ids(self._connection)

    def stats(self) -> dict[str, Any]:
        """Describe the index: rows and bytes of all shards together, and of each one by itself under "shards"."""
        shards = [reply.value for reply in self._connection.ask_all("stats").answers.values()]
        restarts = self._connection.ask_coordinator("restarts")
        manifest = self._connection.manifest
        for shard in shards:
            shard["restarts"] = restarts.get(f"{manifest.layout}/{shard['shard']}/{shard['replica']}", 0)
        return {
            "dim": manifest.dim,
            "n_shards": manifest.n_shards,
            "replicas": manifest.replicas,
            "fitted": all(shard["fitted"] for shard in shards),
            "rows": sum(shard["rows"] for shard in shards),
            "bytes": sum(sum(shard["bytes"].values()) for shard in shards),
            "log_bytes": sum(shard["log_bytes"] for shard in shards),
            "shards": shards,
        }

    def verify(self) -> None:
        """Check every byte of all files. Raises a ShardError that names each damaged shard and file."""
        Manifest.read(self.folder)
        verify(Path(self.folder) / TEMPLATE)
        found = self._connection.ask_all("verify", partial=True)
        if found.failures:
            raise ShardError(found.failures, self.n_shards, "are damaged")

    # Writing.

    def fit(self, X: ArrayLike) -> Self:
        """Fit the encoder of all shards to a sample. Without this call, the first rows that are added do it."""
        self._connection.ask_coordinator("fit", rows_of(X, self.dim), is_done=lambda manifest: manifest.fitted)
        self._connection.refresh()
        return self

    def add(
        self,
        X: ArrayLike,
        ids: ArrayLike | None = None,
        *,
        replace: bool = False,
        progress: bool = False,
        **options: Any,
    ) -> Any:
        """Add vectors. They are in the logs of their shards when the call returns.

        Values and ids are checked before any shard gets a row. If a shard fails after that, the rows of other shards
        may be in the index: a ShardError says which, and the call may be repeated with `replace=True`.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
        ids : array_like of int or str, shape (n,), optional
            Unique ids. By default consecutive numbers that were never in use.
        replace : bool
            Replace vectors whose ids are in use. Otherwise such an id is an error.
        progress : bool
            Show a progress bar (needs tqdm).
        **options
            Further arguments of `CBEIndex.add`.

        Returns
        -------
        The ids.
        """
        return Writer(self._connection).add(
            rows_of(X, self.dim), ids, as_flag(replace, "replace"), as_flag(progress, "progress"), options
        )

    def remove(self, ids: ArrayLike, *, missing: str = "raise") -> None:
        """Remove vectors by id. Ids that are not in the index are named by a ValueError, and then nothing is removed.

        With `missing="ignore"` such ids are ignored.
        """
        Writer(self._connection).remove(ids, as_missing(missing))

    def save(self) -> None:
        """Write all rows to the files of the shards, and empty the logs. Opening is faster then."""
        self._connection.retrying(lambda view: view.calls.all(Call("save", writes=True)))

    def compact(self) -> None:
        """Save, and free the space of removed rows."""
        self._connection.retrying(lambda view: view.calls.all(Call("compact", writes=True)))

    def reshard(self, n_shards: int) -> None:
        """Move all rows to another number of shards.

        Codes are copied, not computed again. Searches go on with the old layout until the new one is complete, and
        writes wait. Needs disk space for a second copy of the index.
        """
        wanted = as_count(n_shards, "n_shards", most=MOST_SHARDS)
        self._connection.ask_coordinator(
            "move", wanted, is_done=lambda manifest: manifest.n_shards == wanted and not manifest.moving
        )
        self._connection.refresh()

    # Life.

    def close(self) -> None:
        """End the workers that this client has started, unless they are detached, and the cluster if it is its own.

        Nothing is lost: what was not saved is in the logs. Other clients start the workers they need again.
        """
        self._connection.close()

    def stop(self) -> None:
        """Close the index, and end all its workers, also detached ones."""
        self._connection.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Calls.

    def _read(
        self,
        name: str,
        args: tuple[Any, ...],
        options: dict[str, Any],
        timeout: float | None = None,
        partial: bool = False,
    ) -> Outcomes:
        """Call a method of the index of every shard."""
        seconds = None if timeout is None else as_positive(timeout, "timeout")
        partial = as_flag(partial, "partial")
        self._connection.require_open()
        arguments = _shared(args, options)
        kind = (name, args[0].size.bit_length())  # twice the values, or twice the non-zero ones, are another kind

        def read(view: View) -> Outcomes:
            calls = {
                number: Call("call", (name, self._connection.least(view, number), arguments), kind=kind)
                for number in range(view.manifest.n_shards)
            }
            found = view.calls.each(calls, seconds, partial)
            if not found.answers:
                raise ShardError(found.failures, view.manifest.n_shards)
            return found

        return self._connection.retrying(read)


def _as_queries(queries: Any, dim: int) -> Any:
    """Return queries as an array or CSR array, of shape (dim,) if a single query was passed."""
    source = VectorSource(queries, dim, "queries")
    return source._rows[0] if source.is_single and isinstance(source._rows, np.ndarray) else source._rows


def _shared(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return arguments as one object. Large ones go to the object store, so that they are sent to a node once."""
    n_bytes = 0
    for value in (*args, *options.values()):
        n_bytes += value.data.nbytes + value.indices.nbytes if is_sparse(value) else getattr(value, "nbytes", 0)
    return ray.put((args, options)) if n_bytes > _SHARED_BYTES else (args, options)
