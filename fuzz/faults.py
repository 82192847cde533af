"""Operations that fail midway: the index is as before the call or as after it, and goes on to work.

Each case is a random sequence of operations on a small index, with a dict of rows as its oracle. It runs twice: without
faults, which counts the points at which each operation could fail, and then with a fault at one of them. Points are
lines of cbeindex code in the calling thread (an interrupt, or no memory), allocations by numpy in cbeindex (no memory),
and changes of the disk (an OSError).
"""

from __future__ import annotations

import copy
import errno
import functools
import itertools
import linecache
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TextIO
from unittest import mock

import numpy as np
from scipy import sparse

import cbeindex
from cbeindex import BinaryIndex, CBEIndex
from cbeindex.storage import files as _files
from tests.small import VERY_SMALL, small_buckets

from . import files, pool
from .pool import Limits, Outcome
from .report import Report, random_of

_PACKAGE = str(Path(cbeindex.__file__).parent)
_ALLOCATIONS = ("empty", "zeros", "ones", "full", "concatenate", "array", "empty_like", "zeros_like", "arange", "where")
_DISK = ("_write", "_sync", "_truncate", "_replace", "_unlink")
_FAULTS = ("interrupt at a line", "no memory at a line", "no memory at an allocation", "no room on the disk")
_N_OPERATIONS = 12
_DIM, _N_BITS, _N_IDS = 8, 70, 40

Rows = dict[int, bytes]
"""The oracle: the bytes of each row by its id."""


class Api(NamedTuple):
    """What is attacked: tests put something broken in its place."""

    BinaryIndex: type[BinaryIndex] = BinaryIndex
    CBEIndex: type[CBEIndex] = CBEIndex


class Wrong(Exception):
    """An index is not as it should be."""


def run(
    seed: int,
    seconds: float,
    cases: range | None = None,
    *,
    keep: Path | None = None,
    n_workers: int = 2,
    api: Api | None = None,
    out: TextIO | None = None,
) -> Report:
    """Attack until the time is over, or with some cases."""
    report = Report("faults", seed, keep, out)
    numbers = itertools.count() if cases is None else iter(cases)
    task = functools.partial(_run_case, seed=seed, api=api or Api())
    with small_buckets(VERY_SMALL):
        files.warm_up()
        for case, outcome, folder in pool.run(task, numbers, seconds, n_workers):
            report.n_cases += 1
            report.counts.update(outcome.counts)
            report.add(case, outcome.findings, folder / "items.cbe")
    return report


def _run_case(case: int, folder: Path, limits: Limits, outcome: Outcome, *, seed: int, api: Api) -> None:
    rehearsal = _Machine(folder, random_of(seed, "faults", case), api, limits, Outcome(), None)
    for fault_rng in (None, random_of(seed, "faults with faults", case)):
        machine = _Machine(folder, random_of(seed, "faults", case), api, limits, outcome, fault_rng)
        machine.n_points = rehearsal.n_points
        try:
            machine.run()
        except Wrong as error:
            outcome.findings.append(f"{error}\n        {machine.about()}")
            return
        rehearsal = machine
    outcome.count("sequences")


