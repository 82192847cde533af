"""Training of the circulant vector: the time-frequency optimisation of Circulant Binary Embedding, section 4.

Let X be the centred rows of the data, multiplied by the signs of D, padded, and scaled to a mean squared norm of 1.
Training finds r and B that minimise

    |B - X R^T|^2 + lam |R R^T - I|^2 + mu n_rows (mean over similar |R x_i - R x_j|^2 - mean over dissimilar)

where R is the circulant matrix of r, and B has entries +-1/sqrt(length), which are 0 past column n_bits. For a given r,
the best B is the signs of X R^T. For a given B, the problem separates into one problem per frequency, which has a
closed form. Neither step can increase the objective. (The paper sums over pairs. Means make the weight of mu
independent of the number of pairs.) Memory is O(length), because every iteration reads the rows again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.typing import Spectrum, Vectors
from .base import rows_per_block

RowReader: TypeAlias = Callable[[slice | NDArray[np.int64]], Vectors]
Sum: TypeAlias = NDArray[Any]  # over rows, for each frequency: float64 or complex128

# Sums over rows are computed in this many parts and added in order, so that they do not depend on the thread count.
_N_PARTS = 8


@dataclass(frozen=True)
class TrainingRows:
    """The data that one circulant block is trained on.

    Attributes
    ----------
    read : callable
        Returns some rows, multiplied by signs and padded: float32 (n, length).
    n_rows, length : int
    similar, dissimilar : int64 arrays of shape (n_pairs, 2)
        Pairs of row numbers.
    """

    read: RowReader
    n_rows: int
    length: int
    similar: NDArray[np.int64]
    dissimilar: NDArray[np.int64]


@dataclass(frozen=True)
class TrainingOptions:
    """Weights of the terms of the objective, the number of iterations, and the number of threads."""

    lam: float
    mu: float
    n_iter: int
    n_threads: int


def learn_spectrum(
    rows: TrainingRows, initial: Spectrum, n_bits: int, options: TrainingOptions
) -> tuple[Spectrum, NDArray[np.float64]]:
    """Train the half spectrum of one circulant block, of whose rows the first `n_bits` become bits.

    Returns
    -------
    complex64 array of shape (length // 2 + 1,)
    float64 array of shape (n_iter + 1,)
        The objective at the start and after each iteration.
    """
    problem = _Problem(rows, n_bits, options)
    spectrum = initial
    correlation = problem.correlation(spectrum)
    objective = [problem.objective(spectrum, correlation)]
    while len(objective) <= options.n_iter:
        previous = spectrum
        spectrum = best_spectrum(problem.quadratic, correlation, options.lam * rows.length).astype(np.complex64)
        correlation = problem.correlation(spectrum)
        reached = problem.objective(spectrum, correlation)
        if not np.isfinite(reached):
            raise ValueError("training overflowed: scale the vectors down, or choose a smaller mu")
        rounding = 1e-5 * (abs(reached) + rows.n_rows)  # float32 transforms, summed over n_rows terms
        assert reached <= objective[-1] + rounding, "both steps are minimisers: the objective cannot increase"
        if reached >= objective[-1]:  # converged: the rest is rounding
            spectrum = previous
            objective += [objective[-1]] * (options.n_iter + 1 - len(objective))
        else:
            objective.append(reached)
    return spectrum, np.array(objective)


class _Problem:
    """The objective of one block as a function of its half spectrum."""

    def __init__(self, rows: TrainingRows, n_bits: int, options: TrainingOptions) -> None:
        from scipy import fft

        self._rows, self._n_bits, self._options = rows, n_bits, options
        # All frequencies but 0 and length / 2 represent their mirror image too.
        self._weights = np.full(rows.length // 2 + 1, 2.0)
        self._weights[[0, -1] if rows.length % 2 == 0 else [0]] = 1
        energy = self._sum(lambda part: _energy(fft.rfft(rows.read(part), axis=1))).real
        mean_square = float(self._weights @ energy) / (rows.length * rows.n_rows)
        if not mean_square > 0:
            raise ValueError("kind 'learned' needs rows that differ, all rows are equal")
        scale = 1 / np.sqrt(mean_square)
        contrast = self._pair_energy(rows.similar) - self._pair_energy(rows.dissimilar)
        self.quadratic = scale**2 * (energy + options.mu * rows.n_rows * contrast)
        self._unit = scale / np.sqrt(rows.length)  # scales products of signs and rows to products of B and X

    def correlation(self, spectrum: Spectrum) -> Sum:
        """Return the sum over rows of F(b) conj(F(x)), with b the signs of R x: -(h + i g) / 2 of the paper."""
        from scipy import fft

        length = self._rows.length

        def correlation_of(part: slice) -> Sum:
            transformed = fft.rfft(self._rows.read(part), axis=1)
            signs = np.copysign(np.float32(1), fft.irfft(transformed * spectrum, n=length, axis=1) + np.float32(0))
            signs[:, self._n_bits :] = 0
            correlation = np.multiply(fft.rfft(signs, axis=1), transformed.conj(), out=transformed)
            total: Sum = correlation.sum(axis=0, dtype=np.complex128)
            return total

        correlation: Sum = self._unit * self._sum(correlation_of)
        return correlation

    def objective(self, spectrum: Spectrum, correlation: Sum) -> float:
        """Return the objective for the best B, whose correlation with the rows is given."""
        length, n_rows = self._rows.length, self._rows.n_rows
        square = np.abs(spectrum.astype(np.complex128)) ** 2
        fit = self.quadratic * square - 2 * (spectrum * correlation.conj()).real
        terms = fit / length + self._options.lam * (square - 1) ** 2
        return float(n_rows * self._n_bits / length + self._weights @ terms)

    def _pair_energy(self, pairs: NDArray[np.int64]) -> Sum | float:
        """Return the mean of |F(x_i - x_j)|^2 over pairs, or 0 if there are none."""
        from scipy import fft

        total: Sum | float = 0.0
        step = rows_per_block(self._rows.length)
        for start in range(0, len(pairs), step):
            left, right = pairs[start : start + step].T
            total = total + _energy(fft.rfft(self._rows.read(left) - self._rows.read(right), axis=1))
        return total / max(1, len(pairs))

    def _sum(self, sum_of: Callable[[slice], Sum]) -> Sum:
        """Add `sum_of(part)` over all rows, in an order that does not depend on the thread count."""
        n_rows, length = self._rows.n_rows, self._rows.length
        size = -(-n_rows // _N_PARTS)
        step = rows_per_block(length)
        sums: Sum = np.zeros((_N_PARTS, length // 2 + 1), dtype=np.complex128)

        def task(start: int, stop: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # the caller checks the sum
                for first in range(start, stop, step):
                    leave_if_interrupted()
                    sums[start // size] += sum_of(slice(first, min(first + step, stop)))

        for_each_chunk(task, n_rows, size, self._options.n_threads)
        total: Sum = sums.sum(axis=0)
        return total


def best_spectrum(
    quadratic: NDArray[np.float64], correlation: NDArray[np.complex128], penalty: float
) -> NDArray[np.complex128]:
    """Minimise `quadratic |r|^2 - 2 Re(r conj(correlation)) + penalty (|r|^2 - 1)^2` at each frequency.

    r points along the correlation c. Its modulus is the root rho >= 0 of the derivative,
    2 penalty rho^3 + (quadratic - 2 penalty) rho - |c| = 0, of which there is exactly one when |c| > 0.
    """
    modulus = np.abs(correlation)
    rho: Sum = _positive_root(quadratic / (2 * penalty) - 1, modulus / (2 * penalty))
    direction: NDArray[np.complex128] = np.ones_like(correlation)
    np.divide(correlation, modulus, out=direction, where=modulus > 0)
    return rho * direction


def _positive_root(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest real root of t^3 + p t - q = 0 for q >= 0, by Vieta's substitutions."""
    width = 2 * np.sqrt(np.abs(p) / 3)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(p == 0, 0, 4 * q / width**3)
    # t = width sinh(a), cosh(a) or cos(a) turns the equation into one for the triple angle, whose value is `ratio`.
    root = np.where(
        p > 0,
        width * np.sinh(np.arcsinh(ratio) / 3),
        np.where(
            ratio > 1,
            width * np.cosh(np.arccosh(np.maximum(ratio, 1)) / 3),
            width * np.cos(np.arccos(np.clip(ratio, 0, 1)) / 3),
        ),
    )
    # The substitution fails where p is 0 or negligible: t is then the cube root of q.
    return np.where(np.isfinite(ratio) & (p != 0), root, np.cbrt(q))


def _energy(transformed: NDArray[np.complex64]) -> Sum:
    """Return the sum of |F|^2 over rows, in float64: float32 could not represent all squares."""
    wide = transformed.view(np.float32).astype(np.float64).reshape(*transformed.shape, 2)
    energy: Sum = np.einsum("nfc,nfc->f", wide, wide)
    return energy
