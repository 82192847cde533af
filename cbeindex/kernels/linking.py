"""Compiles a kernel and all that it calls as one module of LLVM.

By itself, numba optimises each function, makes machine code of it and wraps it for calls from Python before linking it
into its callers, where it is optimised again. Few kernels are called from Python. So what a kernel calls is a part: its
code is written and simplified (which removes most counting of references), and nothing else is done with it until it is
linked into the kernels that are called from Python.

A large kernel that several others call is shared: it is compiled once, and the others call it by its name. So its name
must be the same in every process, and the machine code of others notes what has to be loaded before it.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, cast

import numba
from llvmlite.binding import Linkage, add_symbol, parse_assembly
from numba import _helperlib
from numba.core import codegen, compiler, lowering, pythonapi, typed_passes, types
from numba.core.dispatcher import Dispatcher
from numba.core.environment import lookup_environment
from numba.core.registry import CPUDispatcher

from .borrowing import borrow

_WRAPPERS = ("wrapper", "cfunc_wrapper")
_ENVIRONMENT = "_ZN08NumbaEnv"

_USED = (
    (codegen.CPUCodeLibrary, "_get_module_for_linking", ["self"]),
    (codegen.CPUCodeLibrary, "add_ir_module", ["self", "ir_module"]),
    (codegen.CPUCodeLibrary, "add_llvm_module", ["self", "ll_module"]),
    (codegen.CPUCodeLibrary, "finalize", ["self"]),
    (codegen.JITCodeLibrary, "get_pointer_to_function", ["self", "name"]),
    (codegen.Codegen, "create_library", ["self", "name", "kwargs"]),
    (compiler.CompilerBase, "compile_extra", ["self", "func"]),
    (compiler.Compiler, "define_pipelines", ["self"]),
    (lowering.Lower, "extract_function_arguments", ["self"]),
    (lowering.Lower, "create_cpython_wrapper", ["self", "release_gil"]),
    (pythonapi.PythonAPI, "nrt_adapt_ndarray_from_python", ["self", "ary", "ptr"]),
    (typed_passes.NativeLowering, "lowering_class", None),
    (compiler.CompilerBase, "_compile_bytecode", ["self"]),
    (Dispatcher, "compile", ["self", "sig"]),
    (Dispatcher, "get_call_template", ["self", "args", "kws"]),
    (Dispatcher, "_numba_type_", None),
)
"""Methods of numba that this module and `borrowing.py` call or replace, with their parameters; None: a property."""


def is_supported() -> bool:
    """Return whether the installed numba has what this module builds on; otherwise kernels are compiled as by numba."""
    for owner, name, parameters in _USED:
        found = getattr(owner, name, None)
        if parameters is None:
            if not isinstance(found, property):
                return False
        elif found is None or list(inspect.signature(found).parameters) != parameters:
            return False
    has_adaptor = "adapt_ndarray" in getattr(_helperlib, "c_helpers", ())
    return has_adaptor and codegen.JITCPUCodegen._library_class is codegen.JITCodeLibrary


class SharedCode(NamedTuple):
    """Which code has to be loaded before that of its callers: the kernel and the types of its arguments."""

    module: str
    name: str
    signature: Any

    def load(self) -> None:
        """Load it, or compile it if it is not on disk."""
        getattr(import_module(self.module), self.name).compile(self.signature)


def compile_whole(function: Callable[..., Any], options: dict[str, Any], shared: bool = False) -> Any:
    """Return a kernel like that of `numba.njit(**options)`, which is compiled together with what it calls.

    If it is `shared`, it is compiled apart from the kernels that call it.
    """
    njit: Any = numba.njit
    if shared:
        kernel = njit(**options, pipeline_class=_SharedCompiler)(function)
        kernel.__class__ = _SharedKernel
        return kernel
    kernel = njit(**options, pipeline_class=_WholeCompiler)(function)
    kernel.__class__ = _Kernel
    kernel.part = njit(**options, pipeline_class=_PartCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return kernel


class _Kernel(CPUDispatcher):  # type: ignore[misc,unused-ignore]
    """A kernel that Python calls; the kernels that call it get its part."""

    part: Any

    @property
    def _numba_type_(self) -> Any:
        return self.part._numba_type_


class _SharedKernel(CPUDispatcher):  # type: ignore[misc,unused-ignore]
    """A kernel that Python and kernels call alike."""

    _cache: Any

    def compile(self, sig: Any) -> Any:
        """Compile, or load; release the lock of its file if that fails, also where a caller is compiled."""
        try:
            return super().compile(sig)  # type: ignore[no-untyped-call,unused-ignore]
        finally:
            release = getattr(self._cache, "release", None)
            if release is not None:
                release()

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return how kernels call it: a number that they know is any number, so that it is not compiled for each."""
        any_of: Any = types.unliteral
        named = {name: any_of(kind) for name, kind in kws.items()}
        return super().get_call_template(tuple(map(any_of, args)), named)  # type: ignore[no-untyped-call,unused-ignore]


