"""Experiment 1: the variance of the normalised Hamming distance of circulant bits, next to independent ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import plots
from benchmarks.paper.results import OURS, Results, Section, number
from cbeindex import CirculantEncoder
from cbeindex.encoders.base import Encoder
from cbeindex.encoders.baselines.lsh import LSHEncoder

ANGLES = {"pi/12": np.pi / 12, "pi/6": np.pi / 6, "pi/3": np.pi / 3, "pi/2": np.pi / 2}
METHODS = ("CBE-rand", OURS, "LSH")
DIM = 512
# Pairs of vectors for each angle and encoder.
_N_PAIRS = 4
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#7F7F7F")
_MARKERS = {"CBE-rand": "o", OURS: "s", "LSH": "x"}


def section(results: Results, quick: bool) -> Section:
    """Compare variances over many encoders with the formula."""
    n_encoders = 100 if quick else 1_500
    n_samples = n_encoders * _N_PAIRS
    lengths = [2**i for i in range(1, DIM.bit_length())]
    # Of a variance of n samples of nearly normal numbers.
    error = np.sqrt(2 / n_samples)
    measured = {
        method: np.array(results.get(f"variance, {method}, {n_encoders} encoders", spread, method, n_encoders))
        for method in METHODS
    }
    ratios = {method: values / formula(lengths) for method, values in measured.items()}
    made = Section(
        "1. Variance of the normalised Hamming distance",
        "the share of bits in which two codes differ has the mean theta / pi, and for circulant bits a variance that "
        "can hardly be told from that of independent bits, theta (pi - theta) / (k pi^2), for every angle and k.",
    )
    shown = [i for i, k in enumerate(lengths) if k in (2, 8, 32, 128, DIM)]
    lines = [
        [angle, method, *(number(ratios[method][a, i]) for i in shown)]
        for a, angle in enumerate(ANGLES)
        for method in METHODS
    ]
    made.add(
        f"Variance, as a multiple of the formula for independent bits (d = {DIM})",
        [["angle", "method", *(f"k = {lengths[i]}" for i in shown)], *lines],
        f"{n_encoders:,} encoders, {_N_PAIRS} pairs for each and each angle.",
        results.when(),
    )
    made.draw["Variance of the normalised Hamming distance over k"] = lambda title: plot(title, lengths, measured)
    for method in METHODS:
        low, high = ratios[method].min(), ratios[method].max()
        made.found.append(
            f"{method}: {low:.2f} to {high:.2f} times the formula ({n_samples:,} samples for each point, so one "
            f"standard error is {error:.2f})."
        )
    return made


def spread(method: str, n_encoders: int) -> list[list[float]]:
    """Mean squared deviation of the share of differing bits from theta / pi: for each angle, over all lengths."""
    rng = np.random.default_rng(0)
    lengths = 2 ** np.arange(1, DIM.bit_length())
    total = np.zeros((len(ANGLES), len(lengths)))
    angles = np.repeat(list(ANGLES.values()), _N_PAIRS)
    for seed in range(n_encoders):
        left, right = pairs(rng, angles)
        bits = _encoder(method, seed).project(np.concatenate([left, right]), n_threads=1) >= 0
        differing = bits[: len(left)] != bits[len(left) :]
        shares = np.cumsum(differing, axis=1)[:, lengths - 1] / lengths
        total += ((shares - angles[:, np.newaxis] / np.pi) ** 2).reshape(len(ANGLES), _N_PAIRS, -1).sum(axis=1)
    return (total / (n_encoders * _N_PAIRS)).tolist()  # type: ignore[no-any-return]


def formula(lengths: list[int]) -> NDArray[np.float64]:
    """Variance of independent bits: for each angle, over lengths."""
    p = np.array(list(ANGLES.values()))[:, np.newaxis] / np.pi
    return np.asarray(p * (1 - p) / np.array(lengths))


def pairs(rng: np.random.Generator, angles: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Draw pairs of unit vectors at these angles."""
    left, other = rng.standard_normal((2, len(angles), DIM))
    left /= np.linalg.norm(left, axis=1, keepdims=True)
    other -= (other * left).sum(axis=1, keepdims=True) * left
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    right = np.cos(angles)[:, np.newaxis] * left + np.sin(angles)[:, np.newaxis] * other
    return left.astype(np.float32), right.astype(np.float32)


def plot(title: str, lengths: list[int], measured: dict[str, NDArray[np.float64]]) -> Any:
    """Variance over k: lines are the formula, marks are measured."""
    figure, axes = plots.canvas(title, (9, 5))
    for a, (angle, colour) in enumerate(zip(ANGLES, _COLOURS, strict=True)):
        axes.plot(lengths, formula(lengths)[a], color=colour, linewidth=1, label=f"formula, {angle}")
        for method in METHODS:
            axes.plot(
                lengths, measured[method][a], _MARKERS[method], color=colour, markerfacecolor="none", markersize=7
            )
    for method in METHODS:
        axes.plot([], [], _MARKERS[method], color="#222222", markerfacecolor="none", label=method)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [str(k) for k in lengths])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("k: bits")
    axes.set_ylabel("variance")
    plots.legend(axes)
    return figure


def _encoder(method: str, seed: int) -> Encoder:
    if method == "LSH":
        return LSHEncoder(DIM, DIM, seed)
    return CirculantEncoder(DIM, DIM, "random" if method == "CBE-rand" else "orthogonal", seed)
