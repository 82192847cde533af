"""The part of an index file that describes the index apart from its rows: bucket options and the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.checks import as_array, as_choice, as_count
from .._core.typing import Arrays, Floats
from ..distances.residuals import CELL_BITS, MOST_CENTRES, ResidualCodec
from ..encoders import ENCODERS, Encoder
from .values import value_of

_OPTIONS = ("n_tables", "table_bits", "n_cells", "cell_bits")

# The sections that hold the arrays of the encoder begin with this.
ENCODER_PREFIX = "encoder/"

# The section that holds the centres of residual codes, and the largest number in it.
RESIDUALS_PREFIX = "residuals/"
_CENTRES = f"{RESIDUALS_PREFIX}centres"
_LONGEST = 1e18


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


def residuals_content(codec: ResidualCodec | None) -> tuple[dict[str, Any] | None, Arrays]:
    """Describe a codec of residual codes, None before the index is fitted; return its centres by section name."""
    return (None, {}) if codec is None else ({"bits": codec.bits}, {_CENTRES: codec.centres})


def load_residuals(content: dict[str, Any], arrays: Arrays, n_bits: int) -> tuple[Floats, int] | None:
    """Return centres and bits of residual codes, None for an index without such codes."""
    described = content.get("residuals")
    if described is None:
        return None
    if content["buckets"] not in ("cells", "auto"):
        raise ValueError(f"residual codes must not be in an index with buckets={content['buckets']!r}")
    bits = as_count(value_of(described, "bits"), "bits")
    if bits not in CELL_BITS:
        raise ValueError(f"bits of residual codes must be one of {CELL_BITS}, got {bits}")
    centres = as_array(arrays, _CENTRES, np.float32, (None, n_bits))
    if not 1 <= len(centres) <= MOST_CENTRES or not np.isfinite(centres).all() or np.abs(centres).max() > _LONGEST:
        raise ValueError(f"centres must be 1 to {MOST_CENTRES} rows of finite numbers up to {_LONGEST:g}")
    return centres, bits


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
