"""Properties of circulant projections: all fast lengths, linearity, shifts, norms, and rows of unusual sizes."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbeindex import CirculantEncoder
from cbeindex.encoders.lengths import fast_length
from cbeindex.encoders.transform import CirculantTransform
from cbeindex.kernels import longrows
from cbeindex.kernels.layouts import BLOCKS, LOAD, STRIPES, STRIPES_BACK, WRITE
from cbeindex.kernels.transform import transform_rows
from cbeindex.kernels.vectors import LANES

pytestmark = pytest.mark.kernels

FAST_LENGTHS = sorted({fast_length(n) for n in range(2, 4_097)})
LONG_LENGTHS = [fast_length(n) for n in (5_000, 6_001, 8_193, 12_345, 19_000, 30_011, 50_000, 65_537)]
ROUNDING = 2.0**-24


def normal(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def exact_projections(encoder, X):
    """Projections in float64."""
    flipped = (X.astype(np.float64) - encoder.centre)[:, np.newaxis] * encoder.signs
    spectra = np.fft.rfft(flipped, encoder.length) * encoder.spectrum.astype(np.complex128)
    return np.fft.irfft(spectra, encoder.length).reshape(len(X), -1)[:, : encoder.n_bits]


def tolerance(encoder):
    """Relative error in root mean square: each of log2(n) levels of a transform adds some units of the last place."""
    return ROUNDING * (4 + np.log2(encoder.length))


def check(encoder, X):
    projections, exact = encoder.project(X, n_threads=1), exact_projections(encoder, X)
    # A prefix may be small by chance, but its errors are those of the whole: compare with the norm of the rows.
    sizes = np.linalg.norm((X - encoder.centre).astype(np.float64), axis=1)
    n_blocks = len(encoder.signs)
    errors = np.linalg.norm(projections - exact, axis=1)
    assert (errors <= tolerance(encoder) * sizes * np.sqrt(n_blocks)).all()
    codes = np.unpackbits(encoder.encode(X, n_threads=1), axis=1, bitorder="little")
    np.testing.assert_array_equal(codes[:, : encoder.n_bits], projections >= 0)
    assert not codes[:, encoder.n_bits :].any()


@pytest.mark.parametrize("part", range(8))
def test_every_fast_length(part):
    """Rows alone and in whole batches, in as many bits as values."""
    for length in FAST_LENGTHS[part::8]:
        encoder = CirculantEncoder(length)
        assert encoder.length == length
        check(encoder, normal(LANES + 1, length))


@pytest.mark.parametrize("length", LONG_LENGTHS)
def test_some_longer_lengths(length):
    check(CirculantEncoder(length), normal(2, length))


@settings(max_examples=60)
@given(
    dim=st.integers(1, 600),
    share=st.floats(0.01, 3.5),
    n_rows=st.sampled_from([1, 3, LANES, LANES + 1]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int16]),
    pad=st.booleans(),
    seed=st.integers(0, 99),
)
def test_prefixes_stacks_and_types(dim, share, n_rows, dtype, pad, seed):
    X = (normal(n_rows, dim, seed) * 50).astype(dtype)
    encoder = CirculantEncoder(dim, max(1, int(share * dim)), seed=seed, pad=pad)
    check(encoder, X.astype(np.float32))
    np.testing.assert_array_equal(encoder.project(X), encoder.project(X.astype(np.float32)))


@settings(max_examples=40)
@given(st.sampled_from([6, 31, 96, 100, 384, 784, 1_050]), st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 99))
def test_projections_are_linear(length, a, b, seed):
    encoder = CirculantEncoder(length, pad=False)
    x, y = normal(2, length, seed)
    both = (np.float32(a) * x + np.float32(b) * y).astype(np.float32)
    expected = np.float32(a) * encoder.project(x).astype(np.float64) + np.float32(b) * encoder.project(y)
    # Three projections round, and so do the products and the sum in float32.
    size = abs(a) * np.linalg.norm(x) + abs(b) * np.linalg.norm(y)
    assert np.linalg.norm(encoder.project(both) - expected) <= (3 * tolerance(encoder) + 3 * ROUNDING) * size


@settings(max_examples=40)
@given(st.sampled_from([6, 31, 96, 100, 384, 784, 1_050]), st.integers(1, 5_000), st.integers(0, 99))
def test_a_rotated_row_has_rotated_projections(length, shift, seed):
    encoder = CirculantEncoder(length, pad=False)
    transform = CirculantTransform(
        np.zeros(length, np.float32), np.ones((1, length), np.int8), encoder.spectrum, length
    )
    row = normal(1, length, seed)
    found = [np.empty((1, length), np.float32) for _ in range(2)]
    for some, out in zip((row, np.roll(row, shift)), found, strict=True):
        work = transform.make_work()
        none = np.empty((0, -(-length // 64)), np.uint64), np.empty((0, 2))
        assert transform_rows(np.ascontiguousarray(some), 0, 1, *transform.arrays, work, out, *none) == -1
    expected = np.roll(found[0][0], shift)
    assert np.linalg.norm(found[1][0] - expected) <= 2 * tolerance(encoder) * np.linalg.norm(row)


@pytest.mark.parametrize("length", [2, 50, 96, 784, 4_096, 25_600])
def test_orthogonal_projections_keep_norms(length):
    X = normal(LANES + 1, length)
    norms = np.linalg.norm(X.astype(np.float64), axis=1)
    projected = np.linalg.norm(CirculantEncoder(length).project(X).astype(np.float64), axis=1)
    # The spectrum is flat to the rounding of float32 in each of its values.
    np.testing.assert_allclose(projected, norms, rtol=4 * ROUNDING * (4 + np.log2(length)))


@pytest.mark.parametrize("length", [1, 6, 31, 100, 384, 784, 4_096])
@pytest.mark.parametrize("n_rows", [1, LANES])
def test_unusual_rows(length, n_rows):
    encoder = CirculantEncoder(length, pad=False)
    zero = np.zeros((n_rows, length), dtype=np.float32)
    assert (encoder.project(zero) == 0).all()
    assert np.unpackbits(encoder.encode(zero), axis=1, bitorder="little")[:, :length].all()
    check(encoder, np.ones((n_rows, length), dtype=np.float32))
    X = normal(n_rows, length)
    check(encoder, X * np.float32(1e30))
    # Scaling by a power of two changes no bit of the result: nothing in the transform depends on the size.
    for power in (2.0**90, 2.0**-60):
        scaled = encoder.project(X * np.float32(power))
        np.testing.assert_array_equal(scaled, encoder.project(X) * np.float32(power))


@pytest.mark.parametrize("length", [6, 100, 784])
def test_denormal_rows(length):
    """Values at the end of float32 keep absolute, not relative accuracy: a few of the smallest numbers each level."""
    encoder = CirculantEncoder(length)
    tiny = np.finfo(np.float32).smallest_subnormal
    X = np.round(normal(LANES + 1, length) * 1_000) * tiny
    error = np.abs(encoder.project(X) - exact_projections(encoder, X))
    assert error.max() <= 4 * tiny * (4 + np.log2(length)) * np.sqrt(length)
    assert np.abs(encoder.project(X)).max() > 500 * tiny


@pytest.mark.parametrize(("length", "n_bits"), [(31, 31), (96, 96), (100, 250), (784, 784), (25_600, 30_000)])
@pytest.mark.parametrize("n_parts", [1, 3])
def test_the_parts_of_a_long_row(length, n_bits, n_parts):
    """Stage after stage, parts in any order."""
    encoder = CirculantEncoder(length, n_bits, pad=False)
    arrays, work = encoder.kernel_arrays(), encoder.make_work()
    X = normal(2, length)
    out = np.full((2, n_bits), 7, dtype=np.float32)
    codes = np.full((2, -(-n_bits // 64)), 7, dtype=np.uint64)
    for block in range(len(encoder.signs)):
        for stage in (LOAD, STRIPES, BLOCKS, STRIPES_BACK, WRITE):
            n = longrows.count_parts(stage, arrays[2], block * length)
            step = -(-n // n_parts)
            for start in reversed(range(0, n, step)):
                scratch = encoder._transform._plan.make_scratch()
                stop = min(start + step, n)
                assert longrows.transform_part(
                    stage, start, stop, X, 1, block, *arrays, work, scratch, out, codes
                )  # fmt: skip
    exact = exact_projections(encoder, X)
    assert np.linalg.norm(out[1] - exact[1]) <= 2 * tolerance(encoder) * np.linalg.norm(exact[1])
    bits = np.unpackbits(codes.astype("<u8").view(np.uint8), axis=1, bitorder="little")
    np.testing.assert_array_equal(bits[1, :n_bits], out[1] >= 0)
    assert not bits[1, n_bits:].any()
    assert (out[0] == 7).all()
    assert (codes[0] == 7).all()


@numba.njit
def project_inside(query, centre, signs, layout, tables, coefficients, work, projections):
    codes, sums = np.empty((0, 0), np.uint64), np.empty((0, 2))
    rows = query.reshape((1, len(query)))
    return transform_rows(rows, 0, 1, centre, signs, layout, tables, coefficients, work, projections, codes, sums)


def test_other_kernels_can_transform_a_query():
    encoder, x = CirculantEncoder(100, 130).fit(normal(9, 100, 1)), normal(1, 100)[0]
    projections = np.empty((1, 130), dtype=np.float32)
    assert project_inside(x, *encoder.kernel_arrays(), encoder.make_work(), projections) == -1
    np.testing.assert_array_equal(projections[0], encoder.project(x))
