"""Rotations: orthogonal circulant matrices that lose nothing of a vector, and their inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.tuning import tuning
from .._core.typing import Floats, Projections, Vectors
from ..encoders import CirculantEncoder
from ..encoders.lengths import fast_length


def rotation_around(centre: Floats, n_bits: int, seed: int) -> CirculantEncoder:
    """Draw an orthogonal encoder with a given centre."""
    drawn = CirculantEncoder(len(centre), n_bits, seed=seed)
    arrays = drawn.to_arrays() | {"centre": np.ascontiguousarray(centre, dtype=np.float32)}
    return CirculantEncoder.from_arrays(drawn.config() | {"fitted": True}, arrays)


def loses_nothing(encoder: Any) -> bool:
    """Return whether the first projections of an encoder are those of a rotation."""
    is_orthogonal = isinstance(encoder, CirculantEncoder) and encoder.kind == "orthogonal"
    return is_orthogonal and encoder.n_bits >= encoder.length


def rotation_of(encoder: Any, centre: Floats) -> CirculantEncoder:
    """Return the rotation that the first projections of an encoder are, or else another one around its centre."""
    if loses_nothing(encoder):
        rotation: CirculantEncoder = encoder
        return rotation if rotation.n_bits == rotation.length else rotation.shorten(rotation.length)
    return rotation_around(centre, rotation_length(encoder), getattr(encoder, "seed", 0))


def rotation_length(encoder: Any) -> int:
    """Return the projections of `rotation_of` an encoder."""
    return encoder.length if loses_nothing(encoder) else fast_length(encoder.dim)


def turned_back(rotation: CirculantEncoder, projections: Projections) -> Vectors:
    """Return the vectors that have given projections."""
    from scipy import fft

    spectra = fft.rfft(projections.astype(np.float64), axis=1) * np.conj(rotation.spectrum[0])
    flipped = fft.irfft(spectra, rotation.length, axis=1)[:, : rotation.dim]
    rows: Vectors = (flipped * rotation.signs[0] + rotation.centre).astype(np.float32)
    return rows


def decoded_vectors(
    rotation: CirculantEncoder, decode: Callable[[NDArray[np.uint8]], Projections], column: NDArray[np.uint8]
) -> Vectors:
    """Return the vectors whose projections `decode` makes of the rows of a column, some rows at a time."""
    vectors: Vectors = np.empty((len(column), rotation.dim), dtype=np.float32)
    step = max(1, tuning().decode_step_values // rotation.length)
    for start in range(0, len(column), step):
        vectors[start : start + step] = turned_back(rotation, decode(column[start : start + step]))
    return vectors
