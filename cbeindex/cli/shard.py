"""`cbeindex shard`: build, search and describe an index in shards, on Ray."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import CBEIndex
from ..data.inputs import Inputs
from ..data.names import Names
from ..storage import container
from .arguments import FORMATS, Parser, count
from .build import add_index_arguments, ids_of, index_arguments, progress
from .output import exiting_on_signals, size_text
from .search import add_search_arguments, search_options, write_results

_HELP = """\
Build, search and describe an index that is divided into shards, which Ray runs
on one machine or many (pip install "cbeindex[ray]"). Commands use the cluster
of RAY_ADDRESS, or one that `ray start` has started here. If there is none, they
start one for themselves, and end it."""

_BUILD_HELP = """\
Build an index in shards from vector files, in bounded memory. FOLDER must be
one that all machines of the cluster see. It appears when the index is complete.
A build that fails or is interrupted leaves nothing behind."""

_SEARCH_HELP = """\
Find the k nearest vectors of each query in all shards, and print or write them
as `cbeindex search` does."""

_INFO_HELP = """\
Describe an index in shards from its files: the manifest, and rows and bytes of
each shard. Starts nothing, so rows in logs, which the next save moves to the
files, are not counted; their bytes are printed."""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("shard", help="build, search, describe an index in shards", description=_HELP)
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    _add_build(parts.add_parser("build", help="build an index", description=_BUILD_HELP, epilog=FORMATS))
    _add_search(parts.add_parser("search", help="find the nearest vectors", description=_SEARCH_HELP, epilog=FORMATS))
    _add_info(parts.add_parser("info", help="describe an index", description=_INFO_HELP))


def _add_build(parser: Parser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="the folder to create")
    add("files", metavar="VECTORS", nargs="+", help="files of vectors, all of the same length")
    add("--shards", type=count(1), required=True, metavar="N", help="number of shards")
    add("--replicas", type=count(1), default=1, metavar="N", help="workers that hold the same shard (default: 1)")
    add_index_arguments(add)
    parser.set_defaults(run=_build)


def _add_search(parser: Parser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="the folder of an index in shards")
    add_search_arguments(add)
    add("--timeout", type=float, metavar="SECONDS", help="give up shards that take longer (default: wait)")
    add("--partial", action="store_true", help="leave out shards that are damaged or too slow")
    parser.set_defaults(run=_search)


def _add_info(parser: Parser) -> None:
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=_info)


def _build(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    inputs = Inputs(arguments.files, arguments.key)
    ids = ids_of(arguments, inputs)
    with (
        _sharded() as sharded,
        exiting_on_signals() as exit_if_signalled,
        progress(inputs.n_rows, arguments.quiet) as advance,
    ):

        def on_block(n_rows: int) -> None:
            advance(n_rows)
            exit_if_signalled()

        index = sharded.build(
            arguments.folder, arguments.files, n_shards=arguments.shards, replicas=arguments.replicas,
            ids=ids.tolist() if isinstance(ids, Names) else ids,
            key=arguments.key, n_sample=arguments.sample, on_block=on_block, **index_arguments(arguments),
        )  # fmt: skip
        index.close()
    if not arguments.quiet:
        about = describe_folder(arguments.folder)
        summary = f"{about['rows']:,} vectors of {about['dim']:,} values in {about['n_shards']} shards"
        seconds = time.monotonic() - began
        print(f"{arguments.folder}: {summary}, {size_text(about['bytes'])}, {seconds:.1f} s", file=sys.stderr)


def _search(arguments: argparse.Namespace) -> None:
    options = search_options(arguments) | {"timeout": arguments.timeout, "partial": arguments.partial}
    with _sharded() as sharded, sharded.ShardedIndex.open(arguments.folder) as index:
        write_results(index, arguments, options, [arguments.queries])


def _info(arguments: argparse.Namespace) -> None:
    about = describe_folder(arguments.folder)
    if arguments.json:
        print(json.dumps(about, indent=2))
        return
    print(f"{about['path']}: index in shards")
    for name in ("dim", "n_shards", "replicas", "fitted", "rows", "bytes", "log_bytes"):
        print(f"  {name:<12} {about[name]:,}" if type(about[name]) is int else f"  {name:<12} {about[name]}")
    for shard in about["shards"]:
        print(f"  {shard['file']}: {shard['rows']:,} rows, {size_text(shard['bytes'])}, log {shard['log_bytes']:,}")


def describe_folder(folder: str) -> dict[str, Any]:
    """Return the manifest of an index in shards, and rows and bytes of its files."""
    from ..sharded.manifest import Manifest, log_file

    manifest = Manifest.read(folder)
    shards = []
    for number in range(manifest.n_shards):
        path = Path(folder) / manifest.shard_file(number)
        shards.append(
            {
                "file": manifest.shard_file(number),
                "rows": len(CBEIndex.load(path)),
                "bytes": container.describe(path)["bytes"],
                "log_bytes": log_file(path).stat().st_size,
            }
        )
    totals = {name: sum(shard[name] for shard in shards) for name in ("rows", "bytes", "log_bytes")}
    parts = {
        name: getattr(manifest, name) for name in ("dim", "n_shards", "replicas", "fitted", "ids", "sync", "layout")
    }
    return {"path": folder, **parts, **totals, "shards": shards}


@contextmanager
def _sharded() -> Iterator[Any]:
    """Yield the package that needs Ray, and turn its errors into those that the command line reports in a line."""
    try:
        from .. import sharded
    except ImportError as error:
        raise ValueError(str(error)) from None
    try:
        yield sharded
    except sharded.ShardError as error:
        raise OSError(str(error)) from None
