"""What the encoders of the paper have in common: the same bits for the same values, storage, limits, the index."""

import json
import pickle

import numpy as np
import pytest
import scipy.sparse

from cbeindex import CBEIndex
from cbeindex._core.tuning import tuned
from cbeindex.encoders.baselines.aqbc import AQBCEncoder
from cbeindex.encoders.baselines.bilinear import BilinearEncoder
from cbeindex.encoders.baselines.itq import ITQEncoder
from cbeindex.encoders.baselines.lsh import LSHEncoder
from cbeindex.encoders.baselines.sklsh import SKLSHEncoder
from cbeindex.encoders.baselines.spectral import SpectralEncoder

DIM = 40
MAKERS = {
    "lsh": lambda dim, n_bits=None, **options: LSHEncoder(dim, n_bits, **options),
    "bilinear random": lambda dim, n_bits=None, **options: BilinearEncoder(dim, n_bits, "random", **options),
    "bilinear learned": lambda dim, n_bits=None, **options: BilinearEncoder(dim, n_bits, "learned", **options),
    "itq": lambda dim, n_bits=None, **options: ITQEncoder(dim, n_bits, n_iter=5, **options),
    "spectral": lambda dim, n_bits=None, **options: SpectralEncoder(dim, n_bits, **options),
    "sklsh": lambda dim, n_bits=None, **options: SKLSHEncoder(dim, n_bits, **options),
    "aqbc": lambda dim, n_bits=None, **options: AQBCEncoder(dim, n_bits, **options),
}
NEED_FIT = ("bilinear learned", "itq", "spectral", "sklsh", "aqbc")
AT_MOST_DIM = ("bilinear random", "bilinear learned", "itq", "aqbc")
LINEAR = ("lsh", "bilinear random", "bilinear learned", "itq")


def counts(n, dim, seed=0):
    """Whole numbers, none of them negative, many of them 0, some columns larger than others."""
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.uniform(0.1, 4, dim), (n, dim)).astype(np.int16)


def varies(projected):
    """Which bits are not the same for all rows."""
    return np.ptp((projected >= 0).astype(int), axis=0) > 0


X = counts(100, DIM)


