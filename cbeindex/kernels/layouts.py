"""What plans and kernels of the circular convolution agree on; nothing here needs numba."""

RADICES = (2, 3, 4, 5, 7, 8)
"""Points that a pass combines."""

PASS_FIELDS = ("kind", "n_blocks", "step", "twiddles")
"""Integers that describe a pass. Its kind is the place of its radix in RADICES, plus their number where step is 1."""

FIELDS = (
    "length", "n_rows", "n_columns", "n_stripes", "n_blocks",
    "n_row_passes", "n_column_passes", "row_passes", "column_passes",
    "sources", "targets", "turns",
    "rows_together", "stripes_together", "pairs_together",
    "row_floats", "stripes", "blocks",
)  # fmt: skip
"""Integers that a layout begins with: length of the circle; sizes; passes, places of points and turns (where they are
in the layout and in the tables); how much is worked on at a time; floats from row to row, and where scratch is, in the
working memory."""

BATCH_FIELDS = (
    "batch_rows", "batch_points", "batch_pitch", "run_floats", "columns_together",
    "n_pairs", "pairs", "batch_turns", "batch_factors",
)  # fmt: skip
"""Integers that follow: rows that are convolved side by side (more than there can be where that does not pay); where
their points are in the working memory, floats from row to row of points, and floats of each row of points; columns
whose passes are done before those of the next ones begin; pairs of rows that mirror each other, and where they are in
the layout; where their turns are in the tables, and their factors among the coefficients."""

PAIR_FIELDS = ("here", "source", "there")
"""Places of two rows of points that mirror each other: of the first, of what the second is made from, of the second."""

LOAD, STRIPES, BLOCKS, STRIPES_BACK, WRITE = range(5)
"""Stages of the transform of a long row, each of which several threads can work on."""

PIECE = 2**14
"""Floats of a part of the first and the last of these stages."""
