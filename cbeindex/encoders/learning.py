"""Training of the circulant vector: the time-frequency optimisation of Circulant Binary Embedding, section 4.

With x the flipped, padded rows of the data, brought to a mean squared norm of 1, find r and B that minimise

    |B - X R^T|^2 + lam |R R^T - I|^2 + mu n_rows (mean over similar |R x_i - R x_j|^2 - mean over dissimilar)

where R is the circulant matrix of r and B has entries +-1/sqrt(length), 0 past column n_bits. For a given r the best B
is the signs of X R^T. For a given B the problem falls apart into one for each frequency, which has a closed form.
Neither step can raise the objective. (The paper sums over pairs; the means keep the meaning of mu when the number of
pairs changes.) Memory is O(length): rows are read again in each iteration.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._core.threads import for_each_chunk, leave_if_interrupted
from .._core.typing import Spectrum, Vectors
from .base import rows_per_block

RowReader: TypeAlias = Callable[[slice | NDArray[np.int64]], Vectors]
Sum: TypeAlias = NDArray[Any]  # over rows, for each frequency: float64 or complex128

# Sums over rows are made in this many parts, whatever the thread count, and added in order.
_N_PARTS = 8


def learn_spectrum(
    read: RowReader,
    n_rows: int,
    initial: Spectrum,
    length: int,
    *,
    n_bits: int,
    similar: NDArray[np.int64],
    dissimilar: NDArray[np.int64],
    lam: float,
    mu: float,
    n_iter: int,
    n_threads: int,
) -> tuple[Spectrum, NDArray[np.float64]]:
    """Train the half spectrum of one circulant block.

    Parameters
    ----------
    read : callable
        Gives some rows of the data, flipped and padded: float32 (n, length).
    n_rows : int
    initial : complex64 array of shape (length // 2 + 1,)
    length, n_bits : int
        Rows of the circulant matrix, and how many of them make bits.
    similar, dissimilar : int64 arrays of shape (n_pairs, 2)
    lam, mu : float
    n_iter, n_threads : int

    Returns
    -------
    complex64 array of shape (length // 2 + 1,)
    float64 array of shape (n_iter + 1,)
        The objective at the start and after each iteration.
    """
    from scipy import fft

    weights = np.full(len(initial), 2.0)  # frequencies of the half spectrum that stand for their mirror image too
    weights[[0, -1] if length % 2 == 0 else [0]] = 1

    def energy_of(rows: slice) -> Sum:
        return _energy(fft.rfft(read(rows), axis=1))

    def correlation_of(rows: slice) -> Sum:
        """Sum of F(b) conj(F(x)), b the signs of R x: twice it is -(h + i g) of the paper."""
        transformed = fft.rfft(read(rows), axis=1)
        signs = np.copysign(np.float32(1), fft.irfft(transformed * spectrum, n=length, axis=1) + np.float32(0))
        signs[:, n_bits:] = 0
        correlation = np.multiply(fft.rfft(signs, axis=1), transformed.conj(), out=transformed)
        total: Sum = correlation.sum(axis=0, dtype=np.complex128)
        return total

    def sum_of(part: Callable[[slice], Sum]) -> Sum:
        return _sum_over_rows(part, n_rows, length, n_threads)

    energy = sum_of(energy_of).real
    mean_square = float(weights @ energy) / (length * n_rows)
    if not mean_square > 0:
        raise ValueError("kind 'learned' needs rows that differ, all rows are equal")
    scale = 1 / np.sqrt(mean_square)
    contrast = _pair_energy(read, similar, length) - _pair_energy(read, dissimilar, length)
    quadratic = scale**2 * (energy + mu * n_rows * contrast)
    unit = scale / np.sqrt(length)  # of a product of B and X

    def objective_of(spectrum: Spectrum, correlation: NDArray[np.complex128]) -> float:
        square = np.abs(spectrum.astype(np.complex128)) ** 2
        fit = quadratic * square - 2 * (spectrum * correlation.conj()).real
        return float(n_rows * n_bits / length + weights @ (fit / length + lam * (square - 1) ** 2))

    spectrum = initial
    correlation = unit * sum_of(correlation_of)
    objective = [objective_of(spectrum, correlation)]
    while len(objective) <= n_iter:
        previous = spectrum
        spectrum = best_spectrum(quadratic, correlation, lam * length).astype(np.complex64)
        correlation = unit * sum_of(correlation_of)
        reached = objective_of(spectrum, correlation)
        if not np.isfinite(reached):
            raise ValueError("training overflowed: scale the vectors down, or choose a smaller mu")
        rounding = 1e-5 * (abs(reached) + n_rows)  # of float32 transforms, which sums of n_rows terms may show
        assert reached <= objective[-1] + rounding, "the steps are minimisers: the objective cannot rise"
        if reached >= objective[-1]:  # converged: the rest is rounding
            spectrum = previous
            objective += [objective[-1]] * (n_iter + 1 - len(objective))
        else:
            objective.append(reached)
    return spectrum, np.array(objective)


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
    """Largest real root of t^3 + p t - q = 0 for q >= 0, by Vieta's substitutions."""
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
    # Where the cubic term alone decides, the substitution has nothing to work with.
    return np.where(np.isfinite(ratio) & (p != 0), root, np.cbrt(q))


def _energy(transformed: NDArray[np.complex64]) -> Sum:
    """Sum of |F|^2 over rows; in float64, where the squares of very large and very small numbers have room."""
    wide = transformed.view(np.float32).astype(np.float64).reshape(*transformed.shape, 2)
    energy: Sum = np.einsum("nfc,nfc->f", wide, wide)
    return energy


def _pair_energy(read: RowReader, pairs: NDArray[np.int64], length: int) -> Sum | float:
    """Mean of |F(x_i - x_j)|^2 over pairs; 0 without pairs."""
    from scipy import fft

    total: Sum | float = 0.0
    step = rows_per_block(length)
    for start in range(0, len(pairs), step):
        left, right = pairs[start : start + step].T
        total = total + _energy(fft.rfft(read(left) - read(right), axis=1))
    return total / max(1, len(pairs))


def _sum_over_rows(part: Callable[[slice], Sum], n_rows: int, length: int, n_threads: int) -> Sum:
    """Add `part(rows)` over blocks of all rows, in an order that does not depend on the thread count."""
    size = -(-n_rows // _N_PARTS)
    step = rows_per_block(length)
    sums: Sum = np.zeros((_N_PARTS, length // 2 + 1), dtype=np.complex128)

    def task(start: int, stop: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # who asks looks at the sum
            for first in range(start, stop, step):
                leave_if_interrupted()
                sums[start // size] += part(slice(first, min(first + step, stop)))

    for_each_chunk(task, n_rows, size, n_threads)
    total: Sum = sums.sum(axis=0)
    return total
