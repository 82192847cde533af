"""Hamming distances and nearest rows.

Codes come in two parts (see `codes.py`): `head`, (n_blocks, n_head, 512), holds the first words of 512 rows word by
word, so that counts of many rows are made in one vectorised pass; `tail`, (n_rows, n_tail), holds the rest row by row.
A candidate is one uint64 key, distance << 32 | row, so that keys order by (distance, row). `hidden` marks rows that
must not be answers, or is empty. Where rows are not in the order of their ids, `ranks` has the places of rows in that
order, and keys have ranks in place of rows; otherwise it is empty.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Distances, HeadDistances, Keys, Mask, Ranks, Rows
from .jit import njit
from .lanes import add_differing, within
from .popcount import popcount64
from .prefetch import prefetch


@njit(cache=True, nogil=True)
def add_distances(
    queries: Codes, numbers: Rows, places: Rows, n: int, word: int, columns: Codes, first: int, last: int,
    out: Distances,
) -> None:  # fmt: skip
    """Add to `out` the distances over some words from `n` queries to rows [first, last) stored word by word.

    `columns`, (n_words, 512 or more), are the words from `word` on; `numbers` says which queries, and `places` which
    row of `out` is theirs. The ends are taken to be multiples of 16.
    """
    n_words = columns.shape[0]
    for begin in range(0, n_words, 8):  # so many words of a block stay in the first-level cache for all queries
        part, size = columns[begin:], min(8, n_words - begin)
        i = 0
        while i + 4 <= n:
            four = numbers[i], numbers[i + 1], numbers[i + 2], numbers[i + 3]
            to = places[i], places[i + 1], places[i + 2], places[i + 3]
            for row in range(first, last, 16):
                add_differing(queries, four, to, word + begin, part, size, row, out)
            i += 4
        while i < n:
            for row in range(first, last, 16):
                add_differing(queries, (numbers[i],), (places[i],), word + begin, part, size, row, out)
            i += 1


@njit(cache=True, nogil=True)
def add_tails(
    query_tail: Codes, tail: Codes, rows: Rows, distances: Rows, n: int, stage_ends: Keys, limits: Rows
) -> int:
    """Add the tails of the first `n` of `rows` to their `distances`, stage by stage, and drop rows over a limit.

    A stage reads the tails up to `stage_ends[stage]` words; then the rows whose distance so far exceeds `limits[stage]`
    are left. What remains stands at the front of `rows` and `distances`; its number is returned. All rows pass a stage
    before any passes the next, so that the memory of many rows is asked for at the same time.
    """
    n_tail = tail.shape[1]
    begin = np.uint64(0)
    for stage in range(stage_ends.size):
        end, limit = stage_ends[stage], limits[stage]
        n_left = 0
        for i in range(n):
            row, distance = rows[i], distances[i]
            if i + 8 < n:  # measured: 8 rows ahead, 1.2x for rows in order
                for w in range(begin, end, np.uint64(8)):
                    prefetch(tail, rows[i + 8] * n_tail + np.int64(w))
            part = np.uint64(0)
            for w in range(begin, end):  # unsigned: a signed index could count from the end, which bars vectors
                part += popcount64(tail[row, w] ^ query_tail[w])
            distance += np.int64(part)
            rows[n_left], distances[n_left] = row, distance
            n_left += distance <= limit
        begin, n = end, n_left
    return n


@njit(cache=True, nogil=True)
def least_of(distances: Distances, n_rows: int) -> int:
    """Least of the first `n_rows` distances."""
    least = np.int32(2147483647)
    for row in range(n_rows):
        least = min(least, distances[row])
    return int(least)


@njit(cache=True, nogil=True)
def rows_within(distances: Distances, limit: int, at: int, n: int, first_row: int, rows: Rows, near: Rows) -> int:
    """Put the rows whose distance is at most `limit`, and their distances, into `rows` and `near`; return how many.

    The distances `distances[at : at + n]` are those of the rows from `first_row` on. Up to the next multiples of 16
    there are others, which do not count.
    """
    n_near = 0
    for begin in range(at // 16 * 16, at + n, 16):
        found = within(distances, begin, limit)
        if begin < at:
            found = found >> np.uint64(at - begin) << np.uint64(at - begin)
        if begin + 16 > at + n:
            found &= (np.uint64(1) << np.uint64(at + n - begin)) - np.uint64(1)
        while found != 0:  # seldom, but for the first rows of a query
            lowest = found & (~found + np.uint64(1))
            place = begin + np.int64(popcount64(lowest - np.uint64(1)))
            rows[n_near], near[n_near] = first_row + place - at, distances[place]
            n_near += 1
            found ^= lowest
    return n_near


@njit(cache=True, nogil=True)
def add_tails_of_block(
    query_tails: Codes, first: int, last: int, tail: Codes, block: int, n_rows: int, bounds: Distances,
    columns: Codes, out: Distances,
) -> None:  # fmt: skip
    """Add the tails of a block to the distances of several queries, `out[query - first]`.

    Eight words of all rows at a time are brought into the layout of the head, and then serve all queries. A query
    leaves the block when no row is nearer than its bound any more. `columns`, (8, 512), is scratch.
    """
    n_tail = tail.shape[1]
    numbers, places = np.empty(last - first, dtype=np.int64), np.empty(last - first, dtype=np.int64)
    for begin in range(0, n_tail, 8):
        n_words = min(8, n_tail - begin)
        for row in range(n_rows):
            for w in range(n_words):
                columns[w, row] = tail[block * 512 + row, begin + w]
        n = 0
        for query in range(first, last):
            numbers[n], places[n] = query, query - first
            n += least_of(out[query - first], n_rows) < bounds[query]
        add_distances(query_tails, numbers, places, n, begin, columns[:n_words], 0, n_rows, out)


@njit(cache=True, nogil=True)
def keep_smallest(keys: Keys, n: int, k: int) -> Any:
    """Move the `k` smallest of the first `n` keys to the front, in no order, and return the largest of them."""
    low, high = 0, n - 1
    while low < high:  # Hoare's selection: afterwards keys[k - 1] is in its place
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return keys[k - 1]


@njit(cache=True, nogil=True)
def step_of_tally(n_bits: int) -> int:
    """Return how many bits of distances to leave out in a tally, which then has at most 512 places."""
    shift = 0
    while n_bits >> shift >= 512:
        shift += 1
    return shift


@njit(cache=True, nogil=True)
def keep_within(keys: Keys, n: int, bound: int) -> int:
    """Move the keys of the first `n` whose distance is at most `bound` to the front; return how many they are."""
    n_left = 0
    for i in range(n):
        keys[n_left] = keys[i]
        n_left += int(np.int64(keys[i] >> np.uint64(32)) <= bound)
    return n_left


@njit(cache=True, nogil=True)
def drop_hidden(rows: Rows, near: Rows, n: int, hidden: Mask) -> int:
    """Move those of the first `n` rows that are not hidden to the front, with their distances; return how many."""
    n_left = 0
    for i in range(n):
        rows[n_left], near[n_left] = rows[i], near[i]
        n_left += not hidden[rows[i]]
    return n_left


@njit(cache=True, nogil=True)
def append_nearer(
    rows: Rows, near: Rows, n: int, ranks: Ranks, k: int, shift: int, tally: Distances, state: Rows, keys: Keys
) -> None:
    """Lower the bound to the k-th distance of all rows so far, and append the keys of `n` more that are within it.

    `tally` has the number of keys at each distance, of which `shift` bits are left out; `state` has the number of keys,
    the place of the bound in the tally, and the number of keys within it. `keys` has room for k + n + 1 at least.
    """
    count, last, n_within = state[0], state[1], state[2]
    for i in range(n):
        place = near[i] >> shift
        tally[place] += 1
        n_within += place <= last
    while n_within - tally[last] >= k:
        n_within -= tally[last]
        last -= 1
    if count + n >= keys.size:
        count = keep_within(keys, count, ((last + 1) << shift) - 1)
        if count + n >= keys.size:  # many at the k-th distance
            keep_smallest(keys, count, k)
            count = k
    for i in range(n):
        rank = np.int64(ranks[rows[i]]) if ranks.size > 0 else rows[i]
        # A file may say anything of ranks: below a distance, which the tally knows, they have 32 bits.
        keys[count] = (np.uint64(near[i]) << np.uint64(32)) | np.uint64(rank & 0xFFFFFFFF)
        count += (near[i] >> shift) <= last
    state[0], state[1], state[2] = count, last, n_within


@njit(cache=True, nogil=True)
def put_in_order(found: Keys, n: int, shift: int, tally: Distances, last: int, keys: Keys) -> None:
    """Put the smallest of the first `n` keys in order into `keys`, and the largest uint64 behind them.

    All are within place `last` of the tally (see `append_nearer`), which tells where those of a distance begin; it is
    overwritten.
    """
    ordered = np.empty(n, dtype=np.uint64)
    begin = 0
    for place in range(last + 1):
        size, tally[place] = tally[place], begin
        begin += size
    for i in range(n):
        place = int(np.int64(found[i] >> np.uint64(32))) >> shift
        ordered[tally[place]] = found[i]
        tally[place] += 1
    begin = 0
    for place in range(last + 1):  # of one distance, or few
        end = tally[place]
        if end - begin > 32:
            ordered[begin:end] = np.sort(ordered[begin:end])
        else:
            for i in range(begin + 1, end):
                key, to = ordered[i], i
                while to > begin and ordered[to - 1] > key:
                    ordered[to] = ordered[to - 1]
                    to -= 1
                ordered[to] = key
        begin = end
    n = min(n, keys.size)
    keys[:n] = ordered[:n]
    keys[n:] = np.uint64(0xFFFFFFFFFFFFFFFF)


@njit(cache=True, nogil=True)
def finish(found: Keys, shift: int, tally: Distances, state: Rows, keys: Keys) -> None:
    """Put the smallest keys that were found in order into `keys`, and the largest uint64 behind them."""
    last = state[1]
    n = keep_within(found, state[0], ((last + 1) << shift) - 1)
    put_in_order(found, n, shift, tally, last, keys)


@njit(cache=True, nogil=True)
def scan(
    queries: Codes, query_tails: Codes, head: Codes, tail: Codes, hidden: Mask, ranks: Ranks, first_row: int,
    start: int, stop: int, last_row: int, bound: int, stage_ends: Keys, found: Keys, tallies: Distances, states: Rows,
    bounds: Distances, keys: Keys,
) -> None:  # fmt: skip
    """Find, for each query, the keys of its nearest of rows [first_row, last_row) that are nearer than `bound`.

    One call looks at rows [start, stop), the next one at those after them, so that many rows need no long call. The
    last call fills `keys`, (n_queries, k), ascending, with the largest uint64 where there are fewer. Until then what is
    known of the queries is in `found`, (n_queries, room), `tallies`, (n_queries, 512), `states`,
    (n_queries, 3), and `bounds`, (n_queries,). `start` is the first row of a block.
    """
    n_queries, k = keys.shape
    n_bits = 64 * queries.shape[1]
    shift = step_of_tally(n_bits)
    if start == first_row:
        tallies[:] = 0
        states[:] = 0
        states[:, 1] = n_bits >> shift
        bounds[:] = min(bound, n_bits + 1)
    distances = np.empty((min(n_queries, 256), 512), dtype=np.int32)
    columns = np.zeros((8, 512), dtype=np.uint64)
    numbers, places = np.arange(n_queries), np.arange(min(n_queries, 256))
    rows, near = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    limits = np.empty(stage_ends.size, dtype=np.int64)
    for block in range(start // 512, (stop + 511) // 512):
        n_rows = min(512, stop - block * 512)
        for first in range(0, n_queries, 256):  # so many queries share a block while it is in the cache
            last = min(first + 256, n_queries)
            distances[: last - first] = 0
            add_distances(queries, numbers[first:last], places, last - first, 0, head[block], 0, n_rows, distances)
            shared = tail.shape[1] > 0 and last - first >= 4
            if shared:
                add_tails_of_block(query_tails, first, last, tail, block, n_rows, bounds, columns, distances)
            for query in range(first, last):
                limits[:] = bounds[query] - 1
                n = rows_within(distances[query - first], bounds[query] - 1, 0, n_rows, block * 512, rows, near)
                if not shared and tail.shape[1] > 0:
                    n = add_tails(query_tails[query], tail, rows, near, n, stage_ends, limits)
                if hidden.size > 0:
                    n = drop_hidden(rows, near, n, hidden)
                append_nearer(rows, near, n, ranks, k, shift, tallies[query], states[query], found[query])
                bounds[query] = min(bounds[query], (states[query, 1] + 1) << shift)
    if stop == last_row:
        for query in range(n_queries):
            finish(found[query], shift, tallies[query], states[query], keys[query])


@njit(cache=True, nogil=True)
def append_keys(rows: Rows, distances: Rows, n: int, hidden: Mask, ranks: Ranks, keys: Keys, count: int) -> int:
    """Append the keys of rows that are not hidden; return how many keys there are then."""
    for i in range(n):
        if hidden.size == 0 or not hidden[rows[i]]:
            rank = np.uint64(ranks[rows[i]] if ranks.size > 0 else rows[i])
            keys[count] = (np.uint64(distances[i]) << np.uint64(32)) | rank
            count += 1
    return count


@njit(cache=True, nogil=True)
def put_ascending(found: Keys, count: int, keys: Keys) -> None:
    """Put the smallest of the first `count` keys in order into `keys`, and the largest uint64 behind them."""
    if count > keys.size:
        keep_smallest(found, count, keys.size)
        count = keys.size
    keys[:count] = np.sort(found[:count])
    keys[count:] = np.uint64(0xFFFFFFFFFFFFFFFF)


# The cascade. Every row is measured over its head; the rows nearest there give a bound on the k-th distance, and with
# it a limit on the head distance beyond which a row is not looked at again.


@njit(cache=True, nogil=True)
def head_scan(
    queries: Codes, head: Codes, hidden: Mask, start: int, stop: int, heads: HeadDistances, least: HeadDistances
) -> None:
    """Head distances of rows [start, stop), into `heads`, and the least of each 16 rows, into `least`.

    Both are uint16 arrays with a row for each query; a hidden row gets the largest uint16.
    """
    n_queries = queries.shape[0]
    distances = np.empty((n_queries, 512), dtype=np.int32)
    numbers = np.arange(n_queries)
    for block in range(start // 512, (stop + 511) // 512):
        n_rows = min(512, stop - block * 512)
        distances[:] = 0
        add_distances(queries, numbers, numbers, n_queries, 0, head[block], 0, n_rows, distances)
        for query in range(n_queries):
            out = heads[query, block * 512 : block * 512 + n_rows]
            for row in range(n_rows):
                out[row] = distances[query, row]
            if hidden.size > 0:
                for row in range(n_rows):
                    if hidden[block * 512 + row]:
                        out[row] = 65535
            for group in range((n_rows + 15) // 16):
                low = np.uint16(65535)
                for row in range(group * 16, min(group * 16 + 16, n_rows)):
                    low = min(low, out[row])
                least[query, block * 32 + group] = low


@njit(cache=True, nogil=True)
def measure_survivors(
    query_tail: Codes, tail: Codes, heads: HeadDistances, least: HeadDistances, ranks: Ranks, start: int, stop: int,
    above: int, limit: int, stage_ends: Keys, limits: Rows, found: Keys, k: int,
) -> tuple[int, int]:  # fmt: skip
    """Measure rows of [start, stop) whose head distance is in (above, limit], and keep the keys of the `k` nearest.

    `start` is a multiple of 16. `found` has room for k + 512 + min(k, 256) keys. Returns the number of keys in it, in
    no order, and the number of rows measured.
    """
    rows, distances = np.empty(512, dtype=np.int64), np.empty(512, dtype=np.int64)
    nothing_hidden = np.zeros(0, dtype=np.bool_)  # hidden rows have no head distance
    count, n_measured, n = 0, 0, 0
    last = (stop + 15) // 16 - 1
    for group in range(start // 16, last + 1):
        if least[group] <= limit:
            for row in range(group * 16, min(group * 16 + 16, stop)):
                rows[n], distances[n] = row, heads[row]
                n += above < distances[n] <= limit
        if n > 496 or group == last:
            n_measured += n
            n_left = add_tails(query_tail, tail, rows, distances, n, stage_ends, limits)
            count = append_keys(rows, distances, n_left, nothing_hidden, ranks, found, count)
            n = 0
            if count >= k + min(k, 256):
                keep_smallest(found, count, k)
                count = k
    if count > k:
        keep_smallest(found, count, k)
        count = k
    return count, n_measured


@njit(cache=True, nogil=True)
def prefix_limits(distance: int, n_bits: int, prefix_bits: Rows, z: float, limits: Rows) -> None:
    """Largest counts over prefixes that a row at `distance` of `n_bits` bits is expected to have, into `limits`.

    If the differing bits lie anywhere with equal chance, the count over a prefix is hypergeometric. `z` standard
    deviations above its mean is the limit; a count cannot exceed the whole distance either.
    """
    p = distance / n_bits
    for i in range(prefix_bits.size):
        size = prefix_bits[i]
        mean = distance * size / n_bits  # not p * size, whose rounding would lose a bit of the whole distance
        variance = size * p * (1 - p) * (n_bits - size) / max(1, n_bits - 1)
        limits[i] = min(distance, int(np.floor(mean + z * np.sqrt(variance))))


@njit(cache=True, nogil=True)
def first_bound(
    query_tail: Codes, tail: Codes, heads: HeadDistances, least: HeadDistances, ranks: Ranks, n_rows: int,
    n_bits: int, stage_ends: Keys, prefix_bits: Rows, z: float, n_first: int, found: Keys, k: int, limits: Rows,
) -> tuple[int, int, int]:  # fmt: skip
    """Measure some `n_first` rows that are nearest over their heads, and derive the limits for all others from them.

    `limits` gets one for the head and one for each stage of the tail. Returns the number of keys in `found`, the head
    distance up to which rows have been measured, and how many that were.
    """
    n_groups = (n_rows + 15) // 16
    reach = 65534
    if n_first < n_groups:  # each group has a row at its least distance, so at least n_first rows are in reach
        order = np.empty(n_groups, dtype=np.uint64)
        for group in range(n_groups):
            order[group] = least[group]
        reach = min(reach, int(np.int64(keep_smallest(order, n_groups, n_first))))  # of unsigned it would be a float
    limits[:] = n_bits
    count, n_measured = measure_survivors(
        query_tail, tail, heads, least, ranks, 0, n_rows, -1, reach, stage_ends, limits[1:], found, k
    )
    if count == k:
        bound = np.int64(keep_smallest(found, count, k) >> np.uint64(32))
        prefix_limits(bound, n_bits, prefix_bits, z, limits)
    else:  # all rows that are not hidden have been measured
        limits[0] = reach
    return count, reach, n_measured