class _PartLibrary(codegen.JITCodeLibrary):  # type: ignore[misc,unused-ignore]
    """Code that is linked into that of callers. numba's own functions become parts too while a kernel is compiled."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)  # type: ignore[no-untyped-call,unused-ignore]
        self._wrappers: list[Any] = []
        self._alone: Any = None

    def add_ir_module(self, ir_module: Any) -> None:
        """Add code. Wrappers are kept until somebody asks for them."""
        if ir_module.name in _WRAPPERS:
            self._wrappers.append(ir_module)
        else:
            super().add_ir_module(ir_module)  # type: ignore[no-untyped-call,unused-ignore]

    def finalize(self) -> None:
        """Prepare the code for being linked, without compiling it."""
        self._raise_if_finalized()  # type: ignore[no-untyped-call,unused-ignore]
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalized = True

    @property
    def own_module(self) -> Any:
        """The code without what it calls."""
        return self._final_module

    def _get_module_for_linking(self) -> Any:
        """Return the code with all that it calls, for a library of numba."""
        self._ensure_finalized()  # type: ignore[no-untyped-call,unused-ignore]
        if self._shared_module is None:
            module = self.own_module.clone()
            _link(module, self._linking_libraries)
            self._shared_module = module
        return self._shared_module

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0, as nobody calls a part by its address; if it has such a wrapper, compile it for that."""
        self._ensure_finalized()  # type: ignore[no-untyped-call,unused-ignore]
        if self._alone is None and any(name in wrapper.globals for wrapper in self._wrappers):
            self._alone = codegen.JITCodeLibrary(self._codegen, self.name)  # type: ignore[no-untyped-call,unused-ignore]
            self._alone.add_linking_library(self)
            for wrapper in self._wrappers:
                self._alone.add_ir_module(wrapper)
        return self._alone.get_pointer_to_function(name) if self._alone else 0

    @property
    def codegen(self) -> Any:
        """What sets the environment of the function, which a part has only inside of its callers."""
        return self._codegen if self._alone else _NoEngine