@pytest.fixture(scope="module", params=MAKERS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def encoder(kind):
    return MAKERS[kind](DIM, 37).fit(X)


@pytest.fixture(scope="module")
def codes(encoder):
    return encoder.encode(X)


@pytest.fixture(scope="module")
def projected(encoder):
    return encoder.project(X)


class TestSameBits:
    """The same values give the same bits, however they come."""

    def test_codes_are_the_signs_of_projections(self, codes, projected):
        np.testing.assert_array_equal(codes, np.packbits(projected >= 0, axis=1, bitorder="little"))
        assert projected.dtype == np.float32
        assert projected.shape == (100, 37)
        assert varies(projected).mean() > 0.8  # most bits tell rows apart

    def test_one_vector(self, encoder):
        for row in X[:9]:
            np.testing.assert_array_equal(encoder.encode(row), encoder.encode(row[np.newaxis])[0])
            np.testing.assert_array_equal(encoder.project(row), encoder.project(row[np.newaxis])[0])

    @pytest.mark.parametrize("n_threads", [2, 3])
    def test_threads(self, encoder, n_threads):
        """Of several blocks, the last one not full."""
        rows = counts(1_300, DIM)
        with tuned(projection_block_floats=8 * DIM):
            for call in (encoder.encode, encoder.project):
                np.testing.assert_array_equal(call(rows, n_threads=n_threads), call(rows, n_threads=1))

    @pytest.mark.parametrize(
        "convert", [scipy.sparse.csr_array, scipy.sparse.csc_matrix, np.float64, np.asfortranarray]
    )
    def test_forms(self, kind, encoder, projected, convert):
        np.testing.assert_array_equal(encoder.project(convert(X)), projected)
        again = MAKERS[kind](DIM, 37).fit(convert(X))
        np.testing.assert_array_equal(again.project(convert(X)), projected)

    def test_input_is_not_written_to(self, kind):
        mine = X.astype(np.float32)
        MAKERS[kind](DIM, 37).fit(mine).encode(mine)
        np.testing.assert_array_equal(mine, X)

    def test_fit_again_starts_afresh(self, kind, projected):
        again = MAKERS[kind](DIM, 37).fit(X[:50] + 1).fit(X)
        np.testing.assert_array_equal(again.project(X), projected)

    def test_storage(self, encoder, codes):
        config = json.loads(json.dumps(encoder.config()))
        for copy in (type(encoder).from_arrays(config, encoder.to_arrays()), pickle.loads(pickle.dumps(encoder))):
            np.testing.assert_array_equal(copy.encode(X), codes)
            assert copy.config() == encoder.config()
            assert copy.is_fitted
            assert repr(copy) == repr(encoder)
            arrays = copy.to_arrays()
            assert arrays.keys() == encoder.to_arrays().keys()
            for name, array in encoder.to_arrays().items():
                assert arrays[name].dtype == array.dtype
                np.testing.assert_array_equal(arrays[name], array)

    def test_storage_before_fit(self, kind):
        fresh = MAKERS[kind](DIM, 37, seed=3)
        again = type(fresh).from_arrays(json.loads(json.dumps(fresh.config())), fresh.to_arrays())
        assert not again.is_fitted
        np.testing.assert_array_equal(again.fit(X).encode(X), MAKERS[kind](DIM, 37, seed=3).fit(X).encode(X))

    def test_a_failed_fit_changes_nothing(self, encoder, codes):
        bad = X.astype(np.float32)
        bad[4, 4] = np.nan
        with pytest.raises(ValueError, match="row 4"):
            encoder.fit(bad)
        np.testing.assert_array_equal(encoder.encode(X), codes)


@pytest.mark.parametrize("scale", [2.0**-60, 2.0**60])
def test_scale_of_the_data_does_not_matter(kind, scale, codes):
    """Powers of two change no digit; what is derived from squares has room for them."""
    scaled = X.astype(np.float32) * np.float32(scale)
    again = MAKERS[kind](DIM, 37).fit(scaled).encode(scaled)
    # Numbers that are not made by shifts alone, gamma and frequencies, may round differently.
    assert np.bitwise_count(again ^ codes).sum() <= (0 if kind not in ("spectral", "sklsh") else 4)


@pytest.mark.parametrize("kind", LINEAR)
def test_index_finds_the_row_itself(kind):
    rows = X.astype(np.float32)
    index = CBEIndex(DIM, encoder=MAKERS[kind](DIM), vectors=None, buckets=None).fit(rows)
    index.add(rows)
    for rerank in (None, "asymmetric"):
        result = index.search(rows, k=3, rerank=rerank)
        np.testing.assert_array_equal(result.ids[:, 0], np.arange(100))
    # Its estimate is exact, to rounding of the query to fifteenths of its largest projection.
    assert np.abs(result.distances[:, 0]).max() < 0.1 * np.median(result.distances[:, 2])


def test_which_ones_are_linear(kind, encoder):
    assert getattr(encoder, "is_linear", True) == (kind in LINEAR)
    assert hasattr(encoder, "scale") == (kind in LINEAR)


@pytest.mark.parametrize("kind", ["lsh", "sklsh", "spectral"])
def test_more_bits_than_dimensions(kind):
    assert MAKERS[kind](DIM).n_bits == DIM
    encoder = MAKERS[kind](DIM, 100).fit(X)
    assert encoder.encode(X).shape == (100, 13)
    assert len(np.unique(encoder.project(X) >= 0, axis=1).T) > 90


@pytest.mark.parametrize("kind", AT_MOST_DIM)
def test_no_more_bits_than_dimensions(kind):
    assert MAKERS[kind](DIM).n_bits == DIM
    with pytest.raises(ValueError, match=r"n_bits must be at most dim = 40 for \w+Encoder, got 41"):
        MAKERS[kind](DIM, 41)


@pytest.mark.parametrize("kind", ["lsh", "sklsh"])
def test_first_bits_are_the_shorter_code(kind):
    long, short = (MAKERS[kind](DIM, n_bits, seed=5).fit(X).project(X) for n_bits in (64, 9))
    # The same directions, but products of another shape, which may round differently.
    np.testing.assert_allclose(short, long[:, :9], rtol=0, atol=1e-5 * np.abs(long).max())


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 2), (200, 130)])
def test_sizes(kind, shape):
    """One bit of one dimension, more dimensions than rows, and more bits than rows."""
    dim, n_bits = shape
    rows = counts(20, dim, seed=1)
    projected = MAKERS[kind](dim, n_bits).fit(rows).project(rows)
    assert projected.shape == (20, n_bits)
    assert np.isfinite(projected).all()
    assert varies(projected).any() or (kind == "aqbc" and n_bits == 1)  # {0, 1} without 0 has one vertex
    assert MAKERS[kind](dim, n_bits).fit(rows).encode(rows[:0]).shape == (0, -(-n_bits // 8))


@pytest.mark.parametrize("dim", [1, 40, 97, 700])
def test_projections_do_not_depend_on_the_batch(kind, dim):
    """Bit for bit where a vector has products of its own, to rounding where BLAS multiplies a batch at once."""
    rows = counts(300, dim)
    encoder = MAKERS[kind](dim, min(dim, 256)).fit(rows[:40])
    projected = encoder.project(rows)
    # Sums of float32 products of up to |x| |w|, some ulp of which are 1e-6; a frequency of a wave is at most 40.
    atol = 0 if kind.startswith("bilinear") else 1e-5 * max(40, np.abs(projected).max())
    for part in (slice(0, 1), slice(7, 290), slice(299, 300)):
        again = encoder.project(rows[part])
        np.testing.assert_allclose(again, projected[part], rtol=0, atol=atol)
        certain = np.abs(projected[part]) >= atol
        assert certain.mean() > 0.9
        found = np.unpackbits(encoder.encode(rows[part]), axis=1, bitorder="little")[:, : encoder.n_bits]
        np.testing.assert_array_equal(found[certain], (projected[part] >= 0)[certain])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("convert", [np.asarray, scipy.sparse.csr_array])
def test_a_bad_value_names_its_row(kind, encoder, bad, convert):
    rows = X.astype(np.float64)
    rows[77, 7] = bad
    for call in (encoder.encode, encoder.project, MAKERS[kind](DIM, 37).fit):
        with pytest.raises(ValueError, match="must be finite in float32, row 77 is not"):
            call(convert(rows))


def test_values_too_large_for_sums(kind, encoder):
    """Values near the end of float32 are refused, or their sums are right: no warning, no infinity."""
    rows = X.astype(np.float32)
    rows[5] *= np.float32(2e37)
    for call in (encoder.project, lambda rows: MAKERS[kind](DIM, 37).fit(rows).project(X)):
        try:
            projected, refused = call(rows), "scale the vectors down"
        except ValueError as error:
            projected, refused = np.zeros(1), str(error)
        assert "scale the vectors down" in refused
        assert np.isfinite(projected).all()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda make: make(0), ValueError, "dim must be at least 1, got 0"),
        (lambda make: make(2.5), TypeError, "dim must be an integer"),
        (lambda make: make(DIM, 0), ValueError, "n_bits must be at least 1, got 0"),
        (lambda make: make(DIM, "8"), TypeError, "n_bits must be an integer, got str"),
        (lambda make: make(DIM, seed=-1), ValueError, "seed must be at least 0, got -1"),
        (lambda make: make(DIM, seed=None), TypeError, "seed must be an integer"),
        (lambda make: make(DIM).fit(X[:1]), ValueError, "at least 2 rows of 40 values, got 1"),
        (lambda make: make(DIM).fit(X[0]), ValueError, "at least 2 rows"),
        (lambda make: make(DIM).fit(X[:, :9]), ValueError, r"shape \(n, 40\) or \(40,\), got \(100, 9\)"),
        (lambda make: make(DIM).fit(X).encode(X[:, :9]), ValueError, r"got \(100, 9\)"),
        (lambda make: make(DIM).fit(X).encode(X, n_threads=0), ValueError, "n_threads"),
    ],
)
def test_bad_input(kind, call, error, message):
    with pytest.raises(error, match=message):
        call(MAKERS[kind])


