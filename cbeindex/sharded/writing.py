"""Adding and removing rows: checked everywhere before anything is written, and written exactly once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.progress import progress_bar
from .._core.tuning import tuning
from .._core.typing import Mask, Rows
from ..data.source import is_sparse
from ..index import CBEIndex
from .calls import Call, Outcomes
from .errors import FrozenError, NotFittedError, ShardError, StaleLayoutError
from .fitting import check_rows, sample_of
from .ids import checked_ids, take
from .manifest import TEMPLATE
from .routing import rows_by_shard

if TYPE_CHECKING:
    from .client import ShardedIndex, View

# Makes the call that writes some rows, from their token, their numbers and their ids.
CallOf = Callable[[str, Rows, Any], Call]

# How often a write that waits for the end of a move looks at the manifest.
_POLL_SECONDS = 0.1


class Writer:
    """Carries out one write of a client."""

    def __init__(self, index: ShardedIndex) -> None:
        self._index = index

    def add(self, X: Any, ids: Any, replace: bool, progress: bool, options: dict[str, Any]) -> Any:
        """Add rows, block by block."""
        index = self._index
        check_rows(index._template, X)
        n_rows = X.shape[0]
        if n_rows == 0:
            return np.empty(0, dtype=np.int64)
        given, kind = (None, "int") if ids is None else checked_ids(ids, n_rows)
        self._use_ids(kind, X, given)
        if given is None:
            given, replace = index._ask_coordinator("take_ids", n_rows), False
        elif not replace:
            in_use = self.contained(given)
            if in_use.any():
                taken = take(given, np.flatnonzero(in_use)[:1])[0]
                raise ValueError(f"id {taken} is taken; remove it first, or add with replace=True")
        if not index._view.manifest.fitted:
            self._fit_if_enough(X)
        options = {"replace": replace, **options}
        with progress_bar(progress, n_rows, "vectors") as advance:
            for rows in _blocks(X):
                self._add_block(X, rows, take(given, rows), options)
                advance(len(rows))
        return given if isinstance(given, np.ndarray) else np.array(given, dtype=object)

    def _add_block(self, X: Any, rows: Rows, ids: Any, options: dict[str, Any]) -> None:
        def call_of(token: str, some: Rows, their_ids: Any) -> Call:
            return Call("add", (token, X[some], their_ids, options), writes=True)

        try:
            self._write(call_of, rows, ids)
        except (NotFittedError, ShardError) as error:  # rows that other clients add at the same time count as well
            causes = error.causes if isinstance(error, ShardError) else {0: error}
            if not all(isinstance(cause, NotFittedError) for cause in causes.values()):
                raise
            missing = np.flatnonzero(~self.contained(ids))
            self._fit_if_enough(X[rows[missing]])
            self._write(call_of, rows[missing], take(ids, missing))

    def remove(self, ids: Any) -> None:
        """Remove rows."""
        checked, _ = checked_ids(ids)
        checked = np.unique(checked) if isinstance(checked, np.ndarray) else list(dict.fromkeys(checked))
        missing = ~self.contained(checked)
        if missing.any():
            raise ValueError(f"id {take(checked, np.flatnonzero(missing)[:1])[0]} is not in the index")
        self._write(lambda token, part, i: Call("remove", (token, i), writes=True), np.arange(len(checked)), checked)

    def contained(self, ids: Any) -> Mask:
        """Return which ids are in the index."""

        def read(view: View) -> Mask:
            found = np.zeros(len(ids), dtype=bool)
            rows = rows_by_shard(ids, view.manifest.n_shards)
            calls = {n: Call("contains", (self._index._least(view, n), take(ids, some))) for n, some in rows.items()}
            for number, reply in view.calls.each(calls).answers.items():
                found[rows[number]] = reply.value
            return found

        return self._index._retrying(read)

    def _use_ids(self, kind: str, X: Any, ids: Any) -> None:
        """Make sure that the index has ids of this type, or none."""
        index = self._index
        if index._view.manifest.ids == kind:
            return
        if index._view.manifest.ids is None and kind == "str":  # raises an error where indexes have integers alone
            CBEIndex.load(f"{index.folder}/{TEMPLATE}").add(X[:1], take(ids, [0]))
        index._ask_coordinator("use_ids", kind)
        index._refresh()

    def _fit_if_enough(self, X: Any) -> None:
        """Fit the index once it has as many rows as a single index is fitted to."""
        index = self._index
        index._refresh()
        if index._view.manifest.fitted:
            return
        ids = index.ids
        template = CBEIndex.load(f"{index.folder}/{TEMPLATE}")
        sample = sample_of(template, [index.get(ids)] if len(ids) else [], X)
        if sample is None:
            return
        try:
            index.fit(sample)
        except ValueError:  # another client was faster
            index._refresh()
            if not index._view.manifest.fitted:
                raise

    def _write(self, call_of: CallOf, rows: Rows, ids: Any) -> None:
        """Send rows to their shards, until each shard has acknowledged its rows.

        Every shard gets a token with its rows, by which it recognises a call that comes a second time.
        """
        index = self._index
        left = np.arange(len(rows))
        while len(left):
            view = index._view
            parts = {n: left[some] for n, some in rows_by_shard(take(ids, left), view.manifest.n_shards).items()}
            tokens = {number: uuid.uuid4().hex for number in parts}
            calls = {n: call_of(tokens[n], rows[part], take(ids, part)) for n, part in parts.items()}
            found = view.calls.outcomes(calls)
            for number, reply in found.answers.items():
                key = (view.manifest.layout, number)
                index._acknowledged[key] = max(index._acknowledged.get(key, 0), reply.sequence)
            self._raise_final(found, parts)
            done = self._written_before_move(found, tokens)
            again = [parts[number] for number in found.failures if number not in done]
            left = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *again]))

    def _raise_final(self, found: Outcomes, parts: Mapping[int, Rows]) -> None:
        """Raise the failures that waiting does not mend."""
        final = {n: e for n, e in found.failures.items() if not isinstance(e, FrozenError | StaleLayoutError)}
        if len(final) == 1 == len(parts) and not isinstance(next(iter(final.values())), TimeoutError):
            raise next(iter(final.values()))
        if final:
            written = sum(len(parts[number]) for number in found.answers)
            what = f"did not take their rows ({written} rows of other shards were written)"
            raise ShardError(final, self._index.n_shards, what)

    def _written_before_move(self, found: Outcomes, tokens: Mapping[int, str]) -> set[int]:
        """Wait until no rows are being moved; return the shards whose worker ended, but only after it had written."""
        if not found.failures:
            return set()
        index = self._index
        while True:
            time.sleep(_POLL_SECONDS)
            index._refresh()
            if not index._view.manifest.moving:
                break
        unsure = [n for n, failure in found.failures.items() if isinstance(failure, StaleLayoutError)]

        def ask(token: str) -> bool:
            return bool(index._retrying(lambda view: view.calls.each({0: Call("knows", (0, token))})).answers[0].value)

        return {number for number in unsure if ask(tokens[number])}


def _blocks(X: Any) -> list[Rows]:
    """Return the rows of blocks that are sent to shards one after the other."""
    n_bytes = (X.data.nbytes + X.indices.nbytes) if is_sparse(X) else X.nbytes
    step = max(1, int(tuning().cli_block_bytes / max(1.0, n_bytes / X.shape[0])))
    return [np.arange(start, min(start + step, X.shape[0])) for start in range(0, X.shape[0], step)]