class _NoEngine:
    """Stands for the engine that runs machine code where there is none."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """Do nothing: the caller that a part is linked into does it."""


class _WholeLibrary(codegen.JITCodeLibrary):  # type: ignore[misc,unused-ignore]
    """The code of a kernel that is called from Python, with all its parts."""

    needs: tuple[SharedCode, ...] = ()
    entry = ""
    """The name by which other kernels call this one, if they do."""

    def finalize(self) -> None:
        """Link the parts, optimise, and compile."""
        self.needs = tuple(_link(self._final_module, self._linking_libraries))
        self._linking_libraries = []
        super().finalize()  # type: ignore[no-untyped-call,unused-ignore]
        engine, look_up = cast(Any, self._codegen), cast(Any, lookup_environment)
        for variable in self._final_module.global_variables:
            environment = look_up(variable.name) if variable.name.startswith(_ENVIRONMENT) else None
            if environment is not None:
                engine.set_env(variable.name, environment)

    def _get_module_for_linking(self) -> Any:
        """Return the names of the functions alone, to be saved: callers link the part, or call by the name, instead."""
        self._ensure_finalized()  # type: ignore[no-untyped-call,unused-ignore]
        if self._shared_module is None:
            functions = (function for function in self._final_module.functions if not function.is_declaration)
            exported = (function.name for function in functions if function.linkage == Linkage.external)
            names = (name for name in exported if name != self.entry)
            self._shared_module = parse_assembly("\n".join(f'define void @"{name}"() {{ ret void }}' for name in names))
        return self._shared_module


class _SharedLibrary(_WholeLibrary):
    """The code of a kernel that others call by its name."""

    origin: SharedCode

    def publish(self, name: str, origin: SharedCode) -> None:
        """Let code that is loaded later find the function of this name."""
        self.entry, self.origin = name, origin
        add_symbol(name, cast(Any, self._codegen)._engine.get_function_address(name))


def _link(module: Any, libraries: Iterable[Any]) -> list[SharedCode]:
    """Link libraries, and what their parts need, into a module. Return what is called, but not linked.

    The linker leaves out functions that nobody calls yet. A library may be needed by a caller whose call has been
    optimised away, and by another one later: so a library is linked when the module calls one of its functions.
    """
    waiting, called = list(libraries), []
    known: dict[Any, tuple[Any, set[str]]] = {}
    while waiting:
        library = waiting.pop()
        if library in known:
            continue
        if isinstance(library, _SharedLibrary):
            called.append(library.origin)
            known[library] = None, set()
            continue
        is_part = isinstance(library, _PartLibrary)
        code = library.own_module if is_part else library._get_module_for_linking()
        known[library] = code, {function.name for function in code.functions if not function.is_declaration}
        waiting.extend(library._linking_libraries if is_part else ())
    missing: set[str] = set()
    while True:
        before, missing = missing, {function.name for function in module.functions if function.is_declaration}
        needed = [code for code, names in known.values() if names & missing]
        if not needed or missing == before:
            break
        for code in needed:
            module.link_in(code, preserve=True)
    return sorted(called, key=str)


class _WholeCompiler(compiler.Compiler):  # type: ignore[misc,unused-ignore]
    """Compiles a kernel into one library, and what it calls into parts."""

    library_class: Any = _WholeLibrary

    def define_pipelines(self) -> Any:
        """Return the passes that a kernel goes through."""
        return borrow(super().define_pipelines())  # type: ignore[no-untyped-call,unused-ignore]

    def compile_extra(self, func: Any) -> Any:
        """Compile a function; numba holds its lock meanwhile."""
        generator = self.state.targetctx.codegen()
        self.state.library = self.library_class(generator, func.__qualname__)
        self.state.library.enable_object_caching()
        with _libraries_are(generator, _PartLibrary), _no_collections():
            return super().compile_extra(func)  # type: ignore[no-untyped-call,unused-ignore]


class _PartCompiler(_WholeCompiler):
    """Compiles a kernel that other kernels call."""

    library_class = _PartLibrary


class _SharedCompiler(_WholeCompiler):
    """Compiles a kernel that other kernels call by its name."""

    library_class = _SharedLibrary

    def compile_extra(self, func: Any) -> Any:
        """Compile a function, and publish its name."""
        compiled = super().compile_extra(func)
        return _published(compiled, func, tuple(self.state.args))

    def _compile_bytecode(self) -> Any:
        """Compile under a name that does not depend on what else this process has compiled."""
        self.state.func_id.unique_id = 0
        return super()._compile_bytecode()  # type: ignore[no-untyped-call,unused-ignore]


def rebuilt(kernel: Any, context: Any, signature: Any, reduced: Any) -> Any:
    """Return the code of a kernel that was saved."""
    rebuild: Any = compiler.CompileResult._rebuild
    if not isinstance(kernel, _SharedKernel):
        return rebuild(context, *reduced)
    with _libraries_are(context.codegen(), _SharedLibrary):
        compiled = rebuild(context, *reduced)
    return _published(compiled, kernel.py_func, tuple(signature))


def _published(compiled: Any, function: Callable[..., Any], signature: Any) -> Any:
    """Return code that others find by its name."""
    origin = SharedCode(function.__module__, function.__qualname__, signature)
    compiled.library.publish(compiled.fndesc.llvm_func_name, origin)
    return compiled


@contextmanager
def _no_collections() -> Iterator[None]:
    """Do not search for cyclic garbage: a sixth of the time of compiling. numba holds its lock meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _libraries_are(generator: Any, kind: Any) -> Iterator[None]:
    """Let numba make libraries of this class. It holds its lock meanwhile."""
    before = generator._library_class
    generator._library_class = kind
    try:
        yield
    finally:
        generator._library_class = before
