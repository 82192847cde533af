"""Registers of float32 lanes for intrinsics: how many lanes the target has, and how to write functions on them.

Multiply-add is one operation on targets that have it, and sums keep the order in which they are written. So a
computation has the same bits on every target with fused multiply-add, whatever its number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils as untyped

from .target import compiled_target

cgutils: Any = untyped


def _count_lanes() -> int:
    """Floats in a register of the CPU that numba compiles for."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return 8
    return 16 if compiled_target().has("avx512f") else 8 if compiled_target().has("avx") else 4


LANES = _count_lanes()

INTEGER, FLOAT = ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
FLOATS, INTEGERS = FLOAT.as_pointer(), INTEGER.as_pointer()


class Integer:
    """An int64 while a function is being written."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, INTEGER(value) if isinstance(value, int) else value

    def _join(self, operation: Callable[[Any, Any], Any], other: Integer | int) -> Integer:
        return Integer(self.builder, operation(self.value, Integer(self.builder, getattr(other, "value", other)).value))

    def __add__(self, other: Integer | int) -> Integer:
        return self._join(self.builder.add, other)

    def __sub__(self, other: Integer | int) -> Integer:
        return self._join(self.builder.sub, other)

    def __mul__(self, other: Integer | int) -> Integer:
        return self._join(self.builder.mul, other)

    def __floordiv__(self, other: Integer | int) -> Integer:
        return self._join(self.builder.udiv, other)

    def minimum(self, other: Integer) -> Integer:
        """Return the smaller one."""
        return Integer.below(self, other, self, other)

    @staticmethod
    def below(value: Integer, limit: Integer, yes: Integer, no: Integer) -> Integer:
        """Return `yes` where value < limit, otherwise `no`."""
        builder = value.builder
        is_below = builder.icmp_signed("<", value.value, limit.value)
        return Integer(builder, builder.select(is_below, yes.value, no.value))

    def halves(self) -> Integer:
        """Return the half, rounded up."""
        return self._join(self.builder.lshr, 1) + self._join(self.builder.and_, 1)

    def chunks(self, size: Integer | int) -> Integer:
        """Return how many chunks of a size there are, the last one perhaps smaller."""
        return (self + size - 1) // size


class Lanes:
    """A register of floats while a function is being written."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, other: Lanes) -> Lanes:
        return Lanes(self.builder, self.builder.fadd(self.value, other.value))

    def __sub__(self, other: Lanes) -> Lanes:
        return Lanes(self.builder, self.builder.fsub(self.value, other.value))

    def __mul__(self, other: Lanes) -> Lanes:
        return Lanes(self.builder, self.builder.fmul(self.value, other.value))

    def __neg__(self) -> Lanes:
        return Lanes(self.builder, self.builder.fneg(self.value))

    def add_product(self, left: Lanes, right: Lanes) -> Lanes:
        """Return self + left * right."""
        kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
        return Lanes(self.builder, self.builder.call(function, [left.value, right.value, self.value]))

    def constant(self, value: float) -> Lanes:
        """Return a number in all lanes."""
        return Lanes(self.builder, ir.Constant(VECTOR, [value] * LANES))

    def shuffle(self, other: Lanes, lanes: Sequence[int]) -> Lanes:
        """Pick lanes of self (from 0) and other (from LANES)."""
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(lanes))
        return Lanes(self.builder, self.builder.shuffle_vector(self.value, other.value, mask))

    def reversed(self) -> Lanes:
        """Return the lanes in reverse order."""
        return self.shuffle(self, range(LANES - 1, -1, -1))


class Complex:
    """Complex numbers in two registers."""

    def __init__(self, real: Lanes, imaginary: Lanes) -> None:
        self.real, self.imaginary = real, imaginary

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.real + other.real, self.imaginary + other.imaginary)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.real - other.real, self.imaginary - other.imaginary)

    def __mul__(self, other: Complex) -> Complex:
        real, imaginary = self.real * other.real, self.real * other.imaginary
        return Complex(
            real.add_product(-self.imaginary, other.imaginary), imaginary.add_product(self.imaginary, other.real)
        )

    def add_product(self, left: Complex, right: Complex) -> Complex:
        """Return self + left * right."""
        real = self.real.add_product(left.real, right.real)
        imaginary = self.imaginary.add_product(left.real, right.imaginary)
        return Complex(
            real.add_product(-left.imaginary, right.imaginary), imaginary.add_product(left.imaginary, right.real)
        )

    def add_scaled(self, other: Complex, factor: Lanes) -> Complex:
        """Return self + other * factor, factor real."""
        return Complex(self.real.add_product(other.real, factor), self.imaginary.add_product(other.imaginary, factor))

    def scale(self, factor: Lanes) -> Complex:
        """Return self * factor, factor real."""
        return Complex(self.real * factor, self.imaginary * factor)

    def conjugate(self) -> Complex:
        """Return the complex conjugate."""
        return Complex(self.real, -self.imaginary)

    def swapped(self) -> Complex:
        """Return real parts as imaginary parts and the other way round."""
        return Complex(self.imaginary, self.real)

    def reversed(self) -> Complex:
        """Return the lanes in reverse order."""
        return Complex(self.real.reversed(), self.imaginary.reversed())


