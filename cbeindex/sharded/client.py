"""ShardedIndex: the index as its users see it. Sends calls to shards and puts the answers together."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import ray
from numpy.typing import ArrayLike
from ray.exceptions import RayActorError, RayTaskError

from .._core.checks import as_count, as_flag, as_positive
from ..data.source import VectorSource
from ..index import CBEIndex
from ..search.results import RangeResult, SearchResult
from .calls import PATIENCE_SECONDS, Call, Calls, Outcomes
from .coordinator import end_workers, find_coordinator, layout_after
from .errors import ShardError, StaleLayoutError
from .ids import checked_ids, take
from .manifest import MOST_REPLICAS, MOST_SHARDS, NAME, TEMPLATE, Manifest
from .merging import merge_ranges, merge_results, merge_rows
from .routing import rows_by_shard
from .shard import create_files
from .workers import Workers, start_ray
from .writing import Writer

T = TypeVar("T")

# Arguments of calls above this size are put into the object store once instead of being sent to each shard.
_SHARED_BYTES = 2**16


class View(NamedTuple):
    """The layout that a client works with: replaced as a whole when rows have been moved."""

    manifest: Manifest
    workers: Workers
    calls: Calls


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

    def __init__(self, folder: str, options: dict[str, Any], owns_ray: bool) -> None:
        self.folder, self._options, self._owns_ray = folder, options, owns_ray
        self._is_closed = False
        self._acknowledged: dict[tuple[str, int], int] = {}
        manifest = Manifest.read(folder)
        self._template = CBEIndex.load(Path(folder) / TEMPLATE)
        self._coordinator = find_coordinator(folder, manifest.key, options)
        self._view = self._new_view(manifest)
        self._view.calls.all(Call("ping"), timeout=PATIENCE_SECONDS)

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
        address: str | None = None,
        ray_options: dict[str, Any] | None = None,
    ) -> ShardedIndex:
        """Open an index. Clients of one cluster share its workers."""
        root = str(Path(folder).resolve())
        Manifest.read(root)
        owns_ray = start_ray(address)
        try:
            return cls(root, dict(ray_options or {}), owns_ray)
        except BaseException:
            if owns_ray:
                ray.shutdown()
            raise

    @classmethod
    def build(cls, folder: str | os.PathLike[str], source: Any, **options: Any) -> ShardedIndex:
        """Make an index of vector files or of a Ray dataset, in bounded memory; see `cbeindex.sharded.build`."""
        from .build import build

        return build(folder, source, **options)

    # What is known without asking shards.

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        return self._view.manifest.dim

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return self._view.manifest.n_shards

    @property
    def replicas(self) -> int:
        """Workers that hold the same shard."""
        return self._view.manifest.replicas

    def __repr__(self) -> str:
        about = self._view.manifest
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
        checked, _ = checked_ids(ids)

        def read(view: View) -> Any:
            rows = rows_by_shard(checked, view.manifest.n_shards)
            calls = {
                number: Call("call", ("get", self._least(view, number), take(checked, some)))
                for number, some in rows.items()
            }
            return merge_rows({n: r.value for n, r in view.calls.each(calls).answers.items()}, rows)

        if len(checked) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        found = self._retrying(read)
        return found[0] if np.ndim(ids) == 0 and isinstance(found, np.ndarray) else found

    def __len__(self) -> int:
        return sum(reply.value[0] for reply in self._ask_all("count").answers.values())

    def __contains__(self, id_: object) -> bool:
        try:
            checked, _ = checked_ids(id_)
        except (TypeError, ValueError):
            return False
        return bool(len(checked) == 1 and self._writer().contained(checked)[0])

    @property
    def ids(self) -> Any:
        """All ids in ascending order."""
        parts = [reply.value for reply in self._ask_all("ids").answers.values()]
        return np.sort(np.concatenate(parts))

    def stats(self) -> dict[str, Any]:
        """Describe the index: rows and bytes of all shards together, and of each one by itself under "shards"."""
        shards = [reply.value for reply in self._ask_all("stats").answers.values()]
        restarts = self._ask_coordinator("restarts")
        for shard in shards:
            shard["restarts"] = restarts.get(f"{self._view.manifest.layout}/{shard['shard']}/{shard['replica']}", 0)
        manifest = self._view.manifest
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
        from ..storage.saveable import verify

        Manifest.read(self.folder)
        verify(Path(self.folder) / TEMPLATE)
        found = self._ask_all("verify", partial=True)
        if found.failures:
            raise ShardError(found.failures, self.n_shards, "are damaged")

    # Writing.

    def fit(self, X: ArrayLike) -> Self:
        """Fit the encoder of all shards to a sample. Without this call, the first rows that are added do it."""
        self._ask_coordinator("fit", _rows_of(X, self.dim), is_done=lambda manifest: manifest.fitted)
        self._refresh()
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
        return self._writer().add(
            _rows_of(X, self.dim), ids, as_flag(replace, "replace"), as_flag(progress, "progress"), options
        )

    def remove(self, ids: ArrayLike) -> None:
        """Remove vectors by id. An id that is not in the index is an error, and then nothing is removed."""
        self._writer().remove(ids)

    def save(self) -> None:
        """Write all rows to the files of the shards, and empty the logs. Opening is faster then."""
        self._retrying(lambda view: view.calls.all(Call("save", writes=True)))

    def compact(self) -> None:
        """Save, and free the space of removed rows."""
        self._retrying(lambda view: view.calls.all(Call("compact", writes=True)))

    def reshard(self, n_shards: int) -> None:
        """Move all rows to another number of shards.

        Codes are copied, not computed again. Searches go on with the old layout until the new one is complete, and
        writes wait. Needs disk space for a second copy of the index.
        """
        wanted = as_count(n_shards, "n_shards", most=MOST_SHARDS)
        self._ask_coordinator(
            "move", wanted, is_done=lambda manifest: manifest.n_shards == wanted and not manifest.moving
        )
        self._refresh()

    # Life.

    def close(self) -> None:
        """End the workers that this client has started, unless they are detached, and the cluster if it is its own.

        Nothing is lost: what was not saved is in the logs. Other clients start the workers they need again.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._options.get("lifetime") != "detached":
            self._view.workers.stop()
        if self._owns_ray:
            ray.shutdown()

    def stop(self) -> None:
        """Close the index, and end all its workers, also detached ones."""
        if not self._is_closed:
            end_workers(self._view.manifest.key, keep=None)
            ray.kill(self._coordinator)
        self.close()

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
        shared = tuple(_shared(argument) for argument in args)
        shared_options = {key: _shared(value) for key, value in options.items()}

        def read(view: View) -> Outcomes:
            calls = {
                number: Call("call", (name, self._least(view, number), *shared), shared_options)
                for number in range(view.manifest.n_shards)
            }
            found = view.calls.each(calls, seconds, partial)
            if not found.answers:
                raise ShardError(found.failures, view.manifest.n_shards)
            return found

        return self._retrying(read)

    def _ask_all(self, name: str, partial: bool = False) -> Outcomes:
        """Call a method of every shard."""

        def ask(view: View) -> Outcomes:
            numbers = range(view.manifest.n_shards)
            return view.calls.each({n: Call(name, (self._least(view, n),)) for n in numbers}, partial=partial)

        return self._retrying(ask)

    def _ask_coordinator(
        self, name: str, *args: Any, is_done: Callable[[Manifest], bool] = lambda manifest: False
    ) -> Any:
        """Call a method of the coordinator, again if it dies, unless the manifest says that the work `is_done`."""
        self._require_open()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return ray.get(getattr(self._coordinator, name).remote(*args))
            except RayTaskError as error:
                raise getattr(error, "cause", error) from None
            except RayActorError:
                if is_done(Manifest.read(self.folder)):
                    return None
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                with suppress(RayActorError):
                    self._coordinator = find_coordinator(self.folder, self._view.manifest.key, self._options)

    def _retrying(self, operation: Callable[[View], T]) -> T:
        """Carry out an operation; once more with the new layout if rows have been moved meanwhile."""
        self._require_open()
        while True:
            try:
                return operation(self._view)
            except StaleLayoutError:
                self._refresh()

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError("the index is closed; open it again by ShardedIndex.open")

    def _writer(self) -> Writer:
        self._require_open()
        return Writer(self)

    def _least(self, view: View, number: int) -> int:
        """Return the number of the last write of this client that a shard has acknowledged."""
        return self._acknowledged.get((view.manifest.layout, number), 0)

    def _refresh(self) -> None:
        """Read the manifest again, and use other workers if it names others."""
        manifest = Manifest.read(self.folder)
        old = self._view
        if manifest.layout != old.manifest.layout:
            self._view = self._new_view(manifest)
        elif manifest != old.manifest:
            old.workers.manifest = manifest
            self._view = old._replace(manifest=manifest)
        if manifest.fitted and not self._template.is_fitted:
            self._template = CBEIndex.load(Path(self.folder) / TEMPLATE)

    def _new_view(self, manifest: Manifest) -> View:
        """Start the workers of a layout that are not running."""
        workers = Workers(self.folder, manifest, self._options)
        workers.start()

        def check_layout() -> None:
            if Manifest.read(self.folder).layout != manifest.layout:
                raise StaleLayoutError("rows have been moved to another layout")

        return View(manifest, workers, Calls(workers, check_layout))


