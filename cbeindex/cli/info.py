"""`cbeindex info`: describe an index file, or the cache of compiled kernels."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import BinaryIndex, CBEIndex, kernels
from .._core.tuning import tuning
from ..storage import container
from ..storage.settings import ENCODER_PREFIX, has_string_ids
from .output import size_text

_HELP = """\
Describe an index file: the kind of index and its parameters, its rows, the
bytes of its parts, and the unused bytes of the file. Does not read the whole
file, so it is fast for any size. Or, with --cache, the compiled kernels on
disk: their folders, sizes and names."""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("info", help="describe an index file", description=_HELP)
    parser.add_argument("file", metavar="FILE", nargs="?")
    parser.add_argument("--cache", action="store_true", help="describe the compiled kernels on disk")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.cache == (arguments.file is not None):
        raise ValueError("info must be given either FILE or --cache (see cbeindex info --help)")
    if arguments.cache:
        _print_cache(arguments.json)
        return
    about = describe_index(arguments.file)
    if arguments.json:
        print(json.dumps(about, indent=2))
        return
    print(f"{about['path']}: {about['kind']}")
    for name, value in _lines(about).items():
        print(f"  {name:<20} {value:,}" if isinstance(value, int) else f"  {name:<20} {value}")


def _print_cache(as_json: bool) -> None:
    """Print the folders of compiled kernels, and what they hold."""
    written = kernels.caching.writable_folder()
    found = {
        str(folder): kernels.caching.stored(folder) for folder in (kernels.caching.AHEAD, *kernels.caching.candidates())
    }
    if as_json:
        print(json.dumps({"written": written and str(written), "folders": found}, indent=2))
        return
    for folder, files in found.items():
        print(f"{folder}: {len(files)} kernels, {size_text(sum(files.values()))}")
        for name, n_bytes in files.items():
            print(f"  {name:<60} {n_bytes:>9,}")
    print(f"new kernels go to {written}" if written else "new kernels are not kept: no folder can be written to")


def _lines(about: dict[str, Any]) -> dict[str, Any]:
    """Return the labels and values to print."""
    lines = {"dimensions": about["dim"]} if "dim" in about else {}
    lines["bits"] = about["n_bits"]
    if "dim" in about:
        form = "sparse " if about["sparse"] and str(about["vectors"]).startswith("float") else ""
        lines |= {
            "metric": about["metric"],
            "encoder": about["encoder"] if about["fitted"] else f"{about['encoder']}, not fitted yet",
            "vectors kept": f"{form}{about['vectors']}" if about["vectors"] else "no",
        }
    lines |= {"buckets": about["buckets"] or "no", "ids": about["ids"]}
    lines |= {"rows": about["rows"], "removed rows": about["removed"], "segments": about["segments"]}
    lines |= {f"bytes of {part}": n_bytes for part, n_bytes in about["bytes"].items() if n_bytes}
    share = about["unused_bytes"] / about["file_bytes"]
    hint = f"; {about['kind']}.load(FILE).compact() frees them" if share > tuning().cli_unused_share else ""
    return lines | {
        "bytes of the file": about["file_bytes"],
        "unused bytes": f"{about['unused_bytes']:,} ({share:.0%}{hint})",
        "format version": about["format_version"],
        "commit": about["commit"],
    }


def describe_index(path: str) -> dict[str, Any]:
    """Return the parameters, counts and sizes of an index file."""
    file = container.describe(path)
    index = open_index(path)
    about = index.stats()
    about["buckets"] = about.pop("kind_of_buckets")
    n_encoder = sum(section["bytes"] for section in file["sections"] if section["name"].startswith(ENCODER_PREFIX))
    counts = {name: about.pop(name) for name in ("rows", "removed", "segments", "bytes")}
    about["ids"] = "strings" if has_string_ids(file["content"]) else "integers"
    if isinstance(index, CBEIndex):
        about["sparse"] = file["content"]["sparse"]
        counts["bytes"]["encoder"] = n_encoder
    return {
        "path": path,
        "kind": type(index).__name__,
        **about,
        **counts,
        "file_bytes": file["bytes"],
        "unused_bytes": file["unused"],
        "format_version": file["version"],
        "commit": file["sequence"],
    }


def open_index(path: str) -> CBEIndex | BinaryIndex:
    """Open an index file of either kind."""
    if container.describe(path)["content"].get("kind") == "BinaryIndex":
        return BinaryIndex.load(path)
    return CBEIndex.load(path)  # reports unknown kinds
