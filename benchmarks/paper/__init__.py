"""The experiments of the paper (Circulant Binary Embedding, ICML 2014), each next to what the paper states."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks import page, plots
from benchmarks.paper import retrieval, supervised, timing, variance
from benchmarks.paper.results import Results, Section
from benchmarks.report import Progress, machine

# In the order of their numbers; those that share data follow each other.
PARTS: dict[str, Callable[[Results, bool], Section]] = {
    "variance": variance.section,
    "timing": timing.section,
    "retrieval": retrieval.long_vectors,
    "few-dimensions": retrieval.few_dimensions,
    "classification": supervised.classification,
    "lambda": retrieval.lambdas,
    "pairs": supervised.pairs,
}


def main(arguments: list[str]) -> None:
    """Run the experiments, print their tables and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paper", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="by default all")
    parser.add_argument("--quick", action="store_true", help="small data and few samples")
    parser.add_argument("--fresh", action="store_true", help="compute all again, also what an earlier run has kept")
    parser.add_argument("--output", default=os.path.join("bench-report", "paper"), help="folder of the report")
    options = parser.parse_args(arguments)
    folder = Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "results.jsonl"
    if options.fresh:
        kept.unlink(missing_ok=True)
    facts = machine()
    print("The paper's experiments\n" + ", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
    progress = Progress()
    results = Results(kept, progress.say)
    body = [page.facts(facts)]
    with_plots = plots.can_draw()
    target = folder / "index.html"
    for name in options.parts:
        section = PARTS[name](results, options.quick)
        progress.clear()
        print(section.text(), flush=True)
        body.append(section.html(folder, name, with_plots))
        target.write_text(page.document("cbeindex: the paper's experiments", body), encoding="utf-8")
    print(f"\nreport: {os.path.relpath(target)}", flush=True)
