"""Constants chosen by measurement, in one object that tests can replace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Tuning:
    """Constants that trade time for memory or accuracy, each with the reason or measurement behind it."""

    # --- data ---

    length_check_bytes: int = 2**26
    """Bytes of a `.fvecs` file that are mapped at a time to compare the lengths before its vectors."""

    name_step_rows: int = 2**16
    """Names that are copied or decoded at a time."""

    name_scans: int = 32
    """Names that are found by comparing all names of a segment before a table of hashes is made.

    For 100,000 names of 16 bytes, a table takes 10 - 15 ms, a comparison 0.4 ms, and a look-up in the table 3 us.
    """

    parquet_buffer_bytes: int = 2**20
    """Bytes of a Parquet file that are read at a time."""

    parquet_batch_rows: int = 2**12
    """Rows of a Parquet file that are decoded at a time: 16 MB at 1,024 dimensions."""

    sparse_flag_bytes: int = 2**22
    """Bytes of flags (row, column of the query) that exact distances of sparse rows use at a time."""

    free_expansion_bytes: int = 2**28
    """Compressed arrays up to this size may expand by any factor."""

    max_expansion: int = 1000
    """Larger compressed arrays may expand by this factor. Deflate exceeds it only for constant data."""

    free_sparse_rows: int = 2**20
    """A CSC or COO file may claim this many rows, plus `sparse_rows_per_entry` for each entry.

    Empty rows take no bytes in such a file, so that their number alone says nothing about the file.
    """

    sparse_rows_per_entry: int = 16

    # --- encoders ---

    projection_block_floats: int = 2**16
    """Floats in a block of rows that is projected at a time.

    The few arrays of this size that a projection needs fit the second-level cache together. Larger blocks cost page
    faults too (2**17: two per vector at dim 768).
    """

    least_block_rows: int = 4
    """Rows of a block at least, so that calls of numpy are shared by a few rows."""

    mean_sparse_rows: int = 4096
    """Sparse rows that are added to a mean at a time."""

    transform_block_floats: int = 2**18
    """Floats in a block of rows that a kernel transforms at a time: calls from Python are 4 % of the time at 384."""

    transform_near_bytes: int = 24_000
    """Bytes that transforms work on at a time: within a first-level cache of 32 KiB, beside tables.

    From 16,000 to 48,000 the time differs by 2 % at most; with 65,536 it is 3 to 8 % longer from 4,096 dimensions on.
    """

    transform_batch_bytes: int = 2**20
    """Bytes of points of rows that are convolved side by side, at most: within the second-level cache.

    Next to one row at a time, side by side takes, as AVX2, 0.7 of the time at 12,288 - 16,384 dimensions and 0.85 at
    25,600 (0.8 MB); with AVX-512 0.7 at 8,192 and 0.76 at 16,384 (1 MB), but 1.3 at 32,768 (2 MB).
    """

    threaded_length: int = 2**22
    """From this length on, several threads share the work on one vector.

    Two threads on two cores, relative to one: 0.7 at 2**17, 0.94 at 2**20, 1.03 at 2**22, where memory is the limit.
    """

    spare_work_bytes: int = 2**24
    """Working memory of transforms up to this size is kept for the next call: page faults would cost more."""

    direct_gain: float = 2.5
    """Cost of one of the length * log2(length) steps of a transform, in multiply-adds of a direct convolution.

    Measured on a busy machine, AVX-512 and AVX2, with 256 entries: 4.2 and 2.9 at length and bits of 2,000; at 2,048
    bits 1.8 and 2.5 at length 25,600, 2.9 and 3.2 at 131,072, 3.6 and 4.8 at 2**20. Making a row dense is included.
    """

    direct_tile: int = 1024
    """Projections that a direct convolution sums at a time, in the first-level cache."""

    foreign_block_floats: int = 2**20
    """Floats of sparse rows that are passed as a dense block to an encoder which does not accept sparse rows."""

    product_block_floats: int = 2**24
    """Floats of rows that are multiplied by a matrix at a time (64 MB), but at least 32 and at most 256 rows.

    A matrix of 25,600 x 2,048 takes 16 ms per row in blocks of 4 rows, 3.0 ms in blocks of 32, 1.2 ms in blocks of 256.
    """

    training_block_floats: int = 2**22
    """Floats of rows that are read at a time to train the baselines."""

    most_default_bits: int = 2048
    """Bits of the codes of an index, if the caller does not say. Longer codes cost time and memory.

    On Debian text (25,600 dimensions, sparse), 10@100 of estimates is 0.99 with 2,048 bits and 1.00 with 12,800, so
    that candidates for exact distances hold nearly all of the nearest. 50,000 rows of 40,000 dimensions took 49 s to
    add with 40,000 bits and 0.7 s with 1,024.
    """

    # --- distances ---

    # Projections of kept vectors that are decoded at a time, which takes 20 ms: Ctrl-C waits for the end.
    decode_step_values: int = 2**20
    # float32 vectors of at least this many values are squared in pieces of 64, which takes a third of the time.
    long_vector_values: int = 1024

    # --- store ---

    # The buffer becomes a segment at this many rows or bytes, whichever comes first, but holds at least
    # `least_buffer_rows`. A batch of half as many rows becomes a segment at once.
    buffer_rows: int = 2**16
    buffer_bytes: int = 2**27
    least_buffer_rows: int = 64
    # The same limit for indexes with buckets: every row in the buffer is scanned, so fewer of them may wait there.
    bucket_buffer_rows: int = 2**12
    # Rows of calls that add at most `few_rows` wait until there are so many, or so many values, and are then encoded
    # together, unless a search comes first: calls of numpy are most of the 160 us that it takes to encode a row alone,
    # and encoding 128 rows of 128 dimensions takes 1.2 ms. Squared lengths are at most so large that nothing derived
    # from them is beyond float32.
    waiting_rows: int = 128
    few_rows: int = 16
    waiting_values: int = 2**15
    longest_waiting: float = 1e12
    # Large arrays are copied in pieces of this many bytes, which takes 5 to 40 ms: Ctrl-C waits for the end of a piece.
    copy_bytes: int = 2**23
    # Segments are not merged beyond this size: the copy costs more than one segment less saves.
    large_segment_rows: int = 2**22
    large_segment_bytes: int = 2**30
    # The same limits for indexes with cells, whose joins make cells anew: no call of `add` should take seconds, and a
    # search chooses cells in a segment in microseconds, whatever their number.
    large_cell_segment_rows: int = 2**19
    large_cell_segment_bytes: int = 2**29
    # An index fits itself on its first rows once it has this many rows, or this many bytes in at least
    # `least_first_rows` rows.
    first_rows: int = 2**13
    first_bytes: int = 2**26
    least_first_rows: int = 32
    # Sparse rows read at a time before the index is fitted.
    first_step_rows: int = 256
    # Values of vectors or of projections encoded at a time: they stay in the second-level cache.
    encode_step_values: int = 2**17
    # Values, or sparse rows, of a sample for `fit` that are read at a time.
    fit_step_values: int = 2**20
    fit_step_rows: int = 1024
    # Under "l2" and "ip", longer vectors of a sample are shortened to this many times the median norm.
    longest_sample_norm: float = 2.0

    # --- search ---

    # Batches: values of queries and queries that all threads search at a time, and the least queries of a thread that
    # takes a part of its own. A row that is found for a query counts as so many values: its key, row, id and distances
    # take some 32 bytes.
    query_values: int = 2**24
    found_row_values: int = 8
    query_rows: int = 2048
    least_thread_queries: int = 32

    # Planner: the least candidates for re-ranking. 99.5 % of the true 10 nearest are among the 600 nearest by Hamming
    # distance (codes of 832 to 2,048 bits).
    least_candidates: int = 640
    # Up to this many bits, estimating the distance of every row takes no longer than a Hamming scan and re-ranking. At
    # 1,024 bits it takes 0.4 to 0.5 of the time for 50,000 rows and 0.95 to 1.1 for 300,000 (256 queries).
    estimate_all_bits: int = 1024
    # The same for rows in cells: up to this many bits, estimating all of them is faster than reading the nearest by
    # Hamming distance a second time.
    estimate_cell_bits: int = 1024
    # Rows, nearest by estimate, whose exact distance may be computed: a multiple of k, but at least this many. On
    # codes below `few_exact_bits`, 97 % of the true 10 are among the first 1,000 at 128 bits; on codes of 400 bits and
    # more, 99.5 % are among the first 100.
    exact_rows_of_k: int = 16
    least_exact_rows: int = 256
    least_exact_rows_of_short_codes: int = 1024
    few_exact_bits: int = 512
    # Where norms differ, errors differ too, and a near row may have a poor estimate: if one of the farthest results, so
    # many of them, comes from the second half of these rows, more rows are read for that query. Raw norms, k = 10, in
    # microseconds a query with 10@10, all queries with more rows / by this rule: Fashion l2 963 (1.000) / 146 (1.000)
    # and ip 662 (1.000) / 129 (1.000), where cosine takes 138; GloVe l2 1,378 (1.000) / 435 (0.996) and ip 822 (1.000)
    # / 258 (0.999), where cosine takes 213 (0.996). With k = 100
    # GloVe gains no time under l2, 1,560 (0.998) / 1,500 (0.990), nor under ip.
    deep_results: int = 8
    exact_rows_of_k_with_norms: int = 64
    least_exact_rows_with_norms: int = 8192
    # A filter that allows at most one row in this many of a segment is applied by copying those rows.
    few_allowed_share: int = 16
    # The cascade beats the scan from this code length on, for few queries and for a batch, whose queries share the rows
    # that a scan reads. The cascade pays only if at most one row in `cascade_share` is a candidate.
    cascade_bits: int = 2048
    cascade_batch_bits: int = 8192
    cascade_share: int = 256
    # Share of rows that survive the prefix of the cascade (measured: 0.02 to 0.1).
    cascade_survivor_share: float = 0.05
    # This many queries are a batch. A byte in cells costs a batch as much as this many bytes of a scan, which shares
    # what it reads among queries (measured: 2.7 on Fashion-MNIST, 3.7 on GloVe and on Debian text).
    batch_queries: int = 4
    cell_byte_cost: int = 3
    # Exact search by substrings pays for at most this many results.
    most_substring_results: int = 64

    # Scan: the least bytes of codes, times queries, of a task when several threads share the rows of few queries.
    # One query on 2 threads of a 2-core Zen 5, against 1 thread: 60 and 21 us for 1 MB, 133 and 82 for 8 MB, 227 and
    # 169 for 16 MB: handing a task over takes some 50 us, as long as 4 MB in a cache.
    least_scan_task_bytes: int = 2**23
    # The most queries of a task, and the most results. 256 queries share the codes that are read. More queries or
    # results only lengthen the last kernel call of a task, which sorts all keys and cannot be interrupted. Measured:
    # equal times from 256 to 4,096 queries.
    scan_task_queries: int = 512
    scan_task_results: int = 2**19
    # Words of rows times queries that one kernel call compares: about 10 ms, so that a search can be interrupted.
    # Smaller calls cost no time (0.37 s for 512 queries on a million rows of 1,024 bits with 2**25 and with 2**40).
    scan_call_words: int = 2**27
    # Rows of a range search task, which keeps all of its results until it ends.
    range_task_rows: int = 32 * 512
    # Queries of a group in range search and in the cascade, which share the rows that are read.
    shared_queries: int = 32

    # Cascade: distances over the prefix that a group of queries keeps between the two passes (64 MiB).
    cascade_values: int = 2**24
    # All blocks are scanned if the share that survives the prefix is above 1 - this / words of a code: survivors are
    # read in stages, so the longer the code, the more of them may survive. Microseconds a query on Fashion, with shares
    # of at most 0.3 / 0.7 / 0.95 / 1: one query 169 / 150 / 148 / 148 at 2,048 bits, 714 / 348 / 224 / 223 at 8,192 and
    # 1,867 / 786 / 370 / 250 at 25,600; 128 queries 84 / 66 / 63 / 64, 257 / 194 / 173 / 160 and 417 / 376 / 237 / 192.
    cascade_left_words: float = 2.0
    # The blocks of the sample that tells whether this is so: as many, and one in so many. Their prefixes are read. Of
    # 46, the share that survives has a standard error of at most 0.07. Time of the cascade in scans, on 120,000
    # random codes, with 128 and one in 64 / 64, 256 / 32, 512 / 16, 2,048, when whole codes were read as well: one
    # query 1.20 / 1.17 / 1.14 / 1.16 at 2,048 bits and 1.12 / 1.10 / 1.09 / 1.08 at 4,096, 32 queries 1.11 / 1.04 /
    # 1.04 / 1.04 and 1.13 / 1.03 / 1.03 / 1.02. Without, one query takes 1.04 and 1.02, 32 queries 1.02 and 1.01.
    cascade_sample_blocks: int = 32
    cascade_sample_share: int = 512
    # Rows times queries of a kernel call that reads survivors: some milliseconds.
    cascade_call_rows: int = 2**22
    # The least queries whose survivors decide whether the cascade pays for the remaining ones.
    cascade_first_queries: int = 8

    # Estimates: queries of a task that scans all rows, and of a task that visits cells. Large segments are scanned for
    # fewer queries at a time, so that a task of this many rows times queries ends within 20 ms, and Ctrl-C with it.
    estimate_task_queries: int = 32
    estimate_task_rows: int = 2**23
    estimate_cell_queries: int = 256
    # Queries that one call encodes: whole batches of the transform.
    encoded_queries: int = 64

    # Exact distances: k-NN search skips rows whose estimate exceeds the k-th distance by this many standard errors. One
    # in a thousand of the nearest rows is skipped; 4 standard errors read half as many vectors again and find no more.
    knn_sigmas: float = 3.0
    # Range search skips rows whose estimate exceeds the radius by this many standard errors (once in 3,000,000 rows).
    range_sigmas: float = 5.0
    # Up to this many results are kept sorted while vectors are read; more results are sorted at the end.
    most_inserted_results: int = 256
    # Queries, and values of queries, whose candidates one call reads, and values of these candidates: Ctrl-C waits
    # for the end, 0.09 s.
    exact_task_queries: int = 64
    exact_task_values: int = 2**21
    exact_task_reads: int = 2**26
    # Vectors that a range search reads at a time.
    range_read_rows: int = 1024

    # Cells: segments with fewer rows have none and are scanned.
    least_cell_segment_rows: int = 2**11
    # Cells of a segment, by default and at most, as a multiple of the square root of its rows; and the least rows of a
    # cell on average. By default, choosing cells costs about as much as scanning the chosen cells.
    cells_of_root: int = 2
    most_cells_of_root: int = 16
    least_cell_rows: int = 8
    # The default number of probes is measured on this many rows, so that cells hold this share of the nearest rows.
    probe_sample_rows: int = 128
    probe_recall: float = 0.99
    # Probability that the cascade inside cells misses the k-th nearest row: far below what the choice of cells misses.
    cell_miss: float = 1e-5
    # Queries that are searched together and share the cells they visit.
    cell_task_queries: int = 512
    # The same for cells of residual codes, if there are at least so many queries, and if a cell has at least so many
    # visits on average. Otherwise each query reads its cells by itself. 1,000 queries of GloVe: 33 us each by
    # themselves and 19 together at a recall of 0.95, 76 and 40 at 0.99.
    group_task_queries: int = 1024
    group_task_keys: int = 2**22  # of all queries of a task: 32 MB
    # Nanoseconds of a task, by the costs of the planner and by that of each row that is found, so that a search can be
    # interrupted. 60,000 rows of 784 bits in all cells take 0.12 ms a query if 10 are found, 0.54 if 2,000 and 5.4 if
    # 20,000, whether 32 or 512 queries share the cells.
    cell_task_ns: float = 1e8
    found_row_ns: float = 270.0
    least_group_queries: int = 8
    least_cell_visits: int = 2
    # k-means: training rows for each centroid, and iterations. On GloVe, 100 rows and 10 iterations scan one row in
    # ten less, for twice the time.
    kmeans_rows: int = 64
    kmeans_iterations: int = 8
    # Products of coordinates that one call computes when the rows of a centre are divided, 0.05 s: Ctrl-C waits for it.
    kmeans_step_products: int = 2**29
    # Rows that one task assigns to centroids.
    kmeans_task_rows: int = 512

    # Rows that k-means on projections multiplies by all centroids at a time.
    kmeans_block_rows: int = 2**12
    # Rounds of k-means on projections that see all of the sample, at the end. The rounds before see a quarter of it.
    kmeans_whole_rounds: int = 2
    # Rows for each centre that they see at most. On GloVe, cells with 95 % of the true ten have 6,700 rows with 64 and
    # 6,300 with 96.
    trained_centre_rows: int = 96
    # Projections that they see. Rows in the cells with 95 and 99 % of the true ten, and CPU time of training, with 784,
    # 384, 256, 192 and 128, on Fashion-MNIST: 874 and 1,958, 869 and 1,921, 857 and 1,809, 900 and 2,019, 887 and
    # 2,050, in 1.4, 0.7, 0.5, 0.3 and 0.3 s.
    kmeans_projections: int = 256
    # Rows of a sample that are read in one piece.
    sample_piece_rows: int = 64

    # Residual codes and their cells: projections that centres and cells are chosen by, and dimensions below which codes
    # have 4 bits a dimension. GloVe (100 dimensions) needs 4, Fashion-MNIST (784) 1.
    cell_projections: int = 1024
    few_cell_dimensions: int = 200
    # Share of the memory above which the vectors of a mapped file are taken not to stay in it. Candidates of such a
    # file are asked for together, before the first of them is read; that costs a call of the system for each.
    most_resident_share: float = 0.5
    # Rows whose error `stats` reports where vectors are kept in 4 or 8 bits: 1,000 give it to 1 or 2 %.
    kept_error_rows: int = 1000
    # Centres, as a multiple of the square root of the rows of the sample, the least rows of it for each, and the
    # most values of all centres (4 MB). Cells lie within centres, so that centres should be as many as cells: on GloVe,
    # cells with 95 and 99 % of the true ten have 7,256 and 21,173 rows with 256 centres, 5,955 and 19,205 with 512,
    # 5,796 and 17,421 with 632, 4,818 and 15,852 with 1,024. But segments with few rows have a record for each centre.
    centres_of_root: float = 2.4
    least_centre_rows: int = 16
    centre_values: int = 2**20
    # Rows of the sample that centres are trained on, at most, their bytes and their projections (256 MB). The sample is
    # spread over the rows of a call: on GloVe, whose words come in the order of their frequency, that saves 1 row in 20
    # of those to visit.
    centre_sample_rows: int = 2**16
    centre_sample_bytes: int = 2**27
    centre_sample_values: int = 2**26
    # Share of the variance that centres must explain of rows they were not trained on, or there is one centre.
    least_centre_gain: float = 0.04
    # After these rounds of k-means, centres are given up that explain so little of so many other rows that the other
    # rounds will not change it. Gain after 2 rounds and after all 8, for 20,000 rows, whose gain may rise by 0.029:
    # normal values -0.001 and 0.006 (768 dimensions), 0.004 and 0.014 (384), 0.056 and 0.068 (100); in 768 dimensions,
    # 10 clusters with 4.5 times their spread 0.020 and 0.043, 1,000 with their spread 0.096 and 0.145, with twice that
    # 0.005 and 0.023. Of 4,000 rows, whose gain may rise by 0.065, 340 clusters with 1.5 times their spread 0.002 and
    # 0.066.
    kmeans_trial_rounds: int = 2
    kmeans_trial_rows: int = 1024
    # Copies of rows in second cells. The second cell of a row is one of those nearest to its own: at least so many, and
    # as many as this number of products allows. On GloVe with 823 cells, those with 95 and 99 % of the true ten
    # have 6,647 and 20,779 places for rows without copies; with copies in one of the 32 nearest cells 6,628 and 19,493,
    # of 128 5,803 and 16,234, of all 5,514 and 15,671. On Fashion-MNIST copies save nothing.
    spill_neighbours: int = 64
    spill_products: int = 2**31
    # The weight of the part of the second residual along the first; the least rows of a segment with copies; and the
    # share of the visited rows that copies must save, since they double codes in memory and take a search time to tell
    # apart. On GloVe, where they save a sixth at 95 and a quarter at 99 %, searches for 95 % took 0.93 of the time when
    # all queries visited as many cells. Since cells are graded by query, 1,550,000 clustered rows of 128 dimensions, of
    # which copies save a third by this measure, are searched in 0.6 (0.95) and 0.85 (0.99) of the time without copies.
    spill_lambda: float = 1.5
    least_spill_rows: int = 2**14
    least_spill_gain: float = 0.5
    # Rows of a task that writes records.
    record_task_rows: int = 2**13
    # Candidates of a search with exact distances whose probes are given: for each result, and at least.
    cell_candidates_of_k: int = 4
    least_cell_candidates: int = 40

    # Calibration: rows times queries, and the least and the most queries of a segment that is most of its index. Of the
    # 60,000 rows of a graph 559 are sampled, whose recall of 0.95 for 10 results has a standard error of 0.004.
    calibration_pairs: int = 2**25
    least_calibration_queries: int = 256
    most_calibration_queries: int = 1000
    # A segment that has a small part of the rows of its index has fewer queries, one for each of so many rows, down to
    # these: sampling errors are deducted, and a recall of 0.99 can still be shown. Segments that have both fewer rows
    # than `least_whole_rows` and a smaller share of the index than `least_whole_share` are not calibrated for many
    # results and for range search either. Of 4,096 rows of 128 dimensions, 64 queries take 40 ms, where 1,000 and all
    # else took 1.3 s, 0.3 ms for each row that was added.
    rows_of_calibration_query: int = 128
    fewest_calibration_queries: int = 100
    least_whole_rows: int = 2**15
    least_whole_share: float = 1 / 4
    # Queries at most that calibrate cells, which are made in less time than graphs, and a segment without clusters, in
    # which only the number of candidates is to be found: enough to tell 0.99 of the first results. Adding 20,000 rows
    # of 768 dimensions took 2.7 s of CPU time with 1,000 queries, 1.4 of it for calibration, and 2.0 and 0.5 with 400,
    # if they are in clusters; if they are random, 1.3 and 0.8 with 139, and 0.7 and 0.2 with 128 and with the products
    # of one pass over all rows.
    most_cell_queries: int = 400
    most_undivided_queries: int = 128
    # Effort is measured up to this share of the nearest rows (of more than 100 results, to the second); beyond,
    # everything is searched.
    calibrated_share: float = 0.996
    calibrated_share_of_many: float = 0.97
    # Where distances of results come from levels, searches find more of the rows that are nearest by them, to make up
    # for true ones that levels do not tell: at most this share, unless more was asked for.
    most_share_wanted: float = 0.99
    # Candidates of segments that are too small to be calibrated, and of few allowed rows: for each result, and at
    # least. 1 of 1 in a random hundredth of the rows, asked for 0.95: 0.868 of 384-d sentence embeddings without.
    scan_candidates_of_k: int = 8
    least_scan_candidates: int = 64
    # Candidates that are found at most, whatever the number of results, and at least for each result.
    most_calibrated_depth: int = 800
    calibrated_depth_of_k: int = 2
    # More results than these are measured with one in so many queries.
    most_sampled_results: int = 100
    fewer_queries: int = 16
    # Candidates that the true nearest rows are chosen from: for each of them, and at least and at most. If the deeper
    # half of the candidates has more than this share of the nearest rows, there are too few.
    true_rows_of_k: int = 5
    least_true_rows: int = 400
    most_true_rows: int = 2**14
    deep_share: float = 0.002
    # Queries that tell how many candidates that takes, and the vectors that are read for all queries. 20,000 random
    # rows of 768 dimensions, which take the most, were calibrated in 11.6 s when 1,000 queries tried each number of
    # candidates, and in 1.5 s so, on a busy machine. Data that takes 2,000 candidates keeps all of its queries.
    pilot_queries: int = 32
    calibration_reads: int = 2**21
    # Rows whose products with a query are computed in the time of reading the vector of a chosen one; where that is
    # faster, all rows are read in order, and as many products are computed. Adding 20,000 random rows of 768 dimensions
    # took 2.6 s of CPU time without, 1.7 of it for calibration, and 1.6 and 0.7 so.
    products_of_read: int = 8
    calibration_products: int = 2**31
    # Queries of an index of codes alone whose nearest rows are drawn at a time: Ctrl-C waits for the end.
    drawn_queries: int = 32
    # Rows of each of them whose errors are computed. With those of all 400 rows, adding Fashion took twice as long.
    drawn_errors: int = 16
    # Recall of a search by default, and of one whose mode or number of candidates is given, but not the probes.
    default_recall: float = 0.95
    explicit_recall: float = 0.97
    # Queries whose nearest row is farther than that of this share of the stored rows are unlike them: graphs are
    # searched again for them, with the first of these shares of the misses that was measured, and more candidates. A
    # walk of Fashion that finds 0.95 of 10 finds 0.97 for queries nearer than a quarter of that distance, 0.91 at two
    # thirds of it, 0.84 beyond it, 0.75 at 1.7 times it and 0.61 at 2.3 times. One with a tenth of the misses finds
    # 0.98, 0.94 and 0.85 of the last three.
    near_share: float = 0.99
    far_shares_of_misses: tuple[float, ...] = (0.1, 0.25, 0.5)
    far_candidates: int = 3
    # Calibration of range search: queries of a segment at most; their nearest rows, and other rows that stand for all
    # others; the least mean number of rows within a radius that is measured, and the largest share of all rows; and the
    # least queries that must have rows within it.
    most_range_queries: int = 256
    near_range_rows: int = 100
    other_range_rows: int = 512
    least_range_rows: float = 0.25
    most_range_share: float = 1 / 16
    least_queries_of_radius: int = 32
    # Rows within a radius that a search in cells has room for at first.
    first_range_room: int = 4096
    # Filters whose rows are near each other. Few allowed rows are so if they are in fewer cells than this share of what
    # is expected of random rows, and vertices, some of which are sampled, if their neighbours are visible more often.
    # All rows are searched then, and as many of them are candidates, for each result and at least.
    clumped_share: float = 0.8
    clump_sample_rows: int = 256
    clump_candidates_of_k: int = 32
    least_clump_candidates: int = 256
    # A cell is depleted if the visible share of its rows is below this part of that of all rows. Of the nearest visible
    # rows of a query there, a search finds this share, so that it must find more for other queries, or search all rows.
    # 10 of 10 at 0.95, from 400 queries: Fashion 0.4 if one of ten labels and 0.3 if the tenth nearest to a row is
    # hidden; GloVe 0.5 to 0.9.
    depleted_density: float = 0.1
    depleted_share_found: float = 0.4
    # A walk among vertices some of which are hidden must meet this part of the visible ones that a walk of its length
    # meets on average, or it is repeated with a wider beam: the query is where rows are hidden. 1 of 1, asked for 0.95,
    # among the half of the rows of SIFT that are far from one of them: 0.90 without. Clouds of near duplicates, a tenth
    # of the rows: 0.44 without, 1.00 so.
    met_part: float = 0.5
    # Nanoseconds for each row and byte of a code that is scanned, for each vector and byte that is read, and for each
    # step and byte of a walk; microseconds of a query beside them. From searches of Fashion and GloVe on one core.
    scan_row_ns: float = 2.0
    scan_byte_ns: float = 0.035
    read_vector_ns: float = 20.0
    read_byte_ns: float = 0.02
    graph_step_ns: float = 100.0
    graph_byte_ns: float = 0.06
    query_us: float = 12.0
    # Cells whose exact distances are computed, of those that look-ups find nearest: for each probe, and more.
    exact_cells_of_probe: int = 3
    least_exact_cells: int = 16
    # Searches that are to deliver a recall visit more cells for some queries than for others: at least the first part
    # of the mean, at most the second multiple of it, and in between those in reach, which the distance of the row of
    # this rank tells (`cells_in_reach`). They read more candidates for some queries, too, up to this multiple, if these
    # are within the width of the nearest (`in_order`). So many queries calibrate reach and width.
    least_probes_part: int = 2
    most_probes_times: int = 3
    reach_rank: int = 10
    most_candidates_times: int = 4
    graded_queries: int = 128
    # Longer queries are projected outside of the kernel, by several threads.
    longest_kernel_query: int = 2**16
    # Tables are precise where |z - c|^2 is less than this share of |z|^2, for 1, 2 and 4 bits: rounding would add more
    # than a tenth to the error of an estimate; where estimates are the result, more than a fortieth.
    precise_shares: tuple[float, ...] = (0.01, 0.03, 0.1)
    precise_shares_of_estimates: tuple[float, ...] = (0.05, 0.1, 16.0)

    # Substrings: segments with fewer rows have no tables and are scanned.
    least_table_segment_rows: int = 2**11
    # Tables by default. More of them take more memory than the codes.
    default_tables: int = 16
    # Entries of a table for each row, at most: most of them would be empty. Tables of up to `small_table_bits` bits
    # are small in any case.
    most_table_entries_of_row: int = 2
    small_table_bits: int = 12
    # A search by tables becomes a scan when it costs one in this many of the words that a scan reads.
    table_budget_share: int = 32
    # Queries of a task, and bucket masks that a task holds at a time.
    table_task_queries: int = 32
    table_task_masks: int = 2**20

    # --- storage ---

    # Bytes of an array that are checksummed and written or read together. A piece should stay in the cache between its
    # checksum and the disk: saves with pieces of 1 MiB took 0.6 of the time of 8 MiB.
    piece_bytes: int = 2**20
    # Rows of a column that `verify` checks together.
    verify_rows: int = 2**14

    # --- graphs ---

    # Bits of the codes of neighbours at least, by up to so many blocks of short vectors. GloVe, of 100 dimensions, is
    # searched at 1.5 times the speed with 200 bits in place of 100.
    least_graph_bits: int = 160
    most_graph_blocks: int = 4
    # Segments with fewer rows have no graph and are scanned.
    least_graph_segment_rows: int = 2**12
    # Rows that are scanned in the time of a step: a beam with more steps than that is not walked.
    graph_step_rows: int = 16
    # Candidates of a search with exact distances whose beam is given, beyond the results: a share of them, and at
    # least. Levels are so near to the vectors that few rows change places.
    graph_candidate_share: float = 0.5
    least_graph_candidates: int = 6
    # Rows that a range search finds at first; four times as many while all of them may be within the radius.
    first_range_beam: int = 64
    # Queries of a task, and bytes of levels that a task scans for all of them, so that a search can be interrupted: a
    # query takes 4.5 ms to scan 60,000 rows of 784 bytes, each in a record of its own.
    graph_task_queries: int = 64
    graph_task_bytes: int = 2**29

    # --- building of graphs: steps of walks at recall 0.95 / 0.99 on Fashion (60,000 x 784), GloVe (100,000 x 100) ---

    graph_partitions: int = 4
    """Partitions of the rows whose leaves candidates come from."""

    graph_leaf_rows: int = 1000
    """Rows of a leaf at most.

    With 400, and the nearest rows of leaves alone for candidates, Fashion took 19 / 43 steps; it takes 17 / 28.
    """

    graph_leaders: int = 64
    """Parts into which a partition divides rows at a time."""

    graph_leaf_neighbours: int = 16
    """Neighbours that a row takes from a leaf."""

    graph_far_candidates: int = 6
    """Random candidates of a row."""

    graph_near_rows: int = 48
    """Nearest rows that fill up the neighbours of a row."""

    graph_near_neighbours: int = 20
    """Neighbours up to which near rows fill up; random ones follow.

    With 14 / 18 / 22 / 26 / 30, a graph of Fashion took 20 / 19 / 18 / 18 / 18 steps at 0.95. A beam of 10 found 0.789
    / 0.779 / 0.760 / 0.748 / 0.737.
    """

    graph_rounds: int = 1
    """How often a graph is made anew from walks through it. Without, GloVe takes 110 steps at 0.95, not 68."""

    graph_building_beam: int = 100
    """The beam of those walks."""

    # --- encoders, arrays of other libraries ---

    device_step_values: int = 2**26
    """Values that are projected at a time on the device of an array: 256 MiB of float32, and some times as much for
    transforms."""

    # --- cli ---

    # Bytes of vectors that are read and encoded, or searched for, together.
    cli_block_bytes: int = 2**26
    # Bytes of codes and kept vectors that `build` holds in memory before it appends them to the file. Half the size up
    # to which the store merges segments, so most segments in the file are not merged, and written, again.
    cli_spill_bytes: int = 2**29
    # The sample that `build` fits the encoder to: as many rows as fit the bytes, within the bounds.
    cli_sample_rows: int = 2**13
    cli_sample_bytes: int = 2**26
    cli_least_sample_rows: int = 32
    # Sample rows that are read before the pages that they touched are released.
    cli_sample_step_rows: int = 2**8
    # Vector files that are mapped at once, well below common limits on open files.
    cli_open_files: int = 32
    # A file with a larger share of unused bytes is worth rewriting.
    cli_unused_share: float = 1 / 3
    # Seconds between lines of progress where there is no progress bar.
    cli_progress_seconds: float = 5.0
    # Queries that are searched for together.
    cli_query_rows: int = 2**10


_current = Tuning()


def tuning() -> Tuning:
    """Return the constants in use."""
    return _current


@contextmanager
def tuned(**changes: Any) -> Iterator[None]:
    """Replace constants in all threads of this process: for tests."""
    global _current
    before = _current
    _current = replace(before, **changes)
    try:
        yield
    finally:
        _current = before
