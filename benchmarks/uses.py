"""Uses of the library that start from nothing, for `benchmarks.start`: each is run alone, in a process of its own.

`python -m benchmarks.uses MODULE:FUNCTION` prints, as JSON, the seconds of each step of a use, and what was compiled
in it. A use is a generator: it yields the name of a step before it takes it. The import of the library is the first
step: cbeindex, unless `LIBRARIES` names another one. Modules of uses import neither cbeindex nor numpy when they are
imported themselves.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

Use = Iterator[str]

LIBRARIES = {"hnswlib": "hnswlib", "pynndescent": "pynndescent"}
"""Uses of other libraries, and what they import."""


def quickstart() -> Use:
    """Do what the first lines of the README do, with all defaults."""
    CBEIndex, rows = _prepared(768)
    yield "add"
    index = CBEIndex(768)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10, recall=0.95)
    with tempfile.TemporaryDirectory(prefix="cbeindex-start-") as folder:
        yield "save"
        index.save(f"{folder}/items.cbe")
        yield "load"
        index = CBEIndex.load(f"{folder}/items.cbe")
        index.search(rows[:5], k=10, recall=0.95)


def operations() -> Use:
    """The other calls of the same index, one after the other."""
    CBEIndex, rows = _prepared(768)
    yield "add"
    index = CBEIndex(768)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)
    yield "one query"
    index.search(rows[7], k=3)
    yield "filter"
    index.search(rows[:5], k=10, deny=[8])
    yield "search_ids"
    index.search_ids([1, 2], k=10)
    yield "range_search"
    index.range_search(rows[:2], radius=0.9)
    yield "rerank=None"
    index.search(rows[:5], k=10, rerank=None)
    yield "remove"
    index.remove([0, 1])
    index.search(rows[:5], k=10)
    yield "tune"
    index.tune(rows[:200])
    yield "shrink"
    index.shrink("int4")
    yield "refit"
    index.refit()


def codes() -> Use:
    """Index dense vectors, codes only, and search."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, vectors=None, buckets=None)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)


def vectors() -> Use:
    """The same with vectors kept, a filter and a radius search."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, vectors="float32", buckets=None)
    index.add(rows)
    index.remove([0, 1])
    yield "search"
    index.search(rows[7], k=3, deny=[8])
    index.range_search(rows[:2], radius=0.9)


def cells() -> Use:
    """Cells of residual codes, with vectors kept."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, vectors="float32", buckets="cells")
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)


def graph() -> Use:
    """A graph of residual codes, with vectors kept."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, vectors="float32", buckets="graph")
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)


def clusters() -> Use:
    """Cells of similar codes."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, buckets="clusters", vectors=None)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)


def substrings() -> Use:
    """Tables of substrings."""
    CBEIndex, rows = _prepared()
    yield "add"
    index = CBEIndex(dim=1_000, buckets="substrings", vectors=None)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10, mode="buckets", rerank=None)


def sparse() -> Use:
    """Sparse rows of many dimensions, kept as they are."""
    import numpy as np
    from scipy.sparse import csr_array

    from cbeindex import CBEIndex

    rng, shape, n_entries = np.random.default_rng(0), (20_000, 25_600), 512_000
    places = tuple(rng.integers(0, size, n_entries) for size in shape)
    rows = csr_array((rng.random(n_entries, dtype=np.float32), places), shape=shape)
    yield "add"
    index = CBEIndex(dim=25_600, n_bits=1_024, vectors="float32", buckets=None)
    index.add(rows)
    yield "search"
    index.search(rows[:5], k=10)


def binary() -> Use:
    """Codes that the caller has: a scan, a batch, a cascade and a radius search."""
    import numpy as np

    from cbeindex import BinaryIndex

    codes = np.random.default_rng(0).integers(0, 256, (50_000, 128), dtype=np.uint8)
    yield "add"
    index = BinaryIndex(1_024)
    index.add(codes)
    yield "search"
    index.search(codes[0], k=10)
    index.search(codes[:64], k=10)
    index.search(codes[:64], k=10, mode="cascade")
    index.range_search(codes[:2], radius=400)


