"""Arrays seen as arrays of another type, at no cost."""

from typing import Any

import numba
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from numba.np import arrayobj

read_only: Any
view_as: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def read_only(array: Any) -> Any:
        """Return an array for a shared kernel that only reads it, so that it is compiled for such arrays alone."""
        return array

    def view_as(array: Any, dtype: Any) -> Any:
        """Return an array in C order as one of another dtype. `array.view` takes 0.05 s to compile."""
        return array.view(dtype)

else:
    _borrowed: Any = impl_ret_borrowed
    _cgutils: Any = cgutils

    @intrinsic
    def read_only(typing_context: Any, array: Any) -> Any:
        """Return an array for a shared kernel that only reads it, so that it is compiled for such arrays alone."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _borrowed(context, builder, signature.return_type, arguments[0])

        return array.copy(readonly=True)(array), generate

    @intrinsic
    def view_as(typing_context: Any, array: Any, dtype: Any) -> Any:
        """Return an array in C order as one of another dtype. `array.view` takes 0.05 s to compile."""
        if array.layout != "C":
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            make: Any = arrayobj.make_array
            before = make(array)(context, builder, arguments[0])
            after = make(signature.return_type)(context, builder)
            shape, strides = (_cgutils.unpack_tuple(builder, each) for each in (before.shape, before.strides))
            sizes = [context.get_abi_sizeof(context.get_data_type(kind)) for kind in (array.dtype, dtype.dtype)]
            old, new = (context.get_constant(types.intp, size) for size in sizes)
            shape[-1], strides[-1] = builder.udiv(builder.mul(shape[-1], old), new), new
            populate: Any = arrayobj.populate_array
            populate(
                after, data=builder.bitcast(before.data, after.data.type), shape=shape, strides=strides, itemsize=new,
                meminfo=before.meminfo, parent=before.parent,
            )  # fmt: skip
            return _borrowed(context, builder, signature.return_type, after._getvalue())

        return array.copy(dtype=dtype.dtype)(array, dtype), generate
