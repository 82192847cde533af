"""Hash tables over substrings of codes (multi-index hashing).

Table t covers the `table_bits` bits of a code from bit `first_bits[t]` on. Bucket v of table t, the rows whose
substring has the value v, is `rows[t, starts[t, v] : starts[t, v + 1]]`. Codes are (n_rows, n_words), row by row. Keys
are those of `topk.py`. `seen`, `found` and `found_keys` are scratch memory with one entry per row. `seen` is all False
before and after a call.
"""

from typing import Any

import numpy as np

from .._core.typing import Codes, Floats, Keys, Mask, Ranks, Rows
from .jit import njit
from .popcount import popcount64
from .prefetch import prefetch
from .topk import put_ascending


@njit(cache=True, nogil=True)
def substring(code: Codes, first_bit: int, table_bits: int) -> Any:
    """Return the bits [first_bit, first_bit + table_bits) of a code as an integer."""
    word, shift = first_bit // 64, np.uint64(first_bit % 64)
    value = code[word] >> shift
    if first_bit % 64 + table_bits > 64:
        value |= code[word + 1] << (np.uint64(64) - shift)
    return value & ((np.uint64(1) << np.uint64(table_bits)) - np.uint64(1))


@njit(cache=True, nogil=True)
def fill(words: Codes, first_bit: int, table_bits: int, starts: Ranks, rows: Ranks) -> None:
    """Build one table: `words` is (n_rows, n_words), `starts` is (2**table_bits + 1,) and zero, `rows` is (n_rows,)."""
    n_rows = words.shape[0]
    for row in range(n_rows):
        starts[np.int64(substring(words[row], first_bit, table_bits)) + 1] += 1
    for value in range(1, starts.size):
        starts[value] += starts[value - 1]
    places = starts[:-1].copy()
    for row in range(n_rows):
        at = np.int64(substring(words[row], first_bit, table_bits))
        rows[places[at]] = row
        places[at] += 1


@njit(cache=True, nogil=True)
def collect(bucket: Ranks, seen: Mask, found: Ranks, n_found: int) -> int:
    """Append the rows of a bucket that were not seen before to `found`; return the new number of rows found."""
    for row in bucket:
        if not seen[row]:
            seen[row] = True
            found[n_found] = row
            n_found += 1
    return n_found


@njit(cache=True, nogil=True)
def measure(
    query: Codes, codes: Codes, found: Ranks, first: int, last: int, hidden: Mask, ranks: Ranks, keys: Keys,
    n_keys: int, counts: Rows,
) -> int:  # fmt: skip
    """Append the keys of the rows `found[first:last]` that are not hidden; return the new number of keys.

    `counts` counts these rows by distance.
    """
    n_words = codes.shape[1]
    for i in range(first, last):
        if i + 8 < last:  # rows are in random order, so the processor does not prefetch them by itself
            for w in range(0, n_words, 8):
                prefetch(codes, np.int64(found[i + 8]) * n_words + w)
        row = found[i]
        if hidden.size == 0 or not hidden[row]:
            code = codes[row]
            distance = np.uint64(0)
            for w in range(n_words):
                distance += popcount64(code[w] ^ query[w])
            rank = np.uint64(ranks[row] if ranks.size > 0 else row)
            keys[n_keys] = (distance << np.uint64(32)) | rank
            counts[np.int64(distance)] += 1
            n_keys += 1
    return n_keys


