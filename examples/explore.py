"""Make one page to explore the neighbours of functions by their docstrings: every result with its error bar.

python -m examples.explore                          explore.html, from the installed packages
python -m examples.explore --packages FOLDER        from another folder of Python files

The page needs nothing else: no server, no network.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from cbeindex import CBEIndex
from examples.docstrings import DIM, Collection, collect

PAGE = Path(__file__).with_suffix(".html")
N_BITS = 4_096


def explored(found: Collection, k: int) -> dict[str, Any]:
    """Search for every function among all, and return what the page shows."""
    index = CBEIndex(DIM, n_bits=N_BITS, vectors="float32", buckets=None).fit(found.rows)
    index.add(found.rows)
    # One more than shown: the nearest row of a row is the row itself.
    result = index.search(found.rows, k + 1, rerank="asymmetric")
    assert result.errors is not None
    rows = found.rows
    norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    neighbours = []
    for row, ids in enumerate(result.ids):
        keep = (ids != row) & (ids >= 0)
        near = ids[keep][:k]
        exact = 1 - (rows[near] @ rows[[row]].T).toarray().ravel() / (norms[near] * norms[row])
        numbers = (result.distances[row][keep][:k], result.errors[row][keep][:k], exact)
        neighbours.append([near.tolist(), *(np.round(some.astype(np.float64), 3).tolist() for some in numbers)])
    return {
        "names": found.names,
        "texts": [textwrap.shorten(text, 160, placeholder=" ...") for text in found.texts],
        "neighbours": neighbours,
        "plan": str(index.explain(found.rows[[0]], k, rerank="asymmetric")),
        "index": f"{index}, {index.stats()['bytes']['codes'] // max(1, len(index))} bytes of code each",
    }


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=4_000, help="docstrings to index at most")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_paths()["purelib"]), help="folder to read")
    parser.add_argument("--output", type=Path, default=Path("explore.html"))
    parser.add_argument("-k", type=int, default=12, help="neighbours of each function")
    options = parser.parse_args()
    # `<` would let a docstring end the script that holds the data.
    data = json.dumps(explored(collect(options.packages, options.limit), options.k)).replace("<", "\\u003c")
    options.output.write_text(PAGE.read_text(encoding="utf-8").replace("DATA_OF_THE_PAGE", data), encoding="utf-8")
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
