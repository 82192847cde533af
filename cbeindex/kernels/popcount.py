"""Population count: one instruction when compiled, `int.bit_count` when not."""

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

popcount64: Any

if numba.config.DISABLE_JIT:  # type: ignore[attr-defined,unused-ignore]

    def popcount64(word: Any) -> Any:
        """Count the ones of a uint64."""
        return np.uint64(int(word).bit_count())

else:

    @intrinsic
    def popcount64(typing_context: Any, word: Any) -> Any:
        """Count the ones of a uint64."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.ctpop(arguments[0])

        return types.uint64(types.uint64), generate
