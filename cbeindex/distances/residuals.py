"""Residual codes: rows quantised to 1, 2, 4 or 8 bits a dimension relative to the nearest of some centres.

A row has the projections p of its centred vector, the centre c nearest to p, the residual y = p - c, and level values V
of y. With f = |y|^2 / <y, V>, the product f <w, V> estimates <y, w>: it is exact for w = y, and unbiased otherwise,
because the part of V orthogonal to y has no preferred direction. For a query with projections z, w = z - c, and the
scale s of the encoder,

    |x - q|^2  ~  s (|y|^2 + |w|^2 - 2 f (<z, V> - <c, V>))
    <x, q>     ~  <x, m> + <m, q - m> + s (<c, z> + <c, y> + f (<z, V> - <c, V>))

with m the centre of the encoder. So a distance is the offset of the row, plus the shift of the query for the centre,
minus the factor of the row times <z, V>, which look-ups compute. Under "cosine" rows and queries have length 1 or 0,
and the distance is half of the squared one.

The error of f <w, V> is f <V', w'>, where V' is the part of V orthogonal to y and w' that of w. Its standard deviation
is the spread of the row, f |V'| / sqrt(n_bits - 1), times |w'|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import kernels
from .._core.progress import part_bar
from .._core.tuning import tuning
from .._core.typing import Doubles, Floats, Projections, Rows
from ..data.columns import Column, take_rows
from ..data.sparserows import VectorRows
from .estimator import Geometry
from .kmeans import assign, means, rounds
from .metrics import Metric, products_and_squares, squares
from .rounding import rounded

CELL_BITS = (1, 2, 4)
"""Bits a dimension that residual codes may have."""

MOST_CENTRES = 2**10
"""Centres that an index may have; two bytes behind a code name the centre of a row."""

N_NUMBERS = 4
"""float32 numbers behind a code: factor, offset, spread and length."""

# Width of a level over the root mean square of a residual: least squared error for a normal distribution.
_LEVEL_WIDTHS = {1: 1.0, 2: 0.9957, 4: 0.3352, 8: 0.0308}


# Rounding of a distance in float32, over the sizes of its terms.
_ROUNDING = 4 * float(np.finfo(np.float32).eps)


class Numbers(NamedTuple):
    """What is stored of rows beside their levels: float32 arrays of shape (n,), and the centres as uint16."""

    factors: Floats
    offsets: Floats
    spreads: Floats
    lengths: Floats
    centres: NDArray[np.uint16]


PartsOf: TypeAlias = Callable[[NDArray[np.uint8]], tuple[Floats, Numbers]]


@dataclass(frozen=True)
class ResidualCodec:
    """Encodes rows relative to centres that are fixed.

    Attributes
    ----------
    centres : float32 array of shape (n_centres, n_bits)
    bits : {1, 2, 4, 8}
        Bits of a level; 8 for kept vectors alone.
    metric : Metric
    geometry : Geometry
    mean : float32 array of shape (n_bits,)
        Projections of the centre of the encoder from the origin.
    """

    centres: Floats
    bits: int
    metric: Metric
    geometry: Geometry
    mean: Floats

    @classmethod
    def fit(
        cls, projections: Projections, bits: int, metric: Metric, geometry: Geometry, mean: Floats
    ) -> ResidualCodec:
        """Choose centres for data like a sample of projections: one, the mean of the data, if it has no clusters."""
        centres = _train_centres(projections)
        return cls(centres, bits, metric, geometry, mean)

    @property
    def n_bits(self) -> int:
        """Number of projections."""
        return int(self.centres.shape[1])

    @property
    def width(self) -> int:
        """Projections that centres and cells are chosen by."""
        return min(self.n_bits, tuning().cell_projections)

    @property
    def n_bytes(self) -> int:
        """Bytes of a code."""
        return -(-self.n_bits * self.bits // 8)

    @property
    def level_width(self) -> float:
        """Width of a level over the root mean square of a residual."""
        return _LEVEL_WIDTHS[self.bits]

    @property
    def column(self) -> Column:
        """The column that holds codes, numbers and centres of rows."""
        return residual_column(self.n_bits, self.bits)

    @cached_property
    def half_squares(self) -> Floats:
        """Half of the squared lengths of the centres, over the first projections."""
        return (squares(self.centres[:, : self.width]) / 2).astype(np.float32)

    @cached_property
    def turned(self) -> Floats:
        """The first projections of the centres, (width, n_centres)."""
        return np.ascontiguousarray(self.centres[:, : self.width].T)

    @property
    def factor_scale(self) -> float:
        """What the stored factors are over f."""
        return self.geometry.scale * (2 if self.metric.name == "l2" else 1)

    def quantise(self, rows: VectorRows, projections: Projections) -> tuple[NDArray[np.uint8], Numbers]:
        """Return the levels of prepared rows, packed into bytes, and their numbers, from their projections."""
        n = len(projections)
        codes, chosen = np.empty((n, self.n_bytes), dtype=np.uint8), np.empty(n, dtype=np.uint16)
        sums = np.empty((n, 5))
        kernels.residuals.encode_rows(
            np.ascontiguousarray(projections), self.centres, self.turned, self.half_squares, self.bits,
            self.level_width, codes, chosen, sums,
        )  # fmt: skip
        if self.metric.name == "ip":
            beside = -products_and_squares(rows, self.geometry.centre)[0]
        else:
            beside = (1 - squares(rows)) / 2 if self.metric.name == "cosine" else np.zeros(n)
        return codes, self.numbers_from(sums, beside, chosen)

    def encode(self, rows: VectorRows, projections: Projections) -> NDArray[np.uint8]:
        """Encode prepared rows from their projections."""
        return self.column_of(*self.quantise(rows, projections))

    def numbers_from(self, sums: Doubles, beside: Doubles, chosen: NDArray[np.uint16]) -> Numbers:
        """Return the numbers of rows from the sums that the kernel makes, and from what is beside their own offsets."""
        factors, offsets, spreads, lengths = (n.astype(np.float32) for n in self._numbers(beside, *sums.T))
        return Numbers(factors, offsets, spreads, lengths, chosen)

    def column_of(self, codes: NDArray[np.uint8], numbers: Numbers) -> NDArray[np.uint8]:
        """Return the column of rows with these codes and numbers."""
        column = np.empty((len(codes), *self.column.shape), dtype=np.uint8)
        column[:, : self.n_bytes] = codes
        column[:, self.n_bytes : -2] = np.stack(numbers[:-1], axis=1).astype("<f4").view(np.uint8)
        column[:, -2:] = numbers.centres.astype("<u2")[:, np.newaxis].view(np.uint8)
        return column

    def _numbers(
        self, beside: Any, square: Any, product: Any, values: Any, along_values: Any, along: Any
    ) -> tuple[Any, ...]:
        """Return factors, offsets, spreads and lengths from the sums that the kernel makes."""
        f = np.divide(square, product, out=np.zeros_like(square), where=product > 0)
        spread = np.sqrt(np.maximum(f**2 * values - square, 0) / max(1, self.n_bits - 1))
        offset = self.own_offsets(square, f * along_values, along) + beside
        return self.factor_scale * f, offset, spread, np.sqrt(square)

    def own_offsets(self, square: Any, along_values: Any, along: Any) -> Any:
        """Return what residuals y and centres c add to offsets: of |y|^2, f <c, V> and <c, y>.

        Under "cosine", row and query share the 1 of 1 - cosine, so that both are small where distances are.
        """
        if self.metric.name == "ip":
            return self.geometry.scale * (along_values - along)
        return self.factor_scale / 2 * (square + 2 * along_values)

    def numbers_of(self, column: NDArray[np.uint8]) -> Numbers:
        """Return the numbers of encoded rows."""
        values = np.ascontiguousarray(column[:, self.n_bytes : -2]).view("<f4").astype(np.float32, copy=False)
        factors, offsets, spreads, lengths = np.ascontiguousarray(values.T)
        return Numbers(factors, offsets, spreads, lengths, centres_of(column))

    def decode(self, column: NDArray[np.uint8], rows: NDArray[np.int64]) -> Floats:
        """Return what codes say of the first projections of some rows, (n, width)."""
        decoded = np.empty((len(rows), self.width), dtype=np.float32)
        kernels.residuals.decode_rows(column, rows, self.n_bits, self.bits, self.centres, decoded)
        return decoded

    def query_shifts(self, queries: VectorRows) -> Floats:
        """Return the part of the shifts of prepared queries that does not depend on a centre."""
        if self.metric.name == "l2":
            return np.zeros(len(queries), dtype=np.float32)
        if self.metric.name == "cosine":
            return ((1 - squares(queries)) / 2).astype(np.float32)
        with_mean, _ = products_and_squares(queries, self.geometry.centre)
        return (1 - with_mean + squares(self.geometry.centre[np.newaxis])).astype(np.float32)

    @property
    def shift_scales(self) -> tuple[float, float]:
        """Factors of |w|^2 and of <c, z> in the shift of a query for a centre."""
        scale = self.geometry.scale
        return {"l2": (scale, 0.0), "cosine": (scale / 2, 0.0), "ip": (0.0, -scale)}[self.metric.name]

    def errors(
        self, projections: Projections, distances: Floats, column: NDArray[np.uint8],
        parts_of: PartsOf | None = None, query_rounding: float = 0.0,
    ) -> Floats:  # fmt: skip
        """Return the standard errors of estimated distances.

        Parameters
        ----------
        projections : float32 array of shape (n_queries, n_bits)
        distances : float32 array of shape (n_queries, k)
        column : uint8 array of shape (n_queries * k, row bytes)
            The rows at these distances.
        parts_of : callable, optional
            Returns the values of levels, at any scale, and the numbers of rows of the column, if it is not that of
            this codec.
        query_rounding : float
            Standard deviation of the rounding of the projections of a query, over the largest of them.
        """
        n, k = distances.shape
        errors: Floats = np.empty((n * k, 1), dtype=np.float32)
        flat, step = distances.reshape(-1, 1), max(1, tuning().decode_step_values // max(1, self.n_bits))
        for start in range(0, n * k, step):
            some = slice(start, min(start + step, n * k))
            queries = projections[np.arange(some.start, some.stop) // k]
            values, numbers = (parts_of or self._parts)(column[some])
            errors[some] = self._errors_of(queries, flat[some], values, numbers, query_rounding)
        return errors.reshape(n, k)

    def _parts(self, column: NDArray[np.uint8]) -> tuple[Floats, Numbers]:
        """Return the values of the levels of encoded rows, at the length of their residuals, and their numbers."""
        values, numbers = np.empty((len(column), self.n_bits), dtype=np.float32), self.numbers_of(column)
        kernels.residuals.decode_rows(column, np.arange(len(column)), self.n_bits, self.bits, self.centres, values)
        values -= self.centres[numbers.centres]
        return values, numbers

    def _errors_of(
        self, projections: Projections, distances: Floats, values: Floats, numbers: Numbers, query_rounding: float
    ) -> NDArray[np.float64]:
        """Return the standard errors of the distances of some queries."""
        shape, scale, variance = distances.shape, self.geometry.scale, self.geometry.variance
        spreads, lengths = (n.reshape(shape).astype(np.float64) for n in (numbers.spreads, numbers.lengths))
        centres = numbers.centres.reshape(shape)
        w = projections[:, np.newaxis] - self.centres[centres]
        across = np.einsum("ijk,ijk->ij", w, w, dtype=np.float64)
        if self.metric.name == "ip":
            apart = np.sqrt(lengths**2 + squares(self.centres)[centres])
            whole = np.sqrt(squares(projections))[:, np.newaxis]
            product = scale * spreads * np.sqrt(across)
            projected = scale * apart * whole * np.sqrt(variance / 2)
        else:
            half = 1 if self.metric.name == "l2" else 2
            levels = values.reshape(w.shape)
            with np.errstate(divide="ignore", invalid="ignore"):
                # f <V, w> / |y|, which estimates <y, w> / |y|: what is left of w is orthogonal to y. It is at least as
                # long as the error that the estimate may have. f |V| is |y| and what it misses.
                along = np.einsum("ijk,ijk->ij", levels, w, dtype=np.float64)
                along *= np.sqrt(1 + (self.n_bits - 1) * (spreads / lengths) ** 2) / np.sqrt(squares(values)).reshape(
                    shape
                )
                least = np.minimum((spreads / lengths) ** 2, 1) * across
                rest = np.where(lengths > 0, np.clip(across - along**2, least, across), 0)
            product = 2 * scale / half * spreads * np.sqrt(rest)
            projected = np.sqrt(variance) * distances
        rounding = _ROUNDING * (np.abs(numbers.offsets.reshape(shape)) + scale * across + np.abs(distances))
        largest = np.abs(projections).max(axis=1, initial=0, keepdims=True)
        rounded = query_rounding * self.factor_scale * largest * lengths
        errors: NDArray[np.float64] = np.sqrt(product**2 + projected**2 + rounding**2 + rounded**2)
        return errors

    def doubt_terms(self, n_sigmas: float) -> Doubles:
        """Return what a kernel needs to tell how far below its estimate the distance of a row may be.

        That is `n_sigmas` standard errors and the rounding of the estimate itself; nothing if `n_sigmas` is 0.
        """
        geometry, half = self.geometry, {"l2": 1, "cosine": 2, "ip": 0}[self.metric.name]
        extra = 16 * float(np.finfo(np.float32).eps) if n_sigmas else 0.0
        variance = float(geometry.variance)
        # Under "cosine", zero vectors have a distance of 1 by definition, of which a half is beside the squared one.
        # Their residuals have the same length.
        zero = math.sqrt(squares(self.mean + self.centres).min()) if self.metric.name == "cosine" else -1.0
        return np.array([n_sigmas, extra, geometry.scale, half, variance, _ROUNDING, math.sqrt(variance), zero])


def residual_column(n_bits: int, bits: int) -> Column:
    """Return the column of residual codes: code, numbers and centre of each row, as bytes."""
    return Column(np.uint8, (row_bytes(-(-n_bits * bits // 8)),))


def row_bytes(n_bytes: int) -> int:
    """Return the bytes of a row in the column of residual codes, with codes of `n_bytes` bytes."""
    return n_bytes + 4 * N_NUMBERS + 2


def centres_of(column: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return the centre of each row of a column."""
    return np.ascontiguousarray(column[:, -2:]).view("<u2")[:, 0].astype(np.uint16, copy=False)


