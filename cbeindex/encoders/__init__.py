"""Encoders: vectors -> projections -> codes."""

from .base import Encoder
from .circulant import KINDS, CirculantEncoder

__all__ = ["KINDS", "CirculantEncoder", "Encoder"]
