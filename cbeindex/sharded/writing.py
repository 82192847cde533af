"""Adding and removing rows: checked everywhere before anything is written, and written exactly once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._core.progress import progress_bar
from .._core.tuning import tuning
from .._core.typing import Rows
from ..data.ids import missing_text
from ..data.names import shown
from ..data.source import is_sparse
from ..index import CBEIndex
from .calls import Call, Outcomes
from .connection import Connection
from .errors import FrozenError, NotFittedError, ShardError, StaleLayoutError
from .fitting import check_rows, sample_of
from .ids import checked_ids, take
from .manifest import TEMPLATE
from .reading import all_ids, contained, rows_by_id
from .routing import rows_by_shard

# Makes the call that writes some rows, from their token, their numbers and their ids.
CallOf = Callable[[str, Rows, Any], Call]

# How often a write that waits for the end of a move looks at the manifest.
_POLL_SECONDS = 0.1


class Writer:
    """Carries out one write of a client."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, X: Any, ids: Any, replace: bool, progress: bool, options: dict[str, Any]) -> Any:
        """Add rows, block by block."""
        connection = self._connection
        check_rows(connection.template, X)
        n_rows = X.shape[0]
        if n_rows == 0:
            return np.empty(0, dtype=np.int64)
        if ids is None and connection.manifest.ids == "str":
            raise TypeError("ids must be strings, as those of this index are, got no ids")
        given, kind = (None, "int") if ids is None else checked_ids(ids, n_rows)
        self._use_ids(kind, X, given)
        if given is None:
            given, replace = connection.ask_coordinator("take_ids", n_rows), False
        elif not replace:
            in_use = contained(self._connection, given)
            if in_use.any():
                taken = take(given, np.flatnonzero(in_use)[:1])[0]
                raise ValueError(f"id {shown(taken)} is taken; remove it first, or add with replace=True")
        if not connection.manifest.fitted:
            self._fit_if_enough(X)
        options = {"replace": replace, **options}
        with progress_bar(progress, n_rows, "vectors") as advance:
            for rows in _blocks(X):
                self._add_block(X[rows[0] : rows[-1] + 1], take(given, rows), options)
                advance(len(rows))
        return given if isinstance(given, np.ndarray) else np.array(given, dtype=object)

    def _add_block(self, X: Any, ids: Any, options: dict[str, Any]) -> None:
        def call_of(token: str, rows: Rows, their_ids: Any) -> Call:
            return Call("add", (token, X[rows], their_ids, options), writes=True)

        self._write(call_of, ids, lambda: self._fit_if_enough(X))

    def remove(self, ids: Any, ignores_missing: bool) -> None:
        """Remove rows."""
        checked, _ = checked_ids(ids)
        checked = np.unique(checked) if isinstance(checked, np.ndarray) else list(dict.fromkeys(checked))
        present = contained(self._connection, checked)
        if not present.all() and not ignores_missing:
            raise ValueError(missing_text(take(checked, np.flatnonzero(~present))))
        checked = take(checked, np.flatnonzero(present))
        self._write(lambda token, rows, their_ids: Call("remove", (token, their_ids), writes=True), checked)

    def _use_ids(self, kind: str, X: Any, ids: Any) -> None:
        """Make sure that the index has ids of this type, or none."""
        connection = self._connection
        if connection.manifest.ids == kind:
            return
        if connection.manifest.ids is None and kind == "str":  # raises an error where indexes have integers alone
            CBEIndex.load(f"{connection.folder}/{TEMPLATE}").add(X[:1], take(ids, [0]))
        connection.ask_coordinator("use_ids", kind)
        connection.refresh()

    def _fit_if_enough(self, X: Any) -> None:
        """Fit the index once it has as many rows as a single index is fitted to."""
        connection = self._connection
        connection.refresh()
        if connection.manifest.fitted:
            return
        ids = all_ids(connection)
        template = CBEIndex.load(f"{connection.folder}/{TEMPLATE}")
        sample = sample_of(template, rows_by_id(connection, "get", ids) if len(ids) else None, X)
        if sample is None:
            return
        try:
            connection.ask_coordinator("fit", sample, is_done=lambda manifest: manifest.fitted)
            connection.refresh()
        except ValueError:  # another client was faster
            connection.refresh()
            if not connection.manifest.fitted:
                raise

    def _write(self, call_of: CallOf, ids: Any, fit: Callable[[], None] | None = None) -> None:
        """Send rows to their shards, until each shard has acknowledged its rows.

        Every shard gets a token with its rows, by which it recognises a call that comes a second time. `fit` is called
        if a shard has so many rows, also of other clients, that the index has to be fitted.
        """
        connection = self._connection
        left = np.arange(len(ids))
        while len(left):
            view = connection.view
            parts = {n: left[some] for n, some in rows_by_shard(take(ids, left), view.manifest.n_shards).items()}
            tokens = {number: uuid.uuid4().hex for number in parts}
            calls = {n: call_of(tokens[n], part, take(ids, part)) for n, part in parts.items()}
            found = view.calls.outcomes(calls)
            for number, reply in found.answers.items():
                connection.acknowledge(view, number, reply.sequence)
            self._raise_final(found, parts)
            if fit is not None and any(isinstance(failure, NotFittedError) for failure in found.failures.values()):
                fit()
            done = self._written_before_move(found, tokens)
            again = [parts[number] for number in found.failures if number not in done]
            left = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *again]))

    def _raise_final(self, found: Outcomes, parts: Mapping[int, Rows]) -> None:
        """Raise the failures that waiting does not mend."""
        mended = FrozenError | StaleLayoutError | NotFittedError
        final = {n: failure for n, failure in found.failures.items() if not isinstance(failure, mended)}
        if len(final) == 1 == len(parts) and not isinstance(next(iter(final.values())), TimeoutError):
            raise next(iter(final.values()))
        if final:
            written = sum(len(parts[number]) for number in found.answers)
            what = f"did not take their rows ({written} rows of other shards were written)"
            raise ShardError(final, self._connection.manifest.n_shards, what)

    def _written_before_move(self, found: Outcomes, tokens: Mapping[int, str]) -> set[int]:
        """Wait until no rows are being moved; return the shards whose worker ended, but only after it had written."""
        if not found.failures:
            return set()
        connection = self._connection
        connection.refresh()
        while connection.manifest.moving:
            time.sleep(_POLL_SECONDS)
            connection.ask_coordinator("restarts")  # a coordinator that has died undoes the move when it is started
            connection.refresh()
        unsure = [n for n, failure in found.failures.items() if isinstance(failure, StaleLayoutError)]

        def ask(token: str) -> bool:
            found = connection.retrying(lambda view: view.calls.each({0: Call("knows", (0, token))}))
            return bool(found.answers[0].value)

        return {number for number in unsure if ask(tokens[number])}


def _blocks(X: Any) -> list[Rows]:
    """Return the rows of blocks that are sent to shards one after the other."""
    n_bytes = (X.data.nbytes + X.indices.nbytes) if is_sparse(X) else X.nbytes
    step = max(1, int(tuning().cli_block_bytes / max(1.0, n_bytes / X.shape[0])))
    return [np.arange(start, min(start + step, X.shape[0])) for start in range(0, X.shape[0], step)]
