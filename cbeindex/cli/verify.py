"""`cbeindex verify`: check every byte of an index file."""

from __future__ import annotations

import argparse
from typing import Any

from .. import verify
from .info import describe_index
from .output import size_text

_HELP = """\
Compare every byte that belongs to the index with its checksum, and check that
the parts of the file are consistent. Prints one line and exits with 0 if the
file is intact. Otherwise reports an error and exits with 2."""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("verify", help="check every byte of an index file", description=_HELP)
    parser.add_argument("file", metavar="FILE")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    verify(arguments.file)
    about = describe_index(arguments.file)
    rows = "vectors" if about["kind"] == "CBEIndex" else "codes"
    size = f"{about['rows']:,} {rows}, {size_text(about['file_bytes'])}"
    print(f"{arguments.file}: ok, {about['kind']} of {size}, commit {about['commit']}")
