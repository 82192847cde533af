"""What a run of the paper's experiments keeps: results by name on disk, and sections that show them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import curves, page, plots, truth

# Tables are made of lines of cells, the first of them the head.
Lines = list[list[str]]


class NotKept(Exception):
    """A result that was not to be computed is not there."""


class Results:
    """Results of one part by name, written as they come: a run that was broken off goes on where it ended.

    A result is found again by its part, its name, which says the data and their sizes, and the digest of the sources
    that it came from: one that other code has measured is not shown as if it were of this code.

    Parameters
    ----------
    path : Path
        JSON lines, each a result with its part, name, sources, commit and date; of all parts.
    part : str
    tell : callable
        Hears what is being computed.
    sources : str
        Digest of the files that the results come from, see `digest_of`.
    commit : str
        Written beside new results.
    may_compute : bool
        Whether a result that is not there is computed; else `get` raises NotKept.
    """

    def __init__(
        self,
        path: Path,
        part: str,
        tell: Callable[[str], object] = lambda text: None,
        *,
        sources: str = "",
        commit: str = "unknown",
        may_compute: bool = True,
    ) -> None:
        self._path, self._part, self._tell = path, part, tell
        self._sources, self._commit, self._may_compute = sources, commit, may_compute
        self._known = {row["name"]: row for row in _rows(path) if (row["part"], row["sources"]) == (part, sources)}
        self._old = set(self._known)
        self._shown: set[str] = set()

    def get(self, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of this name; compute it from the arguments and keep it if there is none."""
        self._shown.add(name)
        if name in self._known:
            return self._known[name]["result"]
        if not self._may_compute:
            raise NotKept(name)
        self._tell(f"{self._part}: {name}")
        row = {"part": self._part, "name": name, "sources": self._sources, "commit": self._commit}
        row |= {"result": compute(*arguments), "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._known[name] = row
        return row["result"]

    def when(self) -> str:
        """Say when the results used since the last call were measured, if an earlier run measured them."""
        old = [self._known[name] for name in self._shown & self._old]
        self._shown.clear()
        if not old:
            return ""
        dates, commits = sorted({row["date"] for row in old}), sorted({row["commit"] for row in old})
        span = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        return f"Measured in an earlier run, {span}, commit {', '.join(commits)}."


def digest_of(paths: Iterable[Path]) -> str:
    """Name source files by what is in them."""
    return truth.digest(*(text for path in sorted(paths) for text in (path.name, path.read_text(encoding="utf-8"))))


def forget(path: Path, parts: Collection[str]) -> None:
    """Delete the results of some parts."""
    kept = [row for row in _rows(path) if row["part"] not in parts]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))


def _rows(path: Path) -> list[dict[str, Any]]:
    """Read all results; what a killed run left of its last line is cut off, and lines of another form are passed by."""
    text = path.read_text() if path.exists() else ""
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    return [row for row in map(json.loads, text.splitlines()) if "part" in row]


@dataclass
class Section:
    """One experiment of the paper as it came out here.

    Attributes
    ----------
    title : str
    stated : str
        What the paper says.
    found : list of str
        What came out, a sentence each.
    tables : dict of lines by heading
    notes : dict of str by heading
        What to know about a table: sizes, bounds, when it was measured.
    draw : dict of functions by title
        Each makes a figure under its title.
    """

    title: str
    stated: str
    found: list[str] = field(default_factory=list)
    tables: dict[str, Lines] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    draw: dict[str, Callable[[str], Any]] = field(default_factory=dict)

    def add(self, heading: str, lines: Lines, *notes: str) -> None:
        """Add a table with its notes, of which empty ones are left out."""
        self.tables[heading] = lines
        self.notes[heading] = " ".join(note for note in notes if note)

    def text(self) -> str:
        """Return the section for a terminal."""
        parts = [f"\n{self.title}\n{'=' * len(self.title)}", f"The paper: {self.stated}"]
        for heading, lines in self.tables.items():
            note = self.notes.get(heading)
            parts.append(f"{heading}\n{curves.as_text(lines)}" + (f"\n{note}" if note else ""))
        parts += [f"Here: {sentence}" for sentence in self.found]
        return "\n\n".join(parts)

    def html(self, folder: Path, stem: str, with_plots: bool) -> str:
        """Return the section for the page; its pictures are written into `folder`."""
        parts = [f"<h2>{escape(self.title)}</h2>", f"<p><b>The paper:</b> {escape(self.stated)}</p>"]
        parts += [f"<p><b>Here:</b> {escape(sentence)}</p>" for sentence in self.found]
        for i, (title, draw) in enumerate(self.draw.items() if with_plots else ()):
            with plots.style():
                drawn = plots.save(draw(title), folder / f"{stem}-{i + 1}")
            parts.append(page.picture({title: drawn}, title))
        for heading, lines in self.tables.items():
            parts += [f"<h3>{escape(heading)}</h3>", page.table(lines, {OURS})]
            if self.notes.get(heading):
                parts.append(f"<p>{escape(self.notes[heading])}</p>")
        return "\n".join(parts)


OURS = "orthogonal (ours)"
"""Our kind of circulant encoder, beyond the paper."""


def number(value: float | None) -> str:
    """Return a number for a table, three digits of it, large ones without an exponent; empty if there is none."""
    if value is None:
        return ""
    if abs(value) < 100:
        return f"{value:.3g}"
    return f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"


def share(value: float | None) -> str:
    """Return a share, such as a recall, for a table."""
    return "" if value is None else f"{value:.3f}"
