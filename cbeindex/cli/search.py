"""`cbeindex search`: find the nearest vectors of queries in a file."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import BinaryIndex
from .._core.tuning import tuning
from ..data.arrowfiles import ArrowVectors
from ..data.inputs import Inputs
from ..data.keys import NO_ID
from ..data.names import shown
from ..data.source import VectorSource, as_codes
from ..search.request import MODES, RERANKS
from .arguments import FORMATS, count
from .info import open_index
from .output import exiting_on_signals, temporary_folder

_HELP = """\
Find the k nearest vectors of each query, and print one line per query: the
number of the query, counted from 0, then id:distance of each result, nearest
first, separated by tabs. Ids that are strings are printed as in JSON.

Distances are those of the metric of the index (cosine: 1 - cosine; l2: squared
Euclidean; ip: 1 - inner product). They are exact if the index keeps vectors,
and otherwise estimated from the codes. With --rerank none, and for an index of
binary codes (BinaryIndex), they are Hamming distances. Queries of a BinaryIndex
are packed codes, uint8 of shape (n, ceil(bits / 8)), as packed by
numpy.packbits(bits, axis=1, bitorder="little")."""

_EPILOG = f"""\
{FORMATS}

examples:
  the ten nearest of each query:
    cbeindex search index.cbe queries.npy
  the nearest only, without the number of the query:
    cbeindex search index.cbe queries.npy -k 1 | cut -f 2
  arrays "ids" and "distances" for numpy.load("found.npz"):
    cbeindex search index.cbe queries.fvecs -k 100 --output found.npz
  one JSON object per line, with query, ids and distances:
    cbeindex search index.cbe queries.npy --json"""


class _Results(NamedTuple):
    """Results of some queries, whose numbers are `rows`."""

    rows: range
    distances: Any
    ids: Any


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("search", help="find the nearest vectors", description=_HELP, epilog=_EPILOG)
    _add_arguments(parser.add_argument)
    parser.set_defaults(run=_run)


def _add_arguments(add: Callable[..., object]) -> None:
    add("file", metavar="FILE", help="an index file")
    add_search_arguments(add)


def add_search_arguments(add: Callable[..., object]) -> None:
    """Add the arguments that say what is searched for, and how."""
    add("queries", metavar="QUERIES", help="a file of vectors, or of packed codes")
    add("-k", type=count(1), default=10, metavar="K", help="results per query (default: 10)")
    add("--key", help="array of an .npz file, or column of a Parquet or Arrow file, to use")
    add("--n-probes", type=count(1), metavar="N", help="buckets to probe (default: chosen by the index)")
    mode_help = """scan: all codes; cascade: the first 512 bits of all codes, then more bits of the best; buckets: the
        codes in the probed buckets (default: auto, the fastest)"""
    add("--mode", choices=MODES, default="auto", help=mode_help)
    rerank_help = """none: Hamming distances; asymmetric: distances estimated from the codes; exact: distances computed
        from the kept vectors (default: auto, the most accurate that the index supports)"""
    add("--rerank", choices=("none", *RERANKS), help=rerank_help)
    add("--n-candidates", type=count(1), metavar="N", help="candidates to re-rank (default: chosen by the index)")
    add("--threads", type=count(1), metavar="N", help="number of threads (default: one per core)")
    output_help = """write the arrays ids and distances, of shape (n, k), to this file instead of printing them. An
        existing file is replaced. Missing results have the id -1, or an empty string"""
    add("--output", metavar="OUT.npz", help=output_help)
    add("--json", action="store_true", help="print one JSON object per line")


def _run(arguments: argparse.Namespace) -> None:
    index = open_index(arguments.file)
    options = search_options(arguments)
    if isinstance(index, BinaryIndex):
        if arguments.rerank not in (None, "none") or arguments.n_candidates is not None:
            raise ValueError(f"{arguments.file} is an index of binary codes, which cannot be re-ranked")
        del options["rerank"], options["n_candidates"]
    write_results(index, arguments, options, [arguments.queries, arguments.file])


def search_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `CBEIndex.search` after `k`."""
    return {
        "mode": arguments.mode,
        "n_probes": arguments.n_probes,
        "n_threads": arguments.threads,
        "rerank": None if arguments.rerank == "none" else arguments.rerank or "auto",
        "n_candidates": arguments.n_candidates,
    }


