"""The command line: `cbeindex info`, `verify`, `build` and `search`, and `python -m cbeindex` likewise.

Whatever goes wrong is said in one line on stderr, and the exit code is 2. Files of any size are built and searched:
vectors and queries are read a block of rows at a time, and what was made of them goes to disk from time to time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from .. import BinaryIndex, CBEIndex, __version__, verify
from ..distances.metrics import METRICS
from ..encoders import KINDS as ENCODERS
from ..errors import IndexFileError
from ..search.buckets import KINDS as BUCKETS
from ..search.request import MODES, RERANKS
from ..storage import container as storage
from .build import (
    BLOCK_BYTES,
    MOST_UNUSED,
    SAMPLE_BYTES,
    SAMPLE_ROWS,
    Inputs,
    build,
    ending_in_order,
    scratch,
    size_text,
)

# Queries that are read and answered at a time.
_QUERY_ROWS = 2**10
_CLOSED_PIPE = 128 + 13  # as the shell reports a program that SIGPIPE has ended
_INTERRUPTED = 128 + 2

# Texts are broken to fit a terminal of 80 columns.
_FORMATS = """\
files of vectors, by the end of their name:
  .npy                   numpy.save: shape (n, dim), real numbers of any type
  .npz                   numpy.savez (--key says which array if it has several),
                         or a sparse array (CSR, CSC, COO) of
                         scipy.sparse.save_npz
  .fvecs .ivecs .bvecs   each vector behind its length (int32), in float32,
                         int32, uint8, as at corpus-texmex.irisa.fr
  .fbin .ibin            number and length of the vectors (uint32 each), then
  .u8bin .i8bin          all of them, as at big-ann-benchmarks.com
They are read some rows at a time, so they may be larger than memory; sparse
and compressed arrays of .npz files are read as a whole."""

_MAIN_HELP = """\
Approximate nearest neighbour search for long vectors, by circulant binary
embedding.

  cbeindex build index.cbe vectors.npy     make an index of vectors
  cbeindex search index.cbe queries.npy    find the nearest vectors of queries
  cbeindex info index.cbe                  say what is in an index file
  cbeindex verify index.cbe                check every byte of it"""

_MAIN_EPILOG = """\
`cbeindex COMMAND --help` tells more about each of them.

An error is one line on stderr. Exit codes: 0 done; 2 something is wrong with
arguments, files, memory or disk; 130 interrupted; 141 nobody reads on."""

_INFO_HELP = """\
Say what is in an index file: which kind of index it is and how it was made,
its rows, the bytes of its parts, and how much of the file is not in use. It
does not read the whole file, so it is fast whatever the size."""

_VERIFY_HELP = """\
Read an index file, compare every byte that belongs to the index with its
checksum, and check that the parts fit each other. Prints one line and exits
with 0 if all is well; otherwise an error, and 2."""

_BUILD_HELP = """\
Make an index of the vectors in one or more files, which are taken one after
the other. Ids are row numbers, counted through all files, unless --ids gives
others. The encoder is fitted to a random sample of all rows, so their order
does not matter; the same files and options give the same index.

Memory stays bounded whatever the size of the files: 1 to 3 GB where vectors
are kept, less for codes alone. On the disk, up to three times the room of the
index is needed meanwhile. OUT is there when it is complete: if something goes
wrong or the build is interrupted, all is as it was before."""

_BUILD_EPILOG = f"""\
{_FORMATS}

examples:
  codes of one bit a dimension, cosine:
    cbeindex build index.cbe vectors.npy
  vectors are kept too, for exact distances in the end:
    cbeindex build index.cbe vectors.npy --vectors float32
  several files, Euclidean distance, shorter codes:
    cbeindex build index.cbe part-*.fvecs --metric l2 --bits 1024
  many millions of vectors:
    cbeindex build index.cbe large.fbin --buckets clusters
  scipy.sparse, kept sparse:
    cbeindex build index.cbe tfidf.npz --vectors float16
  one array of several, and ids of one's own:
    cbeindex build index.cbe data.npz --key train --ids names.npy"""

_SEARCH_HELP = """\
Find the k nearest vectors of each query, and print a line for each: the number
of the query, from 0 on, then id:distance of its answers, the nearest first,
with tabs between them.

