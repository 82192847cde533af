"""Moving rows to another number of shards: codes and kept vectors are copied, nothing is encoded again."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from ..index import CBEIndex
from .log import Log, LogReader
from .manifest import TEMPLATE, Manifest, log_file
from .routing import shard_of
from .shard import create_files


def copy_shard(folder: str, old: Manifest, new: Manifest, number: int) -> None:
    """Write the files of shard `number` of a new layout from the saved files of the old one."""
    root = Path(folder)
    index, tokens = CBEIndex.load(root / TEMPLATE), []
    for source in range(old.n_shards):
        path = root / old.shard_file(source)
        part = CBEIndex.load(path)  # rows of other shards are marked as removed here, in memory
        ids = part.ids
        elsewhere = np.flatnonzero(shard_of(ids, new.n_shards) != number)
        if len(elsewhere):
            part.remove(ids[elsewhere])
        index.merge(part)
        index._stored_rows().reserve(part._stored_rows().next_id)
        tokens += _tokens_of(log_file(path))
    target = root / new.shard_file(number)
    create_files(target, index)
    Log.create(log_file(target), 0, new.sync, [{"kind": "tokens", "tokens": tokens}]).close()


def remove_layouts(folder: Path, keep: str) -> None:
    """Remove the files of all layouts but one."""
    for path in folder.glob("layout-*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def _tokens_of(path: Path) -> list[str]:
    """Return the writes that a saved shard remembers: clients that missed the answer ask for them."""
    reader = LogReader(path)
    try:
        return [token for record in reader.records() for token in record.values.get("tokens", ())]
    finally:
        reader.close()
