"""`cbeindex build`: build an index file from vector files of any size.

Vectors are read and encoded block by block. Codes are appended to a temporary file whenever enough have accumulated, so
memory stays bounded.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .. import CBEIndex
from .._core.progress import progress_bar
from .._core.tuning import tuning
from ..data.codes import n_words
from ..data.idfiles import read_ids
from ..data.inputs import Inputs
from ..data.source import is_sparse
from ..distances.kept import KINDS_OF_VECTORS
from ..distances.keptcodec import KEPT_BITS
from ..distances.metrics import METRIC_ALIASES, METRICS
from ..encoders import KINDS as ENCODERS
from ..errors import NotAnIndexFileError
from ..search.buckets import KINDS as BUCKETS
from ..storage import container
from ..storage.layout import MAGIC
from .arguments import FORMATS, count
from .output import exiting_on_signals, size_text, temporary_folder

_HELP = """\
Build an index of the vectors in one or more files, in the given order. Ids are
row numbers, counted through all files, unless --ids or --id-column gives
others. The encoder is fitted to a random sample of all rows, so their order
does not matter. The same files and options give the same index.

By default the index is that of CBEIndex(dim): vectors are kept in 8 bits a
value, or as they are if they are sparse, and rows are sorted into cells.

Memory is bounded for files of any size: 1 to 3 GB if vectors are kept, less for
codes only. The build temporarily needs disk space for up to three times the
size of the index. OUT appears when it is complete. A build that fails or is
interrupted changes nothing."""

_EPILOG = f"""\
{FORMATS}

examples:
  cosine distance, vectors in 8 bits a value:
    cbeindex build index.cbe vectors.npy
  vectors as they are, for exact distances:
    cbeindex build index.cbe vectors.npy --vectors float32
  codes only, the smallest index:
    cbeindex build index.cbe vectors.npy --vectors none --buckets none
  several files, Euclidean distance, shorter codes:
    cbeindex build index.cbe part-*.fvecs --metric l2 --bits 1024
  least delay of single queries, for vectors that rarely change:
    cbeindex build index.cbe large.fbin --buckets graph
  scipy.sparse vectors, kept sparse:
    cbeindex build index.cbe tfidf.npz --vectors float16
  one array of several, with ids:
    cbeindex build index.cbe data.npz --key train --ids ids.npy
  columns of Parquet files (needs pyarrow):
    cbeindex build index.cbe part-*.parquet --key embedding --id-column url"""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("build", help="build an index of vectors", description=_HELP, epilog=_EPILOG)
    _add_arguments(parser.add_argument)
    parser.set_defaults(run=_run)


def _add_arguments(add: Callable[..., object]) -> None:
    add("out", metavar="OUT", help="the index file to create")
    add("files", metavar="VECTORS", nargs="+", help="files of vectors, all of the same length")
    add_index_arguments(add)
    add("--threads", type=count(1), metavar="N", help="number of threads (default: one per core)")
    add("--force", action="store_true", help="replace OUT if it is an index file")


def add_index_arguments(add: Callable[..., object]) -> None:
    """Add the arguments that say which index is built, and of what."""
    add("--key", help="array of .npz files, or column of Parquet and Arrow files, to use")
    bits_help = f"length of the codes (default: dimension, at most {tuning().most_default_bits:,})"
    add("--bits", type=count(1), metavar="N", help=bits_help)
    metric_help = "distance between vectors: cosine, l2 or ip (default: cosine)"
    add("--metric", choices=(*METRICS, *METRIC_ALIASES), metavar="NAME", default="cosine", help=metric_help)
    encoder_help = "kind of circulant matrix; learned is trained on the sample (default: orthogonal)"
    add("--encoder", choices=ENCODERS, default="orthogonal", help=encoder_help)
    vectors_help = """keep the vectors beside their codes: float32 and float16 for exact distances, int8 and int4 (8 and
        4 bits a value) for better estimates, none for codes only (default: auto, which is int8, or float32 if they
        are sparse)"""
    add("--vectors", dest="kept", choices=("none", *KINDS_OF_VECTORS), default="auto", help=vectors_help)
    buckets_help = """cells or clusters: scan only the nearest cells; graph: walk from row to row; substrings: find near
        duplicates fast; none: scan all codes (default: auto, which is cells)"""
    add("--buckets", choices=("none", "auto", *BUCKETS), default="auto", help=buckets_help)
    add("--seed", type=count(0), default=0, metavar="N", help="seed of encoder and sample (default: 0)")
    ids_help = "unique ids, one per vector: non-negative integers or strings (.npy), or lines of a .txt file"
    add("--ids", metavar="FILE", help=ids_help)
    add("--id-column", metavar="NAME", help="column of Parquet and Arrow files that has the ids")
    sample_help = f"""vectors that the encoder is fitted to (default: {tuning().cli_sample_rows:,}, or as many as
        fit in {size_text(tuning().cli_sample_bytes)})"""
    add("--sample", type=count(2), metavar="N", help=sample_help)
    add("--quiet", action="store_true", help="print neither progress nor a summary")


def _run(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    out = Path(os.path.realpath(arguments.out))
    _check_target(out, arguments.force)
    with exiting_on_signals() as exit_if_signalled, temporary_folder(out, arguments.out) as folder:
        inputs = Inputs(arguments.files, arguments.key)
        index = _build(arguments, inputs, folder / "index", exit_if_signalled)
        _check_target(out, arguments.force)
        _move_into_place(index, out)
    if not arguments.quiet:
        file = container.describe(out)
        summary = f"{inputs.n_rows:,} vectors of {inputs.dim:,} values, {file['content']['n_bits']:,} bits"
        seconds = time.monotonic() - began
        print(f"{arguments.out}: {summary}, {size_text(file['bytes'])}, {seconds:.1f} s", file=sys.stderr)


def _build(
    arguments: argparse.Namespace, inputs: Inputs, path: Path, exit_if_signalled: Callable[[], None]
) -> CBEIndex:
    """Build the index, with a temporary file at `path` for rows that memory should not hold."""
    ids = ids_of(arguments, inputs)
    index = CBEIndex(inputs.dim, **index_arguments(arguments))
    _fit(index, inputs, arguments.sample, arguments.seed)
    n_unsaved = 0
    row_bytes = 8 * n_words(index.n_bits) + 32  # code, id and scalars
    with progress(inputs.n_rows, arguments.quiet) as advance:
        for rows, block in inputs.blocks(row_bytes):
            with inputs.locating(rows):
                index.add(block, None if ids is None else ids[rows.start : rows.stop], n_threads=arguments.threads)
            n_unsaved += len(rows) * row_bytes + _vector_bytes(block, index.vectors)
            advance(len(rows))
            exit_if_signalled()
            if n_unsaved >= tuning().cli_spill_bytes:
                index, n_unsaved = _spilled(index, path), 0
    if index.path is not None and n_unsaved:
        index = _spilled(index, path)
    return index


def index_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `CBEIndex` after `dim`."""
    return {
        "n_bits": arguments.bits,
        "metric": arguments.metric,
        "encoder": arguments.encoder,
        "vectors": None if arguments.kept == "none" else arguments.kept,
        "buckets": None if arguments.buckets == "none" else arguments.buckets,
        "seed": arguments.seed,
    }