Distances are those of the metric of the index (cosine: 1 - cosine; l2: squared
Euclidean; ip: 1 - inner product), computed from the vectors if it has kept
them, and otherwise estimated from the codes. With --rerank none, and for an
index of binary codes (a BinaryIndex), they are Hamming distances. Queries for
the latter are packed codes, uint8 of shape (n, ceil(bits / 8)), as by
numpy.packbits(bits, axis=1, bitorder="little")."""

_SEARCH_EPILOG = f"""\
{_FORMATS}

examples:
  the nearest ten of each query:
    cbeindex search index.cbe queries.npy
  the nearest alone, without the number of the query:
    cbeindex search index.cbe queries.npy -k 1 | cut -f 2
  for numpy.load("found.npz"), which then has "ids" and "distances":
    cbeindex search index.cbe queries.fvecs -k 100 --output found.npz
  a JSON object a line, with query, ids and distances:
    cbeindex search index.cbe queries.npy --json"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; by default those of the process.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> main(["info", "missing.cbe"])
    2
    """
    with suppress(AttributeError, ValueError):  # names of files may have what an encoding has not
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(argv)
        sys.stdout.flush()  # so that its errors are met here
    except BrokenPipeError:
        code = _CLOSED_PIPE
    except KeyboardInterrupt:
        print("cbeindex: interrupted", file=sys.stderr)
        code = _INTERRUPTED
    except (IndexFileError, ValueError, TypeError, OSError, MemoryError) as error:
        print(f"cbeindex: error: {_line_of(error)}", file=sys.stderr)
        code = 2
    try:
        sys.stdout.flush()
    except OSError:
        _abandon(sys.stdout)
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)
    except SystemExit as end:  # --help, --version, and a signal to end
        return int(end.code or 0)
    return 0


def _line_of(error: BaseException) -> str:
    """Say what went wrong in one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif isinstance(error, MemoryError):
        text = f"not enough memory{text and ': '}{text}"
    return " ".join(text.split()) or type(error).__name__


