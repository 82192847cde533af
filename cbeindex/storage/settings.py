"""The part of an index file that describes the index apart from its rows: bucket options and the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.checks import as_choice
from .._core.typing import Arrays
from ..encoders import ENCODERS, Encoder
from .values import value_of

_OPTIONS = ("n_tables", "table_bits", "n_cells")

# The sections that hold the arrays of the encoder begin with this.
ENCODER_PREFIX = "encoder/"


def options_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the bucket options of a file. The constructor of the index checks their values."""
    options: dict[str, Any] = value_of(content, "options", dict)
    for name in options:
        as_choice(name, "the name of an option", _OPTIONS)
    return options


def encoder_content(encoder: Encoder) -> tuple[dict[str, Any], Arrays]:
    """Return the configuration of an encoder and its arrays by section name."""
    if not isinstance(encoder, Encoder) or ENCODERS.get(encoder.name) is not type(encoder):
        raise TypeError(
            f"cannot save an index with an encoder of type {type(encoder).__name__}: "
            "only encoders of cbeindex can be saved"
        )
    return encoder.config(), {f"{ENCODER_PREFIX}{name}": array for name, array in encoder.to_arrays().items()}


def load_encoder(config: Any, arrays: Arrays, dim: int, n_bits: int) -> Encoder:
    """Rebuild an encoder from the configuration and the arrays of a file."""
    kind = ENCODERS[as_choice(value_of(config, "encoder"), "encoder", tuple(ENCODERS))]
    own = {
        name.removeprefix(ENCODER_PREFIX): array for name, array in arrays.items() if name.startswith(ENCODER_PREFIX)
    }
    for name, array in own.items():
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            raise ValueError(f"{name} of the encoder must be finite")
    encoder = kind.from_arrays(config, own)
    if (encoder.dim, encoder.n_bits) != (dim, n_bits):
        raise ValueError(f"the encoder must map {dim} values to {n_bits} bits, got {encoder.dim} and {encoder.n_bits}")
    return encoder
