"""The coordinator: one actor that changes the manifest, so that any number of clients agree about it."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import ray

from .._core.typing import Ids
from ..index import CBEIndex
from .calls import Call, Calls
from .manifest import TEMPLATE, Manifest
from .moving import copy_shard, remove_layouts
from .workers import NAMESPACE, Workers


class Coordinator:
    """Fits the common encoder, hands out ids, and moves rows to another number of shards.

    It has no state of its own beside the manifest. If it dies, Ray starts it again, and a move that was under way is
    undone.

    Parameters
    ----------
    folder : str
    options : dict
        Options of Ray for the workers.
    """

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self._folder, self._options = folder, options
        self._lock = threading.Lock()
        self._next_id = 0
        self._starts: Counter[str] = Counter()
        manifest = Manifest.read(folder)
        remove_layouts(Path(folder), manifest.layout)
        end_workers(manifest.key, keep=manifest.layout)
        if manifest.moving:
            self._thaw(manifest)

    def fit(self, sample: Any) -> None:
        """Fit the encoder, and encode rows that are stored as vectors."""
        with self._lock:
            manifest = Manifest.read(self._folder)
            if manifest.fitted:
                raise ValueError("the index is fitted already; make a new index to fit it to other data")
            template = CBEIndex.load(Path(self._folder) / TEMPLATE)
            if not template.is_fitted:
                template.fit(sample)
                template.save()
            manifest.changed(fitted=True).write(self._folder)
            self._calls(manifest).all(Call("adopt", writes=True))

    def use_ids(self, kind: str) -> None:
        """Note the type of the ids; raise TypeError if the index has ids of the other type."""
        with self._lock:
            manifest = Manifest.read(self._folder)
            if manifest.ids is None:
                manifest.changed(ids=kind).write(self._folder)
            elif manifest.ids != kind:
                names = {"int": "integers", "str": "strings"}
                raise TypeError(f"ids must be {names[manifest.ids]}, as those of this index are, got {names[kind]}")

    def take_ids(self, n: int) -> Ids:
        """Return `n` consecutive ids that were never in use."""
        with self._lock:
            answers, _ = self._calls(Manifest.read(self._folder)).all(Call("count", (0,)))
            first = max(self._next_id, *(reply.value[1] for reply in answers.values()))
            self._next_id = first + n
            return np.arange(first, first + n, dtype=np.int64)

    def started(self, worker: str) -> None:
        """Note that a worker has started."""
        self._starts[worker] += 1

    def restarts(self) -> dict[str, int]:
        """Return how often each worker has been started again, since this coordinator was started."""
        return {worker: n_starts - 1 for worker, n_starts in self._starts.items()}

    def move(self, n_shards: int) -> None:
        """Move all rows to `n_shards` shards. Shards take no writes meanwhile, and readers go on."""
        with self._lock:
            old = Manifest.read(self._folder)
            new = old.changed(layout=layout_after(old.layout), n_shards=n_shards)
            calls = self._calls(old)
            old.changed(moving=True).write(self._folder)
            try:
                calls.all(Call("freeze", (True,), writes=True))
                calls.all(Call("save", writes=True))
                (Path(self._folder) / new.layout).mkdir()
                copy = ray.remote(copy_shard)
                ray.get([copy.remote(self._folder, old, new, number) for number in range(n_shards)])
                new.write(self._folder)
            except BaseException:
                self._thaw(old)
                remove_layouts(Path(self._folder), old.layout)
                raise
            end_workers(new.key, keep=new.layout)
            remove_layouts(Path(self._folder), new.layout)

    def _thaw(self, manifest: Manifest) -> None:
        """Let the shards of a layout take writes again."""
        manifest.changed(moving=False).write(self._folder)
        self._calls(manifest).all(Call("freeze", (False,), writes=True), partial=True)

    def _calls(self, manifest: Manifest) -> Calls:
        return Calls(Workers(self._folder, manifest, self._options), lambda: None)


def layout_after(layout: str | None) -> str:
    """Return a name for the folder of a new layout, which no earlier attempt has used."""
    number = 1 if layout is None else int(layout.split("-")[1]) + 1
    return f"layout-{number}-{secrets.token_hex(4)}"


def find_coordinator(folder: str, key: str, options: dict[str, Any]) -> Any:
    """Return the coordinator of an index, started if it is not running."""
    own = {name: value for name, value in options.items() if name in ("lifetime", "resources", "runtime_env")}
    actor = ray.remote(Coordinator).options(
        name=f"{key}/coordinator", namespace=NAMESPACE, get_if_exists=True, max_restarts=-1,
        max_concurrency=4, num_cpus=0, **own,
    )  # fmt: skip
    return actor.remote(folder, options)


def end_workers(key: str, keep: str | None) -> None:
    """End all workers of an index, but those of one layout."""
    for named in ray.util.list_named_actors(all_namespaces=True):
        name, prefix = named["name"], f"{key}/layout-"
        if named["namespace"] == NAMESPACE and name.startswith(prefix) and not name.startswith(f"{key}/{keep}/"):
            try:
                ray.kill(ray.get_actor(name, NAMESPACE))
            except ValueError:  # it has ended meanwhile
                continue