def _abandon(stream: TextIO) -> None:
    """Let what a stream could not write vanish, or the interpreter tries again, and complains, when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are said like all others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> _Parser:
    parser = _Parser(prog="cbeindex", description=_MAIN_HELP, epilog=_MAIN_EPILOG)
    parser.add_argument("--version", action="version", version=f"cbeindex {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="say what is in an index file", description=_INFO_HELP)
    info.add_argument("file", metavar="FILE")
    info.add_argument("--json", action="store_true", help="print a JSON object")
    info.set_defaults(run=_info)

    check = commands.add_parser("verify", help="check every byte of an index file", description=_VERIFY_HELP)
    check.add_argument("file", metavar="FILE")
    check.set_defaults(run=_verify)

    build_parser = commands.add_parser(
        "build", help="make an index of files of vectors", description=_BUILD_HELP, epilog=_BUILD_EPILOG
    )
    _add_build_arguments(build_parser.add_argument)
    build_parser.set_defaults(run=build)

    search = commands.add_parser(
        "search", help="find the nearest vectors of queries", description=_SEARCH_HELP, epilog=_SEARCH_EPILOG
    )
    _add_search_arguments(search.add_argument)
    search.set_defaults(run=_search)
    return parser


def _add_build_arguments(add: Callable[..., object]) -> None:
    add("out", metavar="OUT", help="the index file to make")
    add("files", metavar="VECTORS", nargs="+", help="files of vectors, all of the same length")
    add("--key", help="which array of .npz files")
    add("--bits", type=_count(1), metavar="N", help="length of the codes (default: dimension, rounded up to 64)")
    add("--metric", choices=tuple(METRICS), default="cosine", help="how near is measured (default: cosine)")
    encoder_help = "kind of circulant matrix; learned is trained on the sample (default: orthogonal)"
    add("--encoder", choices=ENCODERS, default="orthogonal", help=encoder_help)
    vectors_help = "keep the vectors beside their codes, for exact distances (default: keep codes only)"
    add("--vectors", dest="kept", choices=("float32", "float16"), help=vectors_help)
    buckets_help = """clusters: look at a part of the codes only, for large indexes; substrings: find near duplicates
        fast (default: look at every code)"""
    add("--buckets", choices=BUCKETS, help=buckets_help)
    add("--seed", type=_count(0), default=0, metavar="N", help="of encoder and sample (default: 0)")
    add("--ids", metavar="FILE.npy", help="ids, integers of 0 or more, one for each vector, none twice")
    add("--threads", type=_count(1), metavar="N", help="(default: one for each core)")
    sample_help = f"""vectors that the encoder is fitted to (default: {SAMPLE_ROWS:,}, fewer where these have more than
        {size_text(SAMPLE_BYTES)})"""
    add("--sample", type=_count(2), metavar="N", help=sample_help)
    add("--force", action="store_true", help="replace OUT if it is there, and is an index file")
    add("--quiet", action="store_true", help="show no progress, and no line at the end")


def _add_search_arguments(add: Callable[..., object]) -> None:
    add("file", metavar="FILE", help="an index file")
    add("queries", metavar="QUERIES", help="a file of vectors, or of packed codes")
    add("-k", type=_count(1), default=10, metavar="K", help="answers for each query (default: 10)")
    add("--key", help="which array of an .npz file")
    add("--n-probes", type=_count(1), metavar="N", help="buckets to visit (default: chosen by the index)")
    mode_help = """scan: every code; cascade: 512 bits of every code, and more of the best; buckets: the codes in some
        buckets (default: auto, the fastest)"""
    add("--mode", choices=MODES, default="auto", help=mode_help)
    rerank_help = """none: Hamming distances; asymmetric: distances estimated from the codes; exact: from the kept
        vectors (default: auto, the best that the index can do)"""
    add("--rerank", choices=("none", *RERANKS), help=rerank_help)
    add("--n-candidates", type=_count(1), metavar="N", help="vectors to re-rank (default: chosen by the index)")
    add("--threads", type=_count(1), metavar="N", help="(default: one for each core)")
    output_help = """write arrays ids and distances of shape (n, k) to this file, and print nothing; it is replaced if
        it is there. Where there are fewer than k answers, ids are -1"""
    add("--output", metavar="OUT.npz", help=output_help)
    add("--json", action="store_true", help="print JSON objects, one a line")


def _count(least: int) -> Callable[[str], int]:
    """Return what reads a whole number of at least `least`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return read


# info and verify


def _info(arguments: argparse.Namespace) -> None:
    about = _describe(arguments.file)
    if arguments.json:
        print(json.dumps(about, indent=2))
        return
    lines = {"dimensions": about["dim"]} if "dim" in about else {}
    lines["bits"] = about["n_bits"]
    if "dim" in about:
        form = "sparse " if about["sparse"] else ""
        lines |= {
            "metric": about["metric"],
            "encoder": about["encoder"] if about["fitted"] else f"{about['encoder']}, not fitted yet",
            "vectors kept": f"{form}{about['vectors']}" if about["vectors"] else "no",
        }
    lines["buckets"] = about["buckets"] or "no"
    lines |= {"rows": about["rows"], "removed rows": about["removed"], "segments": about["segments"]}
    lines |= {f"bytes of {part}": n_bytes for part, n_bytes in about["bytes"].items() if n_bytes}
    share = about["unused_bytes"] / about["file_bytes"]
    hint = f"; {about['kind']}.load(FILE).compact() frees them" if share > MOST_UNUSED else ""
    lines |= {"bytes of the file": about["file_bytes"], "of these not in use": about["unused_bytes"]}
    lines |= {"format version": about["format_version"], "commit": about["commit"]}
    print(f"{about['path']}: {about['kind']}")
    for name, value in lines.items():
        after = f" ({share:.0%}{hint})" if name == "of these not in use" else ""
        print(f"  {name:<20} {value:,}{after}" if isinstance(value, int) else f"  {name:<20} {value}")


