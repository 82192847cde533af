"""Small valid index files of every kind, made by cbeindex; the same bytes in every run."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from cbeindex import BinaryIndex, CBEIndex, CirculantEncoder
from cbeindex._core.tuning import tuned
from cbeindex.encoders import (
    AQBCEncoder,
    BilinearEncoder,
    Encoder,
    ITQEncoder,
    LSHEncoder,
    SKLSHEncoder,
    SpectralEncoder,
)

from .container import as_version_1, parse, write

DIM = 12
METRICS = ("cosine", "l2", "ip")
BUCKETS: tuple[dict[str, Any], ...] = (
    {},
    {"buckets": "clusters", "n_cells": 3},
    {"buckets": "substrings", "n_tables": 3, "table_bits": 4},
    {"buckets": "clusters"},
    {"buckets": "substrings"},
)
ENCODERS: dict[str, Callable[[int], Encoder]] = {
    "orthogonal": lambda n_bits: CirculantEncoder(DIM, n_bits),
    "random": lambda n_bits: CirculantEncoder(DIM, n_bits, "random", pad=False),
    "learned": lambda n_bits: CirculantEncoder(DIM, n_bits, "learned", n_iter=1),
    "lsh": lambda n_bits: LSHEncoder(DIM, n_bits),
    "bilinear": lambda n_bits: BilinearEncoder(DIM, DIM),
    "itq": lambda n_bits: ITQEncoder(DIM, DIM, n_iter=1),
    "spectral": lambda n_bits: SpectralEncoder(DIM, n_bits),
    "sklsh": lambda n_bits: SKLSHEncoder(DIM, n_bits),
    "aqbc": lambda n_bits: AQBCEncoder(DIM, DIM, n_iter=1),
}


@dataclass(frozen=True)
class Recipe:
    """How a file of the corpus is made.

    Attributes
    ----------
    name : str
    kind : {"CBEIndex", "BinaryIndex"}
    n_bits : int
    encoder : str
    n_rows : int
    is_sparse : bool
    history : {"one save", "removed", "appended"}
    version : {1, 2}
        Format version of the file.
    has_names : bool
        Whether ids are strings.
    options : dict
    """

    name: str
    kind: str
    n_bits: int
    encoder: str = "orthogonal"
    n_rows: int = 40
    is_sparse: bool = False
    history: str = "one save"
    version: int = 2
    has_names: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def _recipes() -> list[Recipe]:
    recipes = []
    histories = itertools.cycle(("one save", "removed", "appended"))
    for n_bits, options, history in itertools.product((20, 128, 1200), BUCKETS, ("one save", "removed", "appended")):
        name = f"BinaryIndex of {n_bits} bits, {options}, {history}"
        recipes.append(Recipe(name, "BinaryIndex", n_bits, history=history, options=options))
    recipes.append(Recipe("BinaryIndex without rows", "BinaryIndex", 64, n_rows=0))
    kept: tuple[str | None, ...] = (None, "float16", "float32")
    for metric, vectors, is_sparse, options in itertools.product(METRICS, kept, (False, True), BUCKETS[:3]):
        history = next(histories)
        name = f"CBEIndex {metric}, {vectors}, {'sparse' if is_sparse else 'dense'}, {options}, {history}"
        every = {"metric": metric, "vectors": vectors, **options}
        recipes.append(Recipe(name, "CBEIndex", 40, is_sparse=is_sparse, history=history, options=every))
    for encoder, vectors in itertools.product(ENCODERS, (None, "float32")):
        name = f"CBEIndex with {encoder}, {vectors}"
        options = {"vectors": vectors, "metric": "l2", **BUCKETS[1 if vectors else 0]}
        recipes.append(Recipe(name, "CBEIndex", 1200 if encoder == "lsh" else 40, encoder, options=options))
    for is_sparse, metric in itertools.product((False, True), METRICS):
        history = next(histories)
        name = f"CBEIndex not fitted, {metric}, {'sparse' if is_sparse else 'dense'}, {history}"
        recipe = Recipe(name, "CBEIndex", 40, "learned", 9, is_sparse, history, options={"metric": metric})
        recipes.append(recipe)
    older = [replace(recipe, name=f"{recipe.name}, version 1", version=1) for recipe in recipes[::5]]
    recipes.extend(older)
    for metric, vectors, bits, hamming in itertools.product(METRICS, (None, "float32"), (1, 4), (True, False)):
        history, is_sparse = next(histories), vectors is not None and metric == "ip"
        every = {"metric": metric, "vectors": vectors, "buckets": "cells", "cell_bits": bits, "hamming": hamming}
        name = f"CBEIndex with cells, {every}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, is_sparse=is_sparse, history=history, options=every))
    for metric, vectors in itertools.product(METRICS, ("float16", "float32")):
        history = next(histories)
        every = {"metric": metric, "vectors": vectors, "buckets": "cells", "cell_bits": 4, "spill": True}
        name = f"CBEIndex with copies, {every}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, history=history, options=every))
    for metric, vectors, hamming in itertools.product(METRICS, (None, "float16", "float32"), (True, False)):
        history, is_sparse = next(histories), vectors == "float32" and metric == "ip"
        every = {"metric": metric, "vectors": vectors, "buckets": "graph", "hamming": hamming}
        name = f"CBEIndex with a graph, {every}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, is_sparse=is_sparse, history=history, options=every))
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"buckets": "cells", "cell_bits": 1},
        {"buckets": "cells", "cell_bits": 4},
        {"buckets": "graph"},
    )
    for metric, vectors, buckets in itertools.product(METRICS, ("int4", "int8"), kinds):
        history, encoder = next(histories), "learned" if vectors == "int8" and not buckets else "orthogonal"
        every = {"metric": metric, "vectors": vectors, **buckets}
        name = f"CBEIndex with levels, {every}, {encoder}, {history}"
        n_bits = 20 if buckets and vectors == "int8" else DIM
        recipes.append(Recipe(name, "CBEIndex", n_bits, encoder, history=history, options=every))
    for metric, vectors, buckets in itertools.product(METRICS, ("float16", "float32"), ("cells", "graph")):
        history, every = next(histories), {"metric": metric, "vectors": vectors, "buckets": buckets}
        name = f"CBEIndex of sparse rows, {every}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, is_sparse=True, history=history, options=every))
    for is_sparse, metric in itertools.product((False, True), METRICS):
        history, every = next(histories), {"metric": metric, "vectors": "auto", "buckets": "auto"}
        name = f"CBEIndex by default, {metric}, {'sparse' if is_sparse else 'dense'}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, is_sparse=is_sparse, history=history, options=every))
    named: tuple[dict[str, Any], ...] = (
        *BUCKETS,
        *(
            {"buckets": buckets, "vectors": vectors}
            for buckets in ("cells", "graph")
            for vectors in ("float32", "int8")
        ),
        {"buckets": "cells", "vectors": "int4", "spill": True},
    )
    for options, history in itertools.product(named, ("one save", "removed", "appended")):
        every = {"vectors": "float32", **options}
        name = f"CBEIndex with string ids, {every}, {history}"
        recipes.append(Recipe(name, "CBEIndex", 40, history=history, has_names=True, options=every))
        if options in BUCKETS:
            name = f"BinaryIndex with string ids, {options}, {history}"
            recipes.append(Recipe(name, "BinaryIndex", 128, history=history, has_names=True, options=options))
    name = "CBEIndex not fitted with string ids"
    recipes.append(Recipe(name, "CBEIndex", 40, "learned", 9, history="removed", has_names=True))
    return [*recipes, Recipe("CBEIndex without rows", "CBEIndex", 40, n_rows=0)]


RECIPES = _recipes()


def some_vectors(n_rows: int, seed: int, is_sparse: bool = False) -> Any:
    """Return vectors, some of them near to each other; about a third of the values of sparse ones are not 0."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((4, DIM))[rng.integers(0, 4, n_rows)] + 0.3 * rng.standard_normal((n_rows, DIM))
    vectors = vectors.astype(np.float32)
    return sparse.csr_array(np.where(rng.random(vectors.shape) < 0.3, vectors, 0)) if is_sparse else vectors


