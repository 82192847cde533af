"""`cbeindex warm`: compile the kernels, and keep them on disk."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import BinaryIndex, CBEIndex, kernels
from .output import size_text

_N_ROWS = 9_000  # enough that encoders and centres are fitted
_N_SPARSE = 25_600

_HELP = """\
Compile the kernels and keep them on disk, so that no later process has to wait
for them: for images of containers and for continuous integration. Compiles
what the kinds of indexes need that are named, all of them by default, by
building and searching small ones. What is on disk already is not compiled
again."""

_INTO = """\
write to this folder, for other machines that have the same versions of Python
and numba, and the features of this processor that kernels use. The folder
`compiled` beside the kernels of an installation is read by it"""


_LEVELS = """\
make the code for levels of processors instead of for this one, for a folder
that many machines read: "all" those whose code runs here, the "best" of them,
or some, such as x86-64-v3,x86-64-v4"""


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("warm", help="compile the kernels ahead of their first use", description=_HELP)
    kinds = ", ".join(KINDS)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=kinds)
    parser.add_argument("--into", metavar="DIR", help=_INTO)
    parser.add_argument("--levels", metavar="LEVELS", help=_LEVELS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    for kind in arguments.kinds:
        if kind not in KINDS:
            raise ValueError(f"KIND must be one of {', '.join(KINDS)}, got {kind!r}")
    if arguments.levels is not None:
        _make_levels(arguments)
        return
    if arguments.into is not None:
        kernels.caching.use_folder(Path(arguments.into))
    folder = kernels.caching.writable_folder()
    if folder is None:
        tried = " and ".join(str(path) for path in kernels.caching.candidates())
        raise OSError(f"cannot write to {tried}: set NUMBA_CACHE_DIR to a folder that can be written to")
    for kind in arguments.kinds or KINDS:
        print(f"{kind} ...", flush=True)
        KINDS[kind]()
    if arguments.into is not None:
        kernels.caching.describe_target(folder)
    files = kernels.caching.stored(folder)
    print(f"{folder}: {len(files)} kernels, {size_text(sum(files.values()))}")


def _make_levels(arguments: argparse.Namespace) -> None:
    """Make the code for each level in a process of its own: numba chooses the processor once."""
    if arguments.into is None:
        raise ValueError("--levels must be given with --into: code of this processor serves no other folder")
    here = kernels.target.compiled_target().levels()
    chosen = {"all": here, "best": here[-1:]}.get(arguments.levels) or arguments.levels.split(",")
    for level in chosen:
        if level not in here:
            raise ValueError(f"--levels must be all, best, or some that run on this processor: {', '.join(here)}")
    for level in chosen:
        print(f"{level}:", flush=True)
        command = [sys.executable, "-m", "cbeindex", "warm", *arguments.kinds, "--into", arguments.into]
        code = subprocess.run(command, env=os.environ | kernels.target.level_variables(level), check=False).returncode
        if code:
            raise RuntimeError(f"the kernels of {level} were not made: exit code {code}")


def _rows(dim: int) -> Any:
    return np.random.default_rng(0).standard_normal((_N_ROWS, dim), dtype=np.float32)


def _use(index: Any, rows: Any) -> None:
    """Do with an index what indexes are for."""
    index.add(rows)
    index.search(rows[0], k=10)
    index.search(rows[:64], k=10)
    index.search(rows[:2], k=10, deny=[3])
    index.remove([5])
    index.search(rows[:2], k=10)


def _default() -> None:
    """What an index is unless its maker says otherwise."""
    index = CBEIndex(dim=256)
    _use(index, _rows(256))
    index.search(_rows(256)[:5], k=10, recall=0.95)
    index.range_search(_rows(256)[:2], radius=0.9)


def _scan() -> None:
    """Codes alone, short and long ones."""
    for dim in (128, 1_024):
        _use(CBEIndex(dim=dim, vectors=None, buckets=None), _rows(dim))


def _vectors() -> None:
    """Kept vectors."""
    for dtype in ("float32", "float16"):
        index = CBEIndex(dim=1_024, vectors=dtype, buckets=None)
        _use(index, _rows(1_024))
        index.range_search(_rows(1_024)[:2], radius=0.9)


def _buckets(kind: str) -> Callable[[], None]:
    def use() -> None:
        for dtype in (None, "float32", "int8"):
            index = CBEIndex(dim=256, vectors=dtype, buckets=kind)
            _use(index, _rows(256))
            index.range_search(_rows(256)[:2], radius=0.9)

    return use


def _sparse() -> None:
    """Sparse rows of many dimensions."""
    from scipy.sparse import random_array

    rows = random_array((_N_ROWS, _N_SPARSE), density=0.002, format="csr", dtype="float32", rng=0)
    index = CBEIndex(dim=_N_SPARSE, n_bits=1_024, vectors="float32", buckets=None)
    index.add(rows)
    index.search(rows[:5], k=10)


def _binary() -> None:
    """Codes that the caller has."""
    codes = np.random.default_rng(0).integers(0, 256, (_N_ROWS, 128), dtype=np.uint8)
    index = BinaryIndex(1_024)
    _use(index, codes)
    index.search(codes[:64], k=10, mode="cascade")
    index.range_search(codes[:2], radius=400)


KINDS: dict[str, Callable[[], None]] = {
    "default": _default,
    "scan": _scan,
    "vectors": _vectors,
    "cells": _buckets("cells"),
    "graph": _buckets("graph"),
    "clusters": _buckets("clusters"),
    "substrings": _buckets("substrings"),
    "sparse": _sparse,
    "binary": _binary,
}
"""Kinds of indexes, and functions that use what they compile."""
