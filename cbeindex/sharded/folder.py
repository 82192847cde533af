"""The folder of an index in shards, and the form of what is written to it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

from .._core.checks import as_count, as_flag
from ..data.source import VectorSource
from ..index import CBEIndex
from .coordinator import layout_after
from .manifest import MOST_REPLICAS, MOST_SHARDS, NAME, TEMPLATE, Manifest
from .shard import create_files


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


def rows_of(X: Any, dim: int) -> Any:
    """Return rows as an array or CSR array of shape (n, dim), without copying those that have this form."""
    return VectorSource(X, dim)._rows
