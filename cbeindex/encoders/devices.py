"""The circulant encoder on arrays of other libraries, which stay on their device: the array API standard with its FFT.

The steps are those of the definition, sign(R D (x - centre)), by transforms of the library. They round otherwise than
the kernels do, so a bit may differ where its projection is 0 up to rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core.checks import as_count
from .._core.tuning import tuning
from ..data.foreign import as_native
from ..data.source import VectorSource

if TYPE_CHECKING:
    from .circulant import CirculantEncoder


def is_device_array(array: Any) -> bool:
    """Return whether an array belongs to another library than numpy that computes by the array API: torch, CuPy, JAX.

    Sparse tensors do not: they are projected by their entries.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        return False
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(array, torch.Tensor):
        return bool(array.layout == torch.strided)
    if cupy is not None and isinstance(array, cupy.ndarray):
        return True
    return hasattr(array, "__array_namespace__") and hasattr(array.__array_namespace__(), "fft")


class DeviceEncoder:
    """Projects and encodes arrays of one library on one device by the parameters of a circulant encoder.

    Parameters
    ----------
    encoder : CirculantEncoder
    array : array of the library
    """

    def __init__(self, encoder: CirculantEncoder, array: Any) -> None:
        self._dim, self._n_bits, self._length = encoder.dim, encoder.n_bits, encoder.length
        self._xp = _namespace(array)
        self._device = _compat().device(array)

        def copied(values: Any, dtype: Any) -> Any:
            return self._xp.asarray(np.array(values, dtype=dtype), device=self._device)

        self._centre = copied(encoder.centre, np.float32)
        self._signs = copied(encoder.signs, np.float32)
        self._spectrum = copied(encoder.spectrum, np.complex64)
        self._weights = copied(1 << np.arange(8), np.uint8)

    @classmethod
    def of(cls, encoder: CirculantEncoder, array: Any, made: dict[tuple[str, str], DeviceEncoder]) -> DeviceEncoder:
        """Return the encoder of the library and device of an array, made once for each of them."""
        key = _namespace(array).__name__, str(_compat().device(array))
        if key not in made:  # a race between threads is harmless: all create the same
            made[key] = cls(encoder, array)
        return made[key]

    def project(self, array: Any) -> Any:
        """Return the projections of vectors: float32 of shape (n, n_bits), or (n_bits,) for a single vector."""
        return self._in_parts(array, lambda projections: projections)

    def encode(self, array: Any) -> Any:
        """Return packed signs of projections: uint8 of shape (n, n_bytes), or (n_bytes,) for a single vector."""
        return self._in_parts(array, self._packed)

    def _in_parts(self, array: Any, made_of: Callable[[Any], Any]) -> Any:
        """Return what is made of the projections of vectors, a part of the rows at a time."""
        rows, is_single = self._as_rows(array)
        n_rows, step = rows.shape[0], max(1, tuning().device_step_values // max(self._length, self._n_bits))
        if n_rows == 0:  # of which not every library makes transforms
            return made_of(self._xp.zeros((0, self._n_bits), dtype=self._xp.float32, device=self._device))
        with np.errstate(over="ignore", invalid="ignore"):  # of libraries that compute by numpy
            parts = [made_of(self._projected(rows, i, min(i + step, n_rows))) for i in range(0, n_rows, step)]
        found = self._xp.concat(parts) if len(parts) > 1 else parts[0]
        return found[0, :] if is_single else found

    def _as_rows(self, array: Any) -> tuple[Any, bool]:
        """Check an array; return it with two axes, and whether it had one."""
        xp = self._xp
        if not xp.isdtype(array.dtype, ("real floating", "integral", "bool")):
            raise TypeError(f"X must hold real numbers, got an array of dtype {array.dtype}")
        shape = tuple(array.shape)
        if len(shape) not in (1, 2) or shape[-1] != self._dim:
            raise ValueError(f"X must have shape (n, {self._dim}) or ({self._dim},), got {shape}")
        return xp.reshape(array, (1, self._dim)) if len(shape) == 1 else array, len(shape) == 1

    def _projected(self, rows: Any, start: int, stop: int) -> Any:
        """Project rows [start, stop)."""
        xp, length = self._xp, self._length
        centred = xp.astype(rows[start:stop, :], xp.float32) - self._centre
        blocks = []
        for block in range(self._signs.shape[0]):
            transformed = xp.fft.rfft(centred * self._signs[block, :], n=length, axis=-1) * self._spectrum[block, :]
            n_here = min(length, self._n_bits - block * length)
            blocks.append(xp.fft.irfft(transformed, n=length, axis=-1)[:, :n_here])
        projections = xp.concat(blocks, axis=1) if len(blocks) > 1 else blocks[0]
        is_finite = xp.all(xp.isfinite(projections), axis=1)
        if not bool(xp.all(is_finite)):
            row = start + int(xp.argmin(xp.astype(is_finite, xp.int8)))
            VectorSource(as_native(rows[row, :], "X"), self._dim, first=row).refuse(0)
        return projections

    def _packed(self, projections: Any) -> Any:
        """Pack signs into bytes: bit j is bit j % 8 of byte j // 8, and bits past `n_bits` are 0."""
        xp = self._xp
        bits = xp.astype(projections >= 0, xp.uint8)
        n_spare = -self._n_bits % 8
        if n_spare:
            spare = xp.zeros_like(bits[:, :1])
            bits = xp.concat([bits, *[spare] * n_spare], axis=1)
        eights = xp.reshape(bits, (bits.shape[0], bits.shape[1] // 8, 8))
        return xp.sum(eights * self._weights, axis=-1, dtype=xp.uint8)


def refuse_threads(n_threads: int | None) -> None:
    """Raise ValueError if a number of threads is given for an array that its library computes with."""
    if n_threads is not None:
        as_count(n_threads, "n_threads")
        raise ValueError("n_threads must be None for arrays of other libraries, which choose their threads themselves")


def _compat() -> Any:
    """Import array_api_compat, which only arrays of other libraries need."""
    try:
        import array_api_compat
    except ImportError as error:
        raise TypeError(
            "X must be a numpy array, or array-api-compat must be installed to keep arrays on their device: "
            f'pip install "cbeindex[gpu]" ({error})'
        ) from None
    return array_api_compat


def _namespace(array: Any) -> Any:
    return _compat().array_namespace(array)
