"""Who is compared: ours, faiss on the same codes, faiss with as many bits of its own, and others on vectors.

A contender is a class with `build` and `search`; a line in `REGISTRY` gives it its name.
"""

from __future__ import annotations

import importlib
import importlib.util
from importlib import metadata

from benchmarks import isa
from benchmarks.adapter import Adapter, Task

REGISTRY = {
    "cbeindex-graph": "benchmarks.contenders.ours:Graph",
    "cbeindex-graph-int8": "benchmarks.contenders.ours:GraphOfBytes",
    "cbeindex-cells": "benchmarks.contenders.ours:Cells",
    "cbeindex": "benchmarks.contenders.ours:Clusters",
    "cbeindex-hamming": "benchmarks.contenders.ours:ClustersHamming",
    "cbeindex-scan": "benchmarks.contenders.ours:Scan",
    "cbeindex-scan-hamming": "benchmarks.contenders.ours:ScanHamming",
    "cbeindex-substrings": "benchmarks.contenders.ours:Substrings",
    "BinaryFlat": "benchmarks.contenders.binary:BinaryFlat",
    "BinaryIVF": "benchmarks.contenders.binary:BinaryIVF",
    "BinaryIVF-fine": "benchmarks.contenders.binary:BinaryIVFFine",
    "BinaryIVF-by-list": "benchmarks.contenders.binary:BinaryIVFByList",
    "BinaryHash": "benchmarks.contenders.binary:BinaryHash",
    "BinaryMultiHash": "benchmarks.contenders.binary:BinaryMultiHash",
    "BinaryHNSW": "benchmarks.contenders.binary:BinaryHNSW",
    "LSH": "benchmarks.contenders.dense:LSH",
    "HR,LSH": "benchmarks.contenders.dense:HadamardLSH",
    "ITQ,LSH": "benchmarks.contenders.dense:ItqLSH",
    "RaBitQ": "benchmarks.contenders.dense:RaBitQ",
    "IVF,PQfs,Refine": "benchmarks.contenders.refined:PQRefined",
    "IVF,RaBitQfs,Refine": "benchmarks.contenders.refined:RaBitQRefined",
    "HNSW32": "benchmarks.contenders.refined:Graph",
    "HNSW32_SQ8": "benchmarks.contenders.refined:GraphOfBytes",
    "SymphonyQG": "benchmarks.contenders.outside:SymphonyQG",
    "rabitqlib-IVF": "benchmarks.contenders.outside:RaBitQLists",
    "alayalite": "benchmarks.contenders.outside:AlayaLite",
    "ScaNN": "benchmarks.contenders.outside:Scann",
    "hnswlib": "benchmarks.contenders.outside:Hnswlib",
    "usearch": "benchmarks.contenders.outside:Usearch",
    "zvec": "benchmarks.contenders.outside:Zvec",
    "zvec-refined": "benchmarks.contenders.outside:ZvecRefined",
}
"""Names of contenders, and their classes."""

GROUPS = {
    "ours": "cbeindex",
    "binary": "faiss binary, same codes",
    "bits": "faiss, as many bits of its own",
    "outside": "others, on vectors",
}
"""Groups of contenders, in the order of tables."""


def class_of(name: str) -> type[Adapter]:
    """Return the class of a contender."""
    module, attribute = REGISTRY[name].split(":")
    return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


def chosen(words: list[str] | None) -> list[str]:
    """Return the names of contenders that words name: contenders or groups; all of them for None."""
    if words is None:
        return list(REGISTRY)
    names = []
    for word in words:
        if word not in REGISTRY and word not in GROUPS:
            raise ValueError(
                f"there is no contender {word!r}: there are {', '.join(REGISTRY)}; and the groups {', '.join(GROUPS)}"
            )
        names += [word] if word in REGISTRY else [name for name in REGISTRY if class_of(name).group == word]
    return list(dict.fromkeys(names))


def why_not(name: str, task: Task) -> str | None:
    """Say why a contender is left out; None if it takes part."""
    adapter = class_of(name)
    if adapter.package is not None and importlib.util.find_spec(adapter.package) is None:
        return f"{adapter.package} is not installed"
    return isa.refuses(adapter.package) or adapter.refuses(task)


def version(name: str) -> str:
    """Return the package of a contender, with its version."""
    package = {None: "cbeindex", "faiss": "faiss-cpu"}.get(class_of(name).package, class_of(name).package)
    try:
        return f"{package} {metadata.version(str(package))}"
    except metadata.PackageNotFoundError:
        return str(package)
