"""Building an index in bulk: read block by block, sent to shards while the next block is read."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._core.checks import as_flag
from .._core.progress import progress_bar
from ..index import CBEIndex
from .client import ShardedIndex
from .folder import prepare_folder
from .ids import checked_ids
from .manifest import Manifest
from .sources import Block, Source, source_of


def build(
    folder: str | os.PathLike[str],
    source: Any,
    *,
    n_shards: int,
    replicas: int = 1,
    sync: bool = True,
    ids: Any = None,
    key: str | None = None,
    column: str | None = None,
    id_column: str | None = None,
    n_sample: int | None = None,
    progress: bool = False,
    address: str | None = None,
    ray_options: dict[str, Any] | None = None,
    on_block: Callable[[int], object] | None = None,
    **arguments: Any,
) -> ShardedIndex:
    """Make an index of vector files or of a Ray dataset, in bounded memory.

    The encoder is fitted to a random sample of all rows. The folder appears when the index is complete and saved. A
    build that fails leaves nothing behind.

    Parameters
    ----------
    folder : str or path-like
        As in `ShardedIndex.create`.
    source : path, sequence of paths, or ray.data.Dataset
        Files in the formats of `cbeindex build`.
    n_shards, replicas, sync, address, ray_options
        As in `ShardedIndex.create`.
    ids : array_like of int or str, shape (n,), optional
        For files: ids of all rows. By default row numbers, counted through all files.
    key : str, optional
        For files: the array of `.npz` files.
    column, id_column : str, optional
        For a dataset: the columns of vectors (by default the only one) and of ids (by default row numbers).
    n_sample : int, optional
        Rows of the sample.
    progress : bool
        Show a progress bar (needs tqdm).
    on_block : callable, optional
        Called with the number of rows of each block that the shards have.
    **arguments
        Those of `CBEIndex`, but for `dim`.

    Returns
    -------
    ShardedIndex
    """
    rows = source_of(source, key=key, ids=None, column=column, id_column=id_column)
    if ids is not None:
        rows = source_of(source, key=key, ids=checked_ids(ids, rows.n_rows)[0], column=column, id_column=id_column)
    template = CBEIndex(rows.dim, **arguments)
    if rows.n_rows >= 2 and not template.is_fitted:
        template.fit(rows.sample(n_sample, arguments.get("seed", 0)))
    target = Path(folder).resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} must be an empty folder or not exist, found other files")
    aside = target.parent / f".{target.name}.{secrets.token_hex(4)}"
    try:
        made = prepare_folder(aside, n_shards=n_shards, replicas=replicas, sync=False, index=template)
        with ShardedIndex.open(made, address=address, ray_options=ray_options) as index:
            with progress_bar(as_flag(progress, "progress"), rows.n_rows, "vectors") as advance:
                _add_blocks(index, rows, [advance, on_block or (lambda n: None)])
            index.save()
        Manifest.read(made).changed(sync=as_flag(sync, "sync")).write(made)
        with suppress(FileNotFoundError):
            target.rmdir()
        os.rename(aside, target)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return ShardedIndex.open(target, address=address, ray_options=ray_options)


def _add_blocks(index: ShardedIndex, source: Source, advances: list[Callable[[int], object]]) -> None:
    """Add all blocks in order; the next one is read while shards work on the one before."""

    def add(block: Block) -> None:
        with source.locating(block.rows):
            index.add(block.vectors, block.ids)
        for advance in advances:
            advance(len(block.rows))

    with ThreadPoolExecutor(1) as thread:
        running: Future[None] | None = None
        for block in source.blocks():
            if running is not None:
                running.result()
            running = thread.submit(add, block)
        if running is not None:
            running.result()
