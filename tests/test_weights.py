"""Weights and estimates of blocks of 16 rows, by look-ups and by planes."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from cbeindex.kernels import blockestimates, levels, weights
from cbeindex.kernels.jit import njit
from cbeindex.kernels.vectorcode import VectorCode
from tests.conftest import COMPILED
from tests.estimate_cases import Case, Estimates

pytestmark = pytest.mark.kernels

# Around a nibble, a byte and a word, and the 64 words after which sums are widened.
WIDTHS = (1, 4, 5, 8, 63, 64, 65, 130, 384, 784, 4_096, 4_097, 8_200)
SIZES = (1, 2, 15, 16, 17, 40)


@njit(nogil=True)
def by_planes(planes, numbers, blocks, block, out):
    weights.weights_by_planes(planes, numbers, blocks, block, out)


@njit(nogil=True)
def by_tables(tables, numbers, blocks, block, out):
    weights.weights_by_tables(tables, numbers, blocks, block, out)


@njit(nogil=True)
def unfold(blocks, unfolded):
    for block in range(blocks.shape[0]):
        weights.unfold(blocks, block, unfolded, block)


@njit(nogil=True)
def estimated(prepared, numbers, blocks, block, first, of_rows, of_queries, totals, bounds, out):
    return blockestimates.estimates_within(
        prepared, numbers, blocks, block, first, of_rows, of_queries, totals, bounds, out
    )


cases = st.builds(
    Case, st.sampled_from(WIDTHS), st.sampled_from(SIZES), st.just(5), st.sampled_from([0, 1, 15]), st.integers(0, 999)
)


@pytest.mark.parametrize("n_queries", [1, 4])
@settings(max_examples=40)
@given(case=cases)
def test_weights_of_a_block(n_queries, case):
    """Equal by look-ups and by planes to the sums of levels, for queries in any order."""
    expected, prepared = case.weights(), (levels.planes_of(case.levels), levels.tables_of(case.levels))
    case.blocks.flags.writeable = False
    for block in range(len(case.blocks)):
        numbers, n = tuple(int(i) for i in case.rng.permutation(5)[:n_queries]), min(16, case.n_rows - 16 * block)
        for kernel, of_queries in zip((by_planes, by_tables), prepared, strict=True):
            out = np.full((n_queries + 1, 16), -7, dtype=np.int32)
            kernel(of_queries, numbers, case.blocks, block, out)
            np.testing.assert_array_equal(out[:-1, :n], expected[list(numbers), 16 * block : 16 * block + n])
            assert (out[-1] == -7).all()


@settings(max_examples=40)
@given(case=cases)
def test_weights_of_an_unfolded_block(case):
    """Equal to those of the block itself: all rows of a byte lie side by side, lower and upper nibbles apart."""
    unfolded = np.full((len(case.blocks), 256 * case.blocks.shape[1]), 255, dtype=np.uint8)
    unfold(case.blocks, unfolded)
    assert (unfolded < 16).all()
    tables = levels.tables_of(case.levels)
    for block in range(len(case.blocks)):
        found, expected = (np.full((5, 16), -7, dtype=np.int32) for _ in range(2))
        by_tables(tables, (3, 0, 4, 1), unfolded, block, found)
        by_tables(tables, (3, 0, 4, 1), case.blocks, block, expected)
        np.testing.assert_array_equal(found, expected)
        assert (found[-1] == -7).all()


@pytest.mark.parametrize("n_words", [1, 63, 64, 65, 128, 200])
def test_the_largest_weights(n_words):
    """Sums widen before they overflow: all bits differ from levels of 15."""
    of_queries = np.full((1, 64 * n_words), -15, dtype=np.int8)
    blocks, out = np.full((1, n_words, 16), 2**64 - 1, dtype=np.uint64), np.zeros((1, 16), dtype=np.int32)
    by_tables(levels.tables_of(of_queries), (0,), blocks, 0, out)
    assert (out == 15 * 64 * n_words).all()
    unfolded = np.empty((1, 256 * n_words), dtype=np.uint8)
    unfold(blocks, unfolded)
    by_tables(levels.tables_of(of_queries), (0,), unfolded, 0, out)
    assert (out == 15 * 64 * n_words).all()
    by_planes(levels.planes_of(of_queries), (0,), blocks, 0, out)
    assert (out == 15 * 64 * n_words).all()


@settings(max_examples=60)
@given(case=cases, data=st.data())
def test_estimates_within_bounds(case, data):
    """Estimates are equal bit for bit, and rows behind the last one are never found."""
    estimates = Estimates(case, data.draw(st.sampled_from([1, 1_000])), data.draw(st.sampled_from([0, 3])), None, False)
    share = data.draw(st.sampled_from([None, 0.5, 1.0]))
    bounds = np.full(5, -np.inf if share is None else np.inf, dtype=np.float32)
    if share == 0.5:
        bounds[:] = np.median(estimates.distances, axis=1)
    prepared = weights.prepare(case.levels)
    for numbers in ((2,), (4, 1, 0, 3)):
        for block in range(len(case.blocks)):
            out = np.full((len(numbers), 16), 7, dtype=np.float32)
            found = estimated(
                prepared, numbers, case.blocks, block, 16 * block, estimates.of_rows, estimates.of_queries, case.totals,
                bounds, out,
            )  # fmt: skip
            here = estimates.distances[list(numbers), 16 * block : 16 * block + 16]
            is_near = here <= bounds[list(numbers), np.newaxis]
            places = [16 * i + row for i, row in np.argwhere(is_near).tolist()]
            assert int(found) == sum(1 << place for place in places)
            if found:
                np.testing.assert_array_equal(out[:, : here.shape[1]], here)


compiled = pytest.mark.skipif(not COMPILED, reason="concerns compiled code")

AVX2 = "+sse2,+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt,+movbe,+f16c"
LEVELS = {"avx2": ("haswell", AVX2), "ssse3": ("core2", "+sse2,+sse3,+ssse3"), "none": ("generic", "")}


@compiled
@pytest.mark.parametrize("level", LEVELS)
def test_processors_agree(level):
    """The tests of this file pass for fewer instructions."""
    triple = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[0]
    if not triple.startswith("x86_64"):
        pytest.skip("levels of x86")
    name, features = LEVELS[level]
    environment = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    chosen = "(block or largest or within) and not processors"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, __file__]
    root = Path(__file__).parent.parent
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout


class Arm:
    """A context of numba for another target, as far as intrinsics ask for one."""

    TRIPLE = "aarch64-unknown-linux-gnu"

    def codegen(self):
        return self

    def magic_tuple(self):
        return self.TRIPLE, "generic", "+neon"


def assembly_for_arm(weigh):
    """Assembly of weights of a block, `weigh(code, rows, n_words, prepared)`, for 64-bit Arm."""
    word = ir.IntType(64)
    module = ir.Module()
    module.triple = Arm.TRIPLE
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word] * 4), "weights")
    builder = ir.IRBuilder(function.append_basic_block())
    rows, n_words, prepared, out = function.args
    code = VectorCode(Arm(), builder)
    code.store(weigh(code, rows, n_words, [prepared])[0], out)
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(Arm.TRIPLE).create_target_machine(cpu="generic", features="+neon", opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return machine.emit_assembly(parsed)


@compiled
def test_instructions_on_arm():
    """16 look-ups and three steps of a transposition for a word; bits are counted by `cnt`."""
    looked_up = assembly_for_arm(functools.partial(weights._weigh_by_tables, together=1))
    assert looked_up.count("\ttbl\t") == 16
    assert looked_up.count("\tuzp1\t") == looked_up.count("\tuzp2\t") == 12
    counted = assembly_for_arm(weights._weigh_by_planes)
    assert counted.count("\tcnt\t") == 32


@compiled
def test_look_ups_are_single_instructions():
    if not weights.LOOKS_UP:
        pytest.skip("no instruction for look-ups")
    triple = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[0]
    prepared, blocks = np.zeros((1, 64), dtype=np.uint64), np.zeros((1, 2, 16), dtype=np.uint64)
    by_tables(prepared, (0,), blocks, 0, np.zeros((1, 16), dtype=np.int32))
    instruction = "pshufb" if triple.startswith("x86_64") else "tbl"
    assert all(instruction in text for text in by_tables.inspect_asm().values())
