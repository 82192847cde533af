"""The connection of a client to the workers of an index, and to its coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError

from ..index import CBEIndex
from .calls import PATIENCE_SECONDS, Call, Calls, Outcomes
from .coordinator import end_workers, find_coordinator
from .errors import StaleLayoutError
from .manifest import TEMPLATE, Manifest
from .workers import Workers, start_ray

T = TypeVar("T")


class View(NamedTuple):
    """The layout that a client works with: replaced as a whole when rows have been moved."""

    manifest: Manifest
    workers: Workers
    calls: Calls


class Connection:
    """What a client knows of an index: its layout, its workers, and which of its own writes they have acknowledged.

    Parameters
    ----------
    folder : str
    options : dict
        Options of Ray for the workers.
    owns_ray : bool
        Whether the cluster was started for this client, and ends with it.
    """

    def __init__(self, folder: str, options: dict[str, Any], owns_ray: bool) -> None:
        self.folder, self._options, self._owns_ray = folder, options, owns_ray
        self._is_closed = False
        self._acknowledged: dict[tuple[str, int], int] = {}
        manifest = Manifest.read(folder)
        self.template = CBEIndex.load(Path(folder) / TEMPLATE)
        self._coordinator = find_coordinator(folder, manifest.key, options)
        self.view = self._new_view(manifest)
        self.view.calls.all(Call("ping"), timeout=PATIENCE_SECONDS)

    @classmethod
    def open(cls, folder: str, address: str | None, options: dict[str, Any]) -> Connection:
        """Connect to Ray, and to the workers of an index."""
        owns_ray = start_ray(address)
        try:
            return cls(folder, options, owns_ray)
        except BaseException:
            if owns_ray:
                ray.shutdown()
            raise

    @property
    def manifest(self) -> Manifest:
        """The manifest as it was last read."""
        return self.view.manifest

    def close(self) -> None:
        """End the workers that were started here, unless they are detached, and the cluster if it is its own."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._options.get("lifetime") != "detached":
            self.view.workers.stop()
        self._coordinator = None
        if self._owns_ray:
            ray.shutdown()

    def stop(self) -> None:
        """Close the connection, and end all workers of the index."""
        if not self._is_closed:
            end_workers(self.manifest.key, keep=None)
            ray.kill(self._coordinator)
        self.close()

    def retrying(self, operation: Callable[[View], T]) -> T:
        """Carry out an operation; once more with the new layout if rows have been moved meanwhile."""
        self.require_open()
        while True:
            try:
                return operation(self.view)
            except StaleLayoutError:
                self.refresh()

    def ask_all(self, name: str, partial: bool = False) -> Outcomes:
        """Call a method of every shard."""

        def ask(view: View) -> Outcomes:
            numbers = range(view.manifest.n_shards)
            return view.calls.each({n: Call(name, (self.least(view, n),)) for n in numbers}, partial=partial)

        return self.retrying(ask)

    def ask_coordinator(
        self, name: str, *args: Any, is_done: Callable[[Manifest], bool] = lambda manifest: False
    ) -> Any:
        """Call a method of the coordinator, again if it dies, unless the manifest says that the work `is_done`."""
        self.require_open()
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
                self._coordinator = find_coordinator(self.folder, self.manifest.key, self._options)

    def least(self, view: View, number: int) -> int:
        """Return the number of the last write of this client that a shard has acknowledged."""
        return self._acknowledged.get((view.manifest.layout, number), 0)

    def acknowledge(self, view: View, number: int, sequence: int) -> None:
        """Note that a shard has acknowledged a write: from now on it must not answer without it."""
        self._acknowledged[view.manifest.layout, number] = max(self.least(view, number), sequence)

    def refresh(self) -> None:
        """Read the manifest again, and use other workers if it names others."""
        manifest = Manifest.read(self.folder)
        old = self.view
        if manifest.layout != old.manifest.layout:
            self.view = self._new_view(manifest)
        elif manifest != old.manifest:
            old.workers.manifest = manifest
            self.view = old._replace(manifest=manifest)
        if manifest.fitted and not self.template.is_fitted:
            self.template = CBEIndex.load(Path(self.folder) / TEMPLATE)

    def require_open(self) -> None:
        """Raise ValueError if the connection is closed."""
        if self._is_closed:
            raise ValueError("the index is closed; open it again by ShardedIndex.open")

    def _new_view(self, manifest: Manifest) -> View:
        """Start the workers of a layout that are not running."""
        workers = Workers(self.folder, manifest, self._options)
        workers.start()

        def check_layout() -> None:
            if Manifest.read(self.folder).layout != manifest.layout:
                raise StaleLayoutError("rows have been moved to another layout")

        return View(manifest, workers, Calls(workers, check_layout))
