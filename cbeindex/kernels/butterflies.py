"""Fourier transforms of points whose lanes are transforms of their own, pass by pass.

A point is a register of real parts and one of imaginary parts behind it. A pass of radix p combines the points j,
j + step, j + 2 step, ... of every block of p * step points, for all j below step, and multiplies them by twiddle
factors: after the sums going forward (decimation in frequency), before them going back (decimation in time). On the
way back the imaginary parts come first in memory: with the parts swapped, a transform is its own inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from llvmlite import ir

from .layouts import PASS_FIELDS, RADICES
from .vectors import LANES, Complex, Integer, Lanes, Pointer, call, loop


def write_forward(
    points: Pointer, pitch: Integer, count: Integer, stride: Integer, passes: Pointer, n: Integer, tables: Pointer
) -> None:
    """Transform points in place into the order of the passes: `count` times, from `points + i * stride` on.

    The points of a transform are `pitch` floats apart.
    """
    with loop(n) as i:
        entry = passes + i * len(PASS_FIELDS)
        write_switch("after", points, pitch, count, stride, entry, tables)


def write_backward(
    points: Pointer, pitch: Integer, count: Integer, stride: Integer, passes: Pointer, n: Integer, tables: Pointer
) -> None:
    """Undo `write_forward`, but for a factor of the number of points, where parts are swapped."""
    with loop(n) as i:
        entry = passes + (n - 1 - i) * len(PASS_FIELDS)
        write_switch("before", points, pitch, count, stride, entry, tables)


def write_switch(
    twiddles: str, points: Pointer, pitch: Integer, count: Integer, stride: Integer, entry: Pointer, tables: Pointer
) -> None:
    """Call the pass of the radix that the entry names."""
    builder = points.builder
    kind, n_blocks, step, first = ((entry + i).integer() for i in range(len(PASS_FIELDS)))
    done = builder.append_basic_block()
    switch = builder.switch(kind.value, done)
    for case, radix in enumerate(2 * RADICES):
        how = "never" if case >= len(RADICES) else twiddles
        block = builder.append_basic_block()
        switch.add_case(ir.Constant(ir.IntType(64), case), block)
        with builder.goto_block(block):
            write = partial(_write_pass, radix, how)
            arguments = (points, pitch, count, stride, n_blocks, step, tables + first)
            call(write, f"pass_{radix}_{how}", *arguments, is_wide=radix == 7)
            builder.branch(done)
    builder.position_at_end(done)


def _write_pass(
    radix: int, twiddles: str, points: Pointer, pitch: Integer, count: Integer, stride: Integer, n_blocks: Integer,
    step: Integer, factors: Pointer,
) -> None:  # fmt: skip
    """Write a pass, with factors "after", "before" or "never" (then step is 1, and they are all 1)."""
    one = factors.spread() if twiddles == "never" else None

    def butterfly(start: Integer, between: Integer, factor: Pointer) -> None:
        places = [points + (start + between * t) for t in range(radix)]
        read = [place.load_point() for place in places]
        if twiddles == "before":
            turns = [(factor + 2 * t).spread_point() for t in range(radix - 1)]
            read[1:] = [point * turn for point, turn in zip(read[1:], turns, strict=True)]
        # Each point is written as soon as it is known: some targets have few registers.
        if radix == 7:
            sums, differences = _fold(read)
            for place, lanes in zip(places, _real_parts(read[0], sums, differences), strict=True):
                place.store(lanes)
            for t, lanes in enumerate(_imaginary_parts(read[0], sums, differences)):
                if twiddles == "after" and t > 0:
                    point = Complex(places[t].load(), lanes) * (factor + 2 * (t - 1)).spread_point()
                    places[t].store(point.real)
                    lanes = point.imaginary
                (places[t] + LANES).store(lanes)
            return
        for t, point in transform(read, one):
            if twiddles == "after" and t > 0:
                point = point * (factor + 2 * (t - 1)).spread_point()
            places[t].store_point(point)

    with loop(count) as i, loop(n_blocks) as block:
        between = pitch if twiddles == "never" else pitch * step
        start = i * stride + block * between * radix
        if twiddles == "never":
            butterfly(start, between, factors)
        else:
            with loop(step) as j:
                butterfly(start + j * pitch, between, factors + j * (2 * radix - 2))


def transform(points: Sequence[Complex], one: Lanes | None = None) -> Iterator[tuple[int, Complex]]:
    """Yield the points of a small discrete Fourier transform, and their places, in the order that they come in.

    Many processors have units that add and units that multiply. Where a transform is nearly all sums, `one`, a number
    1 that the compiler does not know, lets the latter do some of them, with the same bits.
    """
    if len(points) == 2:
        yield 0, points[0] + points[1]
        yield 1, points[0] - points[1]
    elif len(points) == 4:
        yield from enumerate(_transform_four(points, one))
    elif len(points) == 8:
        yield from _transform_eight(points, one)
    else:
        yield from _transform_odd(points)


def _transform_four(points: Sequence[Complex], one: Lanes | None) -> list[Complex]:
    a, b, c, d = points
    even, odd, difference, turned = a + c, b + d, _subtract(a, c, one), _times_minus_i(_subtract(b, d, one))
    return [even + odd, difference + turned, even - odd, difference - turned]


def _transform_eight(points: Sequence[Complex], one: Lanes | None) -> Iterator[tuple[int, Complex]]:
    a, b, c, d = (_subtract(points[k], points[k + 4], one) for k in range(4))
    for t, point in enumerate(_transform_four([points[k] + points[k + 4] for k in range(4)], one)):
        yield 2 * t, point
    # b turns by an eighth and d by three eighths; their common factor sqrt(1/2) waits for the last sums.
    b = Complex(b.real + b.imaginary, b.imaginary - b.real)
    d = Complex(d.imaginary - d.real, -(d.real + d.imaginary))
    c = _times_minus_i(c)
    half = a.real.constant(math.sqrt(0.5))
    for t, even, odd in ((1, a + c, b + d), (3, a - c, _times_minus_i(b - d))):
        yield t, even.add_scaled(odd, half)
        yield t + 4, even.add_scaled(odd, -half)


def _subtract(a: Complex, b: Complex, one: Lanes | None) -> Complex:
    if one is None:
        return a - b
    return Complex(a.real.add_product(-b.real, one), a.imaginary.add_product(-b.imaginary, one))


def _transform_odd(points: Sequence[Complex]) -> Iterator[tuple[int, Complex]]:
    sums, differences = _fold(points)
    yield from enumerate(
        map(Complex, _real_parts(points[0], sums, differences), _imaginary_parts(points[0], sums, differences))
    )


def _fold(points: Sequence[Complex]) -> tuple[list[Complex], list[Complex]]:
    """Points k and p - k share their products: cosines of the sums, sines of the differences."""
    p = len(points)
    pairs = [(points[k], points[p - k]) for k in range(1, (p + 1) // 2)]
    return [a + b for a, b in pairs], [a - b for a, b in pairs]


def _real_parts(first: Complex, sums: Sequence[Complex], differences: Sequence[Complex]) -> list[Lanes]:
    return _combine(first.real, [term.real for term in sums], [term.imaginary for term in differences])


def _imaginary_parts(first: Complex, sums: Sequence[Complex], differences: Sequence[Complex]) -> list[Lanes]:
    # i times a difference has its real part, with the other sign, as imaginary part: so points k and p - k change
    # places. Numbers with both signs would need twice the registers.
    parts = _combine(first.imaginary, [term.imaginary for term in sums], [term.real for term in differences])
    return [parts[0], *reversed(parts[1:])]


def _combine(first: Lanes, sums: Sequence[Lanes], differences: Sequence[Lanes]) -> list[Lanes]:
    """Combine one part of the points of an odd transform: cosines of sums and sines of differences."""
    half = range(1, len(sums) + 1)
    p = 2 * len(sums) + 1
    out = [sum(sums, first)] * p
    for t in half:
        turns = [k * t % p for k in half]
        # Of turns by more than a half the sine is that of the others, with the other sign.
        angles = [2 * math.pi * min(turn, p - turn) / p for turn in turns]
        even, odd = first, differences[0] * first.constant(math.sin(angles[0]))
        for term, angle in zip(sums, angles, strict=True):
            even = even.add_product(term, first.constant(math.cos(angle)))
        for term, turn, angle in zip(differences[1:], turns[1:], angles[1:], strict=True):
            odd = odd.add_product(term if 2 * turn < p else -term, first.constant(math.sin(angle)))
        out[t], out[p - t] = even + odd, even - odd
    return out


def _times_minus_i(point: Complex) -> Complex:
    return Complex(point.imaginary, -point.real)
