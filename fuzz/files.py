"""Index files that are damaged, with valid checksums: an IndexFileError or a result, never a crash, a hang or a flood.

Each case takes a valid file, damages it (see `mutations`), and does with it all that a program can, in a process with
little memory and little time.
"""

from __future__ import annotations

import copy
import errno
import functools
import itertools
import random
import re
import tempfile
import traceback
import warnings
from collections.abc import Callable
from mmap import mmap
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

import cbeindex
from cbeindex import BinaryIndex, CBEIndex, IndexFileError
from cbeindex.storage import container as storage
from tests.small import VERY_SMALL, small_buckets

from . import corpus, pool
from .container import parse, write
from .mutations import damage_bytes, mutate
from .pool import Limits, Outcome
from .report import Report, random_of

# What a case may take beside a multiple of its file: threads and the rows that we add.
_ROOM = 2**28
_ROOM_PER_BYTE = 8
# Larger indexes are not searched: the queries alone would be too large.
_MOST_DIM = 2**12
_MOST_BITS = 2**16
# What may be said of ids that a damaged file has, and of a file that has the largest id or number of a commit.
_NO_IDS = "(is|are) not in the index|ids must be 0 or more|ids must not repeat|is taken"
_NO_MORE = "there are no new ids after|is the last that a file can hold"


class Api(NamedTuple):
    """What is attacked: tests put something broken in its place."""

    load: Callable[..., Any] = lambda kind, path, mmap: kind.load(path, mmap=mmap)
    verify: Callable[[Path], None] = cbeindex.verify


def run(
    seed: int,
    seconds: float,
    cases: range | None = None,
    *,
    keep: Path | None = None,
    n_workers: int = 2,
    api: Api | None = None,
    cpu_seconds: float = pool.CPU_SECONDS,
    out: TextIO | None = None,
) -> Report:
    """Attack until the time is over, or with some cases."""
    report = Report("files", seed, keep, out)
    numbers = itertools.count() if cases is None else iter(cases)
    task = functools.partial(_examine, seed=seed, api=api or Api())
    with small_buckets(VERY_SMALL):
        warm_up()
        for case, outcome, folder in pool.run(task, numbers, seconds, n_workers, cpu_seconds):
            report.n_cases += 1
            report.counts.update(outcome.counts)
            report.add(case, outcome.findings, folder / "case.cbe")
    return report


@functools.cache
def warm_up() -> None:
    """Load all kernels before workers are forked, or the first case of each would pay for that."""
    for number in range(0, len(corpus.RECIPES), 4):
        examine_valid(number)


def examine_valid(number: int) -> Outcome:
    """Do with a file that is not damaged what is done with those that are."""
    outcome = Outcome()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder, "work.cbe")
        path.write_bytes(corpus.file_of(number))
        trial = _Trial(corpus.RECIPES[number], [], None, Api(), Limits(mmap(-1, pool.MARK_BYTES)), outcome)
        trial.read(path)
        trial.change(path, random.Random(number))
    return outcome


def _examine(case: int, folder: Path, limits: Limits, outcome: Outcome, *, seed: int, api: Api) -> None:
    """Make a damaged file, and do everything with it."""
    rng = random_of(seed, "files", case)
    number = rng.randrange(len(corpus.RECIPES))
    path, work = folder / "case.cbe", folder / "work.cbe"
    what, stored_ids = make_file(rng, number, path)
    make_file(random_of(seed, "files", case), number, work, skip=1)
    trial = _Trial(corpus.RECIPES[number], what, stored_ids, api, limits, outcome)
    limits.memory(_ROOM + _ROOM_PER_BYTE * path.stat().st_size)
    trial.read(path)
    trial.change(work, rng)


