"""The entry point of the command line: parsing arguments, and reporting errors.

Every error is reported as one line on stderr, with exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from .. import __version__
from ..errors import IndexFileError
from . import build, info, search, shard, verify, warm
from .arguments import Parser

# Exit codes of a shell for processes that SIGPIPE and SIGINT have ended.
_CLOSED_PIPE = 128 + 13
_INTERRUPTED = 128 + 2

# Help texts are wrapped to fit a terminal of 80 columns.
_HELP = """\
Approximate nearest neighbour search for long vectors, by circulant binary
embedding.

  cbeindex build index.cbe vectors.npy     build an index of vectors
  cbeindex search index.cbe queries.npy    find the nearest vectors
  cbeindex info index.cbe                  describe an index file
  cbeindex verify index.cbe                check every byte of an index file
  cbeindex shard build folder vectors.npy  build an index in shards, on Ray
  cbeindex warm                            compile the kernels ahead of use"""

_EPILOG = """\
`cbeindex COMMAND --help` describes a command.

Errors are reported as one line on stderr. Exit codes: 0 success; 2 an error in
arguments, files, memory or disk; 130 interrupted; 141 the reader of stdout has
closed it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments. By default those of the process.

    Returns
    -------
    int
        The exit code.

    Examples
    --------
    >>> main(["info", "missing.cbe"])
    2
    """
    with suppress(AttributeError, ValueError):  # file names may have characters that stdout cannot encode
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _run(argv)
        sys.stdout.flush()  # so that its errors are reported below
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
        _discard(sys.stdout)
    return code


def _run(argv: Sequence[str] | None) -> int:
    """Parse the arguments and run the command."""
    try:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)
    except SystemExit as end:  # from --help, --version, or a signal
        return int(end.code or 0)
    return 0


def _parser() -> Parser:
    parser = Parser(prog="cbeindex", description=_HELP, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"cbeindex {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (build, search, info, verify, shard, warm):
        command.add_parser(commands)
    return parser


def _line_of(error: BaseException) -> str:
    """Describe an error in one line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif isinstance(error, MemoryError):
        text = f"not enough memory{text and ': '}{text}"
    return " ".join(text.split()) or type(error).__name__


def _discard(stream: TextIO) -> None:
    """Discard what a stream could not write. Otherwise the interpreter tries again at exit, and prints an error."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
