"""Experiments 3, 4 and 6: how many true neighbours codes find, for fixed bits, for fixed time, and over lambda."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import plots, truth
from benchmarks.harness import Contender, alternate
from benchmarks.paper import data
from benchmarks.paper.results import OURS, Results, Section, share
from cbeindex import BinaryIndex, CirculantEncoder
from cbeindex.encoders.base import Encoder
from cbeindex.encoders.baselines.aqbc import AQBCEncoder
from cbeindex.encoders.baselines.bilinear import BilinearEncoder
from cbeindex.encoders.baselines.itq import ITQEncoder
from cbeindex.encoders.baselines.lsh import LSHEncoder
from cbeindex.encoders.baselines.sklsh import SKLSHEncoder
from cbeindex.encoders.baselines.spectral import SpectralEncoder

# Iterations of training. Those of ITQ take ten seconds each for 2,048 bits; its paper has 50, of which the last ones
# change little.
_CBE_ITERATIONS, _BILINEAR_ITERATIONS = 10, 5
_ITQ_ITERATIONS, _ITQ_ITERATIONS_LONG, _LONG_CODE = 10, 5, 1_024
# Bilinear-opt passes over no more values than this in an iteration: with 25,600 dimensions, whose two rotations have
# 51,200 numbers, over 2,000 rows.
_BILINEAR_VALUES = 2_000 * 25_600
# Rows that each lambda is trained on: all of them would take a quarter of an hour.
_N_LAMBDA = 4_000
# How an encoder is made of a dimension and a number of bits. Circulant matrices are as long as the vectors, as in the
# paper.
METHODS: dict[str, Callable[[int, int], Encoder]] = {
    "LSH": LSHEncoder,
    "Bilinear-rand": lambda dim, n_bits: BilinearEncoder(dim, n_bits, "random"),
    "Bilinear-opt": lambda dim, n_bits: BilinearEncoder(dim, n_bits, "learned", n_iter=_BILINEAR_ITERATIONS),
    "CBE-rand": lambda dim, n_bits: CirculantEncoder(dim, n_bits, "random", pad=False),
    OURS: lambda dim, n_bits: CirculantEncoder(dim, n_bits, pad=False),
    "ITQ": lambda dim, n_bits: ITQEncoder(
        dim, n_bits, n_iter=_ITQ_ITERATIONS if n_bits <= _LONG_CODE else _ITQ_ITERATIONS_LONG
    ),
    "SH": SpectralEncoder,
    "SKLSH": SKLSHEncoder,
    "AQBC": AQBCEncoder,
}
LONG_METHODS = ("LSH", "Bilinear-rand", "Bilinear-opt", "CBE-rand", "CBE-opt", OURS)
SHORT_METHODS = (*LONG_METHODS, "ITQ", "SH", "SKLSH", "AQBC")
# CBE-opt by its lambda; 1 is that of the other experiments.
LAMBDAS = {0.1: "CBE-opt, lambda 0.1", 1.0: "CBE-opt", 10.0: "CBE-opt, lambda 10"}
METHODS |= {
    name: functools.partial(CirculantEncoder, kind="learned", pad=False, lam=lam, n_iter=_CBE_ITERATIONS)
    for lam, name in LAMBDAS.items()
}
# Methods whose shorter codes are the first bits of longer ones: they encode once.
PREFIXES = ("LSH", "CBE-rand", OURS, "SKLSH")
DEPTH = 100
# Depths of a recall curve that tables show.
SHOWN = (10, 50, 100)
# Rows that are encoded to time a method: enough for a full matrix to be read once for many.
_N_TIMED = 256
_FACTORY = "benchmarks.paper.retrieval:Timed"


class Timed:
    """Encoders of one method, not trained, with rows to encode; lives in a process of its own."""

    def __init__(self, method: str, dim: int) -> None:
        self._method, self._dim = method, dim
        self._rows = np.random.default_rng(0).standard_normal((_N_TIMED, dim), dtype=np.float32)
        self._encoder: Encoder | None = None

    def prepare(self, n_bits: int) -> None:
        """Make the encoder of `n_bits` bits."""
        self._encoder = None  # frees a matrix before the next one is made
        self._encoder = METHODS[self._method](self._dim, n_bits)

    def encode(self) -> None:
        """Encode the rows."""
        assert self._encoder is not None
        self._encoder.encode(self._rows, n_threads=1)


def long_vectors(results: Results, quick: bool) -> Section:
    """Experiment 3: long vectors, for fixed bits and for fixed time."""
    made = Section(
        "3. Retrieval, long vectors",
        "for fixed bits CBE-rand is as good as LSH and Bilinear-rand, and CBE-opt is better than Bilinear-opt; for "
        "fixed time, where the others get fewer bits, CBE-rand and CBE-opt are far ahead of all.",
    )
    for name in data.long_sets():
        of_set, bits = _facts_and_bits(results, name, quick)
        dim = bits[-1]
        # Training changes the numbers of a method, not its time.
        allowed: dict[str, int] = results.get(f"bits in equal time, {dim} dimensions", bits_in_time, dim)
        in_time = {method: allowed.get(method.replace("opt", "rand"), dim) for method in LONG_METHODS}
        curves = {(m, b): curve(results, name, m, b, quick) for m in LONG_METHODS for b in [in_time[m], *bits]}
        notes = (data.note(of_set), _training_note(of_set), results.when())
        _show_bits(made, name, LONG_METHODS, bits, curves, *notes)
        timing_note = f"Times of {_N_TIMED} rows, one thread, methods in turn."
        _show_time(made, name, in_time, curves, timing_note, *notes)
    return made


def few_dimensions(results: Results, quick: bool) -> Section:
    """Experiment 4: methods that need few dimensions as well."""
    dim = data.QUICK_LOW_DIM if quick else data.LOW_DIM
    made = Section(
        f"4. Retrieval, {dim:,} dimensions",
        "though not made for few dimensions, CBE-opt is better than or equal to all others but ITQ, which cannot be "
        "trained for many dimensions and whose lead shrinks as the bits become more.",
    )
    for name in data.short_sets():
        of_set, bits = _facts_and_bits(results, name, quick, dim)
        curves = {(m, b): curve(results, name, m, b, quick, dim=dim) for m in SHORT_METHODS for b in bits}
        itq_note = f"ITQ {_ITQ_ITERATIONS}, {_ITQ_ITERATIONS_LONG} beyond {_LONG_CODE:,} bits (its paper has 50)."
        notes = (data.note(of_set), _training_note(of_set), itq_note, results.when())
        _show_bits(made, name, SHORT_METHODS, bits, curves, *notes)
        missing = [m for m in SHORT_METHODS if curves[m, bits[0]] is None]
        if missing:
            made.found.append(f"{name}: {', '.join(missing)} left out, which needs values that are not negative.")
    return made


def lambdas(results: Results, quick: bool) -> Section:
    """Experiment 6: the weight of orthogonality in the training of CBE-opt."""
    made = Section(
        "6. CBE-opt over lambda",
        f"lambda = {', '.join(f'{lam:g}' for lam in LAMBDAS)} change the recall by less than 0.5 %.",
    )
    for name in data.long_sets():
        of_set, all_bits = _facts_and_bits(results, name, quick)
        n_train = min(_N_LAMBDA, of_set["train"])
        lines = [["lambda", "bits", *(f"10@{depth}" for depth in SHOWN)]]
        for n_bits in (all_bits[0], all_bits[-1]):
            found = {
                lam: curve(results, name, method, n_bits, quick, n_train=n_train) for lam, method in LAMBDAS.items()
            }
            lines += [
                [f"{lam:g}", f"{n_bits:,}", *(share(values[depth - 1]) for depth in SHOWN)]
                for lam, values in found.items()
                if values is not None
            ]
            spread = 100 * np.ptp(np.array(list(found.values())), axis=0)
            made.found.append(
                f"{name}, {n_bits:,} bits: recall 10@R differs by {spread.mean():.1f} points between them on average "
                f"over R, and by {spread.max():.1f} at most."
            )
        bound = f"CBE-opt is trained on {n_train:,} of the training rows here."
        made.add(f"{name}: recall", lines, data.note(of_set), bound, results.when())
    return made


def curve(
    results: Results,
    name: str,
    method: str,
    n_bits: int,
    quick: bool,
    *,
    dim: int | None = None,
    n_train: int | None = None,
) -> list[float] | None:
    """Return the recall of the ten nearest in the first 1, 2, ... results; None if the method cannot take the data.

    Vectors are cut to `dim` dimensions, and `n_train` of the training rows are taken, by default all.
    """
    cut = f", {dim} dimensions" if dim else ""
    trained = f", trained on {n_train} rows" if n_train else ""
    label = f"{data.label(name, quick)}{cut}, {method}, {n_bits} bits{trained}"
    result: list[float] | None = results.get(label, _curve, name, method, n_bits, quick, dim, n_train)
    return result


def _curve(
    name: str, method: str, n_bits: int, quick: bool, dim: int | None, n_train: int | None
) -> list[float] | None:
    material = data.material(name, quick, dim)
    if method == "AQBC" and material.data.base.min() < 0:
        return None
    rows, queries = (
        np.ascontiguousarray(part[:, : n_bits // 8])
        for part in _codes(name, method, _widest(material, method, n_bits), quick, dim, n_train)
    )
    index = BinaryIndex(n_bits)
    index.add(rows)
    return [round(float(value), 4) for value in recall_curve(material, index.search(queries, DEPTH).ids)]


def recall_curve(material: data.Material, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of the true neighbours among the first 1, 2, ... results, all distinct: `truth.recall_curve`.

    `truth.recall_curve` reads the vectors of all results, which takes longer than the search. Near pairs are found once
    for a set.
    """
    pairs = np.arange(len(ids))[:, np.newaxis] * material.data.base.shape[0] + ids
    hits = np.isin(pairs, material.near_pairs) & (ids >= 0)
    found: NDArray[np.float64] = np.minimum(np.cumsum(hits, axis=1), truth.N_TRUE).mean(axis=0)
    return found / truth.N_TRUE


