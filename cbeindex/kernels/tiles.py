"""What joins the two halves of a Fourier transform: stripes of columns, transposed tiles, mirrored products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .vectors import LANES, Complex, Integer, Lanes, Pointer, loop

POINT = 2 * LANES
TILE = LANES * POINT


def write_load(values: Pointer, stride: Integer, points: Pointer, count: Integer) -> None:
    """Read point i from LANES pairs of floats at `values + i * stride`."""
    with loop(count) as i:
        pairs = (values + i * stride).load_point()
        real, imaginary = (pairs.real.shuffle(pairs.imaginary, range(part, POINT, 2)) for part in (0, 1))
        (points + i * POINT).store_point(Complex(real, imaginary))


def write_store(values: Pointer, stride: Integer, points: Pointer, count: Integer) -> None:
    """Write point i, its parts swapped, as LANES pairs of floats at `values + i * stride`."""
    order = [lane + part for lane in range(LANES) for part in (0, LANES)]
    with loop(count) as i:
        point = (points + i * POINT).load_point().swapped()
        low, high = (point.real.shuffle(point.imaginary, half) for half in (order[:LANES], order[LANES:]))
        (values + i * stride).store_point(Complex(low, high))


# A tile is transposed in two steps that commute: 4 x 4 floats inside parts of four lanes, and the parts. Each step is
# written for four registers at a time, so that few of the values wait outside of registers.


def write_turn(points: Pointer, places: Pointer, factors: Pointer, tile: Pointer) -> None:
    """Multiply the LANES points at `places` by factors, and transpose them into a tile."""
    groups = []
    for g in range(0, LANES, 4):
        rows = [
            (points + (places + i).integer()).load_point() * (factors + i * POINT).load_point() for i in range(g, g + 4)
        ]
        groups.append(_both(_transpose_in_parts, rows))
    for r in range(4):
        for part, column in enumerate(_both(_transpose_parts, [group[r] for group in groups])):
            (tile + (4 * part + r) * POINT).store_point(column)


def write_turn_back(points: Pointer, places: Pointer, factors: Pointer, tile: Pointer) -> None:
    """Transpose a tile, and write it, times conjugate factors, to the points at `places`."""
    groups = []
    for r in range(4):
        groups.append(_both(_transpose_parts, [(tile + i * POINT).load_point() for i in range(r, LANES, 4)]))
    for g in range(0, LANES, 4):
        for i, row in enumerate(_both(_transpose_in_parts, [group[g // 4] for group in groups]), start=g):
            turned = turn_back(row, (factors + i * POINT).load_point())
            (points + (places + i).integer()).store_point(turned)


def turn_back(point: Complex, turn: Complex) -> Complex:
    """Multiply a point, its parts swapped, by the conjugate of a factor."""
    return (point.swapped() * turn.conjugate()).swapped()


def multiply(point: Complex, mirror: Complex, own: Complex, other: Complex, shared: Complex) -> tuple[Complex, Complex]:
    """Return own * point + shared * conj(mirror) and other * mirror - conj(shared * point)."""
    product = (own * point).add_product(shared, mirror.conjugate())
    return product, (other * mirror).add_product(shared.conjugate(), Complex(-point.real, point.imaginary))


def write_multiply(points: Pointer, mirrored: Pointer, count: Integer, factors: Pointer) -> None:
    """Multiply points by the spectrum: each with its mirror image, the lanes of which are in reverse order.

    Point i mirrors the one `i` points before `mirrored`; each of the three factors is a point of `factors`. What is
    written has its parts swapped, for the way back.
    """
    with loop(count) as i:
        here, there = points + i * POINT, mirrored - i * POINT
        point, mirror = here.load_point(), there.load_point().reversed()
        own, other, shared = ((factors + (i * 3 + j) * POINT).load_point() for j in range(3))
        product, mirror = multiply(point, mirror, own, other, shared)
        here.store_point(product.swapped())
        there.store_point(mirror.reversed().swapped())


def transpose(rows: Sequence[Lanes]) -> list[Lanes]:
    """Transpose LANES registers."""
    groups = [_transpose_in_parts(rows[g : g + 4]) for g in range(0, LANES, 4)]
    columns = [_transpose_parts([group[r] for group in groups]) for r in range(4)]
    return [columns[r][part] for part in range(LANES // 4) for r in range(4)]


def _both(transposed: Callable[[Sequence[Lanes]], list[Lanes]], points: Sequence[Complex]) -> list[Complex]:
    """Transpose real and imaginary parts."""
    parts = (transposed([point.real for point in points]), transposed([point.imaginary for point in points]))
    return [Complex(*pair) for pair in zip(*parts, strict=True)]


def _transpose_in_parts(rows: Sequence[Lanes]) -> list[Lanes]:
    """Transpose four registers inside their parts: lane c of a part of register r becomes lane r of register c."""

    def pick(left: Lanes, right: Lanes, lanes: Sequence[int]) -> Lanes:
        """Pick lanes of every part: 0 to 3 from the left, 4 to 7 from the right."""
        parts = range(0, LANES, 4)
        return left.shuffle(right, [part + lane + (LANES - 4 if lane >= 4 else 0) for part in parts for lane in lanes])

    a, b, c, d = rows
    ab, cd = ([pick(x, y, lanes) for lanes in ((0, 4, 1, 5), (2, 6, 3, 7))] for x, y in ((a, b), (c, d)))
    return [pick(x, y, lanes) for x, y in zip(ab, cd, strict=True) for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))]


def _transpose_parts(rows: Sequence[Lanes]) -> list[Lanes]:
    """Transpose registers as a matrix of parts of four lanes."""

    def pick(left: Lanes, right: Lanes, parts: Sequence[int]) -> Lanes:
        return left.shuffle(right, [4 * part + lane for part in parts for lane in range(4)])

    if len(rows) == 1:
        return list(rows)
    if len(rows) == 2:
        a, b = rows
        return [pick(a, b, parts) for parts in ((0, 2), (1, 3))]
    a, b, c, d = rows
    ab, cd = ([pick(x, y, parts) for parts in ((0, 1, 4, 5), (2, 3, 6, 7))] for x, y in ((a, b), (c, d)))
    return [pick(x, y, parts) for x, y in zip(ab, cd, strict=True) for parts in ((0, 2, 4, 6), (1, 3, 5, 7))]
