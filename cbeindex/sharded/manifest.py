"""The manifest: which files make up an index in shards. One JSON file, checksummed, replaced in one step."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

from .._core.checks import as_choice, as_count, as_flag
from ..errors import CorruptIndexFileError, NotAnIndexFileError, UnsupportedVersionError
from ..storage.checksum import crc32
from ..storage.files import sync_directory
from .routing import ROUTING

NAME = "manifest.json"
TEMPLATE = "template.cbe"
"""An index without rows: the arguments of `CBEIndex`, and once it is fitted the encoder that all shards share."""

VERSION = 1
MOST_SHARDS = 10_000
MOST_REPLICAS = 16

_FORMAT = "cbeindex shards"
_MOST_BYTES = 2**20
_KEY = re.compile(r"[0-9a-f]{32}")
_LAYOUT = re.compile(r"layout-[0-9]{1,9}-[0-9a-f]{8}")


@dataclass(frozen=True)
class Manifest:
    """What the folder of an index in shards holds.

    Attributes
    ----------
    key : str
        Identity of the index, from which the names of its workers derive.
    layout : str
        Folder of the shard files. Moving rows to another number of shards makes another folder.
    n_shards, replicas : int
    dim : int
    fitted : bool
        Whether the template holds the common encoder.
    moving : bool
        Whether rows are being moved to another layout. Shards take no writes meanwhile.
    ids : {None, "int", "str"}
        Type of the ids, None until the first rows are added.
    sync : bool
        Whether the log of a shard is synced before a write is acknowledged.
    """

    key: str
    layout: str
    n_shards: int
    dim: int
    replicas: int = 1
    fitted: bool = False
    moving: bool = False
    ids: str | None = None
    sync: bool = True

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest:
        """Read and check the manifest of a folder."""
        path = Path(folder) / NAME
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        try:
            content = json.loads(data) if len(data) <= _MOST_BYTES else None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise NotAnIndexFileError(f"{path}: expected the manifest of an index in shards, found another file")
        if content.get("version") != VERSION:
            found = content.get("version")
            raise UnsupportedVersionError(f"{path}: expected manifest version {VERSION}, found {found!r}")
        found = content.pop("crc32", None)
        if found != (expected := crc32(_canonical(content))):
            raise CorruptIndexFileError(f"{path}: expected checksum {expected}, found {found!r}")
        try:
            return cls._checked(content)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptIndexFileError(f"{path}: {error}") from None

    @classmethod
    def _checked(cls, content: Mapping[str, Any]) -> Manifest:
        """Return the manifest of JSON content, whose values may be anything."""
        as_choice(content["routing"], "routing", (ROUTING,))
        for name, pattern in (("key", _KEY), ("layout", _LAYOUT)):
            if not isinstance(content[name], str) or not pattern.fullmatch(content[name]):
                raise ValueError(f"{name} must match {pattern.pattern}, got {content[name]!r}")
        return cls(
            content["key"],
            content["layout"],
            as_count(content["n_shards"], "n_shards", most=MOST_SHARDS),
            as_count(content["dim"], "dim"),
            as_count(content["replicas"], "replicas", most=MOST_REPLICAS),
            as_flag(content["fitted"], "fitted"),
            as_flag(content["moving"], "moving"),
            None if content["ids"] is None else as_choice(content["ids"], "ids", ("int", "str")),
            as_flag(content["sync"], "sync"),
        )

    def write(self, folder: str | os.PathLike[str]) -> Manifest:
        """Make this the manifest of a folder, in one step that survives a crash, and return it."""
        content = {"format": _FORMAT, "version": VERSION, "routing": ROUTING, **asdict(self)}
        content["crc32"] = crc32(_canonical(content))
        path = Path(folder) / NAME
        part = path.with_name(f".{NAME}.part")
        with open(part, "wb") as file:
            file.write(json.dumps(content, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_directory(path.parent)
        return self

    def changed(self, **changes: Any) -> Manifest:
        """Return this manifest with other values."""
        return replace_fields(self, **changes)

    def shard_file(self, number: int) -> str:
        """Return the index file of a shard, relative to the folder."""
        return f"{self.layout}/shard-{number:04}.cbe"


def log_file(shard_file: str | os.PathLike[str]) -> Path:
    """Return the log beside the index file of a shard."""
    return Path(shard_file).with_suffix(".log")


def _canonical(content: Mapping[str, Any]) -> bytes:
    """Return the bytes that the checksum of a manifest covers."""
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
