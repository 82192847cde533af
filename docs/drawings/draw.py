"""Draw the pictures of the concepts page: python docs/drawings/draw.py

The files are included in pages as they are, so that they take the colours of the page, light or dark (assets/site.css).
They are 360 units wide, the width of a phone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

import numpy as np

WIDTH = 360
FOLDER = Path(__file__).parent


class Drawing:
    """Shapes with classes instead of colours, one element a line."""

    def __init__(self, height: int, title: str) -> None:
        self.height, self.lines = height, [f"<title>{escape(title)}</title>"]

    def add(self, tag: str, text: str | None = None, **attributes: object) -> None:
        """Add an element; `class_` and `stroke_width` lose or change their underscores."""
        named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        spelled = "".join(f' {key}="{_short(value)}"' for key, value in named.items())
        self.lines.append(f"<{tag}{spelled}/>" if text is None else f"<{tag}{spelled}>{escape(text)}</{tag}>")

    def text(self, x: float, y: float, text: str, class_: str = "", anchor: str = "start") -> None:
        """Write a line."""
        self.add("text", text, x=x, y=y, class_=class_, text_anchor=anchor)

    def box(self, x: float, y: float, width: float, height: float, class_: str = "box") -> None:
        """Draw a rectangle with round corners."""
        self.add("rect", x=x, y=y, width=width, height=height, rx=3, class_=class_)

    def arrow(self, x: float, y: float, to_x: float, to_y: float, class_: str = "line") -> None:
        """Draw a line with a head, across or down."""
        self.add("path", d=f"M{_short(x)} {_short(y)}L{_short(to_x)} {_short(to_y)}", class_=class_)
        angle = np.arctan2(to_y - y, to_x - x)
        wings = [(to_x - 7 * np.cos(angle + turn), to_y - 7 * np.sin(angle + turn)) for turn in (-0.45, 0.45)]
        (ax, ay), (bx, by) = wings
        d = f"M{_short(ax)} {_short(ay)}L{_short(to_x)} {_short(to_y)}L{_short(bx)} {_short(by)}"
        self.add("path", d=d, class_=class_)

    def __str__(self) -> str:
        head = (
            f'<svg class="drawing" viewBox="0 0 {WIDTH} {self.height}" role="img" xmlns="http://www.w3.org/2000/svg">'
        )
        return "\n".join([head, *self.lines, "</svg>\n"])


def _short(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float | np.floating) else str(value)


def circulant() -> Drawing:
    """A circulant matrix times a vector, and the signs."""
    drawing = Drawing(196, "A circulant matrix: every row is the row above, rotated by one place")
    n, size, left, top = 6, 22, 6, 34
    drawing.text(left, 20, "R: one vector r, rotated", "label")
    for i in range(n):
        for j in range(n):
            drawing.box(left + j * size, top + i * size, size - 2, size - 2, f"shade{(j - i) % n}")
    values, projections = (0.9, -0.4, 0.1, 1.2, -0.8, 0.3), (0.7, -1.1, 0.2, -0.3, 1.4, -0.6)
    drawing.text(150, 20, "D (x - c)", "label")
    drawing.text(244, 20, "projections", "label")
    drawing.text(322, 20, "bits", "label")
    drawing.text(139, top + 3 * size + 3, "×", "sign", "middle")
    drawing.text(226, top + 3 * size + 3, "=", "sign", "middle")
    for i in range(n):
        y = top + i * size
        drawing.box(152, y, 48, size - 2)
        drawing.text(176, y + 15, f"{values[i]:.1f}".replace("-", "−"), "number", "middle")
        drawing.box(248, y, 48, size - 2)
        drawing.text(272, y + 15, f"{projections[i]:.1f}".replace("-", "−"), "number", "middle")
        bit = int(projections[i] >= 0)
        drawing.box(322, y, size, size - 2, "bit1" if bit else "bit0")
        drawing.text(333, y + 15, str(bit), "number", "middle")
    drawing.text(left, 186, "The product is a convolution: two FFTs, not d × d products.", "note")
    return drawing


def centres() -> Drawing:
    """The same points by the signs about the origin, and about their centre."""
    drawing = Drawing(216, "Signs about the origin tell little; signs about the centre divide the data")
    points = np.random.default_rng(3).standard_normal((40, 2)) * (17, 14)
    points -= points.mean(axis=0)
    for left, title, (ox, oy) in ((4, "about the origin", (-52, 46)), (188, "about the centre", (0, 0))):
        drawing.text(left, 16, title, "label")
        drawing.box(left, 26, 168, 160, "frame")
        cx, cy = left + 96, 94
        zx, zy = cx + ox, cy + oy
        drawing.add("path", d=f"M{left} {zy}H{left + 168}M{zx} 26V186", class_="axis")
        for x, y in points:
            px, py = cx + x, cy + y
            quadrant = (px >= zx) + 2 * (py <= zy)
            drawing.add("circle", cx=float(px), cy=float(py), r=3.2, class_=f"group{int(quadrant)}")
    drawing.text(4, 207, "one code for nearly all rows", "note")
    drawing.text(188, 207, "four codes, evenly used", "note")
    return drawing


def cells() -> Drawing:
    """Cells around centroids, of which the nearest to a query are probed."""
    from scipy.spatial import Voronoi

    drawing = Drawing(262, "Cells: rows belong to the nearest centroid, and a search visits the nearest cells")
    rng = np.random.default_rng(11)
    top, height = 6, 210
    centroids = _spread(rng, 13, WIDTH, height)
    mirrored = [centroids * s + o for s, o in _mirrors(WIDTH, height)]
    diagram = Voronoi(np.concatenate([centroids, *mirrored]))
    query = np.array([196.0, 104.0])
    order = np.argsort(((centroids - query) ** 2).sum(axis=1))
    for i in range(len(centroids)):
        corners = diagram.vertices[diagram.regions[diagram.point_region[i]]]
        place = int(np.flatnonzero(order == i)[0])
        spelled = " ".join(f"{_short(x)},{_short(y + top)}" for x, y in corners)
        drawing.add("polygon", points=spelled, class_="probed" if place < 3 else "cell")
    rows = rng.random((150, 2)) * (WIDTH - 8, height - 8) + 4
    for x, y in rows:
        nearest = int(((centroids - (x, y)) ** 2).sum(axis=1).argmin())
        visited = nearest in order[:3]
        drawing.add("circle", cx=float(x), cy=float(y + top), r=2.2, class_="seen" if visited else "row")
    for x, y in centroids:
        x0, y0 = float(x), float(y + top)
        drawing.add("path", d=f"M{x0 - 4:.1f} {y0:.1f}h8M{x0:.1f} {y0 - 4:.1f}v8", class_="line")
    drawing.add("circle", cx=query[0], cy=query[1] + top, r=6, class_="query")
    drawing.add("circle", cx=12, cy=234, r=6, class_="query")
    drawing.text(24, 238, "query", "note")
    drawing.add("path", d="M84 234h8M88 230v8", class_="line")
    drawing.text(98, 238, "centroid", "note")
    drawing.add("circle", cx=172, cy=234, r=2.6, class_="seen")
    drawing.text(180, 238, "row that is estimated", "note")
    drawing.text(6, 256, "n_probes = 3: the three nearest cells are visited.", "note")
    return drawing


def estimates() -> Drawing:
    """Estimated distances with their standard errors, from a real search, next to the true distances."""
    from cbeindex import CBEIndex, SearchResult

    rng = np.random.default_rng(5)
    points = rng.standard_normal((40, 256))[rng.integers(0, 40, 6_000)] + rng.standard_normal((6_000, 256))
    index = CBEIndex(256, n_bits=768, vectors=None, buckets=None).fit(points)
    index.add(points)
    query = points[17] + 2 * rng.standard_normal(256)
    found = index.search(query, k=110, rerank="asymmetric")
    assert found.errors is not None
    found = SearchResult(found.distances[1::8], found.ids[1::8], errors=found.errors[1::8])
    unit = points[found.ids] / np.linalg.norm(points[found.ids], axis=1, keepdims=True)
    true = 1 - unit @ (query / np.linalg.norm(query))
    drawing = Drawing(292, "Fourteen estimated distances with two standard errors, and the true distances")
    low, high = float(min(true.min(), (found.distances - 2 * found.errors).min())), float(true.max()) + 0.06

    def x(value: float) -> float:
        return 10 + (value - low) / (high - low) * (WIDTH - 20)

    kth = float(np.sort(true)[4])
    drawing.add("path", d=f"M{_short(x(kth))} 22V246", class_="axis")
    drawing.text(x(kth) + 4, 32, "k-th nearest", "note")
    for i, (distance, error, exact) in enumerate(zip(found.distances, found.errors, true, strict=True)):
        y = 42 + i * 15
        undecided = distance - 2 * error <= kth
        look = "bar" if undecided else "bar far"
        ends = f"M{_short(x(distance - 2 * error))} {y}H{_short(x(distance + 2 * error))}"
        drawing.add("path", d=ends, class_=look)
        drawing.add("circle", cx=x(float(distance)), cy=y, r=3, class_="estimate" if undecided else "row")
        drawing.add("path", d=f"M{_short(x(float(exact)))} {y - 5}v10", class_="truth")
    drawing.text(10, 16, "nearer", "label")
    drawing.text(WIDTH - 10, 16, "farther", "label", "end")
    drawing.add("path", d="M10 264h26", class_="bar")
    drawing.add("circle", cx=23, cy=264, r=3, class_="estimate")
    drawing.text(42, 268, "estimate, 2 errors", "note")
    drawing.add("path", d="M176 259v10", class_="truth")
    drawing.text(184, 268, "true distance", "note")
    drawing.text(10, 286, "Rows whose bar ends beyond the line need not be read.", "note")
    return drawing


def planner() -> Drawing:
    """The planner: from the request, through the plans and their costs, to the chosen one."""
    drawing = Drawing(286, "The planner estimates what each plan reads, and takes the cheapest that reaches the recall")
    drawing.box(60, 4, 240, 42)
    drawing.text(180, 22, "search(Q, k=10, recall=0.95)", "code", "middle")
    drawing.text(180, 38, "filter, number of queries, rows", "note", "middle")
    drawing.arrow(180, 46, 180, 66)
    plans = (
        ("scan all codes", 100, "1.00", False),
        ("cells, 4 probes", 5, "0.91", False),
        ("cells, 9 probes", 11, "0.96", True),
        ("cells, 24 probes", 26, "0.99", False),
    )
    drawing.text(8, 82, "plan", "label")
    drawing.text(130, 82, "bytes a query", "label")
    drawing.text(352, 82, "recall", "label", "end")
    for i, (name, share, recall, chosen) in enumerate(plans):
        y = 92 + i * 30
        drawing.box(2, y, 356, 26, "chosen" if chosen else "frame")
        drawing.text(10, y + 17, name, "number")
        drawing.box(130, y + 8, max(4.0, 1.6 * share), 10, "estimate" if chosen else "shade2")
        drawing.text(350, y + 17, recall, "number", "end")
    drawing.arrow(180, 212, 180, 232)
    drawing.box(60, 234, 240, 28, "chosen")
    drawing.text(180, 252, "mode=buckets, n_probes=9", "code", "middle")
    drawing.text(180, 280, "explain() prints the plan and the costs of your index.", "note", "middle")
    return drawing


def snapshots() -> Drawing:
    """A writer publishes new segments while a reader keeps the old ones."""
    drawing = Drawing(252, "A reader keeps the segments that it found; a writer publishes a new tuple")
    drawing.text(6, 16, "time", "label")
    drawing.arrow(42, 12, 354, 12)
    for left, names, title in ((6, "AB", "before add"), (206, "ABC", "after add")):
        drawing.text(left, 44, title, "label")
        for i, name in enumerate(names):
            drawing.box(left + i * 50, 54, 44, 34, "chosen" if name == "C" else "box")
            drawing.text(left + i * 50 + 22, 76, name, "code", "middle")
    drawing.arrow(114, 71, 200, 71)
    drawing.text(157, 64, "publish", "note", "middle")
    drawing.text(6, 122, "reader 1", "label")
    drawing.box(70, 108, 190, 20, "bit0")
    drawing.text(78, 122, "searches A, B to its end", "note")
    drawing.text(6, 154, "writer", "label")
    drawing.box(70, 140, 116, 20, "chosen")
    drawing.text(78, 154, "prepares C aside", "note")
    drawing.text(6, 186, "reader 2", "label")
    drawing.box(212, 172, 142, 20, "bit0")
    drawing.text(220, 186, "searches A, B, C", "note")
    drawing.add("path", d="M200 100V198", class_="axis")
    drawing.text(6, 222, "Segments never change, so nobody waits. Files work the", "note")
    drawing.text(6, 240, "same way: append, sync, then switch one commit slot.", "note")
    return drawing


def _spread(rng: np.random.Generator, n: int, width: float, height: float) -> np.ndarray:
    """Return points that keep some distance from each other."""
    chosen: list[np.ndarray] = []
    while len(chosen) < n:
        point = rng.random(2) * (width, height)
        if all(((point - other) ** 2).sum() > 46**2 for other in chosen):
            chosen.append(point)
    return np.array(chosen)


def _mirrors(width: float, height: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Factors and offsets that mirror points at the four sides, which bounds the cells of a diagram."""
    flips = (((-1, 1), (0, 0)), ((-1, 1), (2 * width, 0)), ((1, -1), (0, 0)), ((1, -1), (0, 2 * height)))
    return [(np.array(factor, dtype=float), np.array(offset, dtype=float)) for factor, offset in flips]


DRAWINGS: tuple[Callable[[], Drawing], ...] = (circulant, centres, cells, estimates, planner, snapshots)


def main(folder: Path = FOLDER) -> None:
    """Write all drawings."""
    for draw in DRAWINGS:
        (folder / f"{draw.__name__}.svg").write_text(str(draw()), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
