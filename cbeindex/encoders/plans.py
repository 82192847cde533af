"""Plans of circular convolutions: factors of the length, and all tables in the order in which kernels read them.

A row of 2 N floats is N complex numbers, z_n = x_2n + i x_2n+1, in a matrix of `n_rows` times `n_columns`. With Z the
transform of z, H that of the real vector, and theta = pi k / N, the convolution has the transform

    Y_k = A_k Z_k + B_k conj(Z_-k),   A_k = S_k - D_k sin theta,   B_k = i D_k cos theta,
    S_k = (H_k + H_k+N) / 2,          D_k = (H_k - H_k+N) / 2,     B_-k = -conj(B_k).

Frequency k = k1 + n_rows k2 mirrors n_rows - k1 and n_columns - 1 - k2. For k1 = 0 that is k1 = n_rows, the same row of
transforms turned once more, so row 0 is stored twice, as is the row that mirrors itself. The mirror image of a point
is then at the same distance from the other end, whatever its row.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .._typing import Floats, Spectrum
from ..kernels.layouts import FIELDS, PASS_FIELDS, RADICES

# Plans are made for this many lanes, whatever the target has, so that bits do not depend on the target.
_LANES = 16
# Arithmetic of a butterfly, and of a point: twiddle factor, memory. In instructions, as are the costs below.
_BUTTERFLY = {2: 4, 3: 12, 4: 16, 5: 36, 7: 66, 8: 52}
_TWIDDLE, _MEMORY = 4, 5
_PASS, _TILE = 12, 240
# Floats in a cache line.
_LINE = 16
# Bytes of scratch of the rows that are worked on together: within the first-level cache.
_TOGETHER = 24_000
# From these many bytes on, stripes and blocks are worked on a few at a time.
_LONG, _STRIPES = 2**15, 2**14


class ConvolutionPlan:
    """How rows are convolved with vectors of some length.

    Parameters
    ----------
    length : int
        Length of the circle. One that is odd or has a prime factor above 7 is convolved on a circle twice as long.
    lanes : int
        Floats in a register of the target: `kernels.vectors.LANES`.

    Attributes
    ----------
    n_points : int
        Complex numbers that are transformed.
    layout : int64 array
        Sizes, passes and places of points, for the kernels.
    tables : float32 array
        Twiddle factors.
    """

    def __init__(self, length: int, lanes: int) -> None:
        self.length, self.lanes = length, lanes
        self.n_points = transform_length(length) // 2
        self._n_rows, self._n_columns = _split(self.n_points)
        rows, is_kept = _lane_rows(self._n_rows, lanes)
        self._rows, self._frequencies = rows, _order(radices(self._n_columns))
        self.layout, self.tables, self._work_floats = self._lay_out(rows, is_kept)

    def make_work(self) -> Floats:
        """Return memory for kernels to work in; each thread needs its own."""
        return _align(np.zeros(0, dtype=np.float32), self._work_floats)

    def coefficients(self, spectrum: Spectrum) -> Floats:
        """Return the factors of a product by half spectra.

        Parameters
        ----------
        spectrum : complex64 array of shape (n_blocks, length // 2 + 1)

        Returns
        -------
        float32 array of shape (n_blocks, n_factors)
        """
        factors = np.stack([np.concatenate(list(self._factors(half))) for half in spectrum])
        return _align(factors.ravel()).reshape(factors.shape)

    def _factors(self, half: NDArray[np.complex64]) -> Iterator[Floats]:
        """Yield the factors of each pair of blocks: own, that of the mirror image, shared."""
        n, lanes, n_columns = self.n_points, self.lanes, self._n_columns
        whole = _extend(half.astype(np.complex128), self.length, 2 * n)
        n_blocks = len(self._rows) // lanes
        for block in range(0, n_blocks, 2):
            rows = self._rows[block * lanes : (block + 1) * lanes]
            n_pairs = n_columns if block + 1 < n_blocks else (n_columns + 1) // 2
            k = (rows + self._n_rows * self._frequencies[:n_pairs, np.newaxis]) % n
            factors = np.empty((n_pairs, 3, 2, lanes), dtype=np.float32)
            own, shared = _factors_of(whole, k)
            other, negative = _factors_of(whole, -k % n)
            # Half of them from the other half, so that it does not matter to the bits which is whose mirror image.
            shared = np.where(2 * k <= n, shared, -negative.conj())
            for i, values in enumerate((own, other, shared)):
                _put(factors[:, i], values)
            factors[..., rows < 0] = 0
            yield factors.ravel()

    def _lay_out(self, rows: NDArray[np.int64], is_kept: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Floats, int]:
        """Return layout, tables and the length of the working memory."""
        n_rows, n_columns, lanes, n = self._n_rows, self._n_columns, self.lanes, self.n_points
        n_blocks, n_stripes, point = len(rows) // lanes, -(-n_columns // lanes), 2 * lanes
        sizes = {"n_rows": n_rows, "n_columns": n_columns, "n_stripes": n_stripes, "n_blocks": n_blocks}

        place = np.argsort(_order(radices(n_rows)))[rows % n_rows]
        parts: dict[str, list[int]] = {}
        row_passes, tables = _passes(n_rows, 0)
        column_passes, more = _passes(n_columns, sum(map(len, tables)))
        parts["row_passes"], parts["column_passes"] = row_passes, column_passes
        parts["sources"] = (place * point).tolist()
        parts["targets"] = (np.where(is_kept, place, n_rows) * point).tolist()
        n_passes = {"n_row_passes": len(row_passes), "n_column_passes": len(column_passes)}
        sizes |= {name: count // len(PASS_FIELDS) for name, count in n_passes.items()}
        sizes |= dict(zip(parts, itertools.accumulate(map(len, parts.values()), initial=len(FIELDS)), strict=False))
        tables += more
        n_floats = sum(map(len, tables))
        sizes["turns"] = -(-n_floats // _LINE) * _LINE
        tables.append(np.zeros(sizes["turns"] - n_floats, dtype=np.float32))
        for stripe in range(n_stripes):
            columns = np.arange(stripe * lanes, (stripe + 1) * lanes)
            turns = np.empty((len(rows), 2, lanes), dtype=np.float32)
            _put(turns, np.exp(-2j * np.pi / n * (np.outer(rows, columns) % n)))
            tables.append(turns.ravel())

        row_floats = -(-(2 * n + point) // _LINE) * _LINE
        stripe, block = (n_rows + 1) * point, n_stripes * lanes * point
        row_bytes = 4 * (row_floats + n_stripes * stripe + n_blocks * block)
        together = max(1, _TOGETHER // row_bytes)
        is_long = row_bytes > _LONG
        sizes["rows_together"] = together
        sizes["stripes_together"] = max(1, min(n_stripes, _STRIPES // (4 * stripe))) if is_long else n_stripes
        sizes["pairs_together"] = 1 if is_long else (n_blocks + 1) // 2
        sizes["row_floats"], sizes["stripes"] = row_floats, together * row_floats
        sizes["blocks"] = sizes["stripes"] + together * sizes["stripes_together"] * stripe
        layout = [sizes[name] for name in FIELDS] + [value for part in parts.values() for value in part]
        # Signs are read 64 at a time, some of them behind the last row.
        work_floats = sizes["blocks"] + max(64, together * n_blocks * block)
        return np.array(layout, dtype=np.int64), _align(np.concatenate(tables)), work_floats


def _factors_of(whole: NDArray[np.complex128], k: NDArray[np.int64]) -> tuple[NDArray[np.complex128], ...]:
    """Return A and B (above) of frequencies, over the number of points, from a half spectrum."""
    n = len(whole) - 1
    upper, angle = whole[n - k].conj(), np.pi * k / n
    mean, half_difference = (whole[k] + upper) / (2 * n), (whole[k] - upper) / (2 * n)
    return mean - half_difference * np.sin(angle), 1j * half_difference * np.cos(angle)


def _align(values: Floats, size: int | None = None) -> Floats:
    """Return values, zeros behind them up to `size`, from the beginning of a cache line on.

    Registers that are read across two lines cost twice the time.
    """
    size = len(values) if size is None else size
    memory = np.zeros(size + _LINE, dtype=np.float32)
    first = -memory.ctypes.data % (4 * _LINE) // 4
    memory[first : first + len(values)] = values
    return memory[first : first + size]


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


@functools.lru_cache(1024)
def transform_length(length: int) -> int:
    """Return the number of floats to transform for a circle of some length: itself if it is even and 7-smooth."""
    if length % 2 == 0 and _is_smooth(length):
        return length
    least = 2 * length - 1
    candidates = (n for n in range(least + least % 2, 2 * least + 2, 2) if _is_smooth(n))
    return min(itertools.islice(candidates, 3), key=lambda n: _cost(n // 2, *_split(n // 2)))


def _is_smooth(n: int) -> bool:
    for p in (2, 3, 5, 7):
        while n % p == 0:
            n //= p
    return n == 1


@functools.lru_cache(1024)
def _split(n_points: int) -> tuple[int, int]:
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


def _order(of_passes: Sequence[int]) -> NDArray[np.int64]:
    """Return the frequency that passes leave at each place."""
    frequencies = np.zeros(1, dtype=np.int64)
    for p in reversed(of_passes):
        frequencies = (np.arange(p)[:, np.newaxis] + p * frequencies).ravel()
    return frequencies


def _passes(n: int, first: int) -> tuple[list[int], list[Floats]]:
    """Describe the passes of a transform, and return their twiddle factors, which begin at `first`."""
    entries: list[int] = []
    tables: list[Floats] = []
    size = n
    for p in radices(n):
        step = size // p
        entries += [RADICES.index(p) + (len(RADICES) if step == 1 else 0), n // size, step, first]
        if step > 1:
            powers = np.outer(np.arange(step), np.arange(1, p)) % size
            factors = np.exp(-2j * np.pi / size * powers).astype(np.complex64)
            tables.append(factors.ravel().view(np.float32))
            first += len(tables[-1])
        size = step
    return entries, tables


def _lane_rows(n_rows: int, lanes: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the row, 0 to `n_rows`, of each lane, -1 for idle lanes; and which of them are the first of their row.

    Lanes in reverse order are the mirror images; the two blocks that mirror each other stand side by side.
    """
    half = n_rows // 2 + 1
    n_blocks = -(-2 * half // lanes)
    rows = np.full(n_blocks * lanes, -1)
    rows[:half], rows[-half:] = np.arange(half), n_rows - np.arange(half)[::-1]
    is_kept = np.zeros(len(rows), dtype=bool)
    is_kept[:half], is_kept[-half:] = True, (rows[-half:] >= half) & (rows[-half:] < n_rows)
    pairs = [block // 2 if block % 2 == 0 else n_blocks - 1 - block // 2 for block in range(n_blocks)]
    return rows.reshape(-1, lanes)[pairs].ravel(), is_kept.reshape(-1, lanes)[pairs].ravel()


def _extend(half: NDArray[np.complex128], length: int, longer: int) -> NDArray[np.complex128]:
    """Return the half spectrum of a circle for a longer one: the vector, and it once more before its beginning."""
    if longer == length:
        return half
    circle = np.fft.irfft(half, length)
    extended = np.zeros(longer)
    extended[:length] = circle
    extended[longer - length + 1 :] = circle[1:]
    return np.fft.rfft(extended)


def _put(out: Floats, values: NDArray[np.complex128]) -> None:
    """Write real and imaginary parts into the last axis but one."""
    out[..., 0, :], out[..., 1, :] = values.real, values.imag
