"""Kernels borrow the arrays that they are given: they do not count references to them.

numba counts references to the memory of every array: when a kernel begins, for each view that it takes, and when it
passes an array on. Each count is an atomic operation, and a search would take several hundred of them. But whoever
calls a kernel holds its arrays until it returns. So inside of a kernel, arguments look like arrays whose memory nobody
counts, and so do views of them: numba leaves out what would count nothing. Arrays that a kernel makes, and those in
tuples, are counted as always. A kernel that returns an array, which may be a view of an argument, counts like numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from llvmlite import ir
from numba.core import cgutils, compiler_machinery, lowering, pythonapi, typed_passes, types

# Untyped parts of numba.
_python_api: Any = pythonapi.PythonAPI
_null_value: Any = cgutils.get_null_value


def _has_arrays(kind: Any) -> bool:
    """Return whether values of a type are, or may hold, arrays."""
    if isinstance(kind, types.BaseTuple):
        parts: Any = kind
        return any(_has_arrays(part) for part in parts)
    return not isinstance(kind, (types.Number, types.Boolean, types.NoneType, types.Literal))


class _BorrowingLower(lowering.Lower):  # type: ignore[misc,unused-ignore]
    """Writes the code of a kernel."""

    def extract_function_arguments(self) -> Any:
        """Return the arguments; arrays without what counts references to them."""
        given = super().extract_function_arguments()  # type: ignore[no-untyped-call,unused-ignore]
        if not _has_arrays(self.fndesc.restype):
            self.fnargs = given = [self._borrowed(*pair) for pair in zip(self.fndesc.argtypes, given, strict=True)]
        return given

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Write the function that Python calls."""
        with nullcontext() if _has_arrays(self.fndesc.restype) else _arrays_are_lent():
            super().create_cpython_wrapper(release_gil)  # type: ignore[no-untyped-call,unused-ignore]

    def _borrowed(self, kind: Any, value: Any) -> Any:
        if not isinstance(kind, types.Array):
            return value
        make: Any = self.context.make_array(kind)
        array = make(self.context, self.builder, value)
        array.meminfo = _null_value(array.meminfo.type)
        return array._getvalue()


@compiler_machinery.register_pass(mutates_CFG=True, analysis_only=False)  # type: ignore[no-untyped-call,unused-ignore]
class _BorrowingPass(typed_passes.NativeLowering):  # type: ignore[misc,unused-ignore]
    """The pass that writes the code of a function."""

    _name = "borrowing_lowering"

    @property
    def lowering_class(self) -> Any:
        """What writes the code."""
        return _BorrowingLower


def borrow(pipelines: list[Any]) -> list[Any]:
    """Return pipelines of passes of numba in which kernels borrow their arguments."""
    for pipeline in pipelines:
        own = typed_passes.NativeLowering
        pipeline.passes = [(_BorrowingPass if kind is own else kind, why) for kind, why in pipeline.passes]
        pipeline.finalize()
    return pipelines


@contextmanager
def _arrays_are_lent() -> Iterator[None]:
    """Let calls from Python pass arrays on without making something that counts references to them."""
    before = _python_api.nrt_adapt_ndarray_from_python
    _python_api.nrt_adapt_ndarray_from_python = _adapt
    try:
        yield
    finally:
        _python_api.nrt_adapt_ndarray_from_python = before


def _adapt(api: Any, array: Any, place: Any) -> Any:
    """Write the call that reads an array of Python."""
    kind = ir.FunctionType(ir.IntType(32), [api.pyobj, api.voidptr])
    return api.builder.call(api._get_function(kind, name="numba_adapt_ndarray"), (array, place))
