"""What numba compiles for: the kind of processor, and its features. They may be fewer than the processor has."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
from numba.core.registry import cpu_target


class Target(NamedTuple):
    """A kind of processor.

    Attributes
    ----------
    is_x86, is_arm : bool
        Whether it is a 64-bit processor of these kinds.
    features : frozenset of str
        Features by LLVM's names.
    """

    is_x86: bool
    is_arm: bool
    features: frozenset[str]

    @classmethod
    def of(cls, context: Any) -> Target:
        """Return the target of a context of numba."""
        triple, _, features = context.codegen().magic_tuple()
        enabled = frozenset(name[1:] for name in features.split(",") if name.startswith("+"))
        return cls(triple.startswith("x86_64"), triple.startswith(("aarch64", "arm64")), enabled)

    def has(self, *features: str) -> bool:
        """Return whether it is an x86 processor with all of these features."""
        return self.is_x86 and self.features.issuperset(features)


@functools.cache
def compiled_target() -> Target:
    """Return the target of compiled kernels; one without any features if kernels are not compiled."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return Target(is_x86=False, is_arm=False, features=frozenset())
    return Target.of(cpu_target.target_context)
