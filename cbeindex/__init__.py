"""Approximate nearest neighbour search for long vectors, by circulant binary embedding."""

from .encoders import CirculantEncoder

__version__ = "0.1.0"

__all__ = ["CirculantEncoder"]
