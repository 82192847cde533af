"""Support for encoders of users: objects that have the methods of `Encoder` but may not derive from it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from .._core.checks import as_count
from .._core.tuning import tuning
from .._core.typing import Codes, Doubles, Projections
from ..data.source import VectorSource
from .base import Encoder
from .circulant import KINDS
from .outputs import Outputs

LARGEST_LENGTH = 1e18
"""Norm of vectors, and so of their centre, up to which float32 can represent distances."""


def checked_encoder(encoder: Any, dim: Any, n_bits: Any) -> Encoder:
    """Return a copy of an encoder that a user made; raise an error if it lacks what an index needs."""
    for name in ("dim", "n_bits", "fit", "project", "encode"):
        if not hasattr(encoder, name):
            raise TypeError(f"encoder must be one of {KINDS}, or an object with dim, n_bits, fit, project and encode")
    if encoder.dim != as_count(dim, "dim"):
        raise ValueError(f"encoder must be for dim={dim}, got one for dim={encoder.dim}")
    if n_bits is not None and encoder.n_bits != as_count(n_bits, "n_bits"):
        raise ValueError(f"n_bits must be omitted or {encoder.n_bits}, the bits of the encoder, got {n_bits}")
    length = np.linalg.norm(np.asarray(getattr(encoder, "centre", 0.0), dtype=np.float64))
    if not length <= LARGEST_LENGTH:
        raise ValueError(f"encoder must have a centre of length up to {LARGEST_LENGTH:g}, got {length:.3g}")
    copied: Encoder = copy.deepcopy(encoder)
    return copied


def is_ready(encoder: Encoder) -> bool:
    """Return whether an encoder needs no fitting; encoders without `is_fitted` do not."""
    return bool(getattr(encoder, "is_fitted", True))


def fitted_copy(prototype: Encoder, sample: Any) -> Encoder:
    """Return a fitted copy of an encoder."""
    encoder = copy.deepcopy(prototype)
    encoder.fit(sample)
    return encoder


def project_rows(encoder: Encoder, rows: VectorSource, n_threads: int) -> Projections:
    """Project rows; encoders of users need not support threads or sparse rows."""
    if isinstance(encoder, Encoder):
        return encoder.project_source(rows, n_threads)
    if not rows.is_sparse:
        return np.asarray(encoder.project(rows.read(slice(None))), dtype=np.float32)
    parts = [encoder.project(block) for _, block in rows.blocks(tuning().foreign_block_floats)]
    return np.concatenate([np.empty((0, encoder.n_bits)), *parts]).astype(np.float32)


def encode_rows(encoder: Encoder, rows: VectorSource, n_threads: int) -> tuple[Codes, Doubles]:
    """Return codes of rows, and the sums of magnitudes and squares of their projections, (n, 2)."""
    if isinstance(encoder, Encoder):
        return encoder.encode_with_sums(rows, n_threads)
    out = Outputs.of(rows.n_rows, encoder.n_bits, codes=True, sums=True)
    out.write(0, project_rows(encoder, rows, n_threads))
    return out.codes, out.sums


def compute_rows(encoder: Encoder, rows: VectorSource, n_threads: int) -> Outputs:
    """Return projections, codes and sums of rows."""
    if isinstance(encoder, Encoder):
        return encoder.compute_source(rows, n_threads)
    out = Outputs.of(rows.n_rows, encoder.n_bits, projections=True, codes=True, sums=True)
    out.write(0, project_rows(encoder, rows, n_threads))
    return out


def same_encoder(ours: Encoder | None, theirs: Encoder | None) -> bool:
    """Return whether two encoders give every vector the same code."""
    if not isinstance(ours, Encoder) or not isinstance(theirs, Encoder) or ours.config() != theirs.config():
        return False
    arrays, others = ours.to_arrays(), theirs.to_arrays()
    return arrays.keys() == others.keys() and all(np.array_equal(arrays[name], others[name]) for name in arrays)
