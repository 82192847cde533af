"""Cases, what they found, and how it is told."""

from __future__ import annotations

import random
import re
import shutil
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

# Files that are kept of findings of one sort, and cases that are named in the summary.
_MOST_KEPT = 3
_MOST_NAMED = 10


def random_of(seed: int, kind: str, case: int) -> random.Random:
    """Return the random numbers of a case: the same whatever ran before."""
    return random.Random(f"{seed}/{kind}/{case}")


@dataclass
class Report:
    """Counts and findings of one kind of attack.

    Attributes
    ----------
    kind : str
    seed : int
    keep : Path, optional
        Folder for files that show a finding.
    out : file, optional
        Where findings are told as they come.
    """

    kind: str
    seed: int
    keep: Path | None = None
    out: TextIO | None = None
    n_cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    _sorts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, case: int, findings: list[str], file: Path | None = None) -> None:
        """Take in the findings of a case, and keep its file if they are new ones."""
        for finding in findings:
            self.findings.append((case, finding))
            sort = self._sorts[_sort_of(finding)]
            if sort and sort[-1] == case:
                continue
            sort.append(case)
            if len(sort) == 1:
                self._tell(f"FOUND {self.kind} case {case} of seed {self.seed}: {finding}")
            if self.keep is not None and file is not None and file.exists() and len(sort) <= _MOST_KEPT:
                self.keep.mkdir(parents=True, exist_ok=True)
                kept = self.keep / f"{self.kind}-{self.seed}-{case}.cbe"
                shutil.copyfile(file, kept)
                self._tell(f"      kept as {kept}")

    def summary(self) -> str:
        """Tell counts, and the cases of each sort of finding."""
        counts = ", ".join(f"{n:,} {name}" for name, n in sorted(self.counts.items()))
        lines = [f"{self.kind}: {self.n_cases:,} cases of seed {self.seed} ({counts}), {len(self.findings)} findings"]
        for sort, cases in sorted(self._sorts.items(), key=lambda item: -len(item[1])):
            named = ", ".join(map(str, cases[:_MOST_NAMED])) + (", ..." if len(cases) > _MOST_NAMED else "")
            lines.append(f"  {len(cases):5} x {sort[:200]}\n          cases {named}")
        if self.findings:
            case = self.findings[0][0]
            lines.append(f"  repeat a case: python -m fuzz {self.kind} --seed {self.seed} --case {case} --keep FOLDER")
        return "\n".join(lines)

    def _tell(self, text: str) -> None:
        print(text, file=self.out or sys.stdout, flush=True)


def _sort_of(finding: str) -> str:
    """Return the first line of a finding without arguments, numbers and names, which differ from case to case."""
    line = re.sub(r"\(.*?\)|\[.*?\]|\S*/fuzz-\S+/", "", finding.split("\n")[0])
    return re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[+-]?\d+)?|'[^']*'", "#", line).replace(" :", ":")
