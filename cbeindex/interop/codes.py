"""Binary codes that other libraries packed, in the layout of `BinaryIndex`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._core.checks import as_choice, as_flag
from .._core.typing import CodeBytes

# Byte i with its bits in reverse order.
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, np.newaxis], axis=1), axis=1, bitorder="little")


def codes_from(
    array: ArrayLike, *, bit_order: str = "big", signed: bool | str = False, packed: bool = True
) -> CodeBytes:
    """Return codes of other libraries as `BinaryIndex` takes them: bit j is bit j % 8 of byte j // 8.

    Parameters
    ----------
    array : array_like of shape (n, n_bytes) or (n_bytes,), or (n, n_bits) or (n_bits,) with `packed=False`
        uint8 bytes, int8 bytes with `signed`, or one column for each bit.
    bit_order : {"big", "little"}
        Whether the first bit is the highest bit of the first byte, as `np.packbits` packs by default, or the lowest.
    signed : bool or {"offset", "view"}
        True or "offset": int8 bytes are the packed bytes less 128, as in precision "binary" of sentence-transformers.
        "view": int8 bytes are the packed bytes themselves, read as signed numbers.
    packed : bool
        With False, the columns of `array` are bits: booleans, or numbers of which a 1 is bit 1, and a 0 or -1 bit 0.

    Returns
    -------
    uint8 array of shape (n, n_bytes) or (n_bytes,)

    Notes
    -----
    ===================================================== =====================================
    codes                                                 call
    ===================================================== =====================================
    `np.packbits(bits, axis=1)`                           `codes_from(codes)`
    sentence-transformers "ubinary", Cohere "ubinary"     `codes_from(codes)`
    sentence-transformers "binary"                        `codes_from(codes, signed=True)`
    `np.packbits(bits, axis=1).view(np.int8)`             `codes_from(codes, signed="view")`
    one column for each bit                               `codes_from(bits, packed=False)`
    `np.packbits(bits, axis=1, bitorder="little")`, faiss nothing to do
    ===================================================== =====================================

    Hamming distances do not depend on the order of bits, as long as all codes have the same. The order decides which
    bits are spare where the length of codes is no multiple of 8, and which are first in parts of codes.

    Examples
    --------
    >>> import numpy as np
    >>> bits = np.array([[1, 1, 0, 0, 0, 0, 0, 0, 1, 0]])
    >>> codes_from(np.packbits(bits, axis=1)), codes_from(bits, packed=False)
    (array([[3, 1]], dtype=uint8), array([[3, 1]], dtype=uint8))
    """
    order = as_choice(bit_order, "bit_order", ("big", "little"))
    kind = _kind_of_sign(signed)
    given = np.asarray(array)
    if given.ndim not in (1, 2):
        raise ValueError(f"codes must have shape (n, n_bytes) or (n_bytes,), got {given.shape}")
    if not as_flag(packed, "packed"):
        if kind is not None or order != "big":
            raise ValueError("bit_order and signed describe packed bytes, and packed=False says that bits are columns")
        return np.packbits(_as_bits(given), axis=-1, bitorder="little")
    wanted = np.uint8 if kind is None else np.int8
    if given.dtype != wanted:
        raise TypeError(_dtype_message(given, np.dtype(wanted)))
    codes = given.view(np.uint8)
    if kind == "offset":
        codes = codes ^ np.uint8(128)  # adds 128 modulo 256
    if order == "little":
        return codes.copy() if codes.base is given else codes
    reversed_: CodeBytes = _REVERSED[codes, 0]
    return reversed_


def _kind_of_sign(signed: Any) -> str | None:
    """Return how signed bytes are to be read, None for unsigned ones."""
    if isinstance(signed, (bool, np.bool_)):
        return "offset" if signed else None
    return as_choice(signed, "signed", ("offset", "view"))


def _as_bits(columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Return columns of 0 and 1, or of signs, as booleans."""
    if columns.dtype.kind not in "biuf":
        raise TypeError(f"bits must be booleans or numbers, got dtype {columns.dtype}")
    bits: NDArray[np.bool_] = columns > 0
    is_bit = (columns == 1) | (columns == 0) if columns.dtype.kind in "bu" else np.isin(columns, (-1, 0, 1))
    if not is_bit.all():
        raise ValueError(
            f"bits must be 0 or 1, or signs -1 and 1, got {columns[~is_bit][0]}; make bits of numbers by X > 0"
        )
    return bits


def _dtype_message(given: NDArray[Any], wanted: np.dtype[Any]) -> str:
    """Say which codes were expected, and how to read those that came."""
    message = f"packed codes must have dtype {wanted}, got {given.dtype}"
    if given.dtype == np.int8:
        return message + "; read signed bytes with signed=True (each less 128) or signed='view'"
    if given.dtype == np.uint8:
        return message + "; unsigned bytes need no signed="
    return message + "; pass columns of bits with packed=False"
