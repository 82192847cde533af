"""Numbers of float16, which numba does not know: arrays of them are given as uint16."""

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .vectorcode import F32, I32, VectorCode

as_float: Any


def from_half(code: VectorCode, halves: Any) -> Any:
    """Emit the conversion of float16, given as int16 or a vector of them, to float32, which is exact."""
    builder, count = code.builder, getattr(halves.type, "count", None)

    def kind_of(element: Any) -> Any:
        return element if count is None else ir.VectorType(element, count)

    def constant(kind: Any, value: Any) -> Any:
        return kind(value) if count is None else code.filled(kind, value)

    floats, whole = kind_of(F32), kind_of(I32)
    if code.has_half:
        return builder.fpext(builder.bitcast(halves, kind_of(ir.HalfType())), floats)
    wide = builder.zext(halves, whole)
    size = builder.shl(builder.and_(wide, constant(whole, 0x7FFF)), constant(whole, 13))
    sign = builder.shl(builder.and_(wide, constant(whole, 0x8000)), constant(whole, 16))
    # Exponents begin 112 lower; a product puts subnormal numbers in order too. Infinity and nan have exponent 31.
    scaled = builder.fmul(builder.bitcast(size, floats), constant(floats, 2.0**112))
    is_special = builder.icmp_unsigned(">=", size, constant(whole, 0x7C00 << 13))
    special = builder.or_(size, constant(whole, 0x7F800000))
    size = builder.select(is_special, special, builder.bitcast(scaled, whole))
    return builder.bitcast(builder.or_(size, sign), floats)


if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def as_float(value: Any) -> Any:
        """Return a float32, or a float16 given as uint16, as float32."""
        return np.float32(value.view(np.float16)) if value.dtype == np.uint16 else value

else:

    @intrinsic
    def as_float(typing_context: Any, value: Any) -> Any:
        """Return a float32, or a float16 given as uint16, as float32."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            if signature.args[0] == types.float32:
                return arguments[0]
            return from_half(VectorCode(context, builder), arguments[0])

        return types.float32(value), generate
