"""Experiments 3, 4 and 6: how many true neighbours codes find, for fixed bits, for fixed time, and over lambda."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks import plots, truth
from benchmarks.harness import Contender, alternate
from benchmarks.paper import data
from benchmarks.paper.results import OURS, Results, Section, share
from cbeindex import BinaryIndex, CirculantEncoder
from cbeindex.encoders.aqbc import AQBCEncoder
from cbeindex.encoders.base import Encoder
from cbeindex.encoders.bilinear import BilinearEncoder
from cbeindex.encoders.itq import ITQEncoder
from cbeindex.encoders.lsh import LSHEncoder
from cbeindex.encoders.sklsh import SKLSHEncoder
from cbeindex.encoders.spectral import SpectralEncoder

# How an encoder is made of a dimension and a number of bits. Circulant matrices are as long as the vectors, as in the
# paper; ITQ trains for fewer iterations than its paper's 50, of which the last ones change little and take minutes.
METHODS: dict[str, Callable[[int, int], Encoder]] = {
    "LSH": LSHEncoder,
    "Bilinear-rand": lambda dim, n_bits: BilinearEncoder(dim, n_bits, "random"),
    "Bilinear-opt": lambda dim, n_bits: BilinearEncoder(dim, n_bits, "learned", n_iter=5),
    "CBE-rand": lambda dim, n_bits: CirculantEncoder(dim, n_bits, "random", pad=False),
    OURS: lambda dim, n_bits: CirculantEncoder(dim, n_bits, pad=False),
    "ITQ": lambda dim, n_bits: ITQEncoder(dim, n_bits, n_iter=10),
    "SH": SpectralEncoder,
    "SKLSH": SKLSHEncoder,
    "AQBC": AQBCEncoder,
}
LONG_METHODS = ("LSH", "Bilinear-rand", "Bilinear-opt", "CBE-rand", "CBE-opt", OURS)
SHORT_METHODS = (*LONG_METHODS, "ITQ", "SH", "SKLSH", "AQBC")
# CBE-opt by its lambda; 1 is that of the other experiments.
LAMBDAS = {0.1: "CBE-opt, lambda 0.1", 1.0: "CBE-opt", 10.0: "CBE-opt, lambda 10"}
METHODS |= {
    name: lambda dim, n_bits, lam=lam: CirculantEncoder(dim, n_bits, "learned", pad=False, lam=lam)
    for lam, name in LAMBDAS.items()
}
# Methods whose shorter codes are the first bits of longer ones: they encode once.
PREFIXES = ("LSH", "CBE-rand", OURS, "SKLSH")
DEPTH = 100
# Depths of a recall curve that tables show.
SHOWN = (10, 50, 100)
# Rows that are encoded to time a method: enough for a full matrix to be read once for many.
_N_TIMED = 256


class Timed:
    """An encoder, not trained, with rows to encode; lives in a process of its own."""

    def __init__(self, method: str, dim: int, n_bits: int) -> None:
        rows = np.random.default_rng(0).standard_normal((_N_TIMED, dim), dtype=np.float32)
        self._rows = rows
        # Training changes the numbers of these methods, not their time.
        self._encoder = METHODS[method.replace("opt", "rand")](dim, n_bits)

    def encode(self) -> None:
        """Encode the rows."""
        self._encoder.encode(self._rows, n_threads=1)


def long_vectors(results: Results, quick: bool) -> Section:
    """Experiment 3: long vectors, for fixed bits and for fixed time."""
    made = Section(
        "3. Retrieval, long vectors",
        "for fixed bits CBE-rand is as good as LSH and Bilinear-rand, and CBE-opt is better than Bilinear-opt; for "
        "fixed time, where the others get fewer bits, CBE-rand and CBE-opt are far ahead of all.",
    )
    for name in data.long_sets():
        bits = _bit_counts(results, name, quick)
        dim = bits[-1]
        allowed: dict[str, int] = results.get(f"bits in equal time, {dim} dimensions", bits_in_time, dim)
        in_time = {method: allowed.get(method.replace("opt", "rand"), dim) for method in LONG_METHODS}
        curves = {(m, b): curve(results, name, m, b, quick) for m in LONG_METHODS for b in [in_time[m], *bits]}
        _show_bits(made, name, LONG_METHODS, bits, curves)
        _show_time(made, name, in_time, curves)
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
        bits = _bit_counts(results, name, quick, dim)
        curves = {(m, b): curve(results, name, m, b, quick, dim=dim) for m in SHORT_METHODS for b in bits}
        _show_bits(made, name, SHORT_METHODS, bits, curves)
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
        all_bits = _bit_counts(results, name, quick)
        lines = [["lambda", "bits", *(f"10@{depth}" for depth in SHOWN)]]
        for n_bits in all_bits[:1]:  # where there is most to lose
            found = {lam: curve(results, name, method, n_bits, quick) for lam, method in LAMBDAS.items()}
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
        made.tables[f"{name}: recall"] = lines
    return made


def curve(
    results: Results, name: str, method: str, n_bits: int, quick: bool, *, dim: int | None = None
) -> list[float] | None:
    """Recall of the ten nearest among the first 1, 2, ... answers; None where the method cannot take the data."""
    label = f"retrieval, {name}, dim {dim}, {method}, {n_bits} bits{', quick' if quick else ''}"
    result: list[float] | None = results.get(label, _curve, name, method, n_bits, quick, dim)
    return result


def _curve(name: str, method: str, n_bits: int, quick: bool, dim: int | None) -> list[float] | None:
    material = data.material(name, quick, dim)
    if method == "AQBC" and material.data.base.min() < 0:
        return None
    rows, queries = (
        np.ascontiguousarray(part[:, : n_bits // 8])
        for part in _codes(name, method, _widest(material, method, n_bits), quick, dim)
    )
    index = BinaryIndex(n_bits)
    index.add(rows)
    return [round(float(value), 4) for value in truth.recall_curve(material.data, index.search(queries, DEPTH).ids)]


@lru_cache(maxsize=1)
def _codes(name: str, method: str, n_bits: int, quick: bool, dim: int | None) -> tuple[Any, Any]:
    """Codes of rows and queries; the last ones are kept for their prefixes."""
    material = data.material(name, quick, dim)
    encoder = METHODS[method](material.data.dim, n_bits).fit(material.train)
    return encoder.encode(material.data.base), encoder.encode(material.data.queries)


def _widest(material: data.Material, method: str, n_bits: int) -> int:
    """Bits to encode: all at once where shorter codes are prefixes."""
    return max(n_bits, material.data.dim // 8 * 8) if method in PREFIXES else n_bits


def bits_in_time(dim: int) -> dict[str, int]:
    """How many bits each method makes of a vector in the time that CBE-rand takes for as many as dimensions."""

    def seconds(method: str, n_bits: int) -> float:
        arguments = {"method": method, "dim": dim, "n_bits": n_bits}
        with Contender("benchmarks.paper.retrieval:Timed", arguments) as process:
            return alternate({method: lambda: process.timed("encode")[0]}, 5)[method].median

    found = {}
    for method in ("LSH", "Bilinear-rand"):
        limit = seconds("CBE-rand", dim)
        fewer, n_bits = (0, 0.0), max(8, dim // 256)
        while n_bits < dim and (took := seconds(method, n_bits)) < limit:
            fewer, n_bits = (n_bits, took), min(dim, 2 * n_bits)
        if n_bits == dim:
            took = seconds(method, dim)
        # Times grow evenly between two numbers of bits of which one is twice the other.
        part = (limit - fewer[1]) / (took - fewer[1])
        found[method] = min(dim, max(8, int(fewer[0] + part * (n_bits - fewer[0])))) // 8 * 8
    return found


def _bit_counts(results: Results, name: str, quick: bool, dim: int | None = None) -> list[int]:
    """An eighth, a quarter, half of the dimensions, and all, in whole bytes."""
    full: int = results.get(f"dimensions of {name}{', quick' if quick else ''}", data.dim_of, name, quick)
    return [max(1, min(full, dim or full) // part // 8) * 8 for part in (8, 4, 2, 1)]


def _show_bits(
    made: Section,
    name: str,
    methods: Sequence[str],
    bits: list[int],
    curves: dict[tuple[str, int], list[float] | None],
) -> None:
    """Put the recall for fixed bits into the section."""

    def recall(method: str, n_bits: int, depth: int) -> float | None:
        values = curves[method, n_bits]
        return None if values is None else values[depth - 1]

    made.tables[f"{name}, fixed bits: recall 10@10, 10@100"] = [
        ["method", *(f"{n_bits:,} bits, 10@{depth}" for n_bits in bits for depth in (10, DEPTH))],
        *([method, *(share(recall(method, b, depth)) for b in bits for depth in (10, DEPTH))] for method in methods),
    ]
    for n_bits in bits:
        drawn = {method: values for method in methods if (values := curves[method, n_bits]) is not None}
        made.draw[f"{name}, {n_bits:,} bits"] = lambda title, drawn=drawn: plot(title, drawn)
    ranked = sorted(methods, key=lambda method: -(recall(method, bits[0], DEPTH) or 0))
    made.found.append(
        f"{name}, {bits[0]:,} bits, 10@{DEPTH}, best first: "
        + ", ".join(f"{m} {recall(m, bits[0], DEPTH):.3f}" for m in ranked if curves[m, bits[0]] is not None)
        + "."
    )


def _show_time(
    made: Section, name: str, bits: dict[str, int], curves: dict[tuple[str, int], list[float] | None]
) -> None:
    """Put the recall for fixed time into the section."""
    found = {method: values for method, n_bits in bits.items() if (values := curves[method, n_bits]) is not None}
    dim = bits["CBE-rand"]
    made.tables[f"{name}, the time of CBE with {dim:,} bits: recall"] = [
        ["method", "bits", *(f"10@{depth}" for depth in SHOWN)],
        *([m, f"{bits[m]:,}", *(share(values[depth - 1]) for depth in SHOWN)] for m, values in found.items()),
    ]
    drawn = {f"{method}, {bits[method]:,} bits": values for method, values in found.items()}
    made.draw[f"{name}, equal time"] = lambda title: plot(title, drawn)
    made.found.append(
        f"{name}, equal time, 10@{DEPTH}: "
        + ", ".join(f"{m} {bits[m]:,} bits and {found[m][-1]:.3f}" for m in ("LSH", "Bilinear-rand", "CBE-rand"))
        + "."
    )


def plot(title: str, curves: dict[str, list[float]]) -> Any:
    """Recall of the first R answers."""
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
        look = {
            "color": colours[i % len(colours)],
            "marker": plots.MARKERS[i % len(plots.MARKERS)],
            "markevery": (9, 10),
        }
        look |= {"linewidth": 2.6 if is_ours else 1.4, "linestyle": plots.DASHES[i % len(plots.DASHES)]}
        axes.plot(range(1, len(values) + 1), values, label=name, **look)
    axes.set_xlabel("R: answers that are looked at")
    axes.set_ylabel("recall 10@R")
    axes.set_xlim(0, DEPTH + 1)
    axes.set_ylim(0, 1.02)
    plots.legend(axes)
    return figure
