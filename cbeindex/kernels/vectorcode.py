"""Building blocks of intrinsics: vectors of fixed length, and the few operations that need an instruction by name.

Everything else is generic LLVM code, which every processor gets in its own registers. Which instructions there are
follows from the target that numba compiles for (`target.py`), not from the processor that runs it.
"""

import sys
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils as untyped

from .target import Target

cgutils: Any = untyped

I8, I16, I32, I64, F32 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()


class VectorCode:
    """Emits vector operations into a function that is being compiled."""

    def __init__(self, context: Any, builder: Any) -> None:
        self._context, self.builder, self.target = context, builder, Target.of(context)

    @property
    def has_half(self) -> bool:
        """Whether float16 is converted by an instruction."""
        return self.target.is_arm or self.target.has("f16c")

    # Memory: arrays as addresses of bytes.

    def address(self, kind: Any, array: Any) -> Any:
        """Return where the data of an array begins, as a 64-bit integer."""
        data = self._context.make_array(kind)(self._context, self.builder, array).data
        return self.builder.ptrtoint(data, I64)

    def strides(self, kind: Any, array: Any) -> list[Any]:
        """Return the strides of an array, in bytes."""
        made = self._context.make_array(kind)(self._context, self.builder, array)
        return list(cgutils.unpack_tuple(self.builder, made.strides))

    def shape(self, kind: Any, array: Any) -> list[Any]:
        """Return the shape of an array."""
        made = self._context.make_array(kind)(self._context, self.builder, array)
        return list(cgutils.unpack_tuple(self.builder, made.shape))

    def row(self, kind: Any, array: Any, index: Any) -> Any:
        """Return where a row of an array begins."""
        return self.builder.add(self.address(kind, array), self.builder.mul(index, self.strides(kind, array)[0]))

    def at(self, address: Any, index: Any, size: int = 1) -> Any:
        """Return address + index * size."""
        index = I64(index) if isinstance(index, int) else index
        return self.builder.add(address, self.builder.mul(index, I64(size)))

    def load(self, kind: Any, address: Any) -> Any:
        """Read a value, which may lie at any address."""
        return self.builder.load(self.builder.inttoptr(address, kind.as_pointer()), align=1)

    def store(self, value: Any, address: Any) -> None:
        """Write a value to any address."""
        self.builder.store(value, self.builder.inttoptr(address, value.type.as_pointer()), align=1)

    def padded(self, address: Any, n_elements: Any, kind: Any) -> Any:
        """Copy fewer elements than a vector has into a zeroed one on the stack; return it."""
        builder, element = self.builder, kind.element
        size = {I8: 1, I16: 2, F32: 4}[element]
        slot = cgutils.alloca_once(builder, kind)
        builder.store(self.zeros(kind), slot)
        start = builder.ptrtoint(slot, I64)
        with cgutils.for_range(builder, n_elements) as loop:
            self.store(self.load(element, self.at(address, loop.index, size)), self.at(start, loop.index, size))
        return builder.load(slot)

    def load_some(self, kind: Any, address: Any, n_elements: Any) -> Any:
        """Read a vector of which `n_elements` or more exist: zeros in place of those that do not."""
        builder, read = self.builder, cgutils.alloca_once(self.builder, kind)
        with builder.if_else(builder.icmp_signed("<", n_elements, I64(kind.count))) as (is_short, is_full):
            with is_short:
                builder.store(self.padded(address, n_elements, kind), read)
            with is_full:
                builder.store(self.load(kind, address), read)
        return builder.load(read)

    def prefetch(self, address: Any) -> None:
        """Ask for the memory at an address, which may be out of bounds."""
        kinds = [I8.as_pointer(), I32, I32, I32]
        function = self.builder.module.declare_intrinsic(
            "llvm.prefetch", kinds[:1], ir.FunctionType(ir.VoidType(), kinds)
        )
        self.builder.call(function, [self.builder.inttoptr(address, kinds[0]), I32(0), I32(3), I32(1)])

    # Vectors.

    def variable(self, value: Any) -> Any:
        """Make a variable, which becomes a register."""
        return cgutils.alloca_once_value(self.builder, value)

    def add_to(self, variable: Any, value: Any) -> None:
        """Add to a variable."""
        builder = self.builder
        add = builder.fadd if getattr(value.type, "element", value.type) == F32 else builder.add
        builder.store(add(builder.load(variable), value), variable)

    def constant(self, element: Any, values: Sequence[Any]) -> Any:
        """Return a constant vector."""
        return ir.Constant(ir.VectorType(element, len(values)), list(values))

    def filled(self, kind: Any, value: Any) -> Any:
        """Return a constant vector of equal values."""
        return self.constant(kind.element, [value] * kind.count)

    def zeros(self, kind: Any) -> Any:
        """Return a vector of zeros."""
        return self.filled(kind, 0.0 if kind.element == F32 else 0)

    def splat(self, scalar: Any, count: int) -> Any:
        """Return a vector of equal values known when it runs."""
        nothing = ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined)
        return self.pick(self.builder.insert_element(nothing, scalar, I32(0)), [0] * count)

    def pick(self, vector: Any, places: Sequence[int], other: Any = None) -> Any:
        """Return the elements at some places of one vector, or of two behind each other."""
        other = ir.Constant(vector.type, ir.Undefined) if other is None else other
        return self.builder.shuffle_vector(vector, other, self.constant(I32, places))

    def join(self, first: Any, second: Any) -> Any:
        """Put two vectors of equal length behind each other."""
        return self.pick(first, range(2 * first.type.count), second)

    def join_all(self, vectors: list[Any]) -> Any:
        """Put vectors of equal length, a power of two of them, behind each other."""
        while len(vectors) > 1:
            vectors = [self.join(*vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
        return vectors[0]

    def split(self, vector: Any, count: int) -> list[Any]:
        """Cut a vector into vectors of `count` elements."""
        if vector.type.count == count:
            return [vector]
        return [self.pick(vector, range(i, i + count)) for i in range(0, vector.type.count, count)]

    def total(self, vector: Any) -> Any:
        """Add up a vector: its upper half to its lower half, until one element is left."""
        add = self.builder.fadd if vector.type.element == F32 else self.builder.add
        return self._fold(vector, add)

    def largest(self, vector: Any) -> Any:
        """Return the largest of floats."""
        return self._fold(vector, self.maximum)

    def maximum(self, first: Any, second: Any) -> Any:
        """Return the larger of floats, element by element."""
        return self.builder.select(self.builder.fcmp_ordered(">", first, second), first, second)

    def _fold(self, vector: Any, operation: Any) -> Any:
        count = vector.type.count
        while count > 1:
            count //= 2
            vector = operation(self.pick(vector, range(count)), self.pick(vector, range(count, 2 * count)))
        return self.builder.extract_element(vector, I32(0))

    def bits(self, flags: Any) -> Any:
        """Pack a vector of flags into a uint64, the first in the lowest bit."""
        packed = self.builder.bitcast(flags, ir.IntType(flags.type.count))
        return self.builder.zext(self.builder.bitreverse(packed) if sys.byteorder == "big" else packed, I64)

    # Operations with a name of their own.

    def call(self, name: str, kind: Any, *arguments: Any) -> Any:
        """Call an LLVM intrinsic."""
        function = ir.FunctionType(kind, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, name), arguments)

    def look_up(self, tables: Any, places: Any) -> Any:
        """Return bytes of tables of 16: those of each run of 16 places lie at the same 16 bytes of `tables`."""
        if self.target.has("avx512bw") and places.type.count == 64:
            name, count = "llvm.x86.avx512.pshuf.b.512", 64
        elif self.target.has("avx2"):
            name, count = "llvm.x86.avx2.pshuf.b", 32
        elif self.target.has("ssse3"):
            name, count = "llvm.x86.ssse3.pshuf.b.128", 16
        elif self.target.is_arm:
            name, count = "llvm.aarch64.neon.tbl1.v16i8", 16
        else:
            return self._look_up_singly(tables, places)
        parts = zip(self.split(tables, count), self.split(places, count), strict=True)
        return self.join_all([self.call(name, part.type, part, place) for part, place in parts])

    def _look_up_singly(self, tables: Any, places: Any) -> Any:
        builder, kind = self.builder, tables.type
        slot = cgutils.alloca_once(builder, kind)
        builder.store(tables, slot)
        start, found = builder.ptrtoint(slot, I64), ir.Constant(kind, ir.Undefined)
        for i in range(kind.count):
            place = builder.zext(builder.extract_element(places, I32(i)), I64)
            found = builder.insert_element(found, self.load(I8, self.at(self.at(start, i // 16 * 16), place)), I32(i))
        return found

    def multiply_add(self, first: Any, second: Any) -> Any:
        """Multiply vectors of 32 int16; return 16 sums of two products each, as int32.

        Which products are added differs between processors: only the total of all sums is the same.
        """
        if self.target.has("avx512bw"):
            name, count = "llvm.x86.avx512.pmaddw.d.512", 32
        elif self.target.has("avx2"):
            name, count = "llvm.x86.avx2.pmadd.wd", 16
        elif self.target.is_x86:
            name, count = "llvm.x86.sse2.pmadd.wd", 8
        else:
            wide = ir.VectorType(I32, 16)
            (a, b), (c, d) = (
                [self.builder.sext(half, wide) for half in self.split(vector, 16)] for vector in (first, second)
            )
            return self.builder.add(self.builder.mul(a, c), self.builder.mul(b, d))
        kind = ir.VectorType(I32, count // 2)
        parts = zip(self.split(first, count), self.split(second, count), strict=True)
        return self.join_all([self.call(name, kind, *pair) for pair in parts])