def _check_target(out: Path, force: bool) -> None:
    """Refuse to replace a file without --force, and a file that is not an index in any case."""
    if not out.exists():
        return
    if not force:
        raise FileExistsError(errno.EEXIST, "the file exists; --force replaces it", str(out))
    if out.is_file():
        with open(out, "rb") as file:
            if file.read(len(MAGIC)) in (b"", MAGIC):
                return
    raise NotAnIndexFileError(f"{out}: not an index file, so it is not replaced; remove it first")


def ids_of(arguments: argparse.Namespace, inputs: Inputs) -> Any:
    """Read the ids of all rows: integers as an array, strings as names, None if they are numbered."""
    if arguments.ids is not None and arguments.id_column is not None:
        raise ValueError("--ids and --id-column both say what the ids are: give only one of them")
    if arguments.id_column is not None:
        return inputs.ids(arguments.id_column)
    return None if arguments.ids is None else read_ids(arguments.ids, inputs.n_rows)


def _fit(index: CBEIndex, inputs: Inputs, n_sample: int | None, seed: int) -> None:
    """Fit an index to a random sample. The first rows would be a bad sample of a sorted file."""
    if inputs.n_rows < 2:
        return
    rows = inputs.sample_rows(n_sample, seed)
    sample = inputs.take(rows)
    with inputs.locating(rows):
        index.fit(sample)


def _vector_bytes(block: Any, kept: str | None) -> int:
    """Return the bytes that the vectors of a block take in the index."""
    if kept is None:
        return 0
    if kept in KEPT_BITS:
        return int(np.prod(block.shape) * KEPT_BITS[kept] // 8)
    n_bytes = np.dtype(kept).itemsize
    return int(block.nnz * (n_bytes + 4) if is_sparse(block) else block.size * n_bytes)


def _spilled(index: CBEIndex, path: Path) -> CBEIndex:
    """Save new rows and return the index mapped from the file, so that its rows do not take memory."""
    index.save(path if index.path is None else None)
    return CBEIndex.load(path)


def _move_into_place(index: CBEIndex, out: Path) -> None:
    """Make the index, or its temporary file, the file `out`."""
    if index.path is not None and not out.exists() and sys.platform != "win32":  # Windows does not move mapped files
        file = container.describe(index.path)
        if file["unused"] <= tuning().cli_unused_share * file["bytes"]:
            os.replace(index.path, out)
            return
    # Writes the used parts piece by piece. `compact` would merge all segments in memory.
    index.save(out)


@contextmanager
def progress(total: int, quiet: bool) -> Iterator[Callable[[int], object]]:
    """Yield a function that reports vectors as done: by a tqdm bar, or by lines where tqdm is not installed."""
    if quiet or not sys.stderr.isatty():
        yield lambda n: None
        return
    if find_spec("tqdm") is not None:
        with progress_bar(True, total, "vectors") as advance:
            yield advance
        return
    done, last = 0, time.monotonic()

    def print_line(n: int) -> None:
        nonlocal done, last
        done += n
        if time.monotonic() - last >= tuning().cli_progress_seconds:
            last = time.monotonic()
            print(f"{done:,} of {total:,} vectors", file=sys.stderr)

    yield print_line