def hnswlib() -> Use:
    """Do what the first lines of the README do, with hnswlib, which is compiled when it is installed."""
    import hnswlib as library

    rows = _rows(768)
    yield "add"
    index = library.Index("cosine", 768)
    index.init_index(len(rows))
    index.add_items(rows)
    yield "search"
    index.knn_query(rows[:5], k=10)
    with tempfile.TemporaryDirectory(prefix="cbeindex-start-") as folder:
        yield "save"
        index.save_index(f"{folder}/items")
        yield "load"
        index = library.Index("cosine", 768)
        index.load_index(f"{folder}/items")
        index.knn_query(rows[:5], k=10)


def pynndescent() -> Use:
    """Do what the first lines of the README do, with pynndescent, which numba compiles too. It saves nothing."""
    import pynndescent as library

    rows = _rows(768)
    yield "add"
    index = library.NNDescent(rows, metric="cosine")
    index.prepare()
    yield "search"
    index.query(rows[:5], k=10)


def _prepared(dim: int = 1_000) -> Any:
    """Return the class, and rows for it, which take no part in any step."""
    from cbeindex import CBEIndex

    return CBEIndex, _rows(dim)


def _rows(dim: int) -> Any:
    """Return 20,000 random rows."""
    import numpy as np

    return np.random.default_rng(0).standard_normal((20_000, dim), dtype=np.float32)


class Compilations:
    """What numba compiles, kernel by kernel, while it is recorded.

    numba compiles under a lock, and a kernel that calls others compiles them meanwhile, so events are nested. What
    numba compiles of its own counts as part of the kernel that needs it.
    """

    def __init__(self) -> None:
        self.step = ""
        self.kernels: list[dict[str, Any]] = []
        self._open: list[dict[str, Any]] = []

    def recorded(self) -> Any:
        """Return a context in which compilations are recorded."""
        event: Any = importlib.import_module("numba.core.event")
        listener = type("Listener", (event.Listener,), {"on_start": self._start, "on_end": self._end})
        return event.install_listener("numba:compile", listener())

    def _start(self, found: Any) -> None:
        function = found.data["dispatcher"].py_func
        kernel = f"{function.__module__.removeprefix('cbeindex.kernels.')}.{function.__name__}"
        is_own = not function.__module__.startswith("numba.")
        caller = next((outer["kernel"] for outer in reversed(self._open) if outer["is_own"]), None)
        self._open.append(
            {"kernel": kernel, "caller": caller, "step": self.step, "signature": str(found.data["args"])}
            | {"is_own": is_own, "inner": 0.0, "start": time.perf_counter()}
        )

    def _end(self, found: Any) -> None:
        done = self._open.pop()
        seconds = time.perf_counter() - done.pop("start")
        inner, is_own = done.pop("inner"), done.pop("is_own")
        if self._open:
            # A part of numba hands on what its own callees are, and keeps its own time with the kernel that needs it.
            self._open[-1]["inner"] += seconds if is_own else inner
        if is_own:
            self.kernels.append(done | {"seconds": seconds - inner, "whole": seconds})


def run(use: Any) -> dict[str, Any]:
    """Run a use; return the seconds of its steps, those of compiling among them, and what was compiled."""
    library = LIBRARIES.get(use.__name__, "cbeindex")
    start = time.perf_counter()
    importlib.import_module(library)
    seconds = {"import": time.perf_counter() - start}
    compiled = Compilations()
    with compiled.recorded() if library == "cbeindex" else nullcontext():
        steps = use()
        step = next(steps)  # rows are made here
        while step is not None:
            compiled.step = step
            start = time.perf_counter()
            after = next(steps, None)
            seconds[step] = time.perf_counter() - start
            step = after
    return {"seconds": seconds, "kernels": compiled.kernels}


def main(arguments: list[str]) -> None:
    """Run the use that the argument names."""
    module, name = arguments[0].split(":")
    print(json.dumps(run(getattr(importlib.import_module(module), name))))


if __name__ == "__main__":
    main(sys.argv[1:])
