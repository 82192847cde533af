"""Arguments that stay the same from call to call, handed over at once: their addresses and sizes, and numbers.

Each array that Python hands to a kernel costs 0.05 to 0.1 us: a call with twenty of them takes as long as five steps of
a walk in the cache. An array of int64 with four places for each argument stands for all of them:

    arrays      address, and one or two sizes
    int         the number
    float       the bits of the number

Whoever binds arguments keeps the arrays alive, and their memory in place.
"""

import ctypes
import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np import arrayobj

from .._core.typing import Rows
from .jit import njit
from .views import view_as

_PLACES = 4

array_at: Any


def bind(kinds: tuple[Any, ...], arguments: tuple[Any, ...]) -> Rows:
    """Return what stands for some arguments: of kinds int and float, and arrays in C order, (dtype, number of axes)."""
    bound = np.zeros(_PLACES * len(kinds), dtype=np.int64)
    for i, (kind, argument) in enumerate(zip(kinds, arguments, strict=True)):
        places = bound[_PLACES * i : _PLACES * (i + 1)]
        if kind is int:
            places[0] = argument
        elif kind is float:
            places[:1].view(np.float64)[0] = argument
        else:
            dtype, n_axes = kind
            if (argument.dtype, argument.ndim) != (dtype, n_axes):
                raise TypeError(f"argument {i} must be {np.dtype(dtype)} with {n_axes} axes, got {argument.dtype}")
            if not (argument.flags.c_contiguous and argument.flags.aligned and argument.dtype.isnative):
                raise TypeError(f"argument {i} must be aligned, in C order and in the byte order of the machine")
            places[: 1 + n_axes] = argument.ctypes.data, *argument.shape
    return bound


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def array_at(bound: Any, number: int, dtype: Any, n_axes: int) -> Any:
        """Return an argument that is an array, to be read only."""
        address, *shape = bound[_PLACES * number : _PLACES * number + 1 + n_axes].tolist()
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        if n_bytes == 0:
            return np.empty(shape, dtype=dtype)
        return np.frombuffer((ctypes.c_uint8 * n_bytes).from_address(address), dtype=dtype).reshape(shape)

else:

    @intrinsic(prefer_literal=True)
    def array_at(typing_context: Any, bound: Any, number: Any, dtype: Any, n_axes: Any) -> Any:
        """Return an argument that is an array, to be read only."""
        if not isinstance(n_axes, types.IntegerLiteral):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            make: Any = arrayobj.make_array
            populate: Any = arrayobj.populate_array
            word = ir.IntType(64)
            data = make(signature.args[0])(context, builder, arguments[0]).data
            first = builder.mul(arguments[1], word(_PLACES))
            kind = signature.return_type
            address, *shape = (
                builder.load(builder.gep(data, [builder.add(first, word(i))])) for i in range(1 + kind.ndim)
            )
            array = make(kind)(context, builder)
            size = word(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
            strides = [size]
            for length in shape[:0:-1]:
                strides.insert(0, builder.mul(strides[0], length))
            pointer = builder.inttoptr(address, array.data.type)
            populate(array, data=pointer, shape=shape, strides=strides, itemsize=size, meminfo=None)
            return array._getvalue()

        kind: Any = types.Array(dtype.dtype, n_axes.literal_value, "C", readonly=True)  # type: ignore[no-untyped-call,unused-ignore]
        return kind(bound, types.int64, dtype, n_axes), generate


@njit(cache=True, nogil=True)
def int_at(bound: Rows, number: int) -> Any:
    """Return an argument that is a whole number."""
    return bound[_PLACES * number]


@njit(cache=True, nogil=True)
def float_at(bound: Rows, number: int) -> Any:
    """Return an argument that is a float."""
    return view_as(bound, np.float64)[_PLACES * number]
