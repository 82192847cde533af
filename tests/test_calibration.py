"""Calibrations: tables that are inverted, files that hold anything, and the kernel that counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbeindex import kernels
from cbeindex.search.calibration import DEPTHS, Calibration
from cbeindex.search.measuring import Found, measure
from tests.small import examples

pytestmark = pytest.mark.kernels
N_ROWS = 40


@st.composite
def searches(draw):
    """Candidates and true rows of some queries, each without repetitions, -1 behind them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_queries, n_candidates, k = draw(st.integers(1, 4)), draw(st.integers(1, 20)), draw(st.integers(1, 8))
    rows, truth = (np.stack([rng.permutation(N_ROWS)[:n] for _ in range(n_queries)]) for n in (n_candidates, k))
    rows[:, draw(st.integers(0, n_candidates)) :] = -1
    truth[rng.random(truth.shape) < 0.2] = -1
    return rows, truth


@given(searches(), st.lists(st.integers(1, 30), min_size=1, max_size=3, unique=True))
@examples(50)
def test_counts_are_those_of_sets(search, depths):
    rows, truth = search
    classes, depths = np.arange(1, truth.shape[1] + 1), np.sort(depths)
    found = np.empty((len(rows), len(classes), len(depths)), dtype=np.int64)
    of_queries = depths + np.arange(len(rows))[:, np.newaxis, np.newaxis] * np.ones((len(classes), 1), dtype=np.int64)
    kernels.counting.count_found(rows, truth, classes, of_queries, N_ROWS, found)
    for i, k in enumerate(classes):
        for j, depth in enumerate(depths):
            for q in range(len(rows)):
                expected = {*rows[q, : depth + q].tolist()} & {*truth[q, :k].tolist()} - {-1}
                assert found[q, i, j] == len(expected)


def a_calibration(n_queries=10**9, efforts=(1, 2, 4, 8, 16)):
    """Shares that grow with effort and depth, and shrink with the number of results."""
    effort, depth = np.array(efforts)[:, np.newaxis], np.array(DEPTHS)
    shares = np.stack([1 - 0.5 / effort / np.sqrt(depth), 1 - 0.9 / effort / np.sqrt(depth)])
    return Calibration((1, 10), (n_queries,) * 2, (1.0, 0.2), efforts, shares)


@given(st.floats(0.01, 0.999), st.integers(1, 10), st.integers(0, len(DEPTHS) - 1))
@examples(100)
def test_the_least_effort_reaches_the_share_and_one_less_does_not(share, k, depth):
    calibration = a_calibration()
    setting = calibration.least(k, depth, share, 10**6)
    if setting.effort is None:
        assert not setting.is_enough
        assert calibration.table(k)[0][-1, depth] < share + 1e-4
        return
    assert setting.share >= share - 1e-4
    assert setting.effort == 1 or calibration.share(k, setting.effort - 1, depth, 10**6) < share + 1e-4


def test_few_queries_ask_for_more_effort():
    efforts = [a_calibration(n).least(10, 0, 0.8, 10**6).effort or 10**6 for n in (10**9, 400, 40)]
    assert efforts == sorted(efforts)
    assert efforts[-1] > efforts[0]


def test_results_beyond_the_measured_numbers_take_more_effort():
    assert a_calibration().least(40, 0, 0.8, 10**6).effort >= 4 * a_calibration().least(10, 0, 0.8, 10**6).effort - 4


def test_an_effort_of_everything_is_a_leap():
    """The last effort may be a scan, whose share says nothing about efforts below it."""
    calibration = a_calibration()
    last = calibration.shares[1, -2, 0] + 0.01
    assert calibration.least(10, 0, last, 16).effort is None
    assert calibration.share(10, 15, 0, 16) == calibration.share(10, 8, 0, 16)


def test_descriptions_round_trip():
    calibration = a_calibration(1000)
    again = Calibration.checked(calibration.describe())
    np.testing.assert_allclose(again.shares, calibration.shares, atol=1e-4)
    assert again.describe() == calibration.describe()


@pytest.mark.parametrize(
    "edit",
    [
        {"n_nearest": [10, 1]}, {"n_nearest": []}, {"n_nearest": [1] * 9}, {"n_nearest": 3}, {"n_queries": [0, 5]},
        {"n_queries": [5]}, {"spreads": [-1, 0]}, {"spreads": [10_001, 0]}, {"efforts": [1, 1, 2, 3, 4]},
        {"efforts": [0, 1, 2, 3, 4]}, {"efforts": list(range(1, 100))}, {"shares": []}, {"shares": [[], []]},
        {"shares": None}, {"shares": [[[10_001] * len(DEPTHS)] * 5] * 2}, {"shares": [[[0.5] * len(DEPTHS)] * 5] * 2},
        {"shares": [[["a"] * len(DEPTHS)] * 5] * 2}, {"n_nearest": [True, 10]},
        {"reaches": [1.0]}, {"reaches": [1.0, 2.0, -3.0, 4.0, 5.0]}, {"reaches": ["a"] * 5}, {"reaches": [1e39] * 5},
        {"widths": [[1.0] * len(DEPTHS)]}, {"widths": [[1.0], [1.0]]}, {"widths": [[-1.0] * len(DEPTHS)] * 2},
        {"widths": None}, {"reaches": None}, {"agreements": None}, {"agreements": [1.0]}, {"agreements": [1.0, 1.5]},
        {"agreements": [-0.1, 1.0]}, {"agreements": ["a", 1.0]}, {"agreements": [float("nan"), 1.0]},
        {"far": "near"}, {"far": float("nan")}, {"far": 1e39}, {"far": float("inf")}, {"far": 10**400},
    ],
)  # fmt: skip
def test_tables_of_files_are_checked(edit):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Calibration.checked(a_calibration().describe() | edit)
    with pytest.raises(ValueError, match="must be an object"):
        Calibration.checked([])


