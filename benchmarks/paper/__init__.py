"""The experiments of the paper (Circulant Binary Embedding, ICML 2014), each next to what the paper states."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from benchmarks import datasets, page, plots
from benchmarks.paper import data, retrieval, supervised, timing, variance
from benchmarks.paper.results import NotKept, Results, Section, digest_of, forget
from benchmarks.report import Progress, machine
from cbeindex import encoders


class Part(NamedTuple):
    """An experiment, and the modules, beside the encoders, that its results come from."""

    run: Callable[[Results, bool], Section]
    modules: tuple[ModuleType, ...]


# In the order of their numbers; those that share data follow each other.
PARTS = {
    "variance": Part(variance.section, (variance,)),
    "timing": Part(timing.section, (timing,)),
    "retrieval": Part(retrieval.long_vectors, (retrieval, data, datasets)),
    "few-dimensions": Part(retrieval.few_dimensions, (retrieval, data, datasets)),
    "classification": Part(supervised.classification, (supervised, retrieval, data, datasets)),
    "lambda": Part(retrieval.lambdas, (retrieval, data, datasets)),
    "pairs": Part(supervised.pairs, (supervised, data, datasets)),
}


def main(arguments: list[str]) -> None:
    """Run the experiments, print their tables and write the page."""
    options = _parser().parse_args(arguments)
    folder = Path(options.output or os.path.join("bench-report", "paper-quick" if options.quick else "paper"))
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.jsonl"
    if options.fresh:
        forget(kept, [_name_kept(name, options.quick) for name in options.parts])
    facts = machine()
    print("The paper's experiments\n" + ", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    progress = Progress()
    with_plots = plots.can_draw()
    shown: dict[str, str] = {}
    target = folder / "index.html"

    def results_of(name: str, *, may_compute: bool) -> Results:
        return Results(
            kept,
            _name_kept(name, options.quick),
            progress.say,
            sources=digest_of(_sources(PARTS[name].modules)),
            commit=facts["commit"],
            may_compute=may_compute,
        )

    # A run of some parts keeps what the page shows of the others.
    for name in (name for name in PARTS if name not in options.parts):
        try:
            section = PARTS[name].run(results_of(name, may_compute=False), options.quick)
        except NotKept:
            continue
        shown[name] = section.html(folder, name, with_plots)
    seconds = {}
    for name in options.parts:
        start = time.perf_counter()
        section = PARTS[name].run(results_of(name, may_compute=True), options.quick)
        progress.clear()
        print(section.text(), flush=True)
        shown[name] = section.html(folder, name, with_plots)
        body = [page.facts(facts), *(shown[part] for part in PARTS if part in shown)]
        target.write_text(page.document("cbeindex: the paper's experiments", body), encoding="utf-8")
        seconds[name] = time.perf_counter() - start
    print("\nseconds: " + ", ".join(f"{name} {took:,.0f}" for name, took in seconds.items()), flush=True)
    print(f"report: {os.path.relpath(target)}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks paper", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="by default all")
    parser.add_argument("--quick", action="store_true", help="small data and few samples")
    parser.add_argument("--fresh", action="store_true", help="compute these parts again, also what an earlier run kept")
    parser.add_argument("--output", help="folder of the report, by default bench-report/paper, or paper-quick")
    return parser


def _name_kept(part: str, quick: bool) -> str:
    """Name a part in the file of results: those of a quick run are others."""
    return f"{part}, quick" if quick else part


def _sources(modules: Iterable[ModuleType]) -> list[Path]:
    """List the files that results come from."""
    assert encoders.__file__ is not None
    own = [Path(module.__file__) for module in modules if module.__file__ is not None]
    return [*own, *Path(encoders.__file__).parent.glob("*.py")]