@pytest.mark.parametrize("kind", NEED_FIT)
def test_those_that_learn_must_be_fitted(kind):
    with pytest.raises(ValueError, match=r"must be fitted before it can project: call fit\(X\)"):
        MAKERS[kind](DIM).encode(X)


@pytest.mark.parametrize("kind", ["bilinear learned", "itq", "spectral", "sklsh"])
def test_rows_must_differ(kind):
    with pytest.raises(ValueError, match="rows that differ"):
        MAKERS[kind](DIM).fit(np.ones((5, DIM)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: BilinearEncoder(9, kind="drawn"), ValueError, "kind must be one of 'random', 'learned', got 'drawn'"),
        (lambda: BilinearEncoder(9, n_iter=0), ValueError, "n_iter must be at least 1"),
        (lambda: ITQEncoder(9, n_iter=1.5), TypeError, "n_iter must be an integer"),
        (lambda: AQBCEncoder(9, n_iter=0), ValueError, "n_iter must be at least 1"),
        (lambda: AQBCEncoder(9).fit(np.zeros((5, 9))), ValueError, "rows that are not 0"),
        (lambda: SKLSHEncoder(9, gamma=0), ValueError, "gamma must be finite and above 0"),
        (lambda: SKLSHEncoder(9, gamma=1e200), ValueError, "gamma must be between"),
        (lambda: SKLSHEncoder(9, gamma="wide"), TypeError, "gamma must be a number"),
    ],
)
def test_bad_options(call, error, message):
    with pytest.raises(error, match=message):
        call()


