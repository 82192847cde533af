"""What a run of the paper's experiments keeps: results by name on disk, and sections that show them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from benchmarks import curves, page, plots

# Tables are made of lines of cells, the first of them the head.
Lines = list[list[str]]


class Results:
    """Results by name, written as they come: a run that was broken off goes on where it ended.

    Parameters
    ----------
    path : Path
        JSON lines of a name and a result.
    tell : callable
        Hears what is being computed.
    """

    def __init__(self, path: Path, tell: Callable[[str], object]) -> None:
        self._path = path
        self.tell = tell
        self._known: dict[str, Any] = {}
        text = path.read_text() if path.exists() else ""
        if text and not text.endswith("\n"):  # the last line of a run that was killed
            text = text[: text.rfind("\n") + 1]
            path.write_text(text)
        for row in map(json.loads, text.splitlines()):
            self._known[row["name"]] = row["result"]

    def get(self, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of this name; compute it from the arguments and keep it if there is none."""
        if name not in self._known:
            self.tell(name)
            result = compute(*arguments)
            with self._path.open("a") as file:
                file.write(json.dumps({"name": name, "result": result}) + "\n")
            self._known[name] = result
        return self._known[name]


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
    draw : dict of functions by title
        Each makes a figure under its title.
    """

    title: str
    stated: str
    found: list[str] = field(default_factory=list)
    tables: dict[str, Lines] = field(default_factory=dict)
    draw: dict[str, Callable[[str], Any]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the section for a terminal."""
        parts = [f"\n{self.title}\n{'=' * len(self.title)}", f"The paper: {self.stated}"]
        parts += [f"{heading}\n{curves.as_text(lines)}" for heading, lines in self.tables.items()]
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
        return "\n".join(parts)


OURS = "orthogonal (ours)"
"""Our kind of circulant encoder, beyond the paper."""


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for a table; an empty cell where there is none."""
    return "" if value is None else f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share, such as a recall, for a table."""
    return "" if value is None else f"{value:.3f}"