class _Injector:
    """Raises one error at the n-th point of a sort, and counts points."""

    def __init__(self) -> None:
        self.n_points = dict.fromkeys(("line", "allocation", "disk"), 0)
        self.sort, self.at, self.error = "", -1, BaseException
        self.is_done = False
        self.before: Callable[[], None] = lambda: None
        self._is_active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count, and raise, in this block."""
        self.n_points = dict.fromkeys(self.n_points, 0)
        self.is_done = False
        patches = [mock.patch.object(_files, name, self._on_disk(getattr(_files, name))) for name in _DISK]
        failing: Any = _Numpy(self)
        patches += [mock.patch.object(module, "np", failing) for module in _modules()]
        for patch in patches:
            patch.start()
        self._is_active = True
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            self._is_active = False
            for patch in patches:
                patch.stop()

    def point(self, sort: str) -> None:
        """Count a point, and raise the error if it is the one."""
        if not self._is_active:
            return
        self.n_points[sort] += 1
        if sort == self.sort and self.n_points[sort] == self.at and not self.is_done:
            self.is_done = True
            self._is_active = False  # what `before` does is not counted
            self.before()
            self._is_active = True
            if self.error is OSError:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise self.error("injected")

    def _trace(self, frame: Any, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        if event == "line" and not _is_with(frame.f_code.co_filename, frame.f_lineno):
            self.point("line")
        return self._trace

    def _on_disk(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.point("disk")
            return real(*args)

        return call


@functools.cache
def _is_with(filename: str, number: int) -> bool:
    """Tell whether a line is a `with`.

    The interpreter comes back to such a line when the block ends, and an error that is raised there, by a tracer alone,
    keeps the block from being left: no interrupt can do that.
    """
    return linecache.getline(filename, number).lstrip().startswith("with ")


class _Numpy:
    """numpy whose allocations are points."""

    def __init__(self, injector: _Injector) -> None:
        self._injector = injector

    def __getattr__(self, name: str) -> Any:
        real = getattr(np, name)
        if name not in _ALLOCATIONS:
            return real

        def allocate(*args: Any, **options: Any) -> Any:
            self._injector.point("allocation")
            return real(*args, **options)

        return allocate


def _modules() -> list[Any]:
    """Return the modules of cbeindex that are not compiled."""
    return [
        module
        for name, module in list(sys.modules.items())
        if name.startswith("cbeindex") and "kernels" not in name and getattr(module, "np", None) is np
    ]


def _without_frames(error: BaseException) -> BaseException:
    """Let go of the frames that an error holds, and with them of files that are open there."""
    part: BaseException | None = error
    while part is not None:
        part = part.with_traceback(None).__context__
    return error


class _Operation(NamedTuple):
    """A call, and what holds after it."""

    name: str
    call: Callable[[Any], Any]
    rows: Rows
    saves: bool = False


class _Machine:
    """An index, its oracle, its file, and what happens to them."""

    def __init__(
        self,
        folder: Path,
        rng: random.Random,
        api: Api,
        limits: Limits,
        outcome: Outcome,
        fault_rng: random.Random | None,
    ) -> None:
        self._path, self._rng, self._api, self._limits = folder / "items.cbe", rng, api, limits
        self._outcome, self._fault_rng = outcome, fault_rng
        self._history: list[str] = []
        self._injector = _Injector()
        self.n_points: list[dict[str, int]] = []
        self._counted: list[dict[str, int]] = []
        self._rows: Rows = {}
        self._saved: Rows | None = None
        self._readers: list[tuple[Any, list[Rows]]] = []
        self._path.unlink(missing_ok=True)
        self._is_binary = rng.random() < 0.4
        buckets = rng.choice((None, "clusters", "substrings", *["cells", "graph"] * (not self._is_binary)))
        self._is_sparse = rng.random() < 0.3
        metric, vectors = rng.choice(("cosine", "l2", "ip")), rng.choice(("float32", "float32", None))
        self._options: dict[str, Any] = {"buckets": buckets} if self._is_binary else {
            "buckets": buckets, "metric": metric, "vectors": vectors
        }  # fmt: skip
        self.index = self._new()

    def about(self) -> str:
        """Tell what was done."""
        return f"{self._options}, {'sparse' if self._is_sparse else 'dense'}: {', '.join(self._history)}"

    def run(self) -> None:
        """Do all operations."""
        for number in range(_N_OPERATIONS):
            operation = self._next_operation()
            self._history.append(operation.name)
            self._limits.mark(f"{operation.name}\n        {self.about()}")
            self._do(operation, self._fault_for(number))
            self._counted.append(dict(self._injector.n_points))
        self.n_points = self._counted
        self._limits.mark(f"the end\n        {self.about()}")
        self._check_end()

    def _fault_for(self, number: int) -> str | None:
        """Choose whether, how and where operation `number` fails."""
        self._injector.sort = ""
        if self._fault_rng is None or self._fault_rng.random() < 0.3:
            return None
        fault = self._fault_rng.choice(_FAULTS)
        sort = {"line": "line", "allocation": "allocation", "disk": "disk"}[fault.rsplit(" ", 1)[-1]]
        n_points = self.n_points[number][sort]
        if n_points == 0:
            return None
        self._injector.sort = sort
        self._injector.at = self._fault_rng.randint(1, n_points)
        self._injector.error = {"i": KeyboardInterrupt, "n": MemoryError}[fault[0]] if sort != "disk" else OSError
        return fault

    def _do(self, operation: _Operation, fault: str | None) -> None:
        """Do an operation, which may fail, and check what is there then."""
        before, path = self._rows, self._path
        self._injector.before = lambda: self._open_reader(operation) if operation.saves else None
        error: BaseException | None = None
        try:
            with self._injector.active():
                operation.call(self.index)
        except (KeyboardInterrupt, MemoryError, OSError) as raised:
            error = _without_frames(raised)
        except Exception as raised:
            where = f" after {fault} {self._injector.at}" if fault else ""
            raise Wrong(f"{operation.name}{where}: {type(raised).__name__}: {raised}") from raised
        if error is not None and not self._injector.is_done:
            raise Wrong(f"{operation.name}: {type(error).__name__}: {error}")
        what = operation.name
        if error is not None:
            what = f"{operation.name} that failed ({fault})"
            self._history[-1] += f" ({fault} {self._injector.at})"
            self._outcome.count("faults")
            if not isinstance(error, self._injector.error):
                raise Wrong(f"{what}: raised {type(error).__name__}: {error}")
        allowed = [operation.rows] if error is None else [before, operation.rows]
        self._rows = self._check(self.index, allowed, what)
        if operation.saves:
            if error is None:
                self._saved = operation.rows
            elif path.exists():
                states = [operation.rows] if self._saved is None else [self._saved, operation.rows]
                self._saved = self._check(self._load(False), states, f"the file after {what}")
            elif self._saved is not None:
                raise Wrong(f"the file is gone after {what}")
        for reader, states in self._readers:
            self._check(reader, states, f"a reader that opened the file before, after {what}")

    def _open_reader(self, operation: _Operation) -> None:
        """Map the file at this moment, as another process could."""
        if self._path.exists():
            states = [operation.rows] if self._saved is None else [self._saved, operation.rows]
            sys.settrace(None)
            self._readers = [*self._readers[-3:], (self._load(True), states)]

    def _check_end(self) -> None:
        """Save and load once more."""
        try:
            self.index.save(self._path) if self.index.path is None else self.index.save()
            cbeindex.verify(self._path)
        except Exception as error:
            raise Wrong(f"the last save: {type(error).__name__}: {error}") from error
        self._check(self._load(True), [self._rows], "the file in the end")

    def _check(self, index: Any, allowed: list[Rows], what: str) -> Rows:
        """Return the state that an index is in, all of it, or raise Wrong."""
        try:
            return self._state_of(index, allowed, what)
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"after {what}: {type(error).__name__}: {error}") from error

    def _state_of(self, index: Any, allowed: list[Rows], what: str) -> Rows:
        ids = index.ids.tolist()
        states = [rows for rows in allowed if sorted(rows) == ids]
        if not states or len(index) != len(ids):
            lost = sorted(set.intersection(*map(set, allowed)) - set(ids))
            raise Wrong(f"after {what}: neither the old nor the new ids; lost {lost}, {len(ids)} ids, len {len(index)}")
        if self._has_rows(index):
            found = index.get(ids)
            found = found.toarray() if sparse.issparse(found) else found
            states = [
                rows for rows in states if _matrix(rows, found.dtype, found.shape[1]).tobytes() == found.tobytes()
            ]
            if not states:
                raise Wrong(f"after {what}: the rows are neither the old nor the new ones")
        if ids:
            # Each state that still can be: codes do not tell apart rows that were replaced, but searches do.
            states = [rows for rows in states if self._finds_all(index, rows)]
            if not states:
                raise Wrong(f"after {what}: a search does not find the rows")
        return states[0]

    def _finds_all(self, index: Any, rows: Rows) -> bool:
        """Tell whether a scan finds some rows at distance 0, or as near as the metric has them."""
        picked = sorted(rows)[:: max(1, len(rows) // 4)]
        queries = np.stack([self._row(rows[id_]) for id_ in picked])
        if self._is_binary or index.is_fitted:
            options = {} if self._is_binary else {"rerank": None}
            result = index.search(queries, k=len(rows), mode="scan", **options)
            distances = [
                dict(zip(i.tolist(), d.tolist(), strict=True))
                for i, d in zip(result.ids, result.distances, strict=True)
            ]
            # A code may differ in a bit where the projection is zero but for rounding.
            most = 0 if self._is_binary else 2
            return all(
                set(found) == set(rows) and found[id_] <= most for found, id_ in zip(distances, picked, strict=True)
            )
        result = index.search(queries, k=len(rows))
        return all(set(found.tolist()) == set(rows) for found in result.ids)

    def _has_rows(self, index: Any) -> bool:
        return self._is_binary or index.vectors is not None or not index.is_fitted

    def _next_operation(self) -> _Operation:
        rng, rows = self._rng, self._rows
        names = [
            "add",
            "add",
            "add ids",
            "replace",
            "replace",
            "remove",
            "merge",
            "compact",
            "save",
            "save",
            "load",
            "copy",
        ]
        name = rng.choice([*names, "search", *([] if self._is_binary else ["fit", "refit", "shrink", "tune"])])
        seed, n = rng.randrange(10**6), rng.choice((1, 2, 3, 5, 9, 14))
        start = rng.randrange(_N_IDS)
        new = _some_rows(n, seed, self._is_binary)
        if name in ("add ids", "merge"):
            ids = [id_ for id_ in range(start, start + n) if id_ not in rows]
            after = rows | dict(zip(ids, map(bytes, new), strict=False))
            given = self._form(new[: len(ids)])
            if name == "add ids":
                return _Operation(name, lambda index: index.add(given, ids), after)
            other = self._other(given, ids)
            if not self._is_binary and self._options["vectors"] is None and other.is_fitted != self.index.is_fitted:
                return _Operation("search", lambda index: index.search(new[:1], k=3), rows)  # codes are no vectors
            return _Operation(name, lambda index: index.merge(other), after)
        if name == "replace":
            ids = list(range(start, start + n))
            after = rows | dict(zip(ids, map(bytes, new), strict=True))
            return _Operation(name, lambda index: index.add(self._form(new), ids, replace=True), after)
        if name == "add":
            # New ids are above all others, also those that were lost; the oracle chooses them to know them.
            first = max([_N_IDS + n, *rows]) + 1
            ids = list(range(first, first + n))
            after = rows | dict(zip(ids, map(bytes, new), strict=True))
            return _Operation(name, lambda index: index.add(self._form(new), ids), after)
        if name == "remove":
            ids = rng.sample(sorted(rows), min(n, len(rows)))
            after = {id_: row for id_, row in rows.items() if id_ not in ids}
            return _Operation(name, lambda index: index.remove(ids), after)
        if name == "save":
            anew = self.index.path is None or rng.random() < 0.2
            return _Operation(name, lambda index: index.save(self._path) if anew else index.save(), rows, saves=True)
        if name == "compact":
            return _Operation(name, lambda index: index.compact(), rows, saves=self.index.path is not None)
        if name == "load" and self._saved is not None:
            mmap = rng.random() < 0.7
            return _Operation(name, lambda index: self._take(self._load(mmap)), self._saved)
        if name == "copy":
            return _Operation(name, lambda index: copy.copy(index), rows)
        if name == "fit" and not self.index.is_fitted:
            sample = _some_rows(20, seed, False)
            return _Operation(name, lambda index: index.fit(sample), rows)
        if name in ("refit", "shrink", "tune") and self._has_rows(self.index) and len(rows) > 1:
            return self._made_anew(name, self._form(new))
        query = new[:1]
        return _Operation("search", lambda index: index.search(query, k=3), rows)

    def _made_anew(self, name: str, new: Any) -> _Operation:
        """Return an operation that makes an index anew of the rows that it has."""
        index, rows = self.index, self._rows
        if name == "shrink" and index.vectors == "float32":
            return _Operation(name, lambda index: index.shrink("float16"), rows)  # which holds all values exactly
        if name == "tune" and index.is_fitted and index.buckets in ("cells", "graph"):
            return _Operation(name, lambda index: index.tune(new, 2), rows)
        return _Operation("refit", lambda index: index.refit(), rows)

    def _take(self, index: Any) -> None:
        self.index = index

    def _new(self) -> Any:
        if self._is_binary:
            return self._api.BinaryIndex(_N_BITS, **self._options)
        return self._api.CBEIndex(_DIM, _N_BITS, **self._options)

    def _other(self, rows: Any, ids: list[int]) -> Any:
        """Return an index to be merged: with the same encoder, or with vectors."""
        other = copy.copy(self.index)
        other.remove(other.ids)
        other.add(rows, ids)
        return other

    def _load(self, mmap: bool) -> Any:
        return type(self.index).load(self._path, mmap=mmap)

    def _form(self, rows: np.ndarray) -> Any:
        return sparse.csr_array(rows) if self._is_sparse and not self._is_binary else rows

    def _row(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.uint8 if self._is_binary else np.float32)


def _some_rows(n: int, seed: int, is_binary: bool) -> np.ndarray:
    """Return codes, or vectors whose values float16 and sparse arrays hold exactly; some are equal."""
    rng = np.random.default_rng(seed)
    if is_binary:
        bits = rng.integers(0, 2, (n, _N_BITS), dtype=np.uint8)
        return np.packbits(bits, axis=1, bitorder="little")
    return (rng.integers(-9, 10, (n, _DIM)) + np.eye(_DIM)[rng.integers(0, _DIM, n)] / 2).astype(np.float32)


def _matrix(rows: Rows, dtype: Any, width: int) -> np.ndarray:
    return np.frombuffer(b"".join(rows[id_] for id_ in sorted(rows)), dtype).reshape(-1, width)
