"""The circulant encoder: sign(R D (x - centre)), with a circulant matrix R and random signs D, computed by FFT."""

from __future__ import annotations

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
from .._core.threads import as_n_threads, for_each_chunk, leave_if_interrupted
from .._core.tuning import tuning
from .._core.typing import Arrays, Floats, Projections, Rows, Spectrum, Vectors
from ..data.source import VectorSource, as_pairs
from .base import Encoder, Projector, RowsProjector, rows_per_block
from .devices import DeviceEncoder, is_device_array, refuse_threads
from .direct import DirectConvolution
from .drawing import draw_signs, flat_spectrum, gaussian_spectrum
from .learning import TrainingOptions, TrainingRows, learn_spectrum
from .lengths import fast_length
from .outputs import Outputs
from .transform import CirculantTransform, KernelArrays

KINDS = ("orthogonal", "random", "learned")

# Limit on the ratio of code length to transform length. Longer codes carry no more information about a vector.
_MOST_BLOCKS = 2**16
# Range of the mean square of a spectrum in which float32 can represent the projections of all vectors of an index.
_LEAST_ENERGY, _LARGEST_ENERGY = 1e-24, 1e24
# Range of the weights in training. Outside of it, one term of the objective would be lost to rounding.
_LARGEST_WEIGHT = 1e6
# Memory of an encoder per value of a block: signs, spectrum, and the tables and factors of transforms. 20 bytes at
# lengths of 2**17 that need no padding, 30 where the transform is twice as long.
_VALUE_BYTES = 32


