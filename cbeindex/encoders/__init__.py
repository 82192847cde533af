"""Encoders: vectors -> projections -> codes. The circulant one, and those that it is compared with."""

from .aqbc import AQBCEncoder
from .base import Encoder
from .bilinear import BilinearEncoder
from .circulant import KINDS, CirculantEncoder
from .itq import ITQEncoder
from .lsh import LSHEncoder
from .sklsh import SKLSHEncoder
from .spectral import SpectralEncoder

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
