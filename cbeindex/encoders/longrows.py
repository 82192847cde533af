"""The transform of one long row on several threads."""

from __future__ import annotations

from typing import Any

from .. import kernels
from .._core.threads import for_each_chunk
from .._core.typing import Floats, Vectors
from ..kernels.layouts import BLOCKS, LOAD, STRIPES, STRIPES_BACK, WRITE
from .outputs import Outputs
from .plans import ConvolutionPlan


def transform_long_row(
    rows: Vectors, row: int, plan: ConvolutionPlan, arrays: tuple[Any, ...], work: Floats, out: Outputs, n_threads: int
) -> bool:
    """Write the results of one row to `out`; return whether all projections are finite.

    `arrays` are those of `CirculantTransform`, and `work` is the working memory that the threads share.
    """
    kernel = kernels.longrows
    _, signs, layout, *_ = arrays
    spare_scratch: list[Floats] = []
    are_finite = []

    def run(stage: int, block: int) -> None:
        n_parts = int(kernel.count_parts(stage, layout, block * plan.length))

        def task(start: int, stop: int) -> None:
            try:
                scratch = spare_scratch.pop()
            except IndexError:
                scratch = plan.make_scratch()
            are_finite.append(
                kernel.transform_part(
                    stage, start, stop, rows, row, block, *arrays, work, scratch, out.projections, out.codes
                )
            )
            spare_scratch.append(scratch)

        # Two chunks for each thread balance the load.
        for_each_chunk(task, n_parts, -(-n_parts // (2 * n_threads)), n_threads)

    for block in range(len(signs)):
        for stage in (LOAD, STRIPES, BLOCKS, STRIPES_BACK, WRITE):
            run(stage, block)
        if len(out.sums):
            kernel.sum_block(row, block, layout, work, out.projections.shape[1], out.sums)
    return all(are_finite)