@njit(cache=True, nogil=True)
def next_mask(mask: Any) -> Any:
    """Return the next larger number with the same number of ones (Gosper's hack); 0 for 0."""
    if mask == 0:
        return mask
    low = mask & (~mask + np.uint64(1))
    ripple = mask + low
    return ripple | (((mask ^ ripple) // low) >> np.uint64(2))


@njit(cache=True, nogil=True)
def n_masks(table_bits: int, n_ones: int) -> int:
    """Return the number of masks of `table_bits` bits with `n_ones` ones."""
    n = 1
    for i in range(n_ones):
        n = n * (table_bits - i) // (i + 1)
    return n


@njit(cache=True, nogil=True)
def masks_by_distance(table_bits: int, masks: Keys) -> None:
    """Fill `masks` with the masks of `table_bits` bits, in ascending order of their number of ones."""
    count = 0
    for ones in range(table_bits + 1):
        mask = (np.uint64(1) << np.uint64(ones)) - np.uint64(1)
        for _ in range(min(n_masks(table_bits, ones), masks.size - count)):
            masks[count] = mask
            count += 1
            mask = next_mask(mask)


@njit(cache=True, nogil=True)
def nearest(
    queries: Codes, codes: Codes, first_bits: Rows, table_bits: int, starts: Ranks, rows: Ranks,
    hidden: Mask, ranks: Ranks, n_bits: int, budget: int, seen: Mask, found: Ranks, found_keys: Keys, keys: Keys,
    done: Mask, visits: Rows,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its exact nearest rows; give up on queries that exceed `budget`.

    Buckets are probed in the order of their distance from the substring of the query. After distance s in tables
    0 ... t, an unseen row differs in at least s + 1 bits of these substrings and in at least s bits of the others. All
    rows within n_tables * s + t have therefore been seen. `done` tells which queries were completed, and `visits`
    counts rows and buckets.
    """
    n_tables, n_rows = rows.shape
    k = keys.shape[1]
    counts = np.zeros(64 * codes.shape[1] + 1, dtype=np.int64)  # unchecked files may have ones past the last bit
    probe_cost, row_cost = 8, 8 + queries.shape[1]
    for query in range(queries.shape[0]):
        n_seen, count, n_probes = 0, 0, 0
        done[query] = False
        for radius in range(table_bits + 1):
            n = n_masks(table_bits, radius)
            for table in range(n_tables):
                if probe_cost * (n_probes + n) + row_cost * n_seen > budget:
                    break
                value = substring(queries[query], first_bits[table], table_bits)
                mask = (np.uint64(1) << np.uint64(radius)) - np.uint64(1)
                n_after = n_seen
                for _ in range(n):
                    at = np.int64(value ^ mask)
                    bucket = rows[table, starts[table, at] : starts[table, at + 1]]
                    n_after = collect(bucket, seen, found, n_after)
                    mask = next_mask(mask)
                count = measure(queries[query], codes, found, n_seen, n_after, hidden, ranks, found_keys, count, counts)
                n_seen = n_after
                n_probes += n
                n_sure = 0
                for distance in range(min(n_bits, n_tables * radius + table) + 1):
                    n_sure += counts[distance]
                if n_sure >= k or n_seen == n_rows:
                    done[query] = True
                    break
            if done[query] or probe_cost * (n_probes + n) + row_cost * n_seen > budget:
                break
        visits[0] += n_seen
        visits[1] += n_probes
        for i in range(n_seen):
            seen[found[i]] = False
        for i in range(count):
            counts[np.int64(found_keys[i] >> np.uint64(32))] = 0
        put_ascending(found_keys, count, keys[query])


@njit(cache=True, nogil=True)
def probe(
    queries: Codes, codes: Codes, first_bits: Rows, table_bits: int, starts: Ranks, rows: Ranks,
    hidden: Mask, ranks: Ranks, budget: int, masks: Keys, n_probes: int, n_wanted: int, seen: Mask,
    found: Ranks, found_keys: Keys, keys: Keys, done: Mask, visits: Rows,
) -> None:  # fmt: skip
    """Write to `keys`, for each query, the keys of its nearest rows among those of the buckets probed.

    `masks`, (n_queries or 1, n_tables or 1, n_probes or more), holds the differences between the substring of the query
    and the buckets to probe. After the first `n_probes` buckets of each table, probing continues until `n_wanted` rows
    are found. A query is not done if the masks run out before, or if buckets and rows cost more than `budget`. Both
    conditions also hold for every larger `n_probes`, so that more probes never lose results.
    """
    n_tables = rows.shape[0]
    counts = np.zeros(64 * codes.shape[1] + 1, dtype=np.int64)  # unchecked files may have ones past the last bit
    for query in range(queries.shape[0]):
        n_seen, n_measured, count, n_visited, cost = 0, 0, 0, 0, 0
        while (n_visited < n_probes or count < n_wanted) and n_visited < masks.shape[2] and cost <= budget:
            for table in range(n_tables):
                value = substring(queries[query], first_bits[table], table_bits)
                mask = masks[min(query, masks.shape[0] - 1), min(table, masks.shape[1] - 1), n_visited]
                at = np.int64(value ^ mask)
                n_seen = collect(rows[table, starts[table, at] : starts[table, at + 1]], seen, found, n_seen)
            n_visited += 1
            cost = 8 * n_tables * n_visited + (8 + queries.shape[1]) * n_seen
            if n_visited >= n_probes and cost <= budget:
                count = measure(
                    queries[query], codes, found, n_measured, n_seen, hidden, ranks, found_keys, count, counts
                )
                n_measured = n_seen
        done[query] = n_visited >= n_probes and count >= n_wanted and cost <= budget
        visits[0] += n_seen
        visits[1] += n_tables * n_visited
        for i in range(n_seen):
            seen[found[i]] = False
        put_ascending(found_keys, count, keys[query])


@njit(cache=True, nogil=True)
def within(
    query: Codes, codes: Codes, first_bits: Rows, table_bits: int, starts: Ranks, rows: Ranks,
    hidden: Mask, radius: int, seen: Mask, found: Ranks, keys: Keys, counts: Rows,
) -> Any:  # fmt: skip
    """Write a superset of the keys of the rows within `radius` of a query to `keys`; return its size."""
    n_tables = rows.shape[0]
    n_seen = 0
    for table in range(n_tables):
        value = substring(query, first_bits[table], table_bits)
        # By the pigeonhole principle, a row within the radius is this near in at least one of the tables.
        last = radius // n_tables if table <= radius % n_tables else radius // n_tables - 1
        for ones in range(min(last, table_bits) + 1):
            mask = (np.uint64(1) << np.uint64(ones)) - np.uint64(1)
            for _ in range(n_masks(table_bits, ones)):
                at = np.int64(value ^ mask)
                bucket = rows[table, starts[table, at] : starts[table, at + 1]]
                n_seen = collect(bucket, seen, found, n_seen)
                mask = next_mask(mask)
    for i in range(n_seen):
        seen[found[i]] = False
    return measure(query, codes, found, 0, n_seen, hidden, np.zeros(0, dtype=np.int32), keys, 0, counts)


@njit(cache=True, nogil=True)
def likeliest_masks(margins: Floats, masks: Keys) -> None:
    """Fill `masks` with the masks of the smallest total margin, ascending; the first is 0.

    With bits ordered by margin, every set of bits but the empty one has exactly one predecessor: it arises by moving
    the last bit of the predecessor to the next position, or by adding the next position. A heap holds the frontier.
    """
    n_bits, n = margins.size, masks.size
    order = np.argsort(margins)
    sums, sets, lasts = np.empty(2 * n + 2, np.float64), np.empty(2 * n + 2, np.uint64), np.empty(2 * n + 2, np.int64)
    masks[0] = 0
    size = 0
    if n_bits > 0:
        sums[0], sets[0], lasts[0] = margins[order[0]], np.uint64(1) << np.uint64(order[0]), 0
        size = 1
    for i in range(1, n):
        total, chosen, last = sums[0], sets[0], lasts[0]
        masks[i] = chosen
        size -= 1
        sums[0], sets[0], lasts[0] = sums[size], sets[size], lasts[size]
        sift_down(sums, sets, lasts, size)
        if last + 1 < n_bits:
            bit, next_bit = np.uint64(1) << np.uint64(order[last]), np.uint64(1) << np.uint64(order[last + 1])
            for keeps_last in range(2):
                sums[size] = total + margins[order[last + 1]] - (0.0 if keeps_last else margins[order[last]])
                sets[size] = (chosen if keeps_last else chosen ^ bit) | next_bit
                lasts[size] = last + 1
                size += 1
                sift_up(sums, sets, lasts, size)


@njit(cache=True, nogil=True)
def sift_down(sums: Any, sets: Keys, lasts: Rows, size: int) -> None:
    """Restore the heap order after its first entry changed."""
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and sums[child + 1] < sums[child]:
            child += 1
        if sums[at] <= sums[child]:
            break
        sums[at], sums[child] = sums[child], sums[at]
        sets[at], sets[child] = sets[child], sets[at]
        lasts[at], lasts[child] = lasts[child], lasts[at]
        at = child


@njit(cache=True, nogil=True)
def sift_up(sums: Any, sets: Keys, lasts: Rows, size: int) -> None:
    """Restore the heap order after an entry was appended."""
    at = size - 1
    while at > 0 and sums[at] < sums[(at - 1) // 2]:
        parent = (at - 1) // 2
        sums[at], sums[parent] = sums[parent], sums[at]
        sets[at], sets[parent] = sets[parent], sets[at]
        lasts[at], lasts[parent] = lasts[parent], lasts[at]
        at = parent