def test_tables_of_files_rise():
    """A file may hold any shares: those that fall with effort would never end a search for the least effort."""
    described = a_calibration().describe()
    described["shares"][0][2] = [0] * len(DEPTHS)
    shares = Calibration.checked(described).shares
    assert (np.diff(shares, axis=1) >= 0).all()
    assert (np.diff(shares, axis=2) >= 0).all()


class LineTrial:
    """Queries on a line: an effort of e finds rows up to a distance of e."""

    n_queries, most_effort, n_rows, deepest = 20, 50, 200, 0

    def truth(self, k, n_queries):
        return 50 + np.tile(np.arange(k), (n_queries, 1))

    is_graded = True

    def far(self):
        return 3.5

    def reach(self, effort):
        return 0.5 * effort

    def agreements(self, n_nearest):
        return [0.75] * len(n_nearest)

    def candidates(self, effort, n, n_queries):
        rows = np.full((n_queries, n), -1)
        n_found = min(n, effort + np.arange(n_queries).max() % 2)
        rows[:, :n_found] = 50 + np.arange(n_found)
        return Found(rows)


class WideTrial(LineTrial):
    """The nearest rows come after 8 that are wrong, and a quarter of the queries have nearly equal estimates."""

    def candidates(self, effort, n, n_queries):
        rows, estimates = np.full((n_queries, n), -1), np.full((n_queries, n), np.inf, dtype=np.float32)
        n_found = min(n, 100)
        rows[:, :n_found] = np.concatenate([np.arange(8), 50 + np.arange(100)])[:n_found]
        estimates[:, :n_found] = np.arange(1, n_found + 1)
        estimates[1::4, :n_found] = 10 + np.arange(n_found) / n_found
        return Found(rows, estimates)


def test_measured_shares_are_those_of_the_trial():
    trial = LineTrial()
    measured = measure(trial, trial.n_rows)
    assert measured.n_nearest == (1, 10)
    for k, shares in zip(measured.n_nearest, measured.shares, strict=True):
        np.testing.assert_allclose(shares[:, 0], np.minimum(1, (np.array(measured.efforts) + 1) / k))
    assert measured.far == 3.5
    assert measured.reaches == tuple(0.5 * effort for effort in measured.efforts)
    assert not len(measured.widths)
    assert measured.agreements == (0.75, 0.75)
    assert measure(trial, 3) is None


def test_queries_read_the_candidates_that_estimates_do_not_tell_from_the_nearest():
    """A quarter of the queries: their estimates are nearly equal, so that they read four times as many candidates."""
    measured = measure(WideTrial(), 200)
    np.testing.assert_allclose(measured.widths[1][:3], np.ceil(10 * np.array(DEPTHS[:3])) / 10)
    # The true rows follow after 8 that are wrong. 13 candidates are read, or 52.
    assert DEPTHS[1] == 1.25
    np.testing.assert_allclose(measured.shares[1, -1, 1], (15 * (13 - 8) + 5 * 10) / 20 / 10)


def graded_calibration():
    """A calibration that grades effort and depth."""
    plain = a_calibration()
    widths = np.stack([np.array(DEPTHS), 1 + np.array(DEPTHS)])
    widths[:, -1] = 0
    reaches = tuple(float(i) for i in range(len(plain.efforts)))
    return replace(plain, reaches=reaches, widths=widths)


def test_reaches_and_widths_are_interpolated():
    calibration = graded_calibration()
    assert [calibration.reach(effort) for effort in (1, 4, 16)] == [0, 2, 4]
    assert 2 < calibration.reach(6) < 3
    assert calibration.reach(17) == 0
    assert calibration.width(1, 2.0) == 2
    assert calibration.width(10, 2.25) == 3.25
    assert 2 < calibration.width(3, 2.0) < 3
    assert calibration.width(10, DEPTHS[-1]) == calibration.width(10, 10**6) == 0  # not known
    assert a_calibration().width(10, 2.0) == a_calibration().reach(4) == 0
    assert Calibration.checked(calibration.describe()).describe() == calibration.describe()


def test_agreements_are_interpolated_and_stored():
    calibration = replace(a_calibration(), agreements=(0.5, 0.9))
    assert [calibration.agreement(k) for k in (1, 10, 100)] == [0.5, 0.9, 0.9]
    assert 0.5 < calibration.agreement(3) < 0.9
    assert a_calibration().agreement(3) == 1
    assert Calibration.checked(calibration.describe()).describe() == calibration.describe()
