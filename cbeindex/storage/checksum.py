"""CRC32 of zlib and PNG: by the fastest package that is installed, and of a whole from those of its pieces."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

try:
    from isal.isal_zlib import crc32
except ImportError:  # an extra; zlib gives the same checksums at a tenth of the speed
    from zlib import crc32

__all__ = ["combine", "crc32"]

# The polynomial of CRC32, and 1, as zlib has them: the highest bit is the coefficient of x^0.
_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31


def combine(crcs: Iterable[int], piece_bytes: int, n_bytes: int) -> int:
    """Return the CRC32 of `n_bytes` from those of its pieces, which have `piece_bytes` each; the last may have fewer.

    To put n bytes behind others multiplies their CRC32 by x^8n, modulo the polynomial.
    """
    whole = 0
    for crc in crcs:
        length = min(piece_bytes, n_bytes)
        whole = _product(_power(length), whole) ^ crc
        n_bytes -= length
    return whole


@cache
def _power(n_bytes: int) -> int:
    """Return x^(8 n_bytes), by squaring."""
    power, square = _ONE, _ONE >> 8
    while n_bytes:
        if n_bytes & 1:
            power = _product(power, square)
        square = _product(square, square)
        n_bytes >>= 1
    return power


def _product(a: int, b: int) -> int:
    """Return the product of two polynomials, modulo that of CRC32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product
