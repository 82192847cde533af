"""Lengths of Fourier transforms: which are fast, what they cost, and how they are divided into passes."""

from __future__ import annotations

import functools

# Plans are made for this many lanes, whatever the target has, so that bits do not depend on the target.
_LANES = 16
# Arithmetic of a butterfly, and of a point: twiddle factor, memory. In instructions, as are the costs below.
_BUTTERFLY = {2: 4, 3: 12, 4: 16, 5: 36, 7: 66, 8: 52}
_TWIDDLE, _MEMORY = 4, 5
_PASS, _TILE = 12, 240


def radices(n: int) -> list[int]:
    """Return the radices of the passes of a transform of n points.

    The largest one comes last, where it needs no twiddle factors.
    """
    found = []
    for p in (3, 5, 7):
        while n % p == 0:
            found.append(p)
            n //= p
    bits = n.bit_length() - 1
    # Eights, but for 2, 4 or 4 x 4.
    few = {0: [], 1: [2] if bits == 1 else [4, 4], 2: [4]}[bits % 3]
    return sorted([*found, *few, *[8] * ((bits - sum(p.bit_length() - 1 for p in few)) // 3)])


def fast_length(dim: int) -> int:
    """Return the smallest length of at least `dim` that is transformed as it is: even, with factors up to 7.

    One value stays alone: a second row of the matrix, 0 and 1, would not see it.
    """
    return 1 if dim == 1 else _smooth_lengths(dim)[0]


@functools.lru_cache(1024)
def transform_length(length: int) -> int:
    """Return the number of floats to transform for a circle of some length: itself if it is even and 7-smooth."""
    if length > 1 and fast_length(length) == length:
        return length
    return min(_smooth_lengths(2 * length - 1)[:3], key=lambda n: _cost(n // 2, *split(n // 2)))


def _smooth_lengths(least: int) -> list[int]:
    """Return even numbers without prime factors above 7, ascending: all of them from `least` to twice as much."""
    most = max(2, 2 * least)
    found = [2]
    for p in (2, 3, 5, 7):
        for n in found:  # grows meanwhile
            if n * p <= most:
                found.append(n * p)
    return sorted(n for n in found if n >= least)


@functools.lru_cache(1024)
def split(n_points: int) -> tuple[int, int]:
    """Return the rows and columns of the matrix of points that cost least."""
    divisors = {1}
    for p in (2, 3, 5, 7):
        power = 1
        while n_points % (power * p) == 0:
            power *= p
            divisors |= {d * p for d in divisors if n_points % (d * p) == 0}
    n_rows = min(sorted(divisors), key=lambda d: _cost(n_points, d, n_points // d))
    return n_rows, n_points // n_rows


def _cost(n_points: int, n_rows: int, n_columns: int) -> float:
    """Estimate the instructions of a transform."""

    def passes(n: int) -> float:
        each = [_BUTTERFLY[p] / p + _TWIDDLE * (1 - 1 / p) + _MEMORY for p in radices(n)]
        cost = sum(each) * n + _PASS * len(each)
        # A transform beyond the second-level cache waits for memory in every pass.
        return cost * (1 if n <= 2**11 else 2)

    n_stripes, n_blocks = -(-n_columns // _LANES), -(-2 * (n_rows // 2 + 1) // _LANES)
    return (
        n_stripes * (passes(n_rows) + 6 * n_rows)
        + n_blocks * (passes(n_columns) + 8 * n_columns)
        + (n_stripes * n_blocks * _TILE)
    )