class CirculantEncoder(Encoder):
    """Binary codes of long vectors in O(dim log dim) time and O(dim) parameters.

    The code of x is the signs of R D (x - centre). D flips signs at random, and R is a circulant matrix, so that R v is
    the circular convolution of v with one vector r (Yu, Kumar, Gong and Chang, Circulant Binary Embedding, ICML 2014).
    Codes with more bits than R has rows use further independent blocks R', D', ...

    Parameters
    ----------
    dim : int
        Length of the vectors.
    n_bits : int, optional
        Length of the codes, below, at or above `dim`. By default `dim`. Every `length`
        bits cost one transform. Codes of different lengths share their first bits, with two exceptions: kind
        "learned" is trained for a number of bits, and for sparse vectors bits may differ whose projection is 0 up to
        rounding.
    kind : {"orthogonal", "random", "learned"}
        How r is chosen. "orthogonal": random phases and a flat spectrum, so that R is exactly orthogonal. "random":
        r ~ N(0, 1), CBE-rand in the paper. "learned": r is trained on the data in `fit`, CBE-opt in the paper.
    seed : int
        Seed of the signs and of r.
    pad : bool
        Pad vectors with zeros to a length whose FFT is fast. Without padding, R has `dim` rows, as in the paper.
    lam : float
        Weight of orthogonality in training (kind "learned").
    mu : float
        Weight of the mean over similar and dissimilar pairs, relative to the mean over rows, in training.
    n_iter : int
        Iterations of training.

    Attributes
    ----------
    length : int
        Length of the transform, and number of rows of one block R.
    is_fitted : bool
    centre : float32 array of shape (dim,)
        Subtracted before projecting. Zeros before `fit`.
    signs : int8 array of shape (n_blocks, dim)
        The diagonals of D.
    spectrum : complex64 array of shape (n_blocks, length // 2 + 1)
        The half spectra of r.
    objective : float64 array of shape (n_blocks, n_iter + 1)
        The training objective at the start and after each iteration. Empty unless kind is "learned" and fitted.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).standard_normal((1000, 300))
    >>> encoder = CirculantEncoder(300, n_bits=256).fit(X)
    >>> encoder.encode(X).shape, encoder.project(X[0]).shape
    ((1000, 32), (256,))
    """

    name: ClassVar[str] = "circulant"
    _transform: CirculantTransform | None  # created for the first dense vectors
    _direct: DirectConvolution | None  # created for the first sparse vectors

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
        self._forget_tables()

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
        """Set the centre to the mean of `X`, and train the circulant vectors if kind is "learned".

        Other threads must not use the encoder meanwhile.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim)
            At least 2 rows. Training reads all rows `n_iter` + 2 times per block. Some thousands of rows suffice.
        similar, dissimilar : array_like of shape (n_pairs, 2), optional
            Pairs of row numbers of `X` whose codes should be near to, or far from, each other (kind "learned").
        n_threads : int, optional
            By default one per core. The result does not depend on it.

        Returns
        -------
        self
        """
        source = self._training_rows(X)
        pairs = as_pairs(similar, source.n_rows, "similar"), as_pairs(dissimilar, source.n_rows, "dissimilar")
        if self.kind != "learned" and any(map(len, pairs)):
            raise ValueError(f"pairs must be omitted unless kind is 'learned', got pairs for kind {self.kind!r}")
        threads = as_n_threads(n_threads)
        centre = self._mean_row(source)
        if self.kind == "learned":
            self.spectrum, self.objective = self._learn(source, centre, pairs, threads)
        self.centre = centre
        self._forget_tables()
        self.is_fitted = True
        return self

    def _learn(
        self, source: VectorSource, centre: Vectors, pairs: tuple[Rows, Rows], n_threads: int
    ) -> tuple[Spectrum, NDArray[np.float64]]:
        """Train all blocks; return their spectra and objectives."""
        _, spectrum = self._draw()
        float_signs = self.signs.astype(np.float32)
        options = TrainingOptions(self.lam, self.mu, self.n_iter, n_threads)
        objectives = []
        for block in range(len(spectrum)):

            def read(rows: slice | Rows, signs: Vectors = float_signs[block]) -> Vectors:
                taken = source.read(rows)
                flipped: Vectors = np.zeros((len(taken), self.length), dtype=np.float32)
                np.subtract(taken, centre, out=flipped[:, : self.dim])
                flipped[:, : self.dim] *= signs
                return flipped

            rows = TrainingRows(read, source.n_rows, self.length, *pairs)
            n_bits = min(self.length, self.n_bits - block * self.length)
            with np.errstate(over="ignore", invalid="ignore"):  # the result is checked below
                spectrum[block], objective = learn_spectrum(rows, spectrum[block], n_bits, options)
            objectives.append(objective)
        if not _is_sound(self._energy(spectrum)):
            raise ValueError("training overflowed: scale the vectors down, or choose other values of lam and mu")
        return spectrum, np.array(objectives)

    def project(self, X: ArrayLike, n_threads: int | None = None) -> Any:
        """Return the projections of vectors: the real numbers whose signs are the code.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
            Tensors of torch, and arrays of CuPy, JAX and others with the array API standard, stay on their device. This
            needs array-api-compat (extra `gpu`).
        n_threads : int, optional
            By default one per core. Other libraries choose their threads themselves.

        Returns
        -------
        float32 array of shape (n, n_bits), or (n_bits,) for a single vector, of the library of `X`
        """
        if is_device_array(X):
            refuse_threads(n_threads)
            return self._on_device(X).project(X)
        return super().project(X, n_threads)

    def encode(self, X: ArrayLike, n_threads: int | None = None) -> Any:
        """Encode vectors: one bit per projection, which is 1 if the projection is at least 0.

        Bit j of a code is bit j % 8 of byte j // 8. Bits past `n_bits` are 0. A vector equal to the centre (the zero
        vector before `fit`) has projections of exactly 0, so that its code is all ones.

        Parameters
        ----------
        X : array_like or sparse of shape (n, dim) or (dim,)
            As in `project`. On a device, bits whose projections are 0 up to rounding may differ from those of numpy.
        n_threads : int, optional
            As in `project`.

        Returns
        -------
        uint8 array of shape (n, ceil(n_bits / 8)), or (ceil(n_bits / 8),) for a single vector, of the library of `X`
        """
        if is_device_array(X):
            refuse_threads(n_threads)
            return self._on_device(X).encode(X)
        return super().encode(X, n_threads)

    def _on_device(self, X: Any) -> DeviceEncoder:
        """Return the encoder of the library and device of `X`."""
        self._require_fitted()
        return DeviceEncoder.of(self, X, self._devices)

    def shorten(self, n_bits: int) -> Self:
        """Return an encoder whose codes are the first `n_bits` bits of the codes of this encoder."""
        if as_count(n_bits, "n_bits") > self.n_bits:
            raise ValueError(f"n_bits must be at most {self.n_bits}, the bits of this encoder, got {n_bits}")
        n_blocks = self._n_blocks(n_bits)
        arrays = self.to_arrays()
        for name in ("signs", "spectrum", "objective"):
            arrays[name] = arrays[name][:n_blocks]
        return self.from_arrays(self.config() | {"n_bits": int(n_bits)}, arrays)

    @property
    def scale(self) -> float:
        """The factor for which scale * |projections|^2 estimates the squared norm of a centred vector."""
        return self.length / (self.n_bits * float(np.mean(self._energy())))

    @property
    def scale_variance(self) -> float:
        """The relative variance of that estimate over the choice of the encoder."""
        if self.kind == "random":
            return 2 / self.n_bits  # as for independent rows, because the scale accounts for the energy of r
        # Whole blocks preserve norms. The last block contributes a share of its rows, which are orthogonal.
        share = self.n_bits % self.length / self.length
        return 2 * share * (1 - share) * self.length / self.n_bits**2

    @property
    def overlap(self) -> float:
        """The share of P^T P y that lies along y, with P the matrix of projections: 1 for whole orthogonal blocks."""
        if self.kind == "random":
            return 0.0  # the spectrum is not flat, which loses as much as the overlap gains
        whole, rest = divmod(self.n_bits, self.length)
        return (whole * self.length + rest**2 / self.length) / self.n_bits

    def _energy(self, spectrum: Spectrum | None = None) -> NDArray[np.float64]:
        """Return the mean square of the full spectrum of each block, by default of this encoder."""
        spectrum = self.spectrum if spectrum is None else spectrum
        weights = np.full(spectrum.shape[1], 2.0)
        weights[[0, -1] if self.length % 2 == 0 else [0]] = 1
        energy: NDArray[np.float64] = (np.abs(spectrum.astype(np.complex128)) ** 2) @ weights / self.length
        return energy

    def config(self) -> dict[str, Any]:
        """Return the options of the encoder as JSON values."""
        names = ("dim", "n_bits", "kind", "seed", "length", "lam", "mu", "n_iter")
        return {"encoder": self.name, "fitted": self.is_fitted} | {name: getattr(self, name) for name in names}

    def to_arrays(self) -> Arrays:
        """Return the parameters as named arrays: `centre`, `signs`, `spectrum` and `objective`."""
        return {"centre": self.centre, "signs": self.signs, "spectrum": self.spectrum, "objective": self.objective}

    @classmethod
    def from_arrays(cls, config: dict[str, Any], arrays: Arrays) -> Self:
        """Rebuild an encoder from its `config` and `arrays`, without drawing or training."""
        dim = as_count(config["dim"], "dim", most=MOST_DIM)
        centre = as_array(arrays, "centre", np.float32, (dim,))  # first, as proof of `dim` before anything is allocated
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
        encoder._forget_tables()
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
        draw_spectrum = gaussian_spectrum if self.kind == "random" else flat_spectrum
        for block in range(n_blocks):
            # Each block has its own stream, so that encoders of any n_bits share their first blocks.
            bits = np.random.PCG64(np.random.SeedSequence(self.seed, spawn_key=(block,)))
            signs[block] = draw_signs(bits, self.dim)
            spectrum[block] = draw_spectrum(bits, self.length)
        return signs, spectrum

    def kernel_arrays(self) -> KernelArrays:
        """Return what the kernel `transform_rows` needs of the encoder, for kernels that transform queries themselves.

        The arrays are centre, signs, layout, tables and coefficients. They are valid until the next `fit`.
        """
        return self._transforms().arrays

    def make_work(self) -> Floats:
        """Return working memory for `transform_rows`. Every thread needs its own."""
        return self._transforms().make_work()

    def _forget_tables(self) -> None:
        """Drop what is computed from the parameters when it is first needed, and is neither pickled nor saved."""
        self._transform = self._direct = None
        self._devices: dict[tuple[str, str], DeviceEncoder] = {}

    def _require_fitted(self) -> None:
        if self.kind == "learned" and not self.is_fitted:
            raise ValueError("CirculantEncoder of kind 'learned' must be fitted before it can project: call fit(X)")

    def _transforms(self) -> CirculantTransform:
        """Return the transform of dense rows."""
        self._require_fitted()
        if self._transform is None:  # a race between threads is harmless: all create the same
            self._transform = CirculantTransform(self.centre, self.signs, self.spectrum, self.length)
        return self._transform

    def _compute(self, source: VectorSource, out: Outputs, n_threads: int) -> None:
        """Transform dense rows inside a kernel, which writes all results."""
        if source.is_sparse:
            super()._compute(source, out, n_threads)
            return
        transform = self._transforms()
        step = transform.rows_per_block(self.n_bits)

        def task(start: int, stop: int) -> None:
            for first in range(start, stop, step):
                leave_if_interrupted()
                rows = slice(first, min(first + step, stop))
                bad = transform(source.read(rows), out.part(rows))
                if bad >= 0:
                    source.refuse(first + bad)

        if source.n_rows < n_threads and self.length >= tuning().threaded_length:
            bad = transform.on_threads(source.read(slice(None)), out, n_threads)
            if bad >= 0:
                source.refuse(bad)
            return
        # Several chunks per thread balance the load.
        chunk = step * max(1, source.n_rows // (4 * n_threads * step))
        for_each_chunk(task, source.n_rows, chunk, n_threads)

    def _projector(self) -> Projector:
        transform = self._transforms()

        def project(rows: Vectors) -> Projections:
            out = Outputs.of(len(rows), self.n_bits, projections=True)
            bad = transform(rows, out)
            if bad >= 0:
                out.projections[bad] = np.nan  # the kernel has stopped there
            return out.projections

        return project

    def _projectors(self, source: VectorSource) -> Callable[[], RowsProjector]:
        """Project sparse rows with few entries directly, and all other rows by transforms."""
        project_dense, step = self._projector(), self._transforms().rows_per_block(self.n_bits)
        if self._direct is None:  # a race between threads is harmless: all create the same
            signs = self.signs.astype(np.float32)
            self._direct = DirectConvolution(self.spectrum, signs, self.centre, self.length, self.n_bits)
        direct = self._direct

        def project(rows: slice) -> Projections:
            entries = source.read_sparse(rows)
            is_short = entries.counts() <= direct.most_entries
            if is_short.all():
                return direct(entries)
            projections = np.empty((len(entries), self.n_bits), dtype=np.float32)
            projections[is_short] = direct(entries[np.flatnonzero(is_short)])
            long = np.flatnonzero(~is_short)
            for first in range(0, len(long), step):
                some = long[first : first + step]
                projections[some] = project_dense(source.read(rows.start + some))
            return projections

        return lambda: project

    def _rows_per_block(self, source: VectorSource) -> int:
        return rows_per_block(self.n_bits)


def _is_sound(energy: NDArray[np.float64]) -> bool:
    """Return whether projections by spectra of these mean squares neither underflow nor overflow."""
    return bool(((energy >= _LEAST_ENERGY) & (energy <= _LARGEST_ENERGY)).all())
