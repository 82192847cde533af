"""The circulant encoder: sign(R D (x - centre)), with R circulant and D random signs, by FFT."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core.checks import (
    MOST_DIM,
    as_array,
    as_choice,
    as_count,
    as_flag,
    as_iterations,
    as_positive,
    as_seed,
    require_memory,
)
from .._core.threads import as_n_threads
from .._core.typing import Arrays, Projections, Spectrum, Vectors
from ..data.source import VectorSource, as_pairs
from .base import Encoder, Projector, RowsProjector, rows_per_block
from .convolution import CircularConvolution, fast_length
from .direct import DirectConvolution
from .learning import learn_spectrum

KINDS = ("orthogonal", "random", "learned")

# Blocks are drawn one by one, and a code that is so many times longer than its vector says nothing more of it.
_MOST_BLOCKS = 2**16
# Mean squares of a spectrum with which float32 holds the projections of all vectors that an index takes.
_LEAST_ENERGY, _LARGEST_ENERGY = 1e-24, 1e24
# Weights in training that leave something of the other terms.
_LARGEST_WEIGHT = 1e6
# Signs, as int8 and as float32, the spectrum and what transforms derive from it.
_VALUE_BYTES = 16


class CirculantEncoder(Encoder):
    """Binary codes of long vectors in O(dim log dim) time and O(dim) parameters.

    The code of x is the signs of R D (x - centre): D flips signs at random and R is a circulant matrix, so that
    R v is a circular convolution with one vector r (Yu, Kumar, Gong and Chang, Circulant Binary Embedding, ICML
    2014). More bits than the matrix has rows come from further, independent blocks R', D', ...

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`; by default `dim` rounded up to a multiple of 64. The first
        bits of a code do not depend on it (except for kind "learned", which is trained for its number of bits; of
        sparse vectors a bit whose projection is within rounding of 0 may).
        Every `length` bits cost one transform.
    kind : {"orthogonal", "random", "learned"}
        How r is chosen. "orthogonal": random phases and a flat spectrum, which makes R exactly orthogonal.
        "random": r ~ N(0, 1), the paper's CBE-rand. "learned": r trained on the data in `fit`, the paper's CBE-opt.
    seed : int
        Chooses signs and r.
    pad : bool
        Pad vectors with zeros to a length whose FFT is fast. Without it R has exactly `dim` rows, as in the paper.
    lam : float
        Weight of orthogonality in the training of kind "learned".
    mu : float
        Weight of the similar and dissimilar pairs in that training: that of an average pair to an average row.
    n_iter : int
        Iterations of that training.

    Attributes
    ----------
    length : int
        Length of the transform: the rows of one block R.
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting; zeros until `fit`.
    signs : int8 array of shape (n_blocks, dim)
        The diagonals of D.
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
        The half spectra of r.
    objective : float64 array of shape (n_blocks, n_iter + 1)
        The training objective at the start and after each iteration; empty unless kind is "learned" and fitted.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = CirculantEncoder(300, n_bits=256).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 32), (256,))
    """

    name: ClassVar[str] = "circulant"
    _direct: DirectConvolution | None  # made when sparse vectors come

    def __init__(
        self,
        dim: int,
        n_bits: int | None = None,
        kind: str = "orthogonal",
        seed: int = 0,
        pad: bool = True,
        *,
        lam: float = 1.0,
        mu: float = 0.25,
        n_iter: int = 10,
    ) -> None:
        super().__init__(dim, n_bits)
        self._set_options(kind, seed, lam, mu, n_iter)
        self.length = fast_length(self.dim) if as_flag(pad, "pad") else self.dim
        if self.n_bits > _MOST_BLOCKS * self.length:
            most = _MOST_BLOCKS * self.length
            raise ValueError(f"n_bits must be at most {most} for vectors of {self.dim} values, got {self.n_bits}")
        require_memory(_VALUE_BYTES * self._n_blocks(self.n_bits) * self.length, "an encoder of this length")
        self.signs, self.spectrum = self._draw()
        self.objective: NDArray[np.float64] = np.empty((len(self.signs), 0))
        self._prepare()

    def __repr__(self) -> str:
        return f"CirculantEncoder(dim={self.dim}, n_bits={self.n_bits}, kind={self.kind!r}, seed={self.seed})"

    def fit(
        self,
        X: ArrayLike,
        similar: ArrayLike | None = None,
        dissimilar: ArrayLike | None = None,
        *,
        n_threads: int | None = None,
    ) -> Self:
        """Take the mean of `X` as the centre; for kind "learned" train the circulant vectors as well.

        Not while other threads encode with this encoder.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows. Training passes over all of them `n_iter` + 2 times for each block; some thousands do.
        similar, dissimilar : array_like of shape (n_pairs, 2), optional
            Pairs of row numbers of `X` whose codes should be near to, or far from each other (kind "learned").
        n_threads : int, optional
            By default one for each core; the result does not depend on it.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        pairs = {
            "similar": as_pairs(similar, source.n_rows, "similar"),
            "dissimilar": as_pairs(dissimilar, source.n_rows, "dissimilar"),
        }
        if self.kind != "learned" and any(map(len, pairs.values())):
            raise ValueError(f"pairs train an encoder of kind 'learned', this one is of kind {self.kind!r}")
        threads = as_n_threads(n_threads)
        centre = self._mean_row(source)
        if self.kind == "learned":
            _, spectrum = self._draw()
            objectives = []
            for block in range(len(spectrum)):

                def flipped_rows(rows: slice | NDArray[np.int64], block: int = block) -> Vectors:
                    taken = source.read(rows)
                    flipped = np.empty((len(taken), 1, self.length), dtype=np.float32)
                    _flip(taken, centre, self._float_signs[block : block + 1], out=flipped)
                    return flipped[:, 0]

                with np.errstate(over="ignore", invalid="ignore"):  # it looks at what comes of it
                    spectrum[block], objective = learn_spectrum(
                        flipped_rows, source.n_rows, spectrum[block], self.length,
                        n_bits=min(self.length, self.n_bits - block * self.length),
                        lam=self.lam, mu=self.mu, n_iter=self.n_iter, n_threads=threads, **pairs,
                    )  # fmt: skip
                objectives.append(objective)
            if not _is_sound(self._energy(spectrum)):
                raise ValueError("training overflowed: scale the vectors down, or choose other values of lam and mu")
            self.spectrum, self.objective = spectrum, np.array(objectives)
            self._prepare()
        self.centre, self._direct = centre, None
        self.is_fitted = True
        return self

    def shorten(self, n_bits: int) -> Self:
        """Return the encoder whose codes are the first `n_bits` bits of this one's."""
        if as_count(n_bits, "n_bits") > self.n_bits:
            raise ValueError(f"n_bits must be at most {self.n_bits}, the bits of this encoder, got {n_bits}")
        n_blocks = self._n_blocks(n_bits)
        arrays = self.to_arrays()
        for name in ("signs", "spectrum", "objective"):
            arrays[name] = arrays[name][:n_blocks]
        return self.from_arrays(self.config() | {"n_bits": int(n_bits)}, arrays)

    @property
    def scale(self) -> float:
        """The factor that makes scale * |projections|^2 an estimate of the squared length of a centred vector."""
        return self.length / (self.n_bits * float(np.mean(self._energy())))

    @property
    def scale_variance(self) -> float:
        """The relative variance of that estimate, over the choice of the encoder."""
        if self.kind == "random":
            return 2 / self.n_bits  # that of independent rows; the energy of r itself is in the scale
        # Whole blocks keep lengths; of the last one a share of the rows is taken, orthogonal to each other.
        share = self.n_bits % self.length / self.length
        return 2 * share * (1 - share) * self.length / self.n_bits**2

    @property
    def overlap(self) -> float:
        """How much of P^T P y lies along y, P the projections: 1 for whole blocks of orthogonal rows."""
        if self.kind == "random":
            return 0.0  # its spectrum is not flat, which costs as much as the overlap gains
        whole, rest = divmod(self.n_bits, self.length)
        return (whole * self.length + rest**2 / self.length) / self.n_bits

    def _energy(self, spectrum: Spectrum | None = None) -> NDArray[np.float64]:
        """Mean square of the whole spectrum of each block: of this encoder, or of one that it may get."""
        spectrum = self.spectrum if spectrum is None else spectrum
        weights = np.full(spectrum.shape[1], 2.0)
        weights[[0, -1] if self.length % 2 == 0 else [0]] = 1
        energy: NDArray[np.float64] = (np.abs(spectrum.astype(np.complex128)) ** 2) @ weights / self.length
        return energy

    def config(self) -> dict[str, Any]:
        """Describe the encoder apart from its arrays, in values that JSON can hold."""
        names = ("dim", "n_bits", "kind", "seed", "length", "lam", "mu", "n_iter")
        return {"encoder": self.name, "fitted": self.is_fitted} | {name: getattr(self, name) for name in names}

    def to_arrays(self) -> Arrays:
        """Return the parameters as plain arrays: `centre`, `signs`, `spectrum` and `objective`."""
        return {"centre": self.centre, "signs": self.signs, "spectrum": self.spectrum, "objective": self.objective}

    @classmethod
    def from_arrays(cls, config: dict[str, Any], arrays: Arrays) -> Self:
        """Rebuild the encoder that gave `config` and `arrays`; nothing is drawn or computed again."""
        dim = as_count(config["dim"], "dim", most=MOST_DIM)
        centre = as_array(arrays, "centre", np.float32, (dim,))  # first: it shows that there are so many
        encoder = cls.__new__(cls)
        Encoder.__init__(encoder, dim, config["n_bits"])
        encoder._set_options(config["kind"], config["seed"], config["lam"], config["mu"], config["n_iter"])
        encoder.length = as_count(config["length"], "length", least=dim, most=2 * dim)
        n_blocks = encoder._n_blocks(encoder.n_bits)
        encoder.is_fitted = as_flag(config["fitted"], "fitted")
        encoder.centre = centre
        encoder.signs = as_array(arrays, "signs", np.int8, (n_blocks, encoder.dim))
        encoder.spectrum = as_array(arrays, "spectrum", np.complex64, (n_blocks, encoder.length // 2 + 1))
        encoder.objective = as_array(arrays, "objective", np.float64, (n_blocks, None))
        if not (np.abs(encoder.signs) == 1).all():
            raise ValueError("signs must be 1 or -1")
        if not _is_sound(encoder._energy()):
            raise ValueError(
                f"spectrum must have a mean square from {_LEAST_ENERGY} to {_LARGEST_ENERGY} in each block"
            )
        encoder._prepare()
        return encoder

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config(), "arrays": self.to_arrays()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(type(self).from_arrays(**state).__dict__)

    def _set_options(self, kind: str, seed: int, lam: float, mu: float, n_iter: int) -> None:
        self.kind = as_choice(kind, "kind", KINDS)
        self.seed = as_seed(seed, "seed")
        self.lam, self.mu = as_positive(lam, "lam"), as_positive(mu, "mu", zero=True)
        if not 1 / _LARGEST_WEIGHT <= self.lam <= _LARGEST_WEIGHT or self.mu > _LARGEST_WEIGHT:
            most = f"{_LARGEST_WEIGHT:g}"
            raise ValueError(f"lam must be from 1 / {most} to {most}, mu from 0 to {most}, got {lam} and {mu}")
        self.n_iter = as_iterations(n_iter, "n_iter")

    def _n_blocks(self, n_bits: int) -> int:
        return -(-n_bits // self.length)

    def _draw(self) -> tuple[NDArray[np.int8], Spectrum]:
        """Draw signs and spectra from the seed."""
        n_blocks = self._n_blocks(self.n_bits)
        signs = np.empty((n_blocks, self.dim), dtype=np.int8)
        spectrum = np.empty((n_blocks, self.length // 2 + 1), dtype=np.complex64)
        draw_spectrum = _gaussian_spectrum if self.kind == "random" else _flat_spectrum
        for block in range(n_blocks):
            # A stream of its own for each block: the first blocks are the same for every n_bits.
            bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(block,)))
            signs[block] = _draw_signs(bits, self.dim)
            spectrum[block] = draw_spectrum(bits, self.length)
        return signs, spectrum

    def _prepare(self) -> None:
        """Derive what projecting needs from the parameters."""
        self._float_signs = self.signs.astype(np.float32)
        self._convolve = CircularConvolution(self.spectrum, self.length)
        self._direct = None

    def _projector(self) -> Projector:
        flipped = np.empty((self._convolve.rows_per_block(), len(self.signs), self.length), dtype=np.float32)

        def project(rows: Vectors) -> Projections:
            block = flipped[: len(rows)]
            _flip(rows, self.centre, self._float_signs, out=block)
            return self._convolve(block).reshape(len(rows), -1)

        return project

    def _projectors(self, source: VectorSource) -> Callable[[], RowsProjector]:
        """Project sparse rows of few entries directly, and all others by transforms."""
        if self.kind == "learned" and not self.is_fitted:
            raise ValueError("an encoder of kind 'learned' must be fitted before it can project: call fit(X)")
        make_transform = super()._projectors(source)
        if not source.is_sparse:
            return make_transform
        if self._direct is None:  # several threads may come here at once: they make the same
            self._direct = DirectConvolution(self.spectrum, self._float_signs, self.centre, self.length, self.n_bits)
        direct = self._direct

        def make() -> RowsProjector:
            transform = functools.cache(make_transform)  # made when a long row comes

            def project(rows: slice) -> Projections:
                entries = source.read_sparse(rows)
                is_short = entries.counts() <= direct.most_entries
                if is_short.all():
                    return direct(entries)
                projections = np.empty((len(entries), self.n_bits), dtype=np.float32)
                projections[is_short] = direct(entries[np.flatnonzero(is_short)])
                long, step = np.flatnonzero(~is_short), self._convolve.rows_per_block()
                for first in range(0, len(long), step):
                    some = long[first : first + step]
                    projections[some] = transform()(rows.start + some)[:, : self.n_bits]
                return projections

            return project

        return make

    def _rows_per_block(self, source: VectorSource) -> int:
        return rows_per_block(self.n_bits) if source.is_sparse else self._convolve.rows_per_block()


def _is_sound(energy: NDArray[np.float64]) -> bool:
    """Tell whether spectra with these mean squares make projections that are neither lost nor infinite."""
    return bool(((energy >= _LEAST_ENERGY) & (energy <= _LARGEST_ENERGY)).all())


def _flip(rows: Vectors, centre: Vectors, signs: Vectors, out: Vectors) -> None:
    """Centre rows, multiply them by the signs of each block and pad: into float32 (n, n_blocks, length)."""
    values = out[:, :, : rows.shape[1]]
    np.subtract(rows[:, np.newaxis], centre, out=values)
    values *= signs
    out[:, :, rows.shape[1] :] = 0


# Parameters are drawn from the raw words of PCG64, whose stream numpy guarantees; that of its distributions it does
# not, and a seed should mean the same encoder for ever.


def _draw_uniform(bits: np.random.PCG64, size: int) -> NDArray[np.float64]:
    """Draw uniform numbers of 53 bits in [0, 1)."""
    words: NDArray[np.uint64] = bits.random_raw(size)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _draw_signs(bits: np.random.PCG64, size: int) -> NDArray[np.int8]:
    """Draw +1 or -1, a bit each."""
    words = bits.random_raw(-(-size // 64)).astype("<u8")
    flips = np.unpackbits(words.view(np.uint8), count=size, bitorder="little").view(np.int8)
    return np.int8(1) - np.int8(2) * flips


def _flat_spectrum(bits: np.random.PCG64, length: int) -> Spectrum:
    """Draw a half spectrum of modulus 1 with random phases: the circulant matrix is orthogonal."""
    spectrum = np.exp(2j * np.pi * _draw_uniform(bits, length // 2 + 1))
    single = [0, -1] if length % 2 == 0 else [0]  # DC and Nyquist are real
    spectrum[single] = np.where(spectrum[single].real >= 0, 1, -1)
    rounded: Spectrum = spectrum.astype(np.complex64)
    return rounded


def _gaussian_spectrum(bits: np.random.PCG64, length: int) -> Spectrum:
    """Return the half spectrum of r ~ N(0, 1), drawn by the method of Box and Muller."""
    from scipy import fft

    radius = np.sqrt(-2 * np.log1p(-_draw_uniform(bits, length)))
    r = radius * np.cos(2 * np.pi * _draw_uniform(bits, length))
    spectrum: Spectrum = fft.rfft(r).astype(np.complex64)
    return spectrum
