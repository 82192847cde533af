"""Puts kernels that are compiled ahead of time into a wheel, so that a new installation compiles nothing on first use.

The wheel is for this version of Python and this system. With other versions of numba, llvmlite or numpy, or on a
processor that it has no code for, kernels are compiled on first use, as without them.

CBEINDEX_LEVELS and CBEINDEX_KINDS choose levels of processors and kinds of indexes, as `cbeindex warm` does: the best
level of this machine and all kinds by default. CBEINDEX_LEVELS=none builds a wheel without compiled kernels, for any
system. If compiling fails, `pip install` goes on without them, but a build whose levels were chosen fails.
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
        levels, kinds = os.environ.get("CBEINDEX_LEVELS"), os.environ.get("CBEINDEX_KINDS", "").split()
        if version == "editable" or levels == "none":
            return
        command = [sys.executable, "-m", "cbeindex", "warm", *kinds, "--into", self._made.name]
        done = subprocess.run(
            [*command, "--levels", levels or "best"],
            # The packages of an isolated build are found by the path of this process only.
            env=os.environ | {"PYTHONPATH": os.pathsep.join([self.root, *sys.path])}, check=levels is not None,
        )  # fmt: skip
        if done.returncode != 0:
            self.app.display_warning("no kernels could be compiled now: they are compiled on first use")
            return
        build_data["force_include"][self._made.name] = "cbeindex/kernels/compiled"
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        self._made.cleanup()