class Pointer:
    """A place in memory while a function is being written: of floats, int64 or int8."""

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __add__(self, offset: Integer | int) -> Pointer:
        index = Integer(self.builder, getattr(offset, "value", offset))
        return Pointer(self.builder, self.builder.gep(self.value, [index.value]))

    def __sub__(self, offset: Integer) -> Pointer:
        return self + (Integer(self.builder, 0) - offset)

    def integer(self) -> Integer:
        """Read an integer."""
        return Integer(self.builder, self.builder.load(self.value))

    def load(self) -> Lanes:
        """Read LANES floats."""
        return Lanes(self.builder, self.builder.load(self.builder.bitcast(self.value, VECTOR.as_pointer()), align=4))

    def load_bytes(self) -> Lanes:
        """Read LANES int8 as floats."""
        kind = ir.VectorType(ir.IntType(8), LANES)
        integers = self.builder.load(self.builder.bitcast(self.value, kind.as_pointer()), align=1)
        return Lanes(self.builder, self.builder.sitofp(integers, VECTOR))

    def store(self, lanes: Lanes) -> None:
        """Write LANES floats."""
        self.builder.store(lanes.value, self.builder.bitcast(self.value, VECTOR.as_pointer()), align=4)

    def spread(self) -> Lanes:
        """Read one float into all lanes."""
        nothing = ir.Constant(VECTOR, ir.Undefined)
        first = self.builder.insert_element(nothing, self.builder.load(self.value), ir.IntType(32)(0))
        return Lanes(self.builder, first).shuffle(Lanes(self.builder, nothing), [0] * LANES)

    def load_point(self) -> Complex:
        """Read a register of real parts and the one of imaginary parts behind it."""
        return Complex(self.load(), (self + LANES).load())

    def store_point(self, point: Complex) -> None:
        """Write a register of real parts and behind it one of imaginary parts."""
        self.store(point.real)
        (self + LANES).store(point.imaginary)

    def spread_point(self) -> Complex:
        """Read a real and an imaginary part, each into all lanes."""
        return Complex(self.spread(), (self + 1).spread())


@contextmanager
def loop(count: Integer) -> Iterator[Integer]:
    """Write a loop over 0, 1, ..., count - 1."""
    with cgutils.for_range(count.builder, count.value) as written:
        yield Integer(count.builder, written.index)


def data_of(context: Any, builder: Any, signature: Any, arguments: Any, i: int) -> tuple[Pointer, Integer]:
    """Return where an array argument of an intrinsic begins, and the length of its last axis."""
    array = context.make_array(signature.args[i])(context, builder, arguments[i])
    return Pointer(builder, array.data), Integer(builder, cgutils.unpack_tuple(builder, array.shape)[-1])


def call(write: Callable[..., None], name: str, *arguments: Integer | Pointer, is_wide: bool = False) -> None:
    """Call the function `name`, which `write(*arguments)` writes if the module does not have it yet.

    A function that is wide works on more values than some targets have registers.
    """
    builder = arguments[0].builder
    module = builder.module
    if name not in module.globals:
        kind = ir.FunctionType(ir.VoidType(), [argument.value.type for argument in arguments])
        function = ir.Function(module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        if is_wide:  # values on the stack that lie across two cache lines take twice the time
            function.attributes.alignstack = 4 * LANES
        inner = ir.IRBuilder(function.append_basic_block())
        write(*(type(outer)(inner, value) for outer, value in zip(arguments, function.args, strict=True)))
        inner.ret_void()
    builder.call(module.globals[name], [argument.value for argument in arguments])