def write_results(index: Any, arguments: argparse.Namespace, options: dict[str, Any], files: list[str]) -> None:
    """Search for all queries, and print the results, or write them to a file that is none of `files`."""
    if arguments.json and arguments.output is not None:
        raise ValueError("--json prints results and --output writes them to a file: give only one of them")
    inputs = Inputs([arguments.queries], arguments.key)
    _check_queries(index, inputs.open(0), arguments.queries)
    results = _search(index, inputs, arguments.k, options)
    if arguments.output is not None:
        _write(results, arguments, files)
        return
    for some in results:
        _print(some, arguments.json)


def _check_queries(index: Any, queries: Any, path: str) -> None:
    """Raise an error that names the file if its queries have a wrong dtype or width."""
    if isinstance(queries, ArrowVectors):
        queries = np.broadcast_to(queries[:1], queries.shape)
    if isinstance(index, BinaryIndex):
        as_codes(queries, index.n_bits, path)
    else:
        VectorSource(queries, index.dim, path)


def _search(index: Any, inputs: Inputs, k: int, options: dict[str, Any]) -> Iterator[_Results]:
    """Search block by block."""
    for rows, block in inputs.blocks(tuning().cli_block_bytes // tuning().cli_query_rows):
        with inputs.locating(rows):
            distances, ids = index.search(block, k, **options)
        yield _Results(rows, distances, ids)


def _write(results: Iterator[_Results], arguments: argparse.Namespace, files: list[str]) -> None:
    """Write all results to an .npz file, which appears when it is complete."""
    out = Path(os.path.realpath(arguments.output))
    if out.suffix != ".npz":
        raise ValueError(f"argument --output: must end in .npz, got {arguments.output}")
    if out.exists() and any(out.samefile(path) for path in files):
        raise ValueError(f"argument --output: {arguments.output} must not be an input file")
    with exiting_on_signals() as exit_if_signalled, temporary_folder(out, arguments.output) as folder:
        found = []
        for some in results:
            found.append(some)
            exit_if_signalled()
        _, distances, ids = zip(*found, strict=True)
        np.savez(folder / "found.npz", ids=_without_objects(np.concatenate(ids)), distances=np.concatenate(distances))
        os.replace(folder / "found.npz", out)


def _without_objects(ids: Any) -> Any:
    """Return ids as an array that can be loaded without pickle: strings of fixed width, empty for missing results."""
    if ids.dtype != object:
        return ids
    cut = next((id_ for id_ in ids.ravel() if id_ is not None and id_.endswith("\0")), None)
    if cut is not None:
        raise ValueError(f"argument --output: numpy would cut off the end of the id {shown(cut)}; use --json")
    return np.where(ids == None, "", ids).astype(str)  # noqa: E711


def _print(results: _Results, as_json: bool) -> None:
    """Print one line per query, without missing results."""
    for row, distances, ids in zip(results.rows, results.distances.tolist(), results.ids.tolist(), strict=True):
        found = [pair for pair in zip(ids, distances, strict=True) if pair[0] not in (None, NO_ID)]
        if as_json:
            print(json.dumps({"query": row, "ids": [id_ for id_, _ in found], "distances": [d for _, d in found]}))
        else:
            shown = ((i if isinstance(i, int) else json.dumps(i), d) for i, d in found)
            print(row, *(f"{i}:{d}" if isinstance(d, int) else f"{i}:{d:.6g}" for i, d in shown), sep="\t")
