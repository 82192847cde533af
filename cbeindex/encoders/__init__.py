"""Encoders: vectors -> projections -> codes. The circulant one, and those that it is compared with."""

from .base import Encoder
from .baselines.aqbc import AQBCEncoder
from .baselines.bilinear import BilinearEncoder
from .baselines.itq import ITQEncoder
from .baselines.lsh import LSHEncoder
from .baselines.sklsh import SKLSHEncoder
from .baselines.spectral import SpectralEncoder
from .circulant import KINDS, CirculantEncoder

ENCODERS: dict[str, type[Encoder]] = {
    encoder.name: encoder
    for encoder in (
        CirculantEncoder,
        LSHEncoder,
        BilinearEncoder,
        ITQEncoder,
        SpectralEncoder,
        SKLSHEncoder,
        AQBCEncoder,
    )
}
"""All kinds, by the names that index files have for them."""

__all__ = [
    "ENCODERS",
    "KINDS",
    "AQBCEncoder",
    "BilinearEncoder",
    "CirculantEncoder",
    "Encoder",
    "ITQEncoder",
    "LSHEncoder",
    "SKLSHEncoder",
    "SpectralEncoder",
]
