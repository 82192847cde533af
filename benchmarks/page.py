"""One page that shows a run: tables, pictures, machine and command; nothing is loaded from elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks import curves
from benchmarks.curves import Row

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }
img { width: 100%; height: auto; } figure { margin: 1.5rem 0; }
div.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #eee; white-space: nowrap; }
.word { text-align: left; }
.ours { background: #fdeee4; font-weight: 600; } code { background: #f4f4f4; padding: .1rem .3rem; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; } dt { color: #666; } dd { margin: 0; }
"""


def html(rows: Sequence[Row], pictures: Mapping[str, Path], levels: Sequence[float]) -> str:
    """Return the page; pictures are SVG files by what they show."""
    machine = next((row for row in rows if row["table"] == "machine"), {})
    body = [facts(machine)]
    for part in curves.parts(rows):
        body.append(f"<h2>{escape(str(part))}</h2>")
        for row in (row for row in rows if row["table"] == "set" and (row["data"], row["bits"]) == part[:2]):
            kind = "sparse" if row["sparse"] else "dense"
            body.append(
                f"<p>{row['rows']:,} rows of {row['dim']:,} dimensions, {kind}, {escape(row['metric'])}; "
                f"{row['queries']:,} queries, {row['batch']:,} a call; seed {row['seed']}.</p>"
            )
        points = curves.rows_of(rows, "point", part)
        ours = {point["contender"] for point in points if point["group"] == "ours"}
        for kind, counted in curves.KINDS.items():
            some = [point for point in points if point["kind"] == kind]
            if not some:
                continue
            body.append(f"<h3>{escape(counted[0].upper() + counted[1:])}</h3>")
            body.append(table(curves.verdict_table(some, levels), set()))
            body.append(picture(pictures, f"{part}, {counted}"))
            body.append(f"<p>QPS: queries per second, encoding included; {escape(curves.READING)}.</p>")
            body.append(table(curves.comparison_table(some, levels), ours))
            for level in levels:
                lines = curves.time_table(some, level)
                if len(lines) > 1:
                    body.append(f"<p>Microseconds a query at recall {level:g}:</p>")
                    body.append(table(lines, ours))
        body.append(picture(pictures, f"{part}, recall 10@R from codes alone"))
        body.append("<h3>Contenders</h3>")
        body.append(table(curves.contender_table(curves.rows_of(rows, "contender", part)), ours))
    others = [title for title in pictures if title.startswith("Encoding")]
    if others:
        body.append("<h2>Encoding</h2>")
        body += [picture(pictures, title) for title in others]
    return document("cbeindex: recall and speed", body)


def document(title: str, body: Sequence[str]) -> str:
    """Return a whole page of the parts of its body."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def facts(machine: Row) -> str:
    """List the machine, the versions and the command."""
    lines = [
        f"<dt>{escape(name)}</dt><dd>{f'<code>{text}</code>' if name == 'command' else text}</dd>"
        for name, text in ((name, escape(str(value))) for name, value in machine.items())
        if name != "table"
    ]
    return f"<dl>{''.join(lines)}</dl>"


def picture(pictures: Mapping[str, Path], title: str) -> str:
    """Return a picture with its data in it; nothing if there is none."""
    if title not in pictures:
        return ""
    data = base64.b64encode(pictures[title].read_bytes()).decode()
    return f'<figure><img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}"></figure>'


def table(lines: list[list[str]], ours: set[str]) -> str:
    """Return lines of cells as a table, the first of them as its head."""
    words = curves.is_text(lines)
    made = []
    for i, line in enumerate(lines):
        tag = "td" if i else "th"
        cells = (
            f"<{tag}{' class=word' if word else ''}>{escape(cell)}</{tag}>"
            for cell, word in zip(line, words, strict=True)
        )
        made.append(f"<tr{' class=ours' if i and line[0] in ours else ''}>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>\n{chr(10).join(made)}\n</table></div>'