def default_bits(n_bits: int) -> int:
    """Return the bits a dimension that suit codes of this many dimensions."""
    return 4 if n_bits < tuning().few_cell_dimensions else 1


def spread_rows(n_rows: int, n_chosen: int) -> Rows:
    """Choose some rows, evenly spread over all of them."""
    return np.arange(n_chosen) * n_rows // n_chosen


def _train_centres(projections: Projections) -> Floats:
    """Train centres on a sample, and keep them if they are nearer to other rows than the mean of the data."""
    n_rows, n_bits = projections.shape
    limits = tuning()
    n_centres = round(limits.centres_of_root * math.sqrt(n_rows))
    n_centres = min(MOST_CENTRES, n_centres, n_rows // limits.least_centre_rows, limits.centre_values // n_bits)
    one = np.zeros((1, n_bits), dtype=np.float32)
    if n_centres < 2:
        return one
    rng = np.random.default_rng(n_rows)
    is_held = np.zeros(n_rows, dtype=np.bool_)
    is_held[rng.choice(n_rows, n_rows // 8, replace=False)] = True
    held, trained = take_rows(projections, np.flatnonzero(is_held)), np.flatnonzero(~is_held)
    # Means of m rows miss 1 / m of the variance around them. The first rounds see a quarter of the rows, so that the
    # gain of the last ones may be higher by 4 / m - 1 / m. Half of this is made up for where gains are small: rows are
    # nearest to means that happen to be near them.
    may_rise = 1.5 / min(limits.trained_centre_rows, (n_rows - len(held)) / n_centres)
    with part_bar(limits.kmeans_iterations, "rounds of k-means") as advance:
        for n_rounds, (rows, cell) in enumerate(rounds(projections, trained, n_centres, rng), start=1):
            advance(1)
            is_trial = n_rounds == limits.kmeans_trial_rounds
            if not is_trial and n_rounds < limits.kmeans_iterations:
                continue
            some = held[: limits.kmeans_trial_rows] if is_trial else held
            centres, sizes = means(projections, cell, n_centres, rows)
            if not _explain(centres[sizes > 0], some, limits.least_centre_gain - (may_rise if is_trial else 0)):
                return one
    return rounded(centres[sizes > 0])


def _explain(centres: Floats, points: Floats, share: float) -> bool:
    """Return whether centres explain this share of the variance of points, of which there may be none."""
    width = tuning().cell_projections
    points, centroids = points[:, :width], centres[:, :width]
    left = squares(points - centroids[assign(points, centroids)]).sum()
    return bool(left <= (1 - share) * squares(points).sum())
