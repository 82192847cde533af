"""Kept vectors in float32, as they came."""

from __future__ import annotations

from .dense import DenseVectors


class Float32Vectors(DenseVectors):
    """A float32 array of shape (n_rows, dim)."""