@lru_cache(maxsize=1)
def _codes(name: str, method: str, n_bits: int, quick: bool, dim: int | None, n_train: int | None) -> tuple[Any, Any]:
    """Codes of rows and queries; the last ones are kept for their prefixes."""
    material = data.material(name, quick, dim)
    encoder = fitted(method, n_bits, material.train, n_train)
    return _encode(encoder, material.data.base), _encode(encoder, material.data.queries)


def fitted(method: str, n_bits: int, train: Any, n_train: int | None = None) -> Encoder:
    """Make an encoder and train it on at most `n_train` rows, taken evenly."""
    dim = train.shape[1]
    most = n_train or train.shape[0]
    if method == "Bilinear-opt":
        most = min(most, _n_bilinear(dim))
    if most < train.shape[0]:
        train = train[np.linspace(0, train.shape[0] - 1, most).astype(np.int64)]
    return METHODS[method](dim, n_bits).fit(train)


def project(encoder: Encoder, rows: Any) -> NDArray[np.float32]:
    """Return the projections of rows.

    A full matrix times sparse rows is made from their entries, which are one in 800: as dense rows they take minutes.
    """
    if not (isinstance(encoder, LSHEncoder) and hasattr(rows, "toarray")):
        return encoder.project(rows)
    columns = np.ascontiguousarray(encoder.weights.T)
    projections: NDArray[np.float32] = rows @ columns
    projections -= encoder.centre @ columns
    return projections


