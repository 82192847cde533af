"""What sweeps say: frontiers of recall and speed, who is ahead at a recall and by how much, and tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.contenders import GROUPS, REGISTRY

KINDS = {
    "codes": "from codes alone: recall 10@100",
    "exact": "re-ranked: recall 10@10",
}
"""Kinds of searches, and what is counted."""

READING = "x: fastest cbeindex / this one, above 1: cbeindex is faster; the fastest setting that reaches the recall"
"""How tables are read."""

Row = dict[str, Any]


class Part(NamedTuple):
    """A part of a run: one set, one number of bits, one number of threads."""

    data: str
    bits: int
    threads: int

    def __str__(self) -> str:
        return f"{self.data}, {self.bits:,} bits, {self.threads} thread{'s' if self.threads > 1 else ''}"


class Cell(NamedTuple):
    """A contender at a recall: its queries per second, and by what factor we are faster; and both as text."""

    qps: float | None
    factor: float | None
    text: str


def parts(rows: Iterable[Row]) -> list[Part]:
    """List the parts of a run."""
    found = (Part(row["data"], row["bits"], row["threads"]) for row in rows if row["table"] == "contender")
    return list(dict.fromkeys(found))


def rows_of(rows: Iterable[Row], table: str, part: Part) -> list[Row]:
    """Return the rows of a table that belong to a part."""
    return [row for row in rows if row["table"] == table and (row["data"], row["bits"], row["threads"]) == part]


def recall_of(point: Row) -> float:
    """Return the recall of all results of a point."""
    return float(point["recall"][-1])


def frontier(points: Iterable[Row]) -> list[Row]:
    """Return the points that no other one beats in both recall and speed, by rising recall."""
    kept: list[Row] = []
    for point in sorted(points, key=lambda p: (-recall_of(p), -p["qps"])):
        if not kept or point["qps"] > kept[-1]["qps"]:
            kept.append(point)
    return kept[::-1]


def fastest(points: Iterable[Row], level: float) -> Row | None:
    """Return the fastest point that reaches a recall; nothing is interpolated."""
    reaching = [point for point in points if recall_of(point) >= level]
    return max(reaching, key=lambda point: point["qps"], default=None)


def by_contender(points: Iterable[Row]) -> dict[str, list[Row]]:
    """Sort points by contender, in the order of groups and of the registry."""
    groups, names = list(GROUPS), list(REGISTRY)
    found: dict[str, list[Row]] = {}
    for point in points:
        found.setdefault(point["contender"], []).append(point)

    def place(name: str) -> tuple[int, int]:
        return groups.index(found[name][0]["group"]), names.index(name) if name in names else len(names)

    return {name: found[name] for name in sorted(found, key=place)}


def compare(points: Sequence[Row], levels: Sequence[float]) -> dict[str, list[Cell]]:
    """Compare each contender with the fastest of ours, at each recall; points are of one kind."""
    ours = [fastest([p for p in points if p["group"] == "ours"], level) for level in levels]
    table = {}
    for name, own in by_contender(points).items():
        cells = []
        for level, our in zip(levels, ours, strict=True):
            point = fastest(own, level)
            if point is None:
                cells.append(Cell(None, None, "never"))
            elif our is None:
                cells.append(Cell(point["qps"], None, "we never"))
            else:
                factor = our["qps"] / point["qps"]
                cells.append(Cell(point["qps"], factor, f"{factor:.2f}"))
        table[name] = cells
    return table


def verdict_table(points: Sequence[Row], levels: Sequence[float]) -> list[list[str]]:
    """Say who is ahead at each recall, the fastest of ours or the fastest of each other group, and by what factor."""
    lines = [["recall", "fastest cbeindex", "QPS", "against", "its fastest", "its QPS", "ahead"]]
    of_group = {group: [p for p in points if p["group"] == group] for group in GROUPS}
    for level in levels:
        our = fastest(of_group["ours"], level)
        for group in list(GROUPS)[1:]:
            if not of_group[group]:
                continue
            their = fastest(of_group[group], level)
            if our is not None and (their is None or our["qps"] >= their["qps"]):
                ahead = "cbeindex" + (f" {our['qps'] / their['qps']:.2f}x" if their else "")
            elif their is not None:
                ahead = their["contender"] + (f" {their['qps'] / our['qps']:.2f}x" if our else "")
            else:
                ahead = "nobody"
            named = [text for p in (our, their) for text in ((p["contender"], f"{p['qps']:,.0f}") if p else ("-", "-"))]
            lines.append([f"{level:g}", *named[:2], GROUPS[group], *named[2:], ahead])
    return lines


def comparison_table(points: Sequence[Row], levels: Sequence[float]) -> list[list[str]]:
    """Return lines of cells, the first of them the names of columns."""
    columns = [
        "contender",
        *(text for level in levels for text in (f"QPS at {level:g}", "x")),
        "best recall",
        "its QPS",
    ]
    lines = [columns]
    of_name = by_contender(points)
    for name, cells in compare(points, levels).items():
        best = max(of_name[name], key=lambda p: (recall_of(p), p["qps"]))
        speeds = [text for c in cells for text in ("-" if c.qps is None else f"{c.qps:,.0f}", c.text)]
        lines.append([name, *speeds, f"{recall_of(best):.3f}", f"{best['qps']:,.0f}"])
    return lines


def time_table(points: Sequence[Row], level: float) -> list[list[str]]:
    """Return what a query costs at a recall, stage by stage: lines of cells, the first of them names of columns."""
    lines = [["contender", "setting", "recall", "encode us", "search us", "re-rank us", "together us", "min-max"]]
    for name, own in by_contender(points).items():
        point = fastest(own, level)
        if point is not None:
            stages = [f"{point[f'us_{stage}']:,.1f}" for stage in ("encode", "search", "rerank", "total")]
            spread = f"{point['us_min']:,.1f}-{point['us_max']:,.1f}"
            lines.append([name, setting_of(point), f"{recall_of(point):.3f}", *stages, spread])
    return lines


def setting_of(point: Row) -> str:
    """Return the parameter and the depth of a point as text."""
    said = [] if point["parameter"] is None else [f"{point['parameter_name']} {point['parameter']}"]
    return ", ".join(said + ([] if point["depth"] is None else [f"depth {point['depth']}"]))


def is_text(lines: list[list[str]]) -> list[bool]:
    """Tell which columns hold words, and which numbers."""
    cells = [[line[i] for line in lines[1:]] for i in range(len(lines[0]))]
    return [any(c.isalpha() for c in "".join(column).replace("never", "").replace("we ", "")) for column in cells]


def as_text(lines: list[list[str]]) -> str:
    """Lay lines of cells out under each other, words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = is_text(lines)
    laid = [
        [
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, words, strict=True)
        ]
        for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in laid)


def contender_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return who took part, who did not and why: lines of cells, the first of them names of columns."""
    lines = [["contender", "package", "state", "build s", "MB", "what it is, or why not"]]
    for row in rows:
        built = "-" if row["build_seconds"] is None else f"{row['build_seconds']:.1f}"
        memory = "-" if row.get("build_bytes") is None else f"{row['build_bytes'] / 1e6:,.0f}"
        lines.append([row["contender"], row["package"], row["status"], built, memory, row["reason"] or row["about"]])
    return lines
