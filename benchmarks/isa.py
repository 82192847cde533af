"""Instruction levels: run ours and faiss as on a CPU that lacks the newest instructions, and say what is in use."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

# Features of an x86-64 CPU with AVX2. The name of a CPU alone leaves numba all features of the host.
_AVX2_FEATURES = (
    "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "bmi", "bmi2", "lzcnt", "movbe",
    "f16c",
)  # fmt: skip
# What numpy is to do without; each of its versions knows some of these names and ignores the others.
_NUMPY_AVX512 = (
    "X86_V4", "AVX512F", "AVX512CD", "AVX512_SKX", "AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR",
)  # fmt: skip

LEVELS = {
    "avx2": {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in _AVX2_FEATURES),
        # Newer releases of faiss choose among instructions in one library, older ones among libraries.
        "FAISS_SIMD_LEVEL": "AVX2",
        "FAISS_OPT_LEVEL": "AVX2",
        "NPY_DISABLE_CPU_FEATURES": " ".join(_NUMPY_AVX512),
        "OPENBLAS_CORETYPE": "Haswell",
    },
    # The least that numpy runs on.
    "portable": {
        "NUMBA_CPU_NAME": "x86-64-v2",
        "NUMBA_CPU_FEATURES": "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt",
        "FAISS_SIMD_LEVEL": "NONE",
        "FAISS_OPT_LEVEL": "GENERIC",
        "NPY_DISABLE_CPU_FEATURES": " ".join(("X86_V3", "AVX2", "FMA3", *_NUMPY_AVX512)),
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
"""Levels that a run can be held to, and the environment variables that do so."""

_CHOSEN = "CBEINDEX_BENCH_ISA"


def use(level: str) -> None:
    """Hold this process and those that it starts to a level. Libraries read it when they are imported, so not later."""
    if level not in LEVELS:
        raise ValueError(f"--isa must be one of {', '.join(LEVELS)}, got {level!r}")
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ValueError(f"--isa {level} needs an x86-64 CPU, this is {platform.machine()}")
    early = [name for name in ("numpy", "numba", "faiss") if name in sys.modules]
    assert not early, f"imported before the level was set: {early}"
    os.environ.update(LEVELS[level], **{_CHOSEN: level})


def chosen() -> str | None:
    """Return the level that this run is held to; None if it uses what the CPU has."""
    return os.environ.get(_CHOSEN)


def refuses(package: str | None) -> str | None:
    """Say why a package cannot be held to the level of this run; None if it can, or need not."""
    if chosen() is None or package in (None, "faiss") or not _has_avx512():
        return None
    return f"cannot be held to {chosen()}"


def in_use() -> str:
    """Return the level that kernels are compiled for: "avx512", "avx2", "neon", "portable" or "not compiled"."""
    import numba
    from numba.core.registry import cpu_target

    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]
        return "not compiled"
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    if triple.startswith(("aarch64", "arm64")):
        return "neon"
    on = {name[1:] for name in features.split(",") if name.startswith("+")}
    return next((level for level, needed in (("avx512", "avx512bw"), ("avx2", "avx2")) if needed in on), "portable")


def below(level: str) -> list[str]:
    """Return the levels below one that is in use."""
    return {"avx512": ["avx2", "portable"], "avx2": ["portable"]}.get(level, [])


def _has_avx512() -> bool:
    """Tell whether the CPU has AVX-512 instructions; True where the system does not say."""
    try:
        return " avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
