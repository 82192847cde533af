"""A set as an HDF5 file for ann-benchmarks: its vectors, or their codes as a Hamming set, with true neighbours."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from benchmarks import sources, truth
from cbeindex import BinaryIndex, CirculantEncoder


def main(arguments: list[str]) -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hdf5", description=__doc__)
    add = parser.add_argument
    add("out", metavar="OUT", help="the file to write, such as data/glove-100-angular.hdf5")
    add("--data", default="synthetic", metavar="NAME", help=f"one of {', '.join(sources.names())}, or a file")
    add("--metric", choices=sources.METRICS, help="by default that of the set")
    add("--rows", type=int, metavar="N", help="rows to take at most")
    add("--queries", type=int, default=1_000, metavar="N", help="queries to take at most")
    add("--bits", type=int, metavar="N", help="write codes of N bits, for Hamming distance")
    options = parser.parse_args(arguments)
    try:
        write(options)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")


def write(options: argparse.Namespace) -> None:
    """Write a set under the names that ann-benchmarks reads."""
    import h5py

    data = sources.open_set(options.data, metric=options.metric, n_rows=options.rows, n_queries=options.queries)
    if hasattr(data.base, "toarray"):
        raise ValueError(f"{data.name} is sparse, and ann-benchmarks has dense sets: choose another one")
    if options.bits is None:
        assert data.truth is not None
        base, queries, neighbours = data.base, data.queries, data.truth[:, : truth.N_TRUTH]
        distances = np.sqrt(truth.distances_to(data, neighbours))
        if data.metric == "cosine":
            distances = distances**2 / 2  # of rows of norm 1
        distance, point_type = {"cosine": "angular", "l2": "euclidean"}[data.metric], "float"
    else:
        base, queries, neighbours, distances = _hamming(data, options.bits)
        distance, point_type = "hamming", "bit"
    with h5py.File(options.out, "w") as file:
        file.attrs.update(type="dense", distance=distance, dimension=base.shape[1], point_type=point_type)
        for name, array in (("train", base), ("test", queries), ("neighbors", neighbours), ("distances", distances)):
            file.create_dataset(name, data=array)
    print(f"{options.out}: {base.shape[0]:,} rows and {len(queries):,} queries of {base.shape[1]:,} values, {distance}")


def _hamming(data: Any, n_bits: int) -> tuple[Any, Any, Any, Any]:
    """Return codes of rows and queries as columns of bits, and the nearest rows with their shares of differing bits."""
    encoder = CirculantEncoder(data.dim, n_bits).fit(data.base)
    base, queries = (encoder.encode(rows) for rows in (data.base, data.queries))
    index = BinaryIndex(n_bits)
    index.add(base)
    found = index.search(queries, min(truth.N_TRUTH, len(base)))
    return _bits(base, n_bits), _bits(queries, n_bits), found.ids, found.distances / n_bits


def _bits(codes: Any, n_bits: int) -> Any:
    return np.unpackbits(codes, axis=1, count=n_bits, bitorder="little").astype(np.bool_)
