"""What one core can do at most: multiply and add in registers."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from cbeindex.kernels.vectors import LANES, VECTOR, Lanes, cgutils

# Sums that do not wait for each other: more than two multiply-adds a cycle of four cycles each.
_CHAINS = 12
_FIRST = ir.IntType(32)(0)


@intrinsic
def multiply_and_add(typing_context: Any, start: Any, n: Any) -> Any:
    """Multiply and add `n` times in each of some registers; return one of the numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = Lanes(builder, builder.insert_element(ir.Constant(VECTOR, ir.Undefined), arguments[0], _FIRST))
        first = first.shuffle(first, [0] * LANES)
        sums = [cgutils.alloca_once_value(builder, first.value) for _ in range(_CHAINS)]
        with cgutils.for_range(builder, arguments[1]):
            for place in sums:
                before = Lanes(builder, builder.load(place))
                builder.store(first.constant(0.125).add_product(before, first.constant(0.875)).value, place)
        total = Lanes(builder, builder.load(sums[0]))
        for place in sums[1:]:
            total += Lanes(builder, builder.load(place))
        return builder.extract_element(total.value, _FIRST)

    return types.float32(types.float32, types.int64), generate


@njit  # type: ignore[misc,unused-ignore]
def spin(start: Any, n: int) -> Any:
    """Keep the core busy."""
    return multiply_and_add(start, n)  # type: ignore[call-arg,unused-ignore]


class Limits:
    """Measures the limit of the core that it runs on."""

    def gigaflops(self) -> float:
        """Return the float32 operations of multiply-adds in registers, in 10^9 a second."""
        n = 10**6
        return 2 * LANES * _CHAINS * n / _fastest(lambda: spin(np.float32(0.5), n)) / 1e9


def _fastest(call: Any) -> float:
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def operations(dim: int) -> float:
    """Return the operations of two real transforms of `dim` values, counted as usual: 2.5 d log2 d each."""
    return 5 * dim * math.log2(dim)
