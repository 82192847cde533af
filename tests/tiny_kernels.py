"""Kernels that compile fast."""

from cbeindex.kernels.jit import njit


@njit(cache=True, nogil=True)
def add(x, y):
    """Add."""
    return x + y


@njit(cache=True, nogil=True)
def twice(x):
    """Double."""
    return x + x


@njit(cache=True, nogil=True)
def twice_added(x, y):
    """Add, then double."""
    return twice(add(x, y))
