"""The three ways to save an index, and a short comparison of an index before and after a save."""

import copy
import functools

from tests.sample_indexes import an_index, queries_for


@functools.cache
def _vectors():
    return an_index(buckets="substrings", n_tables=2, table_bits=3, vectors="float32", n=40)


def some_vectors():
    """Return an index of vectors with a fitted encoder and substring tables."""
    return copy.copy(_vectors())


def first_save(index, path):
    """Replace the file of another index."""
    index.save(path)


def append(index, path):
    index.save()


def compact(index, path):
    index.compact()


SAVES = (first_save, append, compact)


def told(index):
    """Return ids and results that do not depend on the segments of an index."""
    queries = queries_for(index)
    result = index.search(queries, 5, mode="scan")
    return {"ids": index.ids, "search": tuple(result), "get": index.get(index.ids), "next": _next_id(index, queries)}


def _next_id(index, queries):
    return copy.copy(index).add(queries[:1])