def without(mapping, name):
    return {key: value for key, value in mapping.items() if key != name}


def test_missing_parts_are_refused(encoder):
    config, arrays = encoder.config(), encoder.to_arrays()
    for name in config:
        with pytest.raises(ValueError, match=f"must have '{name}'"):
            type(encoder).from_arrays(without(config, name), arrays)
    for name in arrays:
        with pytest.raises(ValueError, match=f"must have '{name}'"):
            type(encoder).from_arrays(config, without(arrays, name))
    for nothing in (None, [], 3):
        with pytest.raises(ValueError, match="stored"):
            type(encoder).from_arrays(nothing, arrays)
        with pytest.raises(ValueError, match="stored"):
            type(encoder).from_arrays(config, nothing)


def test_damaged_arrays_are_refused(encoder):
    config, arrays = encoder.config(), encoder.to_arrays()
    for name, array in arrays.items():
        damages = [array.astype(np.float16), array[..., np.newaxis], array.tolist(), None]
        if name != "objective":  # as long as there were iterations
            damages += [array[:0], array[:-1], np.concatenate([array, array[:1]])]
        if array.dtype.kind == "f" and array.size:
            broken = array.copy()
            broken.flat[-1] = np.nan
            damages.append(broken)
        for damaged in damages:
            with pytest.raises(ValueError, match=name if isinstance(damaged, np.ndarray) else "stored"):
                type(encoder).from_arrays(config, arrays | {name: damaged})


@pytest.mark.parametrize(
    "change",
    [
        {"encoder": "circulant"}, {"dim": -1}, {"dim": 10**15}, {"dim": "40"}, {"dim": None}, {"n_bits": 10**15},
        {"n_bits": 0}, {"n_bits": None}, {"n_bits": 36.0}, {"n_bits": 64}, {"seed": -1}, {"seed": [1]},
        {"fitted": "yes"}, {"fitted": None}, {"fitted": 1},
    ],
)  # fmt: skip
def test_absurd_values_are_refused(encoder, change):
    with pytest.raises(ValueError):
        type(encoder).from_arrays(encoder.config() | change, encoder.to_arrays())


@pytest.mark.parametrize(
    ("kind", "config", "arrays"),
    [
        ("bilinear random", {"kind": "x"}, {}),
        ("bilinear random", {"n_iter": 0}, {}),
        ("bilinear random", {"scale": 0}, {}),
        ("bilinear random", {"scale_variance": -1}, {}),
        ("bilinear random", {"overlap": float("nan")}, {}),
        ("bilinear random", {}, {"left": (5, 3), "right": (9, 9)}),  # too few bits
        ("bilinear random", {}, {"left": (5, 5), "right": (7, 8)}),  # too few places
        ("bilinear random", {}, {"left": (5, 6), "right": (8, 8)}),  # more columns than rows
        ("bilinear random", {}, {"left": (5_000, 5), "right": (8_000, 8)}),  # places for many more
        ("itq", {"scale": float("inf")}, {}),
        ("itq", {"n_iter": "many"}, {}),
        ("itq", {"fitted": False}, {}),
        ("sklsh", {"gamma_used": None}, {}),
        ("sklsh", {"gamma_used": 1e300}, {}),
        ("sklsh", {"gamma_used": None}, {"weights": (0, DIM)}),
        ("spectral", {}, {"weights": (50, DIM), "lower": (50,), "ranges": (50,)}),  # more axes than bits
        ("spectral", {"fitted": False}, {"axes": (0,), "modes": (0,)}),
    ],
)
def test_contradictions_are_refused(kind, config, arrays):
    encoder = MAKERS[kind](DIM, 37).fit(X)
    stored = encoder.to_arrays()
    made = {name: np.ones(shape, dtype=stored[name].dtype) for name, shape in arrays.items()}
    with pytest.raises(ValueError):
        type(encoder).from_arrays(encoder.config() | config, stored | made)


@pytest.mark.parametrize(("name", "value"), [("axes", -1), ("axes", 10**9), ("modes", 0), ("ranges", 0)])
def test_impossible_waves_are_refused(name, value):
    encoder = SpectralEncoder(DIM, 37).fit(X)
    arrays = encoder.to_arrays()
    arrays[name] = arrays[name].copy()
    arrays[name][3] = value
    with pytest.raises(ValueError, match=name):
        SpectralEncoder.from_arrays(encoder.config(), arrays)
