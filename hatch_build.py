"""Puts kernels that were compiled ahead of time into a wheel, if HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 asks for it.

The wheel is for this version of Python and this system. With other versions of numba, llvmlite or numpy, or on a
processor that it has no code for, kernels are compiled on first use, as with any other wheel.

CBEINDEX_LEVELS and CBEINDEX_KINDS choose levels of processors and kinds of indexes, all by default: they are the
arguments of `cbeindex warm`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledKernels(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """Compiles kernels into a folder that becomes `cbeindex/kernels/compiled` of the wheel."""

    PLUGIN_NAME = "custom"
    _made: tempfile.TemporaryDirectory[str]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile. An editable installation compiles on first use."""
        self._made = tempfile.TemporaryDirectory(prefix="cbeindex-kernels-")
        if version == "editable":
            return
        levels, kinds = os.environ.get("CBEINDEX_LEVELS", "all"), os.environ.get("CBEINDEX_KINDS", "").split()
        subprocess.run(
            [sys.executable, "-m", "cbeindex", "warm", *kinds, "--into", self._made.name, "--levels", levels],
            # The packages of an isolated build are found by the path of this process only.
            env=os.environ | {"PYTHONPATH": os.pathsep.join([self.root, *sys.path])}, check=True,
        )  # fmt: skip
        build_data["force_include"][self._made.name] = "cbeindex/kernels/compiled"
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        self._made.cleanup()
