"""What numba compiles for: the kind of processor, and its features. They may be fewer than the processor has."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numba
from numba.core.registry import cpu_target

DECIDING = frozenset(
    {"ssse3", "avx", "avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vbmi", "avx512vpopcntdq"}
)  # fmt: skip
"""Features that kernels, and the layout of what they read, depend on."""


_V2 = (
    "64bit", "cmov", "cx16", "cx8", "fxsr", "mmx", "popcnt", "sahf", "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3",
)  # fmt: skip
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_V4 = (*_V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

LEVELS = {
    "x86-64-v2": ("x86-64-v2", _V2),
    "x86-64-v3": ("x86-64-v3", _V3),
    "x86-64-v4": ("x86-64-v4", _V4),
    # What processors from Ice Lake and Zen 4 on have, and kernels use.
    "x86-64-v4-vbmi": ("x86-64-v4", (*_V4, "avx512vbmi", "avx512vpopcntdq")),
    "aarch64": ("generic", ("fp-armv8", "neon")),
}
"""Processors that code is made for ahead of time: LLVM's name, and the features that all of them have."""


class Target(NamedTuple):
    """A kind of processor.

    Attributes
    ----------
    is_x86, is_arm : bool
        Whether it is a 64-bit processor of these kinds.
    features : frozenset of str
        Features by LLVM's names.
    triple, cpu : str
        LLVM's names of the system and of the processor.
    """

    is_x86: bool
    is_arm: bool
    features: frozenset[str]
    triple: str = ""
    cpu: str = ""

    @classmethod
    def of(cls, context: Any) -> Target:
        """Return the target of a context of numba."""
        triple, cpu, features = context.codegen().magic_tuple()
        enabled = frozenset(name[1:] for name in features.split(",") if name.startswith("+"))
        return cls.named(triple, cpu, enabled)

    @classmethod
    def named(cls, triple: str, cpu: str, features: frozenset[str]) -> Target:
        """Return the target with these names and features."""
        is_x86, is_arm = triple.startswith("x86_64"), triple.startswith(("aarch64", "arm64"))
        return cls(is_x86, is_arm, features, triple, cpu)

    def has(self, *features: str) -> bool:
        """Return whether it is an x86 processor with all of these features."""
        assert DECIDING.issuperset(features), "code that is made ahead of time is chosen by these"
        return self.is_x86 and self.features.issuperset(features)

    def runs(self, other: Target) -> bool:
        """Return whether code for another target runs on this one, and is what this one would have compiled."""
        return (
            self.triple == other.triple
            and self.features >= other.features
            and self.features & DECIDING == other.features & DECIDING
        )

    def levels(self) -> list[str]:
        """Return the levels whose code runs on this processor."""
        kind = "x86-64" if self.is_x86 else "aarch64" if self.is_arm else "none"
        return [
            name for name, (_, features) in LEVELS.items() if name.startswith(kind) and self.features >= {*features}
        ]

    @property
    def name(self) -> str:
        """All that code depends on."""
        return f"{self.triple} {self.cpu} {','.join(sorted(self.features))}"


def level_variables(level: str) -> dict[str, str]:
    """Return the environment variables by which a process compiles for a level."""
    cpu, features = LEVELS[level]
    return {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in features)}


@functools.cache
def compiled_target() -> Target:
    """Return the target of compiled kernels; one without any features if kernels are not compiled."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return Target(is_x86=False, is_arm=False, features=frozenset())
    return Target.of(cpu_target.target_context)