def some_codes(n_rows: int, seed: int, n_bits: int) -> np.ndarray:
    """Return packed codes, some of them near to each other."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (4, n_bits))[rng.integers(0, 4, n_rows)] ^ (rng.random((n_rows, n_bits)) < 0.1)
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little")


@functools.cache
def file_of(number: int) -> bytes:
    """Return the bytes of a file of the corpus."""
    recipe = RECIPES[number]
    # Graphs are made of a few rows only here.
    small = {"first_rows": 20, "least_graph_segment_rows": 16, "graph_leaf_rows": 12, "graph_building_beam": 8}
    is_small = recipe.options.get("buckets") == "graph" or recipe.options.get("vectors") in ("int4", "int8", "auto")
    with tuned(**(small if is_small else {})):
        return _made(recipe)


def _made(recipe: Recipe) -> bytes:
    index: Any
    if recipe.kind == "BinaryIndex":
        index, rows = BinaryIndex(recipe.n_bits, **recipe.options), some_codes(recipe.n_rows, 0, recipe.n_bits)
    else:
        index = CBEIndex(
            DIM, encoder=ENCODERS[recipe.encoder](recipe.n_bits), **{"vectors": None, "buckets": None, **recipe.options}
        )
        rows = some_vectors(recipe.n_rows, 0, recipe.is_sparse)
        rows = abs(rows) if recipe.encoder == "aqbc" else rows  # which is for such alone
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "items.cbe")
        first = 3 * recipe.n_rows // 4
        ids: Any = [f"é{'x' * (i % 4)}{i}" if recipe.has_names else i for i in range(10, 10 + recipe.n_rows)]
        index.add(rows[:first], ids[:first])
        index.save(path)
        if recipe.history != "one save" and first:
            index.remove([ids[1], ids[4], ids[first - 1]])
        index.add(rows[first:], ids[first:] if recipe.has_names else None)
        if recipe.history == "appended":
            index.save()
            index.remove([ids[2]])
            index.save()
        else:
            index.save(path)
        if recipe.version == 1:
            write(as_version_1(parse(path.read_bytes())), path)
        return path.read_bytes()
