"""The folder of a vector store: `store.json` with the documents, and the index file that it names.

`store.json` has two lines of JSON: kind, version and the CRC32 (zlib) of the second line, then options and documents.
A save writes a new index file, then replaces `store.json`, then removes older index files. So the folder holds the
store as it was before or after, whenever the process is killed. Files from strangers are checked and contain no pickle.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CorruptIndexFileError, IndexFileError, NotAnIndexFileError, UnsupportedVersionError
from ..index import CBEIndex
from .documents import Documents, Record

_NAME = "store.json"
_KIND, _VERSION = "cbeindex.langchain", 1
_INDEX_NAME = re.compile(r"index-(\d{1,18})\.cbe")


@dataclass(frozen=True)
class Stored:
    """What a folder holds.

    Attributes
    ----------
    index : CBEIndex, or None for a store that has had no documents
    documents : Documents
    options : dict
        Arguments of the index that the first documents make; empty in files once there is an index.
    """

    index: CBEIndex | None
    documents: Documents
    options: dict[str, Any]


def write(folder: str | os.PathLike[str], stored: Stored) -> None:
    """Write a store to a folder, which is made if it does not exist."""
    target = Path(folder)
    content: dict[str, Any] = {
        "options": stored.options if stored.index is None else {},
        "next_number": stored.documents.next_number,
        "documents": [_described(number, record) for number, record in stored.documents.items()],
    }
    target.mkdir(parents=True, exist_ok=True)
    old = [path for path in target.iterdir() if _INDEX_NAME.fullmatch(path.name)]
    if stored.index is not None:
        number = 1 + max((int(_INDEX_NAME.fullmatch(path.name)[1]) for path in old), default=0)  # type: ignore[index]
        content["index"] = f"index-{number}.cbe"
        stored.index.save(target / content["index"])
    _replace(target / _NAME, encoded(content))
    for path in old:
        with suppress(OSError):  # Windows does not remove files that are mapped; the next save removes them
            path.unlink()


def encoded(content: dict[str, Any]) -> bytes:
    """Return the bytes of `store.json`."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogatepass")
    head = {"kind": _KIND, "version": _VERSION, "crc32": zlib.crc32(body)}
    return json.dumps(head).encode() + b"\n" + body


def read(folder: str | os.PathLike[str]) -> Stored:
    """Read a store from a folder. Raises an IndexFileError if its files are damaged or do not match."""
    path = Path(folder, _NAME)
    content = _decoded(path, path.read_bytes())
    options: Any = content.get("options")
    name = content.get("index")
    if not _are_options(options) or not (name is None or isinstance(name, str)):
        raise CorruptIndexFileError(f"{path}: options must be those of an index, and index a name")
    documents = _read_documents(path, content)
    if name is None:
        if len(documents):
            raise CorruptIndexFileError(f"{path}: documents must have an index")
        return Stored(None, documents, options)
    if not _INDEX_NAME.fullmatch(name):
        raise CorruptIndexFileError(f"{path}: index must be a name such as index-1.cbe, got {name!r}")
    index = CBEIndex.load(path.parent / name)
    if not np.array_equal(index.ids, [number for number, _ in documents.items()]):
        raise CorruptIndexFileError(f"{path}: the numbers of documents must be the ids in {name}")
    return Stored(index, documents, options)


def _decoded(path: Path, data: bytes) -> dict[str, Any]:
    """Return the content of `store.json`, checked as a whole."""
    first, _, body = data.partition(b"\n")
    head = _from_json(path, first, NotAnIndexFileError)
    if head.get("kind") != _KIND:
        raise NotAnIndexFileError(f"{path}: not a vector store of cbeindex")
    if head.get("version") != _VERSION:
        problem = f"version {head.get('version')!r}, but this release of cbeindex reads version {_VERSION}"
        raise UnsupportedVersionError(f"{path}: {problem}")
    if head.get("crc32") != zlib.crc32(body):
        raise CorruptIndexFileError(f"{path}: the checksum of the documents must be {head.get('crc32')}, and it is not")
    return _from_json(path, body, CorruptIndexFileError)


def _from_json(path: Path, data: bytes, error_type: type[IndexFileError]) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise error_type(f"{path}: must be JSON: {error}") from None
    if not isinstance(content, dict):
        raise error_type(f"{path}: must be a JSON object, got {type(content).__name__}")
    return content


def _are_options(options: Any) -> bool:
    """Return whether these may be arguments of an index."""
    names = inspect.signature(CBEIndex).parameters.keys() - {"dim"}
    plain = (str, int, float, type(None))
    return isinstance(options, dict) and options.keys() <= names and all(isinstance(o, plain) for o in options.values())


def _described(number: int, record: Record) -> dict[str, Any]:
    """Return a document as JSON values. Raises TypeError, naming the document, if its metadata is something else."""
    described = {"number": number, **record._asdict()}
    try:
        if json.loads(json.dumps(record.metadata, allow_nan=False)) == record.metadata:
            return described
    except (TypeError, ValueError):
        pass
    raise TypeError(
        "metadata must hold strings, finite numbers, booleans, None, lists and dictionaries to be saved, "
        f"that of document {record.id!r} does not: {record.metadata!r}"
    )


def _read_documents(path: Path, content: dict[str, Any]) -> Documents:
    """Check and return the documents of a file."""
    numbered, ids = {}, set()
    rows: Any = content.get("documents")
    next_number: Any = content.get("next_number")
    if not isinstance(rows, list) or not _is_number(next_number):
        raise CorruptIndexFileError(f"{path}: documents must be a list, and next_number a number")
    for place, row in enumerate(rows):
        types = {"number": int, "id": str, "text": str, "metadata": dict}
        if not isinstance(row, dict) or not all(isinstance(row.get(name), kind) for name, kind in types.items()):
            raise CorruptIndexFileError(f"{path}: document {place} must have number, id, text and metadata")
        if not _is_number(row["number"]) or row["number"] >= next_number:
            raise CorruptIndexFileError(f"{path}: document {place} must have a number below {next_number}")
        if row["number"] in numbered or row["id"] in ids:
            raise CorruptIndexFileError(f"{path}: document {place} must have a number and an id of its own")
        numbered[row["number"]] = Record(row["id"], row["text"], row["metadata"])
        ids.add(row["id"])
    documents = Documents(numbered.items())
    documents.next_number = next_number
    return documents


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _replace(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
