"""Encoders: vectors -> projections -> codes."""

from .base import Encoder
from .circulant import CirculantEncoder

__all__ = ["CirculantEncoder", "Encoder"]
