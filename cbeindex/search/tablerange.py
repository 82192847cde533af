"""Range search in tables of substrings: the rows whose codes differ in as few bits as a distance allows."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from .._core.typing import Floats, Rows
from ..distances.estimator import EncodedQueries
from .buckets.base import Buckets
from .queries import CodeQueries
from .view import View


def rows_in_tables(view: View, query: EncodedQueries, length: float, share: float) -> Rows | None:
    """Return the visible rows of `view.part` that may be within a distance of one query; None if a scan is cheaper.

    Parameters
    ----------
    view : View
    query : EncodedQueries of one query, with margins
    length : float
        Length of the projections of the difference of rows at this distance.
    share : float
        Share of the rows within the distance to find.
    """
    tables: Buckets | None = view.part.buckets
    if tables is None or query.margins is None:
        return None
    n_bits = query.margins.shape[1]
    most = most_bits(query.margins[0], length, share)
    found = tables.within(view, CodeQueries(query.codes, n_bits, 0), most)
    return None if found is None else np.sort(found.rows)


def most_bits(margins: Floats, length: float, share: float) -> int:
    """Return in how many bits a share of the rows differ from a query, at most.

    `length` is how far the projections of rows are from those of the query. Of rows at this distance, those at right
    angles to the difference have the largest angle a with the query, where sin a = length / |query|. The projections of
    such rows are those of the query times cos^2 a, plus nearly normal ones of length `length` cos a. So a bit of margin
    m differs with probability Phi(-m cos a / sigma), and the number of bits that do is nearly normal too. Nearer rows,
    and rows in other directions, differ in fewer bits.
    """
    from scipy.special import ndtr

    wide = margins.astype(np.float64)
    sine = length / max(math.sqrt(wide @ wide), 1e-30)
    if not sine < 1:
        return len(margins)
    sigma = max(length / math.sqrt(len(margins)), 1e-30)
    flips = ndtr(-wide * math.sqrt(1 - sine**2) / sigma)
    most = flips.sum() + NormalDist().inv_cdf(share) * math.sqrt((flips * (1 - flips)).sum())
    return int(min(len(margins), max(0, math.ceil(most))))
