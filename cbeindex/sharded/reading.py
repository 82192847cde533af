"""Reading rows by their ids, from the shards that have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.typing import Mask
from .calls import Call
from .connection import Connection, View
from .ids import take
from .merging import merge_rows
from .routing import rows_by_shard


def contained(connection: Connection, ids: Any) -> Mask:
    """Return which ids are in the index."""

    def read(view: View) -> Mask:
        found = np.zeros(len(ids), dtype=bool)
        rows = rows_by_shard(ids, view.manifest.n_shards)
        calls = {n: Call("contains", (connection.least(view, n), take(ids, some))) for n, some in rows.items()}
        for number, reply in view.calls.each(calls).answers.items():
            found[rows[number]] = reply.value
        return found

    return connection.retrying(read)


def rows_by_id(connection: Connection, method: str, ids: Any) -> Any:
    """Return what a method of the index returns for ids, "get" or "codes", in their order."""

    def read(view: View) -> Any:
        rows = rows_by_shard(ids, view.manifest.n_shards)
        calls = {
            number: Call("call", (method, connection.least(view, number), ((take(ids, some),), {})))
            for number, some in rows.items()
        }
        return merge_rows({n: reply.value for n, reply in view.calls.each(calls).answers.items()}, rows)

    return connection.retrying(read)


def all_ids(connection: Connection) -> Any:
    """Return all ids in ascending order."""
    return np.sort(np.concatenate([reply.value for reply in connection.ask_all("ids").answers.values()]))
