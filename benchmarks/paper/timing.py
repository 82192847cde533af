"""Experiment 2: the time to encode a vector by a full, a bilinear and a circulant projection."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np

from benchmarks import plots
from benchmarks.contenders.sizes import in_gb, memory
from benchmarks.harness import Contender, ContenderError, alternate
from benchmarks.paper.results import Results, Section, number
from cbeindex import CirculantEncoder
from cbeindex.encoders.base import Encoder
from cbeindex.encoders.baselines.bilinear import BilinearEncoder, near_square
from cbeindex.encoders.baselines.lsh import LSHEncoder

METHODS = ("full", "bilinear", "circulant")
Times: TypeAlias = dict[str, float | None]
# Milliseconds that the paper gives for a vector, on one core of 2.9 GHz; None where 24 GB were not enough.
STATED: dict[int, tuple[float | None, float, float]] = {
    2**15: (5.44e2, 2.85, 1.11),
    2**17: (None, 1.91e1, 4.23),
    2**20: (None, 3.76e2, 3.77e1),
    2**24: (None, 1.22e4, 8.10e2),
    2**27: (None, 2.68e5, 8.15e3),
}
QUICK_DIMS = (2**10, 2**12, 2**13)
# Bytes for each value of a vector that making and using an encoder takes at its peak (measured), and that the matrix
# of a full projection takes for each of its entries.
_BYTES = {"bilinear": 40, "circulant": 64}
_BYTES_OF_ENTRY = 4
# Dimensions from which one round is enough: a vector takes seconds.
_LONG = 2**24
# A small part of the memory is left to others.
_SHARE_OF_MEMORY = 0.8
_FACTORY = "benchmarks.paper.timing:Timed"


class Timed:
    """An encoder with one vector to encode; lives in a process of its own."""

    def __init__(self, method: str, dim: int) -> None:
        self._encoder = make(method, dim)
        self._vector = np.random.default_rng(1).standard_normal(dim, dtype=np.float32)

    def encode(self) -> None:
        """Encode the vector."""
        self._encoder.encode(self._vector, n_threads=1)


def make(method: str, dim: int) -> Encoder:
    """Make an encoder of as many bits as dimensions."""
    if method == "full":
        return LSHEncoder(dim, dim)
    if method == "circulant":
        return CirculantEncoder(dim, dim, "random")
    # Rotations of 10,000 rows take minutes to make orthogonal; any matrices are multiplied in the same time.
    shape = near_square(dim, dim, dim)
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal((n, n), dtype=np.float32) for n in shape)
    config: dict[str, Any] = {"encoder": "bilinear", "dim": dim, "n_bits": dim, "kind": "random", "seed": 0}
    config |= {"n_iter": 1, "fitted": True, "scale": 1.0, "scale_variance": 0.0, "overlap": 0.0}
    arrays: dict[str, Any] = {"centre": np.zeros(dim, dtype=np.float32), "left": left, "right": right}
    arrays["objective"] = np.empty(0)
    return BilinearEncoder.from_arrays(config, arrays)


def section(results: Results, quick: bool) -> Section:
    """Time all methods at all dimensions that the memory allows."""
    dims = QUICK_DIMS if quick else tuple(STATED)
    measured = {dim: results.get(f"{dim} dimensions, {allowed(dim)}", measure, dim, quick) for dim in dims}
    times: dict[int, Times] = {dim: of_dim["milliseconds"] for dim, of_dim in measured.items()}
    missing = [f"{_power(d)}, {name}: {why}" for d, of in measured.items() for name, why in of["missing"].items()]
    when = results.when()
    made = Section(
        "2. Time to encode a vector",
        "circulant projections take O(d log d), bilinear ones O(d^1.5), full ones O(d^2): at d = 2^15 circulant is "
        "2.6 times as fast as bilinear and 490 times as fast as full, at 2^27 33 times as fast as bilinear.",
    )
    made.add(
        "Milliseconds a vector, one thread, one vector a call",
        [
            ["d", *(f"{name}{where}" for where in ("", ", paper") for name in METHODS)],
            *([_power(d), *map(number, _in_order(times[d])), *map(number, STATED.get(d, (None,) * 3))] for d in dims),
        ],
        f"Empty cells: {'; '.join(missing)}." if missing else "",
        when,
    )
    made.add(
        "Speed-up of circulant over",
        [
            ["d", "full", "bilinear", "full, paper", "bilinear, paper"],
            *([_power(d), *_ratios(_in_order(times[d])), *_ratios(STATED.get(d, (None,) * 3))] for d in dims),
        ],
        when,
    )
    made.draw["Time to encode a vector over the dimension"] = lambda title: plot(title, times)
    for dim in dims:
        full, bilinear = _ratios(_in_order(times[dim]))
        words = [
            f"{ratio} times as fast as {name}" for ratio, name in ((full, "full"), (bilinear, "bilinear")) if ratio
        ]
        if words:
            made.found.append(f"d = {_power(dim)}: circulant is {' and '.join(words)}.")
    return made


def measure(dim: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Time all methods in turn: milliseconds of each, None for those that are missing, and why they are."""
    milliseconds: Times = dict.fromkeys(METHODS)
    missing: dict[str, str] = {}
    # One process at a time where a vector takes seconds: their memory does not fit side by side.
    groups = [[name] for name in METHODS] if dim >= _LONG else [list(METHODS)]
    for group in groups:
        with ExitStack() as running:
            calls = {}
            for name in group:
                if needed(name, dim) > memory() * _SHARE_OF_MEMORY:
                    missing[name] = f"needs {in_gb(needed(name, dim))} of memory, there are {in_gb(memory())}"
                    continue
                try:
                    process = running.enter_context(Contender(_FACTORY, {"method": name, "dim": dim}))
                except ContenderError as error:
                    missing[name] = reason(error)
                    continue
                calls[name] = functools.partial(_seconds, process, name, missing)
            timings = alternate(calls, 1 if dim >= _LONG else 3 if quick else 7, warm_up=dim < 2 * _LONG)
        milliseconds |= {name: of.median * 1e3 for name, of in timings.items() if name not in missing}
    return {"milliseconds": milliseconds, "missing": missing}


