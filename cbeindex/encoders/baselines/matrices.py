"""Matrix operations of the baselines: products, principal axes, rotations, and alternating minimisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..._core.tuning import tuning
from ..._core.typing import Projections, Vectors
from ...data.source import VectorSource
from ..base import rows_per_block

Matrix: TypeAlias = NDArray[Any]  # float32 or float64
Parameters = TypeVar("Parameters")

LARGEST_SCALE = 1e9
"""Bound on the factor between squared norms before and after projecting, on its inverse, and on its variance."""

LARGEST_WEIGHT = 16.0
"""Bound on the entries of orthonormal and of normally distributed directions."""

OVERFLOW = "training overflowed: scale the vectors down"

# Rows on which the effect of projections on norms is measured.
_SAMPLE_ROWS = 512


def products(rows: Vectors, centre: Vectors, matrix: Vectors) -> Projections:
    """Centre rows and multiply them by a matrix, (n_columns, dim): float32 (n, n_columns).

    The order in which BLAS sums depends on the number of rows and, on some processors, on the position of a row. The
    products of a row therefore agree between batches up to rounding only.
    """
    multiplied: Projections = np.matmul(rows - centre, matrix.T)
    return multiplied


def rows_per_product(dim: int, n_columns: int) -> int:
    """Return the number of rows to multiply at a time: a block reads a matrix that exceeds the cache only once."""
    return max(rows_per_block(max(dim, n_columns)), min(256, max(32, tuning().product_block_floats // dim)))


class Lengths(NamedTuple):
    """The effect of projections on norms: see `distances.estimator.Geometry`."""

    scale: float
    scale_variance: float
    overlap: float

    @classmethod
    def of_subspace(cls, n_bits: int, length: int) -> Lengths:
        """Return the effect of `n_bits` orthonormal directions out of `length` on vectors of random direction."""
        share = n_bits / length
        return cls(1 / share, 2 * (1 - share) / n_bits, share)

    def are_sound(self) -> bool:
        """Return whether float32 can represent distances estimated with these values."""
        is_scale = 1 / LARGEST_SCALE <= self.scale <= LARGEST_SCALE
        return is_scale and 0 <= self.scale_variance <= LARGEST_SCALE and -LARGEST_SCALE <= self.overlap <= 1

    @classmethod
    def measured(cls, rows: Vectors, projections: Projections) -> Lengths:
        """Measure the effect on pairs of centred rows, some of which must differ.

        Measuring is necessary because trained directions preserve more of the data than random ones. The scale is that
        of differences of rows, and its variance is the mean squared relative error of using one scale for all pairs.
        The overlap follows from products of rows: |y|^2 / |P y|^2 <P y, P z> estimates <y, z> with a variance of
        (1 - overlap) / n_bits |y|^2 |z|^2.
        """
        half = len(rows) // 2
        first, second = rows[:half].astype(np.float64), rows[half : 2 * half].astype(np.float64)
        P_first, P_second = projections[:half].astype(np.float64), projections[half : 2 * half].astype(np.float64)
        squares, P_squares = _squares(first - second), _squares(P_first - P_second)
        differ = squares > 0
        scale = float(squares[differ].sum() / P_squares[differ].sum())
        relative = scale * P_squares[differ] / squares[differ] - 1
        variance = float(relative @ relative) / max(1, len(relative))
        lengths, P_lengths = _squares(first), _squares(P_first)
        kept = np.divide(lengths, P_lengths, out=np.zeros(half), where=P_lengths > 0)
        misses = kept * np.einsum("ij,ij->i", P_first, P_second) - np.einsum("ij,ij->i", first, second)
        total = float(lengths @ _squares(second))
        lost = float(misses @ misses) / total if total > 0 else 0.0
        return cls(scale, variance, 1 - projections.shape[1] * lost)


def training_blocks(source: VectorSource) -> Iterator[tuple[int, Vectors]]:
    """Yield all training rows in blocks: pairs of first row and float32 rows."""
    return source.blocks(tuning().training_block_floats)


def sample_numbers(n_rows: int, n: int) -> NDArray[np.int64]:
    """Return at most `n` evenly spaced numbers of rows, ascending."""
    return np.linspace(0, n_rows - 1, min(n, n_rows)).astype(np.int64)


def read_blocks(source: VectorSource, dim: int, numbers: NDArray[np.int64]) -> Iterator[tuple[int, Vectors]]:
    """Yield the rows with these numbers in blocks: pairs of position in `numbers` and float32 rows."""
    step = max(1, tuning().training_block_floats // dim)
    for start in range(0, len(numbers), step):
        yield start, source.read(numbers[start : start + step])


def lengths_of(
    source: VectorSource, centre: Vectors, project: Callable[[Vectors], Projections], otherwise: Lengths
) -> Lengths:
    """Measure the effect on norms of `project`, which centres and projects rows.

    Returns `otherwise` if the rows do not allow a measurement.
    """
    rows = source.read(sample_numbers(source.n_rows, _SAMPLE_ROWS))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        lengths = Lengths.measured(rows - centre, project(rows))
    return lengths if lengths.are_sound() else otherwise


def products_of(source: VectorSource, centre: Vectors, matrix: Vectors) -> Projections:
    """Return the products of all rows, centred, and a matrix: float32 (n_rows, n_columns)."""
    multiplied = np.empty((source.n_rows, len(matrix)), dtype=np.float32)
    for start, rows in training_blocks(source):
        with np.errstate(over="ignore", invalid="ignore"):
            multiplied[start : start + len(rows)] = products(rows, centre, matrix)
    return multiplied


def principal_axes(source: VectorSource, centre: Vectors, n_axes: int) -> Matrix:
    """Return the principal axes of the rows, orthonormal, by decreasing variance: float64 (n, dim).

    There are at most `n_axes` axes, and none without variance. They are computed from the covariance matrix or from the
    Gram matrix of the rows, whichever is smaller.
    """
    dim = len(centre)
    if dim <= source.n_rows:
        covariance = np.zeros((dim, dim))
        for _, rows in training_blocks(source):
            wide = rows.astype(np.float64) - centre
            covariance += wide.T @ wide
        return _signed(_leading(covariance, n_axes).T)
    centred = source.read(slice(0, source.n_rows)) - centre
    step = rows_per_block(source.n_rows) * 16
    parts = [centred[:, first : first + step] for first in range(0, dim, step)]
    gram = np.zeros((source.n_rows, source.n_rows))
    for part in parts:
        wide = part.astype(np.float64)
        gram += wide @ wide.T
    vectors = _leading(gram, n_axes)
    axes = np.concatenate([vectors.T @ part.astype(np.float64) for part in parts], axis=1)
    return _signed(_orthonormal_columns(axes.T).T)  # axes of small variance are not orthogonal due to rounding


def random_directions(rng: np.random.Generator, n: int, dim: int, beside: Matrix | None = None) -> Matrix:
    """Draw `n` orthonormal directions, float64 (n, dim), of which `beside` gives the first."""
    known = np.empty((0, dim)) if beside is None else beside
    drawn = rng.standard_normal((n - len(known), dim))
    return np.concatenate([known, _orthonormal_columns(np.concatenate([known, drawn]).T).T[len(known) :]])


def nearest_orthonormal(matrix: Matrix) -> Matrix:
    """Return the matrix with orthonormal columns whose product with `matrix`, (m, n), has the largest trace.

    The solution is U V^T of the singular value decomposition (the orthogonal Procrustes problem).
    """
    largest = float(np.abs(matrix).max())
    if not np.isfinite(largest):
        raise ValueError(OVERFLOW)
    wide = matrix.astype(np.float64) / (largest or 1)
    # The eigenvectors of the smaller, symmetric matrix V S^2 V^T take a third of the time. They are accurate unless the
    # square of a singular value is lost to rounding.
    squares, V = np.linalg.eigh(wide.T @ wide)
    if squares[0] > 1e-8 * squares[-1]:
        U, Vt = wide @ (V / np.sqrt(squares)), V.T
    else:
        U, _, Vt = np.linalg.svd(wide, full_matrices=False)
    nearest: Matrix = U @ Vt
    return nearest


def alternate(
    start: Parameters,
    measure: Callable[[Parameters], tuple[float, Matrix]],
    improve: Callable[[Parameters, Matrix], Parameters],
    n_iter: int,
) -> tuple[Parameters, NDArray[np.float64]]:
    """Minimise an objective in steps that cannot increase it.

    Parameters
    ----------
    start : parameters
    measure : callable
        Returns the objective of some parameters, and a matrix for `improve`.
    improve : callable
        Returns better parameters, given parameters and that matrix.
    n_iter : int

    Returns
    -------
    parameters
        The best parameters found.
    float64 array of shape (n_iter + 1,)
        The objective at the start and after each iteration.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        best = start
        reached, matrix = measure(best)
        objective = [reached]
        while len(objective) <= n_iter and np.isfinite(objective[-1]):
            following = improve(best, matrix)
            reached, matrix = measure(following)
            if reached >= objective[-1]:  # converged: the rest is rounding
                objective += [objective[-1]] * (n_iter + 1 - len(objective))
                break
            best = following
            objective.append(reached)
    if not np.isfinite(objective[-1]):
        raise ValueError(OVERFLOW)
    return best, np.array(objective)


