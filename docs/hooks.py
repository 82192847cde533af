"""Checks of the documentation while mkdocs builds it. A warning fails the build, which is strict."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

log = logging.getLogger("mkdocs.hooks.cbeindex")

ROOT = Path(__file__).parent.parent
# What a browser loads by itself when it opens a page. Links that a reader follows may lead elsewhere.
_LOADED = re.compile(r"""<(?:script|img|iframe|source|link(?![^>]*rel="?(?:canonical|prev|next)))[^>]*?"""
                     r"""(?:src|href)=["']?(https?:|//)[^>]*>""")  # fmt: skip


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Report names in the reference that have no docstring."""
    for name in re.findall(r"^::: (\S+)", markdown, flags=re.MULTILINE):
        for undocumented in without_docstring(name):
            log.warning("%s has no docstring", undocumented)
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Report what a page would load from another place."""
    for found in external_requests(output):
        log.warning("%s loads from elsewhere: %s", page.file.src_uri, found)
    return output


def external_requests(html: str) -> list[str]:
    """Return the tags of a page that load something over the network."""
    return [match.group(0) for match in _LOADED.finditer(html)]


def without_docstring(name: str) -> Iterator[str]:
    """Yield the name, and those of its public members, that have no docstring."""
    package, _, rest = name.partition(".")
    yield from _bare(_loaded(package)[rest], name)


@cache
def _loaded(package: str) -> Any:
    """Read a package without importing it."""
    return griffe.GriffeLoader(search_paths=[str(ROOT)]).load(package)


def _bare(item: Any, name: str) -> Iterator[str]:
    """Yield the item and its public members, by name, if they lack a docstring."""
    item = item.final_target if item.is_alias else item
    if not item.docstring and not item.is_attribute:
        yield name
    if item.is_class:
        for key, member in item.all_members.items():
            if not key.startswith("_"):
                yield from _bare(member, f"{name}.{key}")
