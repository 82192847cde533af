"""The part of an index file that describes the index apart from its rows: bucket options and the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._core.checks import as_array, as_choice, as_count, as_flag
from .._core.typing import Arrays, Floats
from ..distances.codec import Codec
from ..distances.keptcodec import KEPT_BITS
from ..distances.residuals import CELL_BITS, MOST_CENTRES, ResidualCodec
from ..distances.rounding import Rounded
from ..encoders import ENCODERS, Encoder
from ..store.rowstore import RowStore
from .values import value_of

_OPTIONS = ("n_tables", "table_bits", "n_cells", "cell_bits", "spill")

# The sections that hold the arrays of the encoder begin with this.
ENCODER_PREFIX = "encoder/"

# The section that holds the centres of residual codes, and the largest number in it. Rounded centres are levels, and
# have another section for their scales.
RESIDUALS_PREFIX = "residuals/"
_CENTRES = f"{RESIDUALS_PREFIX}centres"
_SCALES = "scales"
_LONGEST = 1e18

# The section that holds the centres of kept vectors of 4 or 8 bits.
LEVELS_PREFIX = "levels/"
_KEPT_CENTRES = f"{LEVELS_PREFIX}centres"


def options_of(content: dict[str, Any]) -> dict[str, Any]:
    """Return the bucket options of a file. The constructor of the index checks their values."""
    options: dict[str, Any] = value_of(content, "options", dict)
    for name in options:
        as_choice(name, "the name of an option", _OPTIONS)
    return options


def ids_content(rows: RowStore) -> dict[str, Any]:
    """Return the entry for the kind of ids, which only strings need."""
    return {"ids": "strings"} if rows.has_names else {}


def has_string_ids(content: dict[str, Any]) -> bool:
    """Return whether the ids of a file are strings."""
    return as_choice(content.get("ids", "integers"), "ids", ("integers", "strings")) == "strings"


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
    return (None, {}) if codec is None else ({"bits": codec.bits}, _centre_arrays(_CENTRES, codec.centres))


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
    return _checked_centres(arrays, _CENTRES, n_bits), bits


def levels_content(codec: Codec | None) -> tuple[dict[str, Any], Arrays]:
    """Describe kept vectors of 4 or 8 bits; return their centres by section name, unless they are those of cells."""
    if codec is None:
        return {"fitted": False}, {}
    own = None if codec.rows_of_levels is None or codec.shares_centres else codec.rows_of_levels.residuals.centres
    return {"fitted": True}, {} if own is None else _centre_arrays(_KEPT_CENTRES, own)


def load_levels(content: dict[str, Any], arrays: Arrays, n_levels: int) -> tuple[bool, Floats | None]:
    """Return whether vectors are kept in 4 or 8 bits by a codec that is fitted, and centres that are their own."""
    described = content.get("levels")
    if described is None or not as_flag(value_of(described, "fitted"), "fitted"):
        return False, None
    if content["vectors"] not in KEPT_BITS or content["buckets"] == "graph":
        raise ValueError(f"levels must not be in an index with vectors={content['vectors']!r}")
    if _KEPT_CENTRES not in arrays:
        return True, None
    return True, _checked_centres(arrays, _KEPT_CENTRES, n_levels)


def n_kept_centres(arrays: Arrays) -> int:
    """Return how many centres kept vectors of 4 or 8 bits have: their own, those of cells, or the mean alone."""
    own = arrays.get(_KEPT_CENTRES, arrays.get(_CENTRES))
    return 1 if own is None else len(own)


def _centre_arrays(name: str, centres: Floats) -> Arrays:
    """Return centres of residuals by section name, as levels if they are rounded. Older files hold others."""
    found = Rounded.of(centres)
    if not np.array_equal(found.rows(), centres):
        return {name: centres}
    return {name: found.levels, _scales_of(name): found.scales}


def _scales_of(name: str) -> str:
    """Return the name of the section with the scales of centres."""
    return f"{name.rpartition('/')[0]}/{_SCALES}"


def _checked_centres(arrays: Arrays, name: str, n_bits: int) -> Floats:
    """Return centres of residuals from the sections of a file."""
    if _scales_of(name) in arrays:
        levels = as_array(arrays, name, np.int8, (None, n_bits))
        scales = as_array(arrays, _scales_of(name), np.float32, (len(levels),))
        centres = Rounded.checked(levels, scales, _LONGEST).rows()
    else:
        centres = as_array(arrays, name, np.float32, (None, n_bits))
    if not 1 <= len(centres) <= MOST_CENTRES or not np.isfinite(centres).all() or np.abs(centres).max() > _LONGEST:
        raise ValueError(f"centres must be 1 to {MOST_CENTRES} rows of finite numbers up to {_LONGEST:g}")
    return centres


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
