"""How fast vectors become codes, next to Hadamard rotations, matrices and other transforms; and in what memory."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.encode.contenders import CONTENDERS, PACKAGES, TRANSFORMS
from benchmarks.encode.limits import operations
from benchmarks.encode.sparse import SPARSE_BITS, SPARSE_CONTENDERS
from benchmarks.harness import Contender, ContenderError, Timing, alternate, last_line
from benchmarks.report import Report

DIMS = (128, 384, 768, 784, 1_024, 1_536, 4_096, 25_600, 2**17, 2**20)
QUICK_DIMS = (128, 768)
# Dimensions without holes, and others that no transform is made for: primes, and one more than fast ones.
STEPS = (*range(64, 512, 32), *range(512, 1_024, 64), *range(1_024, 4_097, 256), 97, 257, 509, 1_009, 2_053, 4_093)
SINGLE_DIMS = (128, 384, 784, 1_536, 4_096)
# Sparse vectors: dimensions, and entries of a vector.
SPARSE_DIMS, SPARSE_ENTRIES = (25_600, 2**17, 2**20), (32, 256)
# A dense matrix of this many values (1 GiB of float32) is the largest that the matrix methods get.
LARGEST_MATRIX = 2**28


def main(arguments: list[str]) -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks encode", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: few dimensions, few rounds")
    parser.add_argument("--rounds", type=int, default=9, help="rounds that the contenders alternate")
    parser.add_argument("--dims", type=int, nargs="+", help="dimensions to measure")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="tables to print")
    device_help = "a device of torch, such as cuda: print only the table that compares it with the kernels"
    parser.add_argument("--device", help=device_help)
    parser.add_argument("--output", default=os.path.join("bench-report", "encode.jsonl"), help="JSON lines go here")
    options = parser.parse_args(arguments)
    report = Report("Encoding, one thread", options.output)
    quick, rounds = options.quick, 3 if options.quick else options.rounds
    dims = tuple(options.dims or (QUICK_DIMS if quick else DIMS))
    if options.device is not None:
        on_device(report, dims, rounds, options.device)
        return
    runs = {
        "encode": partial(speed, report, dims, rounds),
        "transforms": partial(transforms, report, dims, rounds),
        "steps": partial(steps, report, dims if quick else STEPS, rounds),
        "single": partial(single, report, dims if quick else SINGLE_DIMS, rounds),
        "accuracy": partial(accuracy, report, dims),
        "sparse": partial(sparse, report, SPARSE_DIMS[:1] if quick else SPARSE_DIMS, rounds),
        "memory": partial(memory, report, (2**17,) if quick else (2**20, 2**24)),
    }
    for name in options.tables:
        runs[name]()


TABLES = ("encode", "transforms", "steps", "single", "accuracy", "sparse", "memory")


def speed(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Microseconds a vector for every dimension and contender."""
    others = ("hadamard", "lsh", "matrix")
    usable = _usable(CONTENDERS)
    with Contender("benchmarks.encode.limits:Limits", {}) as limits:
        flops = limits.call("gigaflops")
    table = report.table(
        "encode",
        ["d", "us/vector", "min-max", *others, *(f"x {name}" for name in others), "of peak", "of memory"],
        "n_bits = d; time includes packing; x: their time / cbeindex time, above 1: cbeindex is faster; "
        f"of peak: 5 d log2 d operations, share of multiply-adds in registers ({flops:.0f} Gflop/s); "
        "of memory: time of a sum over 128 MB of vectors / time to encode them",
        {"min-max": 11},
    )
    for dim in dims:
        n_rows = _n_rows(dim)
        names = [name for name in usable if name in ("cbeindex", "hadamard") or dim * dim <= LARGEST_MATRIX]
        timings = _timings({name: CONTENDERS[name] for name in names}, rounds, dim=dim, n_rows=n_rows)
        cells = _cells(timings, n_rows, others)
        of_peak, of_memory = None, None
        if cells[0] is not None:
            of_peak = operations(dim) / cells[0] / 1e3 / flops
            with Contender("benchmarks.encode.contenders:Circulant", {"dim": dim, "n_rows": n_rows}) as process:
                of_memory = process.call("share_of_memory")
        table.row(dim, *cells, of_peak, of_memory)


