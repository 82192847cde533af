"""Find near-duplicate texts: shingles hashed into 2**18 dimensions, sparse at every step."""

import zlib

import numpy as np
from scipy import sparse

from cbeindex import CBEIndex

DIM = 2**18
RADIUS = 0.35  # cosine distance: about two thirds of the shingles shared


def shingles(text: str, size: int = 3) -> set[str]:
    """Return all runs of `size` consecutive words."""
    words = text.lower().split()
    return {" ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1))}


def vectors(texts: list[str]) -> sparse.csr_array:
    """Return one sparse row per text, with a 1 in the column of each hashed shingle."""
    columns = [sorted({zlib.crc32(s.encode()) % DIM for s in shingles(text)}) for text in texts]
    offsets = np.cumsum([0, *map(len, columns)])
    return sparse.csr_array(
        (np.ones(offsets[-1], np.float32), np.concatenate(columns), offsets), shape=(len(texts), DIM)
    )


def make_texts(n: int, seed: int = 0) -> tuple[list[str], list[tuple[int, int]]]:
    """Return random texts, of which some are copies with a few words changed, and the pairs of copies and originals."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(3_000)])
    texts = [list(rng.choice(words, 60)) for _ in range(n)]
    pairs = []
    for copy in range(0, n, 10):
        original = copy + 5
        texts[copy] = list(texts[original])
        for place in rng.integers(0, 60, 2):
            texts[copy][place] = "changed"
        pairs.append((copy, original))
    return [" ".join(text) for text in texts], pairs


if __name__ == "__main__":
    texts, planted = make_texts(400)
    X = vectors(texts)
    index = CBEIndex(DIM, n_bits=1024, vectors="float32")
    index.add(X)
    found = index.range_search(X, RADIUS)
    query = np.repeat(np.arange(len(texts)), np.diff(found.lims))
    pairs = sorted({(int(a), int(b)) for a, b in zip(query, found.ids, strict=True) if a < b})
    print(index)
    print(f"{len(pairs)} pairs of near duplicates, {len(planted)} were planted, the same: {pairs == sorted(planted)}")
    first, second = pairs[0]
    print(f"for example {first} and {second}:\n  {texts[first][:70]}...\n  {texts[second][:70]}...")