def prepare_folder(folder: str | os.PathLike[str], *, n_shards: int, replicas: int, sync: bool, index: CBEIndex) -> str:
    """Write the files of an index without rows, the manifest last, and return the path of the folder."""
    root = Path(folder).resolve()
    manifest = Manifest(
        uuid.uuid4().hex,
        layout_after(None),
        as_count(n_shards, "n_shards", most=MOST_SHARDS),
        index.dim,
        as_count(replicas, "replicas", most=MOST_REPLICAS),
        index.is_fitted,
        sync=as_flag(sync, "sync"),
    )
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        found = "an index in shards" if (root / NAME).exists() else "other files"
        raise FileExistsError(f"{root} must be an empty folder, found {found}")
    index.save(root / TEMPLATE)
    (root / manifest.layout).mkdir()
    for number in range(manifest.n_shards):
        create_files(root / manifest.shard_file(number), CBEIndex.load(root / TEMPLATE))
    manifest.write(root)
    return str(root)


def _rows_of(X: Any, dim: int) -> Any:
    """Return rows as an array or CSR array of shape (n, dim), without copying those that have this form."""
    return VectorSource(X, dim)._rows


def _as_queries(queries: Any, dim: int) -> Any:
    """Return queries as an array or CSR array, of shape (dim,) if a single query was passed."""
    source = VectorSource(queries, dim, "queries")
    return source._rows[0] if source.is_single and isinstance(source._rows, np.ndarray) else source._rows


def _shared(argument: Any) -> Any:
    """Put large arguments into the object store, so that they are sent to a node once."""
    n_bytes = getattr(argument, "nbytes", None)
    if n_bytes is None and hasattr(argument, "indptr"):
        n_bytes = argument.data.nbytes + argument.indices.nbytes
    return ray.put(argument) if n_bytes is not None and n_bytes > _SHARED_BYTES else argument