def make_file(rng: random.Random, number: int, path: Path, skip: int = 0) -> tuple[list[str], set[int] | None]:
    """Write a damaged file of the corpus; return what is wrong with it, and the ids in it if they can be told."""
    for _ in range(skip):  # the number that was drawn before
        rng.randrange(len(corpus.RECIPES))
    data = corpus.file_of(number)
    if rng.random() < 0.1:
        damaged, how = damage_bytes(rng, data)
        path.write_bytes(damaged)
        return [how], None
    file = parse(data)
    what = mutate(rng, file)
    write(file, path)
    ids = [np.frombuffer(s.data[: len(s.data) // 8 * 8], "<i8") for s in file.sections if str(s.name).endswith("/ids")]
    stored_ids: set[int] | None = set(np.concatenate([[-1], *ids]).tolist())
    if any(section.fields or section.hole for section in file.sections):  # ids may come from anywhere then
        stored_ids = None
    if rng.random() < 0.05:
        damaged, how = damage_bytes(rng, path.read_bytes())
        path.write_bytes(damaged)
        return [*what, how], None
    return what, stored_ids


class _Trial:
    """What is done with one file, and what is wrong about how it went."""

    def __init__(
        self,
        recipe: corpus.Recipe,
        what: list[str],
        stored_ids: set[int] | None,
        api: Api,
        limits: Limits,
        outcome: Outcome,
    ) -> None:
        self._recipe, self._what, self._stored_ids = recipe, what, stored_ids
        self._api, self._limits, self._outcome = api, limits, outcome
        self._kind: Any = {"BinaryIndex": BinaryIndex, "CBEIndex": CBEIndex}[recipe.kind]
        self._is_verified = False

    def read(self, path: Path) -> None:
        """Load a file read and mapped, and call every method."""
        verified, _ = self._step("verify", lambda: self._api.verify(path))
        self._is_verified = verified
        self._outcome.count("verified" if verified else "not verified")
        self._step("describe", lambda: storage.describe(path))
        for way, mapped in (("read", False), ("mapped", True)):
            loaded, index = self._step(
                f"load(mmap={mapped})", functools.partial(self._api.load, self._kind, path, mapped)
            )
            if loaded:
                self._outcome.count(way)
                self._ask(index, mapped)

    def change(self, path: Path, rng: random.Random) -> None:
        """Load a file mapped, change it in random order, save it, and load it again."""
        loaded, index = self._step("load", lambda: self._api.load(self._kind, path, True))
        if not loaded or not _is_small(index):
            return
        changes = [self._add, self._remove, self._merge, self._fit, self._compact, self._save]
        changes += [self._refit, self._shrink, self._tune]
        for change in rng.sample(changes, len(changes)):
            change(index)
        saved, _ = self._step("save", index.save)
        if not saved:
            return
        self._outcome.count("saved again")
        _, ids = self._step("ids", lambda: index.ids)
        for mapped in (True, False):
            # Sections that are kept keep their wrong checksums.
            must, about = mapped or self._is_verified, f"load again(mmap={mapped})"
            again, other = self._step(about, functools.partial(self._kind.load, path, mmap=mapped), must)
            if again and ids is not None and other.ids.tolist() != ids.tolist():
                self._find(f"{about}: the ids are not those that were saved")
        if self._is_verified:
            self._step("verify again", lambda: cbeindex.verify(path), True)

    def _ask(self, index: Any, mapped: bool) -> None:
        """Call everything that does not change an index."""
        about = "" if mapped else " (read)"
        self._step(f"repr{about}", lambda: (repr(index), len(index), 10 in index, "éx" in index))
        self._step(f"stats{about}", index.stats)
        has_ids, ids = self._step(f"ids{about}", lambda: index.ids)
        if has_ids and (self._is_verified or not _has_names(index)) and len(set(ids.tolist())) < len(ids):
            self._find(f"ids{about}: an id is there twice")
        if not _is_small(index):
            return
        if has_ids and self._is_verified and len(ids) != len(index):
            self._find(f"ids{about}: there are {len(ids)} ids and {len(index)} rows")
        # A damaged file may take one row for another, also for a removed one; but not for one that it does not have.
        known = set(ids.tolist()) | {-1, None} if has_ids and self._is_verified else self._stored_ids
        if _has_names(index) and not self._is_verified:  # names may be made of any bytes
            known = None
        some = ids[:4] if has_ids else np.arange(10, 14).astype(str if _has_names(index) else np.int64)
        queries = self._rows(index, 3, 1)
        if not isinstance(index, CBEIndex) or index.vectors is not None or not index.is_fitted:
            self._step(f"get{about}", lambda: index.get(some), allowed=_NO_IDS)
            self._step(f"get all{about}", lambda: index.get(ids) if has_ids else None, allowed=_NO_IDS)
            if isinstance(index, CBEIndex):
                self._step(f"search_ids{about}", lambda: index.search_ids(some, 2), allowed=_NO_IDS)
        if isinstance(index, CBEIndex) and index.is_fitted and index.hamming:
            self._step(f"codes{about}", lambda: index.codes(some), allowed=_NO_IDS)
        for request in _requests(index, some):
            asked, result = self._step(
                f"search({_shown(request)}){about}", functools.partial(index.search, queries, **request)
            )
            if asked:
                self._check_ids(f"search({_shown(request)}){about}", result.ids, known)
            self._step(f"explain{about}", functools.partial(_explain, index, queries, request))
        radius = 3 if isinstance(index, BinaryIndex) else 0.5
        if isinstance(index, BinaryIndex) or _can_estimate(index) or index.vectors:
            asked, result = self._step(f"range_search{about}", lambda: index.range_search(queries, radius, n_threads=1))
            if asked:
                self._check_ids(f"range_search{about}", result.ids, known)

    def _add(self, index: Any) -> None:
        had_ids, before = self._step("ids", lambda: index.ids)
        names = [f"new {i}" for i in range(7)] if _has_names(index) else None
        added, new = self._step("add", lambda: index.add(self._rows(index, 7, 2), names), allowed=_NO_IDS)
        if added and had_ids and set(new.tolist()) & set(before.tolist()):
            self._find("add: new rows have ids that are taken")
        has_ids, ids = self._step("ids", lambda: index.ids)
        if added and has_ids and set(new.tolist()) - set(ids.tolist()):
            self._find("add: new rows are not there")
        if has_ids and len(ids):
            rows = self._rows(index, 2, 3)[: len(ids[:2])]
            self._step("replace", lambda: index.add(rows, ids[:2], replace=True), allowed=_NO_IDS)

    def _remove(self, index: Any) -> None:
        has_ids, ids = self._step("ids", lambda: index.ids)
        if has_ids and len(ids):
            self._step("remove", lambda: index.remove(ids[::5]), allowed=_NO_IDS)

    def _merge(self, index: Any) -> None:
        copied, other = self._step("copy", lambda: copy.copy(index))
        if copied and self._step("empty", lambda: other.remove(other.ids), allowed=_NO_IDS)[0]:
            self._step("merge", lambda: other.merge(index), allowed=_NO_IDS)

    def _fit(self, index: Any) -> None:
        if isinstance(index, CBEIndex) and not index.is_fitted:
            self._step("fit", lambda: index.fit(self._rows(index, 20, 4)))

    def _refit(self, index: Any) -> None:
        if isinstance(index, CBEIndex) and len(index) > 1 and (index.vectors is not None or not index.is_fitted):
            # Around a centre that a file has moved far away, few bits make decoded vectors equal.
            self._step("refit", index.refit, allowed="all rows are equal")

    def _shrink(self, index: Any) -> None:
        # Decoded vectors may be negative, which aqbc is not fitted to.
        can_decode = self._recipe.encoder != "aqbc"
        if can_decode and isinstance(index, CBEIndex) and index.vectors in ("int8", "float16", "float32"):
            kind = None if self._recipe.is_sparse else "int4"  # short sparse rows take less than levels
            self._step(f"shrink({kind})", lambda: index.shrink(kind), allowed="must hold all|must be dense enough")

    def _tune(self, index: Any) -> None:
        if isinstance(index, CBEIndex) and index.is_fitted and index.vectors is not None and _has_cells(index):
            self._step("tune", lambda: index.tune(self._rows(index, 5, 5), 2))

    def _compact(self, index: Any) -> None:
        self._step("compact", index.compact)

    def _save(self, index: Any) -> None:
        self._step("save", index.save)

    def _rows(self, index: Any, n: int, seed: int) -> Any:
        if isinstance(index, BinaryIndex):
            return corpus.some_codes(n, seed, index.n_bits)
        if index.dim == corpus.DIM:
            rows = corpus.some_vectors(n, seed, self._recipe.is_sparse)
            return abs(rows) if self._recipe.encoder == "aqbc" else rows
        return np.random.default_rng(seed).standard_normal((n, index.dim), dtype=np.float32)

    def _check_ids(self, step: str, ids: np.ndarray, known: set[Any] | None) -> None:
        unknown = set(ids.ravel().tolist()) - known if known is not None else set()
        if unknown:
            self._find(f"{step}: found ids that are not in the index: {sorted(unknown, key=str)[:3]}")

    def _step(
        self, name: str, call: Callable[[], Any], must: bool = False, *, allowed: str | None = None
    ) -> tuple[bool, Any]:
        """Call something; return whether it worked, and its value.

        Our errors are fine, unless the file was verified or it `must` work; of others those whose message is `allowed`,
        unless the file was verified.
        """
        self._limits.mark(f"{name}\n        {self._about()}")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = call()
        except Exception as error:
            self._judge(name, error, must, allowed)
            return False, None
        for warning in caught:
            if self._is_verified:
                self._find(f"{name}: {warning.category.__name__}: {warning.message}")
        return True, value

    def _judge(self, name: str, error: Exception, must: bool, allowed: str | None) -> None:
        if _is_of_memory(error):
            self._find(f"{name}: out of memory as {type(error).__name__}{_at(error)}")
        elif isinstance(error, (ValueError, IndexFileError)) and re.search(_NO_MORE, str(error)):
            pass
        elif isinstance(error, IndexFileError):
            if must or self._is_verified:
                said = str(error).split(".cbe: ", 1)[-1]
                self._find(f"{name}: {'' if must else 'verify passed, but '}{type(error).__name__}: {said}{_at(error)}")
        elif self._is_verified or not (isinstance(error, ValueError) and allowed and re.search(allowed, str(error))):
            passed = "verify passed, but " if self._is_verified else ""
            self._find(f"{name}: {passed}{type(error).__name__}: {str(error)[:200]}{_at(error)}")

    def _find(self, what: str) -> None:
        self._outcome.findings.append(f"{what}\n        {self._about()}")

    def _about(self) -> str:
        return f"{self._recipe.name}; {'; '.join(self._what)}"


def _has_names(index: Any) -> bool:
    """Return whether the ids of an index are strings."""
    rows = index._rows if isinstance(index, BinaryIndex) else index._state.rows
    return bool(rows.has_names)


def _has_cells(index: Any) -> bool:
    """Return whether an index estimates distances in cells or graphs."""
    return index.buckets in ("cells", "graph", "auto")


def _requests(index: Any, ids: np.ndarray) -> list[dict[str, Any]]:
    """List searches that together take every path through the code."""
    has_codes, has_cells = getattr(index, "hamming", True), _has_cells(index)
    requests: list[dict[str, Any]] = [{"k": 3}, {"k": 100, "mode": "scan"}]
    requests += [{"k": 2, "mode": "cascade"}] * has_codes
    requests += [{"k": 2, "allow": ids}, {"k": 2, "deny": ids[:2], "mode": "scan", "n_threads": 1}]
    if index.buckets is not None:
        requests += [{"k": 2, "mode": "buckets", "n_probes": 1}, {"k": 50, "mode": "buckets", "n_threads": 1}]
    if isinstance(index, CBEIndex):
        requests += [{"k": 3, "rerank": None, "mode": "scan"}] * has_codes
        requests += [{"k": 3, "recall": 0.7}] * (has_cells and index.vectors is not None)
        requests += [{"k": 3, "mode": "exact"}] * (index.vectors in ("float16", "float32"))
        depth = {} if has_cells else {"n_candidates": 5}  # all rows of cells are estimated
        requests += [{"k": 3, "rerank": "asymmetric", **depth}] * _can_estimate(index)
        requests += [{"k": 3, "rerank": "exact", "n_candidates": 5}] * (index.vectors in ("float16", "float32"))
        requests += [{"k": 3, "rerank": "auto"}] * (index.vectors in ("int4", "int8"))
    return requests


def _can_estimate(index: CBEIndex) -> bool:
    return bool(index.encoder.is_linear)


def _explain(index: Any, queries: Any, request: dict[str, Any]) -> str:
    return str(index.explain(queries, **{name: value for name, value in request.items() if name != "n_threads"}))


def _shown(request: dict[str, Any]) -> str:
    return ", ".join(f"{name}=..." if name in ("allow", "deny") else f"{name}={v!r}" for name, v in request.items())


def _is_small(index: Any) -> bool:
    return index.n_bits <= _MOST_BITS and getattr(index, "dim", 0) <= _MOST_DIM


def _is_of_memory(error: BaseException | None) -> bool:
    """Tell whether an error was caused by a failed allocation."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False


def _at(error: BaseException) -> str:
    """Tell where in cbeindex an error came from."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "cbeindex" in frame.filename]
    return "".join(f" < {frame.name} in {Path(frame.filename).name}" for frame in frames[:-4:-1])