def transforms(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Microseconds a vector next to the transforms of other libraries."""
    table = report.table(
        "transforms",
        ["d", "us/vector", "min-max", *TRANSFORMS, *(f"x {name}" for name in TRANSFORMS)],
        "signs, real transform, product, inverse and packbits; x as above",
        {"min-max": 11},
    )
    contenders = {"cbeindex": CONTENDERS["cbeindex"]} | {name: TRANSFORMS[name] for name in _usable(TRANSFORMS)}
    for dim in dims:
        timings = _timings(contenders, rounds, dim=dim, n_rows=_n_rows(dim))
        table.row(dim, *_cells(timings, _n_rows(dim), tuple(TRANSFORMS)))


def steps(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Nanoseconds a value over many dimensions: no holes."""
    from cbeindex.encoders.lengths import fast_length

    names = [name for name in _usable(CONTENDERS) if name in ("cbeindex", "hadamard")]
    table = report.table(
        "steps", ["d", "length", "us/vector", "ns/value", "x hadamard"], "length: of the transform; x as above"
    )
    for dim in sorted(dims):
        timings = _timings({name: CONTENDERS[name] for name in names}, rounds, dim=dim, n_rows=_n_rows(dim))
        own, *_, ratio = _cells(timings, _n_rows(dim), ("hadamard",))
        table.row(dim, fast_length(dim), own, None if own is None else own * 1e3 / dim, ratio)


def single(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Microseconds of one vector."""
    table = report.table(
        "single", ["d", "kernel", "encode"], "us for one vector: in the kernel without the call, and a call of `encode`"
    )
    for dim in dims:
        with Contender("benchmarks.encode.contenders:Circulant", {"dim": dim, "n_rows": 1}) as process:
            runs = [process.call("run_single", 2_000) for _ in range(rounds)]
        whole, kernel = (min(times) * 1e6 for times in zip(*runs, strict=True))
        table.row(dim, kernel, whole)


def accuracy(report: Report, dims: Sequence[int]) -> None:
    """Relative errors of projections against float64."""
    table = report.table(
        "accuracy", ["d", "cbeindex", "scipy"], "relative error of float32 projections in root mean square"
    )
    for dim in dims:
        with Contender("benchmarks.encode.contenders:Circulant", {"dim": dim, "n_rows": 4}) as process:
            table.row(dim, *process.call("errors"))


def on_device(report: Report, dims: Sequence[int], rounds: int, device: str) -> None:
    """Microseconds a vector on another device, and how many times as fast that is as the kernels on one thread."""
    table = report.table(
        "device",
        ["d", "rows", "us/vector", "min-max", device, f"x {device}", "bits differ"],
        f"{device}: torch tensors that are there already, codes stay there; x: cbeindex on one thread / {device}, "
        f"above 1: {device} is faster; bits differ: share of bits, whose projections are 0 up to rounding",
        {"min-max": 11},
    )
    for dim in dims:
        n_rows = max(2, min(2**16, 2**25 // dim))  # a device needs many vectors at once
        cells: list[Any] = [None] * 4
        differ = None
        try:
            arguments = {"dim": dim, "n_rows": n_rows, "device": device}
            with (
                Contender("benchmarks.encode.contenders:Circulant", {"dim": dim, "n_rows": n_rows}) as own,
                Contender("benchmarks.encode.device:OnDevice", arguments) as other,
            ):
                differ = other.call("differing_bits")
                calls = {"cbeindex": partial(own.call, "run", 1), device: partial(other.call, "run", 1)}
                timings = alternate(calls, rounds)
            *cells, ratio = _cells(timings, n_rows, (device,))
            cells.append(None if ratio is None else 1 / ratio)
        except ContenderError as error:
            print(f"{device} is left out at {dim}: {last_line(error)}", flush=True)
        table.row(dim, n_rows, *cells, differ)


def sparse(report: Report, dims: Sequence[int], rounds: int) -> None:
    """Microseconds a vector for sparse vectors."""
    table = report.table(
        "sparse",
        ["d", "entries", "us/vector", "min-max", "transform", "matrix", "x transform", "x matrix"],
        f"{SPARSE_BITS:,} bits; transform: cbeindex on the same vectors, dense; x as above",
        {"min-max": 11},
    )
    for dim in dims:
        for n_entries in SPARSE_ENTRIES:
            n_rows = max(16, 2**22 // dim)
            names = [name for name in SPARSE_CONTENDERS if name != "matrix" or dim * SPARSE_BITS <= LARGEST_MATRIX]
            contenders = {name: SPARSE_CONTENDERS[name] for name in names}
            timings = _timings(contenders, rounds, dim=dim, n_rows=n_rows, n_entries=n_entries)
            table.row(dim, n_entries, *_cells(timings, n_rows, ("transform", "matrix")))


def memory(report: Report, dims: Sequence[int]) -> None:
    """Peak memory beyond the input."""
    table = report.table("memory", ["d", "rows", "input MB", "beyond MB"], "resident peak while encoding")
    for dim in dims:
        n_rows = max(2, 2**23 // dim)
        with Contender("benchmarks.encode.sparse:Memory", {}) as process:
            peak = process.call("peak", dim, n_rows)
        table.row(dim, n_rows, peak["input"] / 1e6, peak["beyond"] / 1e6)


def _n_rows(dim: int) -> int:
    return max(2, min(1_024, 2**19 // dim))


def _usable(names: Iterable[str]) -> list[str]:
    """Return the contenders whose packages are installed; say which are left out."""
    left_out: dict[str, list[str]] = {}
    for name in names:
        package = PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            left_out.setdefault(package, []).append(name)
    for package, missing in left_out.items():
        print(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} left out: {package} is not installed")
    return [name for name in names if not any(name in missing for missing in left_out.values())]


def _timings(contenders: Mapping[str, type], rounds: int, **arguments: int) -> dict[str, Timing]:
    """Run contenders in turn, each in its process; one that fails is left out, and it is said why."""
    processes: dict[str, Contender] = {}
    failed: set[str] = set()

    def fail(name: str, error: ContenderError) -> float:
        failed.add(name)
        print(f"{name} is left out: {last_line(error)}", flush=True)
        return math.nan

    def seconds(name: str) -> float:
        if name in failed:
            return math.nan
        try:
            return float(processes[name].call("run", 3))
        except ContenderError as error:
            return fail(name, error)

    for name, contender in contenders.items():
        try:
            processes[name] = Contender(f"{contender.__module__}:{contender.__name__}", arguments)
        except ContenderError as error:
            fail(name, error)
    timings = alternate({name: partial(seconds, name) for name in processes}, rounds)
    for process in processes.values():
        process.close()
    return {name: timing for name, timing in timings.items() if name not in failed}


def _cells(timings: dict[str, Timing], n_rows: int, others: tuple[str, ...]) -> list[Any]:
    """Put our time, its spread, the times of others and the ratios into cells; None where there is no time."""
    scale = 1e6 / n_rows
    own = timings.get("cbeindex")
    of_others = [timings[name].median * scale if name in timings else None for name in others]
    if own is None:
        return [None, None, *of_others, *(None for _ in others)]
    ratios = [None if other is None else other / (own.median * scale) for other in of_others]
    return [own.median * scale, own.spread(scale), *of_others, *ratios]