def _describe(path: str) -> dict[str, Any]:
    """Return all that is known of an index file."""
    file = storage.describe(path)
    index = _open_index(path)
    about = index.stats()
    about["buckets"] = about.pop("kind_of_buckets")
    n_encoder = sum(section["bytes"] for section in file["sections"] if section["name"].startswith("encoder/"))
    counts = {name: about.pop(name) for name in ("rows", "removed", "segments", "bytes")}
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


def _verify(arguments: argparse.Namespace) -> None:
    verify(arguments.file)
    about = _describe(arguments.file)
    what = "vectors" if about["kind"] == "CBEIndex" else "codes"
    size = f"{about['rows']:,} {what}, {size_text(about['file_bytes'])}"
    print(f"{arguments.file}: ok, {about['kind']} of {size}, commit {about['commit']}")


def _open_index(path: str) -> CBEIndex | BinaryIndex:
    """Open an index of either kind."""
    if storage.describe(path)["content"].get("kind") == "BinaryIndex":
        return BinaryIndex.load(path)
    return CBEIndex.load(path)  # knows what to say of other kinds


# search


def _search(arguments: argparse.Namespace) -> None:
    index = _open_index(arguments.file)
    options = {"mode": arguments.mode, "n_probes": arguments.n_probes, "n_threads": arguments.threads}
    if isinstance(index, CBEIndex):
        options["rerank"] = None if arguments.rerank == "none" else arguments.rerank or "auto"
        options["n_candidates"] = arguments.n_candidates
    elif arguments.rerank not in (None, "none") or arguments.n_candidates is not None:
        raise ValueError(f"{arguments.file} is an index of binary codes, which has nothing to re-rank them by")
    if arguments.json and arguments.output is not None:
        raise ValueError("--json prints answers and --output writes them to a file: give one of them")
    inputs = Inputs([arguments.queries], arguments.key)
    if arguments.output is None:
        for rows, distances, ids in _answers(index, inputs, arguments.k, options):
            _print_answers(rows, distances, ids, arguments.json)
        return
    out = Path(os.path.realpath(arguments.output))
    if out.suffix != ".npz":
        raise ValueError(f"argument --output: must end in .npz, got {arguments.output}")
    if out.exists() and any(out.samefile(path) for path in (arguments.queries, arguments.file)):
        raise ValueError(f"argument --output: {arguments.output} must not be what is read")
    with ending_in_order(), scratch(out, arguments.output) as folder:
        _, distances, ids = zip(*_answers(index, inputs, arguments.k, options), strict=True)
        np.savez(folder / "found.npz", ids=np.concatenate(ids), distances=np.concatenate(distances))
        os.replace(folder / "found.npz", out)


def _answers(index: Any, inputs: Inputs, k: int, options: dict[str, Any]) -> Iterator[tuple[range, Any, Any]]:
    """Search for some queries after the other: their numbers, distances, ids."""
    for rows, block in inputs.blocks(BLOCK_BYTES // _QUERY_ROWS):
        with inputs.naming(rows):
            distances, ids = index.search(block, k, **options)
        yield rows, distances, ids


def _print_answers(rows: range, distances: Any, ids: Any, as_json: bool) -> None:
    """Print a line for each query, without places where there is no answer."""
    for row, row_distances, row_ids in zip(rows, distances.tolist(), ids.tolist(), strict=True):
        found = [(id_, distance) for id_, distance in zip(row_ids, row_distances, strict=True) if id_ >= 0]
        if as_json:
            print(json.dumps({"query": row, "ids": [id_ for id_, _ in found], "distances": [d for _, d in found]}))
        else:
            print(row, *(f"{i}:{d}" if isinstance(d, int) else f"{i}:{d:.6g}" for i, d in found), sep="\t")
