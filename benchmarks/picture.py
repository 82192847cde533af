"""The picture of the README, recall against queries per second, from the results of `python -m benchmarks recall`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves, plots
from benchmarks.curves import Row

RESULTS = Path("bench-report") / "recall.jsonl"
PICTURE = Path(__file__).parent.parent / "docs" / "assets" / "recall-speed.svg"
# A picture that is read at a glance has a handful of lines: the fastest of ours, and others by their speed at `LEVEL`.
MOST_LINES, LEVEL, LOWEST = 6, 0.95, 0.8
# Largest file that is put into the repository.
MOST_BYTES = 200_000


def main(arguments: list[str]) -> None:
    """Draw the picture, or say what is missing for it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks picture", description=__doc__)
    add = parser.add_argument
    add("--results", type=Path, default=RESULTS, help="JSON lines of a run")
    add("--data", help="the set to draw; by default the last one of the run")
    add("--contenders", nargs="+", help=f"who is drawn; by default the {MOST_LINES} fastest at recall {LEVEL}")
    add("--output", type=Path, default=PICTURE)
    add("--quick", action="store_true", help="the same: drawing takes a second")
    options = parser.parse_args(arguments)
    try:
        rows = [json.loads(line) for line in options.results.read_text().splitlines()]
        part, points = of_set(rows, options.data)
        n_rows = next(row["rows"] for row in rows if row["table"] == "set" and row["data"] == part.data)
        draw(chosen(points, options.contenders), part, n_rows, options.output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    print(f"{options.output}: {options.output.stat().st_size:,} bytes")


def of_set(rows: Sequence[Row], data: str | None) -> tuple[curves.Part, list[Row]]:
    """Return the last part of a set, by default of the last set, and its points that were re-ranked."""
    parts = [part for part in curves.parts(rows) if data in (None, part.data)]
    if not parts:
        known = ", ".join(sorted({part.data for part in curves.parts(rows)})) or "nothing"
        raise ValueError(f"results must have the set {data}, got {known}")
    points = [point for point in curves.rows_of(rows, "point", parts[-1]) if point["kind"] == "exact"]
    return parts[-1], points


def chosen(points: Sequence[Row], names: Sequence[str] | None) -> dict[str, list[Row]]:
    """Return the points of contenders by name: of the fastest ones, or of those that are named."""
    own = curves.by_contender(points)
    if names is not None:
        unknown = [name for name in names if name not in own]
        if unknown:
            raise ValueError(f"contenders must be among {', '.join(own)}, got {', '.join(unknown)}")
        return {name: own[name] for name in names}

    def speed(name: str) -> float:
        best = curves.fastest(own[name], LEVEL)
        return 0.0 if best is None else float(best["qps"])

    return {name: own[name] for name in sorted(own, key=speed, reverse=True)[:MOST_LINES]}


def draw(lines: dict[str, list[Row]], part: curves.Part, n_rows: int, path: Path) -> None:
    """Draw recall against queries per second, small enough for a telephone."""
    if not plots.can_draw():
        raise ValueError("the picture needs matplotlib")
    with plots.style():
        title = f"{part.data}, {n_rows:,} rows, {part.threads} thread{'s' if part.threads > 1 else ''}"
        figure, axes = plots.canvas(title, (6.4, 4.4))
        drawn = []
        for i, (name, own) in enumerate(lines.items()):
            best = [point for point in curves.frontier(own) if curves.recall_of(point) >= LOWEST]
            drawn += best
            axes.plot(
                [plots.stretched(curves.recall_of(point)) for point in best],
                [point["qps"] for point in best],
                label=name,
                **_look(own[0]["group"], i),
            )
        if not drawn:
            raise ValueError(f"results must reach a recall of {LOWEST}, none does")
        plots.recall_axis(axes, "x", [curves.recall_of(point) for point in drawn])
        plots.log_axis(axes)
        axes.set_xlabel("recall 10@10 (better to the right)")
        axes.set_ylabel("queries per second (better above)")
        axes.legend(loc="lower left", frameon=False, handlelength=2.6)
        metadata = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(path, metadata=metadata, facecolor="white")
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"the picture must have at most {MOST_BYTES:,} bytes, got {path.stat().st_size:,}")


def _look(group: str, i: int) -> dict[str, Any]:
    is_ours = group == "ours"
    return {
        "color": plots.COLOURS[group],
        "marker": plots.MARKERS[i],
        "linestyle": plots.DASHES[i % len(plots.DASHES)] if not is_ours else "-",
        "linewidth": 2.8 if is_ours else 1.5,
        "markerfacecolor": plots.COLOURS[group] if is_ours else "white",
        "zorder": 4 if is_ours else 3,
    }
