"""CRC32 as in zlib and PNG, and the CRC32 of a whole from those of its pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

try:
    from isal.isal_zlib import crc32
except ImportError:  # isal is optional; zlib computes the same checksums at a tenth of the speed
    from zlib import crc32

__all__ = ["combine", "crc32"]

# The generator polynomial and the polynomial 1 in zlib's bit order: the highest bit is the coefficient of x^0.
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def combine(crcs: Iterable[int], piece_bytes: int, n_bytes: int) -> int:
    """Return the CRC32 of `n_bytes` bytes from the CRC32s of their pieces.

    Each piece has `piece_bytes` bytes, except that the last may have fewer. Appending n bytes multiplies the CRC32 of
    the bytes before them by x^8n, modulo the generator polynomial.
    """
    whole = 0
    for crc in crcs:
        length = min(piece_bytes, n_bytes)
        whole = _product(_power(length), whole) ^ crc
        n_bytes -= length
    return whole


@cache
def _power(n_bytes: int) -> int:
    """Return x^(8 n_bytes) modulo the generator polynomial, by repeated squaring."""
    power, square = _ONE, _ONE >> 8
    while n_bytes:
        if n_bytes & 1:
            power = _product(power, square)
        square = _product(square, square)
        n_bytes >>= 1
    return power


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials modulo the generator polynomial."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