def _leading(symmetric: Matrix, n: int) -> Matrix:
    """Return the eigenvectors of the largest eigenvalues, at most `n` and without those of 0, as columns."""
    from scipy import linalg

    size = len(symmetric)
    if not np.isfinite(symmetric).all():
        raise ValueError(OVERFLOW)
    values, vectors = linalg.eigh(symmetric, subset_by_index=[max(0, size - n), size - 1], overwrite_a=True)
    if not values[-1] > 0:
        raise ValueError("fit needs rows that differ, all rows are equal")
    # Rows are float32, whose rounding has 1e-14 of the largest variance.
    leading: Matrix = vectors[:, values > 1e-13 * values[-1]][:, ::-1]
    return leading


def _orthonormal_columns(matrix: Matrix) -> Matrix:
    """Orthonormalise the columns in order; random columns become uniformly distributed directions."""
    Q, R = np.linalg.qr(matrix)
    columns: Matrix = Q * np.where(np.diagonal(R) < 0, -1, 1)
    return columns


def _signed(axes: Matrix) -> Matrix:
    """Make the largest entry of each row positive: LAPACK does not define the sign of eigenvectors."""
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, np.newaxis], axis=1)
    signed: Matrix = axes * np.where(largest < 0, -1, 1)
    return signed


def _squares(rows: Matrix) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = np.einsum("ij,ij->i", rows, rows)
    return squares
