"""Prefetching: one instruction when compiled, a no-op when not."""

from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .jit import njit

prefetch: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def prefetch(array: Any, index: Any) -> None:
        """Prefetch the cache line of `array.flat[index]`, which may be out of bounds."""

else:

    @intrinsic
    def prefetch(typing_context: Any, array: Any, index: Any) -> Any:
        """Prefetch the cache line of `array.flat[index]`, which may be out of bounds."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            byte_pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            address = builder.bitcast(builder.gep(data, [arguments[1]]), byte_pointer)
            function = builder.module.declare_intrinsic(
                "llvm.prefetch", [byte_pointer], ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
            )
            read, keep, is_data = (ir.Constant(word, value) for value in (0, 3, 1))
            builder.call(function, [address, read, keep, is_data])
            return context.get_dummy_value()

        return types.void(array, types.int64), generate


@njit(cache=True, nogil=True)
def prefetch_row(rows: Any, number: int) -> None:
    """Prefetch a row of an array of two axes, which may be out of bounds."""
    size = rows.shape[1]
    for j in range(0, size, 64 // rows.itemsize):
        prefetch(rows, number * size + j)
