"""Index the docstrings of the installed packages, and find similar functions.

python examples/docstrings.py                       two example queries
python examples/docstrings.py numpy.linalg.solve    functions similar to that one
python examples/docstrings.py "sort an array"       functions with such a docstring
"""

from __future__ import annotations

import argparse
import ast
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse

from cbeindex import CBEIndex

DIM = 25_600


def read_docstrings(roots: list[Path], least_words: int = 8) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of every function in the folders, without importing anything."""
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            if "test" in path.as_posix()[len(root.as_posix()) :]:
                continue
            try:
                tree = ast.parse(path.read_bytes())
            except (SyntaxError, ValueError, OSError, RecursionError):
                continue
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node) or ""
                    if len(text.split()) >= least_words:
                        yield f"{module}.{node.name}", text


def n_grams(text: str) -> Counter[int]:
    """Count words and pairs of words by hashed column, with the signs of feature hashing."""
    words = re.findall(r"[a-z][a-z0-9_]+", text.lower())
    grams = words + [f"{a} {b}" for a, b in pairwise(words)]
    counts: Counter[int] = Counter()
    for gram in grams:
        value = zlib.crc32(gram.encode())
        counts[value % DIM] += 1 if value >> 31 else -1
    return counts


def vectors(texts: list[str]) -> sparse.csr_array:
    """Return hashed n-grams with logarithmic counts, one sparse row per text."""
    counts = [n_grams(text) for text in texts]
    offsets = np.cumsum([0, *map(len, counts)])
    columns = np.fromiter((c for count in counts for c in count), dtype=np.int64, count=offsets[-1])
    values = np.fromiter((v for count in counts for v in count.values()), dtype=np.float32, count=offsets[-1])
    return sparse.csr_array((np.sign(values) * np.log1p(np.abs(values)), columns, offsets), shape=(len(texts), DIM))


def weigh(X: sparse.csr_array) -> np.ndarray:
    """Return inverse document frequencies, which give rare words more weight."""
    seen = np.bincount(X.indices, minlength=DIM)
    return np.asarray(np.log((1 + X.shape[0]) / (1 + seen)), dtype=np.float32)


class Collection(NamedTuple):
    """Functions with their docstrings, as weighted sparse rows."""

    names: list[str]
    texts: list[str]
    rows: sparse.csr_array
    weights: sparse.dia_array


def collect(packages: Path, limit: int) -> Collection:
    """Read the docstrings of a folder, and weigh their words."""
    found: dict[str, str] = {}
    for name, text in read_docstrings([packages]):
        found.setdefault(name, text)
        if len(found) >= limit:
            break
    X = vectors(list(found.values()))
    weights = sparse.diags_array(weigh(X))
    return Collection(list(found), list(found.values()), sparse.csr_array(X @ weights), weights)


def main() -> None:
    """Index the docstrings, then search for each query."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="*", help="a function's name, or words")
    parser.add_argument("--limit", type=int, default=20_000, help="docstrings to index at most")
    parser.add_argument("--packages", type=Path, default=Path(sysconfig.get_paths()["purelib"]), help="folder to read")
    options = parser.parse_args()

    names, texts, X, weights = collect(options.packages, options.limit)
    index = CBEIndex(DIM, n_bits=4096, vectors="float32")
    index.add(X)
    print(f"{index}; {index.stats()['bytes']['codes'] / len(index):.0f} bytes of code each")

    for question in options.question or [names[len(names) // 3], "compute the inverse of a matrix"]:
        query = X[[names.index(question)]] if question in names else sparse.csr_array(vectors([question]) @ weights)
        distances, ids = index.search(query, k=6)
        print(f"\nlike {question!r}:")
        for distance, id_ in zip(distances[0], ids[0], strict=True):
            if id_ >= 0 and names[id_] != question:
                print(f"  {distance:.3f}  {names[id_]}: {' '.join(texts[id_].split())[:70]}")


if __name__ == "__main__":
    main()
