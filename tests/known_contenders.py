"""Contenders whose answers, or failures, are known; apart from the tests, so that their processes start fast."""

import os
import time

import numpy as np

from benchmarks.adapter import Adapter


def naive_nearest(base, queries, k):
    base, queries = base.astype(np.float64), queries.astype(np.float64)
    distances = ((queries[:, np.newaxis] - base) ** 2).sum(axis=2)
    return np.argsort(distances, axis=1, kind="stable")[:, :k]


class Perfect(Adapter):
    """Finds all."""

    package = None

    def build(self):
        self.rows = np.asarray(self.base)

    def search(self, queries, k, parameter):
        return naive_nearest(self.rows, queries, k)


class Random(Perfect):
    """Finds what it finds."""

    def search(self, queries, k, parameter):
        return random_ids(len(queries), self.task.n_rows, k)


class Crashing(Perfect):
    """Dies in its second search."""

    n_searches = 0

    def search(self, queries, k, parameter):
        self.n_searches += 1
        if self.n_searches == 2:
            os._exit(7)
        return super().search(queries, k, parameter)


class Raising(Perfect):
    """Cannot build."""

    def build(self):
        raise RuntimeError("no room for an index")


class Hanging(Perfect):
    """Never answers."""

    def search(self, queries, k, parameter):
        time.sleep(600)


class Foolish(Perfect):
    """Answers with rows that there are not."""

    def search(self, queries, k, parameter):
        return super().search(queries, k, parameter) + self.task.n_rows


class Wordless(Perfect):
    """Answers without what was asked for."""

    def run(self, way):
        return {}


def random_ids(n_queries, n_rows, k):
    rng = np.random.default_rng(1)
    return np.array([rng.permutation(n_rows)[:k] for _ in range(n_queries)])


KNOWN = {
    cls.__name__: f"{__name__}:{cls.__name__}"
    for cls in (Perfect, Random, Crashing, Raising, Hanging, Foolish, Wordless)
}
