"""Plots of a run, drawn from its rows: recall against speed, recall@R, and encoding against the dimension."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import curves
from benchmarks.contenders import chosen
from benchmarks.curves import Row

# Okabe and Ito's colours, which colour-blind readers can distinguish: one for each group. Markers and lines distinguish
# the members of a group.
COLOURS = {"ours": "#D55E00", "binary": "#0072B2", "bits": "#009E73", "outside": "#7F7F7F"}
MARKERS = "osD^vPX<>*"
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
TICKS = (0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
# Recall beyond this is drawn here: 1 would be infinitely far away.
_MOST = 0.9995
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "svg.hashsalt": "cbeindex",
}


def can_draw() -> bool:
    """Tell whether matplotlib is there; say so if it is not."""
    found = importlib.util.find_spec("matplotlib") is not None
    if not found:
        print("no plots: they need matplotlib", file=sys.stderr)
    return found


def style() -> AbstractContextManager[None]:
    """Let figures look like ours while they are drawn."""
    import matplotlib

    context: AbstractContextManager[None] = matplotlib.rc_context(_STYLE)
    return context


def draw(rows: list[Row], folder: Path, levels: Sequence[float]) -> dict[str, Path] | None:
    """Draw all plots as SVG and PNG; return what they show and their SVG files. None without matplotlib."""
    if not can_draw():
        return None
    made: dict[str, Path] = {}
    with style():
        for part in curves.parts(rows):
            points = curves.rows_of(rows, "point", part)
            name = f"{part.data}-{part.bits}-{part.threads}"
            for kind, counted in curves.KINDS.items():
                some = [point for point in points if point["kind"] == kind]
                if some:
                    title = f"{part}, {counted}"
                    made[title] = save(speed(some, title, levels), folder / f"speed-{kind}-{name}")
            some = [point for point in points if point["kind"] == "codes"]
            if some:
                title = f"{part}, recall 10@R from codes alone"
                made[title] = save(recall_at(some, title), folder / f"recall-{name}")
        some = [row for row in rows if row["table"] == "encode"]
        if some:
            title = "Encoding a vector, one thread, as many bits as dimensions"
            made[title] = save(encoding(some, title), folder / "encode")
    return made


def speed(points: list[Row], title: str, levels: Sequence[float]) -> Any:
    """Recall against queries per second; only points that no other of the same contender beats in both."""
    figure, axes = canvas(title, (9, 5.2))
    lowest = max(0.0, min(0.8, min(levels) - 0.1))
    drawn = [p for p in points if curves.recall_of(p) >= lowest] or points
    for name, own, look in _looks(drawn):
        best = curves.frontier(own)
        axes.plot([stretched(curves.recall_of(p)) for p in best], [p["qps"] for p in best], label=name, **look)
    first, last = recall_axis(axes, "x", [curves.recall_of(p) for p in drawn])
    log_axis(axes)
    axes.set_xlabel("recall (scale widens towards 1); better to the right")
    axes.set_ylabel("queries per second, encoding included; better above")
    for level in levels:
        if first <= level <= last:
            axes.axvline(stretched(level), color="#BBBBBB", linewidth=1, zorder=0)
    legend(axes)
    return figure


def recall_at(points: list[Row], title: str) -> Any:
    """Plot the recall of the first R results, at the setting of each contender that finds most."""
    figure, axes = canvas(title, (9, 5.2))
    for name, own, look in _looks(points):
        recall = max(own, key=lambda p: (curves.recall_of(p), p["qps"]))["recall"]
        label = f"{name} ({recall[-1]:.3f})"
        heights = [stretched(value) for value in recall]
        axes.plot(range(1, len(recall) + 1), heights, label=label, **{**look, "markevery": (9, 10)})
    axes.set_xlabel("R: number of results")
    axes.set_ylabel("recall 10@R (scale widens towards 1)")
    axes.set_xlim(0, max(len(point["recall"]) for point in points) + 1)
    recall_axis(axes, "y", [0.0, *(curves.recall_of(point) for point in points)])
    legend(axes)
    return figure


def encoding(rows: list[Row], title: str) -> Any:
    """Microseconds a vector against the dimension."""
    figure, axes = canvas(title, (9, 4.6))
    series = {
        "us/vector": ("cbeindex: FFT", "ours", "-"),
        "hadamard": ("faiss HadamardRotation", "binary", DASHES[1]),
        "lsh": ("faiss IndexLSH", "bits", DASHES[2]),
        "matrix": ("numpy: Gaussian matrix", "outside", DASHES[3]),
    }
    for i, (key, (label, group, dash)) in enumerate(series.items()):
        some = sorted((row["d"], row[key]) for row in rows if row.get(key) is not None)
        if some:
            look = {"color": COLOURS[group], "marker": MARKERS[i], "linestyle": dash, "zorder": 3 if i else 4}
            axes.plot(*zip(*some, strict=True), label=label, linewidth=1.6 if i else 2.8, **look)
    axes.set_xscale("log", base=2)
    log_axis(axes)
    dims = sorted({row["d"] for row in rows})
    axes.set_xticks(dims, [f"{dim:,}" for dim in dims])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("d: dimensions, and bits")
    axes.set_ylabel("microseconds a vector; better below")
    legend(axes)
    return figure


def save(figure: Any, stem: Path) -> Path:
    """Write a figure as PNG and SVG; return the SVG file."""
    stem = stem.with_name("".join(c if c.isalnum() or c in "-_" else "_" for c in stem.name))
    figure.savefig(f"{stem}.png", dpi=150)
    figure.savefig(f"{stem}.svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Path(f"{stem}.svg")


def canvas(title: str, size: tuple[float, float]) -> tuple[Any, Any]:
    """Make a figure that no window knows of."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _looks(points: Iterable[Row]) -> list[tuple[str, list[Row], dict[str, Any]]]:
    """Give each contender its look: the colour of its group, ours thick and in front."""
    looks = []
    for name, own in curves.by_contender(points).items():
        group = own[0]["group"]
        is_ours = group == "ours"
        # Its place among all of its group, so that it looks the same in every plot.
        of_group = chosen([group])
        i = of_group.index(name) if name in of_group else len(of_group)
        look = {
            "color": COLOURS[group],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i % len(DASHES)],
            "linewidth": 2.6 if is_ours else 1.3,
            "markersize": 7 if is_ours else 5,
            "markerfacecolor": COLOURS[group] if is_ours else "white",
            "zorder": 4 if is_ours else 3,
        }
        looks.append((name, own, look))
    return looks


def legend(axes: Any) -> None:
    """Put the legend beside the plot."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False, handlelength=3.2)


def recall_axis(axes: Any, axis: str, recalls: list[float]) -> tuple[float, float]:
    """Give an axis of stretched recalls its range and its ticks; return the first and last of them."""
    first = max((tick for tick in TICKS if tick <= min(recalls)), default=0.0)
    last = min((tick for tick in TICKS if tick >= max(recalls)), default=1.0)
    ticks = [tick for tick in TICKS if first <= tick <= last]
    axes.set(
        **{
            f"{axis}ticks": [stretched(tick) for tick in ticks],
            f"{axis}ticklabels": [f"{tick:g}" for tick in ticks],
            f"{axis}lim": (stretched(first) - 0.03, stretched(last) + 0.05),
        }
    )
    return first, last


def log_axis(axes: Any) -> None:
    """Make the vertical axis logarithmic, with numbers that are read at a glance."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def stretched(recall: float) -> float:
    """Place of a recall on the axis: each halving of what is missed is as wide as the one before."""
    return float(-np.log10(1 - min(recall, _MOST)))
