"""Kernels that are compiled together with what they call, and what else numba does with the same functions."""

import numba
import numpy as np
import pytest

from cbeindex.kernels import jit, linking
from tests.conftest import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


@pytest.fixture(params=[True, False], ids=["parts", "as by numba"])
def njit(request, monkeypatch):
    """The decorator of kernels, also for a numba without the internals that parts are made with."""
    if not request.param:
        monkeypatch.setattr(linking, "_USED", (*linking._USED, (numba.core.codegen.Codegen, "of another release", [])))
    assert linking.is_supported() == request.param
    monkeypatch.setattr(jit, "_links_parts", linking.is_supported)
    return jit.njit


def test_kernels_call_kernels(njit):
    @njit(nogil=True)
    def inner(values, i):
        return values[i] + 1

    @njit(nogil=True)
    def middle(values):
        total = 0
        for i in range(values.size):
            total += inner(values, i)
        return total

    @njit(nogil=True)
    def outer(values):
        return 2 * middle(values) + inner(values, 0)

    values = np.arange(5)
    assert outer(values) == 2 * 15 + 1
    assert (middle(values), inner(values, 3)) == (15, 4), "they may be called from Python too"
    assert outer(values.astype(np.float32)) == 31


def test_exceptions_and_new_arrays_pass_through_kernels(njit):
    @njit(nogil=True)
    def made(n):
        if n < 0:
            raise ValueError("n must not be negative")
        return np.arange(n)

    @njit(nogil=True)
    def total(n):
        return made(n).sum()

    assert total(4) == 6
    with pytest.raises(ValueError, match="n must not be negative"):
        total(-1)
    with pytest.raises(ValueError, match="n must not be negative"):
        made(-1)


def test_shared_kernels_are_compiled_once_for_all_callers(njit):
    @njit(nogil=True, shared=True)
    def inner(values, i):
        if i < 0:
            raise ValueError("i must not be negative")
        return values[i] + 1

    @njit(nogil=True)
    def middle(values):
        return inner(values, 2)

    @njit(nogil=True)
    def outer(values, i):
        return 10 * inner(values, i) + middle(values)

    @numba.njit
    def foreign(values):
        return inner(values, 0)

    values = np.arange(5)
    assert outer(values, 1) == 20 + 3
    assert (middle(values), inner(values, 3), foreign(values)) == (3, 4, 1)
    with pytest.raises(ValueError, match="i must not be negative"):
        outer(values, -1)
    assert outer(values.astype(np.float32), 1) == 23


def test_a_shared_kernel_is_not_a_part_of_its_callers():
    @jit.njit(nogil=True, shared=True)
    def inner(x):
        return x + 1

    @jit.njit(nogil=True)
    def middle(x):
        return inner(x) + inner(1)

    @jit.njit(nogil=True)
    def outer(x):
        return inner(x) * middle(x)

    assert (outer(1), middle(2), inner(3)) == (8, 5, 4)
    assert inner.signatures == [(numba.int64,)], "for numbers that a caller knows it is not compiled again"
    name = inner.overloads[(numba.int64,)].fndesc.llvm_func_name
    for kernel in (middle, outer):
        library = kernel.overloads[(numba.int64,)].library
        assert [shared.name for shared in library.needs] == [inner.py_func.__qualname__]
        assert library._final_module.get_function(name).is_declaration


def test_functions_of_numba_are_as_usable_as_before(njit):
    """What a kernel calls may be a function of numba that Python, or another such function, calls as well."""

    @numba.njit
    def foreign(x):
        return max(x, 3) + 1

    @njit(nogil=True)
    def kernel(x):
        return foreign(x) * 2

    @numba.njit
    def caller(x):
        return kernel(x) + foreign(x) + max(x, 3)

    assert kernel(1) == 8
    assert foreign(1) == 4
    assert caller(1) == 8 + 4 + 3
    assert foreign(5.5) == 6.5

    @numba.njit
    def later(x):
        return max(x, 2.5) + max(int(x), 3)

    assert later(1.0) == 5.5


def test_kernels_that_cannot_be_compiled_say_so(njit):
    @njit(nogil=True)
    def wrong(x):
        return x.no_such_attribute

    @njit(nogil=True)
    def outer(x):
        return wrong(x)

    @numba.njit
    def right(x):
        return min(x, 7)

    with pytest.raises(numba.TypingError, match="no_such_attribute"):
        outer(1)
    assert right(9) == 7, "numba compiles by itself again"


def test_only_what_python_calls_becomes_machine_code():
    @jit.njit(nogil=True)
    def inner(x):
        return x + 1

    @jit.njit(nogil=True)
    def outer(x):
        return inner(x) * 2

    assert outer(1) == 4
    compiled = [type(kernel.overloads[(numba.int64,)].library).__name__ for kernel in (outer, inner.part)]
    assert compiled == ["_WholeLibrary", "_PartLibrary"]
    assert not inner.signatures