def _seconds(process: Contender, name: str, missing: dict[str, str]) -> float:
    """Seconds of a call; one that fails puts the method among the missing ones, and the others go on."""
    if name not in missing:
        try:
            return process.timed("encode")[0]
        except ContenderError as error:
            missing[name] = reason(error)
    return float("nan")


def reason(error: ContenderError) -> str:
    """Say in a line why a contender failed."""
    text = str(error).strip()
    if text.endswith("exit code -9"):
        return "killed (exit code -9), which is how a system that has run out of memory ends a process"
    return text.splitlines()[-1] if text else "unknown"


def needed(method: str, dim: int) -> int:
    """Bytes that a method needs at about this dimension."""
    return _BYTES_OF_ENTRY * dim**2 if method == "full" else _BYTES[method] * dim


def allowed(dim: int) -> str:
    """Say which methods the memory allows: results of a larger machine are others."""
    return " and ".join(name for name in METHODS if needed(name, dim) <= memory() * _SHARE_OF_MEMORY) or "none"


def plot(title: str, times: dict[int, Times]) -> Any:
    """Milliseconds over the dimension, here and in the paper."""
    figure, axes = plots.canvas(title, (9, 5))
    for i, (name, group) in enumerate(zip(METHODS, ("outside", "binary", "ours"), strict=True)):
        look = {"color": plots.COLOURS[group], "marker": plots.MARKERS[i], "linewidth": 2}
        own = [(dim, of[name]) for dim, of in times.items() if of[name] is not None]
        stated = [(dim, values[i]) for dim, values in STATED.items() if values[i] is not None and dim in times]
        if own:
            axes.plot(*zip(*own, strict=True), label=name, **look)
        if stated:
            look |= {"linestyle": plots.DASHES[1], "linewidth": 1, "markerfacecolor": "white"}
            axes.plot(*zip(*stated, strict=True), label=f"{name}, paper", **look)
    axes.set_xscale("log", base=2)
    plots.log_axis(axes)
    axes.set_xticks(list(times), [_power(dim) for dim in times])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("d: dimensions, and bits")
    axes.set_ylabel("milliseconds a vector; better below")
    plots.legend(axes)
    return figure


def _in_order(times: Times) -> tuple[float | None, ...]:
    return tuple(times[name] for name in METHODS)


def _ratios(times: tuple[float | None, ...]) -> list[str]:
    """How many times as fast as the others the last one is."""
    own = times[-1]
    return [number(other / own) if other is not None and own is not None else "" for other in times[:-1]]


def _power(dim: int) -> str:
    return f"2^{dim.bit_length() - 1}"