def _encode(encoder: Encoder, rows: Any) -> NDArray[np.uint8]:
    """Return the codes of rows, of sparse ones by a full matrix from `project`."""
    if not (isinstance(encoder, LSHEncoder) and hasattr(rows, "toarray")):
        return encoder.encode(rows)
    return np.packbits(project(encoder, rows) >= 0, axis=1, bitorder="little")


def _n_bilinear(dim: int) -> int:
    """Rows that Bilinear-opt is trained on at most."""
    return max(1, _BILINEAR_VALUES // dim)


def _training_note(of_set: dict[str, int]) -> str:
    """Say how long, and on how many rows, the learned methods are trained."""
    n_bilinear = min(of_set["train"], _n_bilinear(of_set["dim"]))
    return (
        f"Iterations of training: CBE-opt {_CBE_ITERATIONS} on {of_set['train']:,} rows, Bilinear-opt "
        f"{_BILINEAR_ITERATIONS} on {n_bilinear:,} rows."
    )


def _widest(material: data.Material, method: str, n_bits: int) -> int:
    """Bits to encode: all at once where shorter codes are prefixes."""
    return max(n_bits, material.data.dim // 8 * 8) if method in PREFIXES else n_bits


def bits_in_time(dim: int) -> dict[str, int]:
    """How many bits each method makes of a vector in the time that CBE-rand takes for as many as dimensions."""
    with ExitStack() as running:
        methods = ("CBE-rand", "LSH", "Bilinear-rand")
        processes = {
            method: running.enter_context(Contender(_FACTORY, {"method": method, "dim": dim})) for method in methods
        }
        processes["CBE-rand"].call("prepare", dim)

        def seconds(method: str) -> float:
            return processes[method].timed("encode")[0]

        def ratio(method: str, n_bits: int) -> float:
            """Time of the method to that of CBE-rand, in turn."""
            processes[method].call("prepare", n_bits)
            both = ("CBE-rand", method)
            times = alternate({one: functools.partial(seconds, one) for one in both}, 5)
            return times[method].median / times["CBE-rand"].median

        return {method: _bits_of_ratio(functools.partial(ratio, method), dim) for method in methods[1:]}


def _bits_of_ratio(ratio: Callable[[int], float], dim: int) -> int:
    """Find the number of bits, whole bytes and at most `dim`, at which a ratio that grows with it is 1."""
    fewer, n_bits = (0, 0.0), max(8, dim // 256)
    while (reached := ratio(n_bits)) < 1:
        if n_bits == dim:
            return dim // 8 * 8
        fewer, n_bits = (n_bits, reached), min(dim, 2 * n_bits)
    # Times grow evenly between two numbers of bits of which one is twice the other.
    part = (1 - fewer[1]) / (reached - fewer[1])
    return max(8, int(fewer[0] + part * (n_bits - fewer[0])) // 8 * 8)


def _facts_and_bits(
    results: Results, name: str, quick: bool, dim: int | None = None
) -> tuple[dict[str, int], list[int]]:
    """Facts of a set; and an eighth, a quarter, half of its dimensions, and all, in whole bytes."""
    cut = f", {dim} dimensions" if dim else ""
    of_set: dict[str, int] = results.get(f"facts of {data.label(name, quick)}{cut}", data.facts, name, quick, dim)
    return of_set, [max(1, of_set["dim"] // part // 8) * 8 for part in (8, 4, 2, 1)]


def _show_bits(
    made: Section,
    name: str,
    methods: Sequence[str],
    bits: list[int],
    curves: dict[tuple[str, int], list[float] | None],
    *notes: str,
) -> None:
    """Put the recall for fixed bits into the section."""

    def recall(method: str, n_bits: int, depth: int) -> float | None:
        values = curves[method, n_bits]
        return None if values is None else values[depth - 1]

    lines = [
        ["method", *(f"{n_bits:,} bits, 10@{depth}" for n_bits in bits for depth in (10, DEPTH))],
        *([method, *(share(recall(method, b, depth)) for b in bits for depth in (10, DEPTH))] for method in methods),
    ]
    made.add(f"{name}, fixed bits: recall 10@10, 10@100", lines, *notes)
    for n_bits in bits:
        drawn = {method: values for method in methods if (values := curves[method, n_bits]) is not None}
        made.draw[f"{name}, {n_bits:,} bits"] = functools.partial(plot, curves=drawn)
    ranked = sorted(methods, key=lambda method: -(recall(method, bits[0], DEPTH) or 0))
    made.found.append(
        f"{name}, {bits[0]:,} bits, 10@{DEPTH}, best first: "
        + ", ".join(f"{m} {recall(m, bits[0], DEPTH):.3f}" for m in ranked if curves[m, bits[0]] is not None)
        + "."
    )


def _show_time(
    made: Section,
    name: str,
    bits: dict[str, int],
    curves: dict[tuple[str, int], list[float] | None],
    *notes: str,
) -> None:
    """Put the recall for fixed time into the section."""
    found = {method: values for method, n_bits in bits.items() if (values := curves[method, n_bits]) is not None}
    dim = bits["CBE-rand"]
    lines = [
        ["method", "bits", *(f"10@{depth}" for depth in SHOWN)],
        *([m, f"{bits[m]:,}", *(share(values[depth - 1]) for depth in SHOWN)] for m, values in found.items()),
    ]
    made.add(f"{name}, the time of CBE with {dim:,} bits: recall", lines, *notes)
    drawn = {f"{method}, {bits[method]:,} bits": values for method, values in found.items()}
    made.draw[f"{name}, equal time"] = lambda title: plot(title, drawn)
    made.found.append(
        f"{name}, equal time, 10@{DEPTH}: "
        + ", ".join(f"{m} {bits[m]:,} bits and {found[m][-1]:.3f}" for m in ("LSH", "Bilinear-rand", "CBE-rand"))
        + "."
    )


def plot(title: str, curves: dict[str, list[float]]) -> Any:
    """Plot the recall of the first R results."""
    figure, axes = plots.canvas(title, (9, 4.6))
    colours = (
        "#7F7F7F",
        "#56B4E9",
        "#0072B2",
        "#E69F00",
        "#CC79A7",
        "#D55E00",
        "#009E73",
        "#999933",
        "#882255",
        "#332288",
    )
    for i, (name, values) in enumerate(curves.items()):
        is_ours = name.startswith(OURS)
        look: dict[str, Any] = {
            "color": colours[i % len(colours)],
            "marker": plots.MARKERS[i % len(plots.MARKERS)],
            "markevery": (9, 10),
        }
        look |= {"linewidth": 2.6 if is_ours else 1.4, "linestyle": plots.DASHES[i % len(plots.DASHES)]}
        axes.plot(range(1, len(values) + 1), values, label=name, **look)
    axes.set_xlabel("R: number of results")
    axes.set_ylabel("recall 10@R")
    axes.set_xlim(0, DEPTH + 1)
    axes.set_ylim(0, 1.02)
    plots.legend(axes)
    return figure
