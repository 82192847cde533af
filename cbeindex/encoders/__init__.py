"""Encoders: vectors -> projections -> codes.

`base` is the base class, and `outputs` holds what encoders compute. The circulant encoder, which the index uses by
default, is `circulant` with `transform` (dense rows by FFT, in kernels; `plans`, `lengths` and `longrows` belong to
it), `direct` (sparse rows), `learning` (training) and `drawing` (random parameters). `foreign` supports encoders that
users bring. `baselines/` holds the published methods that the circulant encoder is compared with, and the code that
only these share. Nothing outside of `baselines/` imports from it, except the registry below.
"""

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
"""All encoder classes, by their name in index files."""

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
