"""A dict and named arrays as bytes, without pickle: what one record of a log holds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core.typing import Arrays
from ..data.source import is_sparse

_LENGTH = struct.Struct("<Q")
_KINDS = "fiub"
_CSR = ("data", "indices", "indptr")


def pack(values: dict[str, Any], arrays: Arrays) -> list[bytes | memoryview]:
    """Return the pieces of a record, in order. Arrays are not copied unless they are not contiguous.

    Examples
    --------
    >>> unpack(b"".join(pack({"k": 3}, {"ids": np.arange(2)})))
    ({'k': 3}, {'ids': array([0, 1])})
    """
    parts = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    described = [[name, array.dtype.newbyteorder("<").str, array.shape] for name, array in parts.items()]
    head = json.dumps({"values": values, "arrays": described}).encode()
    little = (array.astype(array.dtype.newbyteorder("<"), copy=False) for array in parts.values())
    return [_LENGTH.pack(len(head)), head, *(array.reshape(-1).view(np.uint8).data for array in little)]


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the dict and the arrays of a record; ValueError if the bytes are not those of one."""
    if len(data) < _LENGTH.size:
        raise ValueError(f"a record must have at least {_LENGTH.size} bytes, got {len(data)}")
    (n_head,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + n_head
    if start > len(data):
        raise ValueError(f"a record of {len(data)} bytes must not have a head of {n_head} bytes")
    try:
        head = json.loads(data[_LENGTH.size : start])
        values, described = dict(head["values"]), list(_checked(head["arrays"]))
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the head of a record is malformed: {error!r}") from None
    arrays = {}
    for name, dtype, shape in described:
        n_bytes = dtype.itemsize * _product(shape)
        if n_bytes > len(data) - start:
            raise ValueError(f"array {name!r} of a record must have {n_bytes} bytes, got {len(data) - start}")
        arrays[name] = np.frombuffer(data, dtype, _product(shape), start).reshape(shape)
        start += n_bytes
    if start != len(data):
        raise ValueError(f"a record must have {start} bytes, got {len(data)}")
    return values, arrays


def pack_vectors(X: Any) -> Arrays:
    """Return the arrays that hold dense or sparse vectors."""
    if not is_sparse(X):
        return {"vectors": np.asarray(X)}
    return {name: getattr(X, name) for name in _CSR}


def unpack_vectors(arrays: Arrays, dim: int) -> Any:
    """Return the vectors that `pack_vectors` has taken apart."""
    if "vectors" in arrays:
        return arrays["vectors"]
    from scipy import sparse

    data, indices, indptr = (arrays[name] for name in _CSR)
    csr = sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, dim))
    csr.check_format(full_check=True)
    return csr


def _checked(described: Any) -> Iterable[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Yield name, dtype and shape of arrays; raise ValueError for what `pack` does not write."""
    for name, code, shape in described:
        dtype = np.dtype(str(code))
        if dtype.kind not in _KINDS or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"array {name!r} must hold numbers, got dtype {code!r} and shape {shape!r}")
        yield str(name), dtype, tuple(shape)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
