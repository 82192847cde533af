"""Projections and codes by transforms inside kernels, against float64 and against each other."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex.encoders.lengths import transform_length
from cbeindex.encoders.plans import ConvolutionPlan
from cbeindex.kernels.transform import transform_rows
from cbeindex.kernels.vectors import LANES

pytestmark = pytest.mark.kernels

# Small circles of all kinds: single points, odd ones and primes (convolved on a longer circle), every radix alone and
# in the last place, one stripe of columns and several, lanes that are idle, one block of rows and several.
LENGTHS = [
    *range(1, 40), 42, 48, 50, 63, 64, 65, 96, 98, 100, 127, 128, 130, 192, 240, 256, 270, 343, 384, 448, 500, 686, 768,
    784, 1_000, 1_009, 1_024, 1_050, 1_536, 2_048, 3_430, 4_096,
]  # fmt: skip


class Circulant:
    """Centre, signs and circulant vectors drawn from a seed, and what kernels need of them."""

    def __init__(self, length, dim=None, n_bits=None, seed=0):
        rng = np.random.default_rng(seed)
        self.length, self.dim = length, dim or length
        self.n_bits = n_bits or length
        n_blocks = -(-self.n_bits // length)
        self.circles = rng.standard_normal((n_blocks, length)) / np.sqrt(length)
        self.signs = rng.choice(np.array([-1, 1], dtype=np.int8), (n_blocks, self.dim))
        self.centre = rng.standard_normal(self.dim).astype(np.float32)
        self.spectrum = np.fft.rfft(self.circles).astype(np.complex64)
        self.plan = ConvolutionPlan(length, LANES)
        self.coefficients = self.plan.coefficients(self.spectrum)

    def transform(self, rows, start=0, stop=None, projections=True, codes=True, sums=False):
        """Projections, codes, sums of the rows [start, stop) only, in memory that is filled with something else."""
        stop = len(rows) if stop is None else stop
        work = self.plan.make_work()
        out = np.full((len(rows) if projections else 0, self.n_bits), 7, dtype=np.float32)
        words = np.full((len(rows) if codes else 0, -(-self.n_bits // 64)), 2**64 - 7, dtype=np.uint64)
        totals = np.full((len(rows) if sums else 0, 2), 7.0)
        bad = transform_rows(
            rows, start, stop, self.centre, self.signs, self.plan.layout, self.plan.tables,
            self.coefficients, work, out, words, totals,
        )  # fmt: skip
        return (out, words, bad, totals) if sums else (out, words, bad)

    def oracle(self, rows):
        """The same projections in float64."""
        flipped = (rows - self.centre).astype(np.float64)[:, np.newaxis] * self.signs
        spectra = np.fft.rfft(flipped, self.length) * self.spectrum.astype(np.complex128)
        return np.fft.irfft(spectra, self.length).reshape(len(rows), -1)[:, : self.n_bits]


def some_rows(n, dim, seed=1):
    rows = np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)
    rows.setflags(write=False)
    return rows


def bits_of(codes):
    return np.unpackbits(codes.astype("<u8").view(np.uint8), axis=1, bitorder="little")


@pytest.mark.parametrize("length", LENGTHS)
def test_projections_agree_with_float64(length):
    encoder, rows = Circulant(length), some_rows(3, length)
    projections, codes, bad = encoder.transform(rows)
    assert bad == -1
    expected = encoder.oracle(rows)
    # Relative to the length of a row: each of log2(n) levels of a transform adds some units of the last place.
    error = np.linalg.norm(projections - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert (error < 2.0**-24 * (4 + np.log2(length))).all()
    bits = bits_of(codes)
    np.testing.assert_array_equal(bits[:, : encoder.n_bits], projections >= 0)
    assert not bits[:, encoder.n_bits :].any()


@settings(max_examples=40)
@given(
    st.sampled_from([1, 6, 31, 64, 70, 96, 128, 130, 336]),
    st.integers(0, 40),
    st.integers(1, 300),
    st.sampled_from([1, LANES + 1]),
    st.integers(0, 99),
)
def test_shorter_rows_prefixes_and_stacked_blocks(length, n_padded, n_bits, n_rows, seed):
    encoder = Circulant(length, max(1, length - n_padded), n_bits, seed)
    rows = some_rows(n_rows, encoder.dim, seed)
    projections, codes, bad = encoder.transform(rows)
    assert bad == -1
    expected = encoder.oracle(rows)
    assert np.abs(projections - expected).max() < 2e-6 * np.linalg.norm(rows - encoder.centre, axis=1).max()
    bits = bits_of(codes)
    np.testing.assert_array_equal(bits[:, :n_bits], projections >= 0)
    assert not bits[:, n_bits:].any()
    np.testing.assert_array_equal(encoder.transform(rows, projections=False)[1], codes)


@settings(max_examples=40)
@given(st.sampled_from(LENGTHS), st.integers(1, 2 * LANES + 3), st.data())
def test_a_batch_gives_the_bits_of_its_rows(length, n_rows, data):
    """Whatever the neighbours are, and wherever a row is in the batch: in a lane of its own, or alone in all lanes."""
    encoder, rows = Circulant(length), some_rows(n_rows, length)
    projections, codes, _ = encoder.transform(rows)
    start = data.draw(st.integers(0, n_rows - 1))
    stop = data.draw(st.integers(start + 1, n_rows))
    some, words, _ = encoder.transform(rows, start, stop)
    np.testing.assert_array_equal(some[start:stop], projections[start:stop])
    np.testing.assert_array_equal(words[start:stop], codes[start:stop])
    assert (np.delete(some, np.s_[start:stop], axis=0) == 7).all()
    loud = rows * np.float32(1e4)
    loud[start] = rows[start]
    np.testing.assert_array_equal(encoder.transform(loud)[0][start], projections[start])


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_side_by_side_give_the_bits_of_rows_alone(length):
    encoder, rows = Circulant(length), some_rows(LANES, length)
    together, _, bad = encoder.transform(rows)
    assert bad == -1
    for i in (0, 1, LANES - 1):
        np.testing.assert_array_equal(encoder.transform(rows, i, i + 1)[0][i], together[i])


def test_memory_that_was_used_before_does_not_matter():
    n_rows = LANES + 2
    encoder, rows = Circulant(784), some_rows(n_rows, 784)
    projections, codes, _ = encoder.transform(rows)
    work = encoder.plan.make_work()
    work[:] = np.nan
    again, words = np.empty_like(projections), np.empty_like(codes)
    for _ in range(2):
        bad = transform_rows(
            rows, 0, n_rows, encoder.centre, encoder.signs, encoder.plan.layout, encoder.plan.tables,
            encoder.coefficients, work, again, words, np.empty((0, 2)),
        )  # fmt: skip
        assert bad == -1
    np.testing.assert_array_equal(again, projections)
    np.testing.assert_array_equal(words, codes)


@pytest.mark.parametrize("length", [7, 64, 100, 384])
@pytest.mark.parametrize("n_more", [5, 16])
@pytest.mark.parametrize("n_rows", [4, 2 * LANES + 1])
def test_only_what_is_asked_for_is_written(length, n_more, n_rows):
    """Codes alone are packed in another way than codes beside projections, where blocks fill whole bytes."""
    encoder, rows = Circulant(length, n_bits=length + n_more), some_rows(n_rows, length)
    projections, codes, _ = encoder.transform(rows)
    np.testing.assert_array_equal(encoder.transform(rows, codes=False)[0], projections)
    np.testing.assert_array_equal(encoder.transform(rows, projections=False)[1], codes)


@pytest.mark.parametrize(("length", "n_bits"), [(1, 1), (7, 5), (64, 64), (100, 250), (784, 784)])
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_sums_of_magnitudes_and_squares(length, n_bits, size):
    encoder, rows = Circulant(length, n_bits=n_bits), some_rows(LANES + 3, length) * np.float32(size)
    projections, _, bad, sums = encoder.transform(rows, sums=True)
    assert bad == -1
    wide = projections.astype(np.float64)
    # Both sum up to 784 positive numbers in float64, in different orders: each addition rounds by 1.1e-16.
    np.testing.assert_allclose(sums, np.stack([np.abs(wide).sum(axis=1), (wide**2).sum(axis=1)], axis=1), rtol=1e-13)
    some = encoder.transform(rows, 2, 4, projections=False, codes=False, sums=True)[3]
    np.testing.assert_array_equal(some[2:4], sums[2:4])
    assert (np.delete(some, [2, 3], axis=0) == 7).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, np.float32(3e38)])
@pytest.mark.parametrize("length", [6, 31, 768, 784])
@pytest.mark.parametrize("n_rows", [6, 2 * LANES + 6])
def test_rows_that_are_not_finite_are_found(length, n_rows, value):
    rows = some_rows(n_rows, length).copy()
    rows[5:, length // 2] = value
    if np.isfinite(value):
        rows[5:] = np.sign(rows[5:]) * value  # sums of such numbers are not finite
    assert Circulant(length).transform(rows)[2] == 5
    assert Circulant(length).transform(rows, projections=False)[2] == 5
    assert Circulant(length).transform(rows, 0, 5)[2] == -1


def test_the_first_row_that_is_not_finite_is_found():
    """Also where an earlier block of bits of a later row is the first number that is not finite."""
    encoder, rows = Circulant(64, n_bits=128), some_rows(LANES, 64).copy()
    # Row 2 overflows in the second block only, where all signs agree and 32 numbers add up; row 3 in both.
    rows[2] = encoder.signs[1] * np.float32(2.0**128 / 28) + encoder.centre
    rows[3] = np.inf
    finite = np.isfinite(encoder.transform(rows)[0])
    assert finite[2, :64].all()
    assert not finite[2, 64:].all()
    assert encoder.transform(rows)[2] == 2


@pytest.mark.parametrize("length", [5, 16, 90, 784])
def test_the_centre_gives_ones(length):
    encoder = Circulant(length)
    projections, codes, _ = encoder.transform(encoder.centre[np.newaxis])
    assert (projections == 0).all()
    assert bits_of(codes)[:, :length].all()


@pytest.mark.parametrize("length", [2**15, 25_600, 2**17])
def test_long_rows(length):
    """Transforms whose stripes and blocks are worked on a few at a time."""
    encoder, rows = Circulant(length), some_rows(2, length)
    projections, _, bad = encoder.transform(rows)
    assert bad == -1
    expected = encoder.oracle(rows)
    assert np.linalg.norm(projections - expected) < 2.0**-24 * (4 + np.log2(length)) * np.linalg.norm(expected)


def test_an_impulse_gives_the_circulant_vector():
    encoder = Circulant(336)
    encoder.centre[:] = 0
    projections, _, _ = encoder.transform(np.eye(336, dtype=np.float32))
    for j in (0, 1, 2, 100, 335):
        np.testing.assert_allclose(projections[j] * encoder.signs[0, j], np.roll(encoder.circles[0], j), atol=1e-6)


@given(st.integers(1, 20_000))
def test_lengths_that_are_transformed(length):
    n = transform_length(length)
    assert n % 2 == 0
    assert n == length or 2 * length - 1 <= n <= 2.2 * length + 16
    for p in (2, 3, 5, 7):
        while n % p == 0:
            n //= p
    assert n == 1


PROGRAM = """
import hashlib
from tests.test_transform import Circulant, some_rows
results = [Circulant(n).transform(some_rows(17, n), sums=True) for n in (31, 42, 96, 784, 1050)]
hashes = [hashlib.sha256(array).hexdigest() for result in results for array in (result[0], result[3])]
from cbeindex.kernels.vectors import LANES
print(LANES, *hashes)
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="numpy has no fused multiply-add")
def test_bits_do_not_depend_on_the_lanes():
    """Targets with fused multiply-add give the same bits, whatever the width of their registers."""
    from numba.core.registry import cpu_target

    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    if "+fma" not in features.split(","):
        pytest.skip("needs fused multiply-add")
    wanted = ["+sse4.2", "+popcnt", "+avx", "+avx2", "+fma"]
    narrower = {LANES: features, 8: ",".join(wanted), 4: ",".join([*wanted[:2], "+fma"])}
    outputs = {}
    for lanes, some in narrower.items():
        environment = os.environ | {"NUMBA_CPU_NAME": name if lanes == LANES else "x86-64", "NUMBA_CPU_FEATURES": some}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, cwd=Path(__file__).parent.parent,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs[lanes] = done.stdout.split()
    assert [int(output[0]) for output in outputs.values()] == list(narrower)
    assert len({tuple(output[1:]) for output in outputs.values()}) == 1
