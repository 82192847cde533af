"""Ways to damage an index file whose checksums stay right, and some whose checksums do not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .container import IndexFile, Raw, Section, Slot

NUMBERS: tuple[int, ...] = (0, 1, -1, 2, 3, 7, 63, 64, 65, 2**15, 2**31 - 1, 2**31, 2**32, 2**53, 2**62)
NUMBERS += (2**63 - 1, 2**63, 2**64, 10**30, -(2**31), -(2**63))
VALUES: tuple[Any, ...] = (None, True, False, "", "x", "cells", "\0", "é" * 40, "x" * 5000, [], {}, [[]], [0], {"a": 1})
VALUES += (0.5, -0.0, 1e308, float("nan"), float("inf"), Raw("1e999"), Raw("-"), Raw("1" * 5000), Raw("1" * 99))
VALUES += (Raw('{"a":1,"a":2}'), Raw('"\\ud800"'), Raw("[" * 99 + "]" * 99), Raw("[" * 20_000 + "]" * 20_000))
DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", ">i8", "|O", "<U4")

_PARTS = ("ids", "order", "ranks", "offsets", "rows", "starts", "first_bits", "indices", "removed", "bytes")
_HOLE_BYTES = 2**25
_MANY = 3_000_000

Mutation = Callable[[random.Random, IndexFile], str]


def mutate(rng: random.Random, file: IndexFile) -> list[str]:
    """Damage a file in one way, sometimes in two or three, and say how."""
    n = rng.choices((1, 2, 3), (8, 3, 1))[0]
    return [rng.choices(list(_MUTATIONS), list(_MUTATIONS.values()))[0](rng, file) for _ in range(n)]


def damage_bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    """Flip, cut or overwrite bytes of a file, whose checksums are wrong then."""
    way = rng.choice(("flip", "flip", "cut", "zeros", "twice", "longer"))
    place = rng.randrange(192) if rng.random() < 0.3 else rng.randrange(len(data))
    if way == "flip":
        changed = bytearray(data)
        changed[place] ^= 1 << rng.randrange(8)
        return bytes(changed), f"bit flipped in byte {place}"
    if way == "cut":
        return data[:place], f"cut off at {place}"
    stop = min(len(data), place + rng.choice((1, 8, 64, 4096)))
    if way == "zeros":
        return data[:place] + bytes(stop - place) + data[stop:], f"zeros from {place} to {stop}"
    if way == "twice":
        return data[:stop] + data[place:], f"bytes {place} to {stop} twice"
    return data + bytes(rng.choice((1, 64, 2**20))), "zeros behind the end"


def change_value(rng: random.Random, file: IndexFile) -> str:
    """Put another value in the place of one in the content."""
    parent, key, place = rng.choice(list(_places(file.content)))
    old = parent[key]
    if isinstance(old, int) and rng.random() < 0.7:
        parent[key] = rng.choice((*NUMBERS, old + 1, old - 1, 2 * old, 64 * old, -old))
    else:
        parent[key] = _any_value(rng)
    return f"{place} = {_shown(parent[key])} instead of {_shown(old)}"


def change_options(rng: random.Random, file: IndexFile) -> str:
    """Choose all options of buckets anew."""
    if not isinstance(file.content, dict):
        return "no options"
    file.content["options"] = {
        "n_tables": rng.choice((None, 1, 2, 10, 40, 50, 1200, 2**31)),
        "table_bits": rng.choice((None, 1, 8, 16, 23, 24, 25, 64)),
        "n_cells": rng.choice((None, 1, 1000, 2**20, 2**40)),
    }
    if rng.random() < 0.8:  # or the wrong ones are refused before anything else
        tables = ("n_tables", "table_bits")
        unused: tuple[str, ...] = {
            "substrings": ("n_cells",),
            "clusters": tables,
            "cells": tables,
            "graph": (*tables, "n_cells"),
        }.get(str(file.content.get("buckets")), ())
        file.content["options"] |= dict.fromkeys(unused)
    if file.content.get("buckets") == "cells":
        file.content["options"]["cell_bits"] = rng.choice((None, 1, 2, 3, 4, 8))
        file.content["options"]["spill"] = rng.choice((None, True, False, 1))
    if rng.random() < 0.5:  # as many rows as make buckets, but none yet
        for segment in _segments(file):
            segment["buckets"] = None
    return f"options = {file.content['options']}"


def change_sizes(rng: random.Random, file: IndexFile) -> str:
    """Say a size wherever the content says it, so that the values agree with each other."""
    places = [place for place in _places(file.content) if isinstance(place[0][place[1]], int)]
    if not places:
        return "no numbers"
    name, value = rng.choice(places)[1], rng.choice(NUMBERS)
    for parent, key, _ in places:
        if key == name:
            parent[key] = value
    return f"every {name} = {value}"


def drop_value(rng: random.Random, file: IndexFile) -> str:
    """Leave a value out."""
    parent, key, place = rng.choice(list(_places(file.content)))
    del parent[key]
    return f"without {place}"


def rename_or_repeat_key(rng: random.Random, file: IndexFile) -> str:
    """Call a key something else, or write it twice."""
    places = [place for place in _places(file.content) if isinstance(place[0], dict)]
    if not places:
        return "no keys"
    parent, key, place = rng.choice(places)
    new = rng.choice(("x", "", f"{key} ", str(key).upper(), Raw(f'"{key}"'), Raw(f'"{key}"'), Raw("1")))
    parent[new] = parent[key] if rng.random() < 0.5 else _any_value(rng)
    if not isinstance(new, Raw):
        del parent[key]
    return f"{place} also as, or renamed to, {new!r}"


def swap_values(rng: random.Random, file: IndexFile) -> str:
    """Let two values change places."""
    places = list(_places(file.content))
    (a, key_a, place_a), (b, key_b, place_b) = rng.choice(places), rng.choice(places)
    if _holds(a[key_a], b) or _holds(b[key_b], a):  # a value must not contain itself
        return "nothing swapped"
    a[key_a], b[key_b] = b[key_b], a[key_a]
    return f"{place_a} and {place_b} swapped"


def change_segments(rng: random.Random, file: IndexFile) -> str:
    """Repeat, drop, reverse or rename segments, or let them share sections."""
    segments = _segments(file)
    if not segments:
        return "no segments"
    way = rng.choice(("repeat", "repeat under a name", "drop", "reverse", "many", "share removed", "no buckets"))
    segment = rng.choice(segments)
    if way == "repeat":
        segments.append(dict(segment))
    elif way == "repeat under a name":
        copied = {**segment, "name": "again"}
        prefix = f"{segment.get('name')}/"
        for section in list(file.sections):
            if str(section.name).startswith(prefix):
                name = "again/" + section.name.removeprefix(prefix)
                file.sections.append(Section(name, section.dtype, section.shape, section.data))
        segments.append(copied)
    elif way == "drop":
        segments.remove(segment)
    elif way == "reverse":
        segments.reverse()
    elif way == "many":
        segments.extend({**segment, "name": f"{number}"} for number in range(3000))
    elif way == "share removed":
        segment["removed"] = rng.choice([section.name for section in file.sections])
    else:
        segment["buckets"] = None
    return f"segments: {way}"


def change_section_fields(rng: random.Random, file: IndexFile) -> str:
    """Let the footer say something else about a section, or leave it out."""
    if not file.sections:
        return "no sections"
    section = rng.choice(file.sections)
    name = rng.choice(("name", "dtype", "shape", "offset", "crc32", "more"))
    value: Any = _any_value(rng)
    if name == "dtype" and rng.random() < 0.7:
        value = rng.choice(DTYPES)
    elif name == "shape" and rng.random() < 0.8:
        shape = list(section.shape)
        value = rng.choice(
            ([], [0], [*shape, 1], [1, *shape], shape[::-1], shape[:-1], [0, *shape], [2**62, *shape], [1] * 40,
             [2**31, 0, 2**31], [n + 1 for n in shape], [*shape[:-1], 2**40], [0, 2**62])
        )  # fmt: skip
    elif name == "offset" and rng.random() < 0.7:  # where another section, or the header, is
        value = rng.choice((0, 64, 128, 191, 192, 193, 256, 2**40, 2**62, 2**63 - 64))
    elif name == "name" and rng.random() < 0.6:
        value = rng.choice(file.sections).name
    section.fields[name] = value
    return f"{name} of section {section.name} = {_shown(value)}"


def change_section_list(rng: random.Random, file: IndexFile) -> str:
    """Drop, repeat, swap or add sections."""
    if not file.sections:
        return "no sections"
    one, other = rng.choice(file.sections), rng.choice(file.sections)
    way = rng.choice(("drop", "repeat", "swap data", "copy data", "add", "many"))
    if way == "drop":
        file.sections.remove(one)
    elif way == "repeat":
        file.sections.append(one)
    elif way == "swap data":
        for name in ("dtype", "shape", "data"):
            mine, theirs = getattr(one, name), getattr(other, name)
            setattr(one, name, theirs)
            setattr(other, name, mine)
    elif way == "copy data":
        one.dtype, one.shape, one.data = other.dtype, other.shape, other.data
    elif way == "add":
        file.sections.append(Section(f"encoder/{rng.choice(('x', 'centre', 'signs'))}", "<f4", [3], bytes(12)))
    else:
        file.sections.extend(Section(f"many {number}", "<f4", [0], b"") for number in range(20_000))
    return f"sections {one.name} and {other.name}: {way}"


def change_array(rng: random.Random, file: IndexFile) -> str:
    """Change values of an array."""
    sections = [section for section in file.sections if section.data]
    # Most arrays are numbers of the encoder and codes, of which any value is fine: places and ids do more harm.
    places = [section for section in sections if str(section.name).rsplit("/", 1)[-1].split()[0] in _PARTS]
    if not sections:
        return "no arrays"
    section = rng.choice(places if places and rng.random() < 0.7 else sections)
    try:
        values = section.array
    except (TypeError, ValueError):
        return "not an array"
    flat = values.reshape(-1)
    if flat.dtype.kind in "fc":
        way, changed = _other_floats(rng, flat)
    else:
        way, changed = _other_integers(rng, flat)
    section.array = changed.reshape(values.shape) if changed.size == values.size else changed
    return f"values of {section.name}: {way}"


def copy_ids(rng: random.Random, file: IndexFile) -> str:
    """Give rows of one segment the ids of another one."""
    arrays = [section for section in file.sections if section.data and not section.fields]
    ids = [section for section in arrays if str(section.name).endswith("/ids") and section.array.ndim == 1]
    if len(ids) < 2:
        return "one segment"
    one, other = rng.sample(ids, 2)
    values, n = one.array, min(len(one.array), len(other.array))
    values[:n] = np.sort(other.array[:n])
    one.array = values
    return f"ids of {other.name} in {one.name}"


def resize_array(rng: random.Random, file: IndexFile) -> str:
    """Change the shape or dtype of an array, with data to match."""
    sections = [section for section in file.sections if section.data and not section.fields]
    if not sections:
        return "no arrays"
    section = rng.choice(sections)
    way = rng.choice(("longer", "shorter", "empty", "dtype", "scalar", "hole"))
    try:
        values = section.array
    except (TypeError, ValueError):
        return "not an array"
    if way == "longer":
        section.array = np.concatenate([values, values[:1]]) if values.ndim else values.reshape(1)
    elif way == "shorter":
        section.array = values[:-1] if values.ndim else values
    elif way == "empty":
        section.array = values[:0] if values.ndim else values
    elif way == "dtype":
        with np.errstate(all="ignore"):
            section.array = (values.real if values.dtype.kind == "c" else values).astype(rng.choice(DTYPES[:12]))
    elif way == "scalar":
        section.array = values.reshape(-1)[0]
    else:
        section.hole = _HOLE_BYTES
        section.shape = [(len(section.data) + section.hole) // values.dtype.itemsize]
        if rng.random() < 0.5:
            section.data, section.hole = b"", _HOLE_BYTES
            section.shape = [_HOLE_BYTES // values.dtype.itemsize]
    return f"{section.name}: {way}"


def hostile_footer(rng: random.Random, file: IndexFile) -> str:
    """Write a footer that is long, deep, empty or not JSON."""
    way = rng.choice(("many lists", "many keys", "deep", "long string", "not JSON", "not UTF-8", "empty", "a list"))
    parent, key, place = rng.choice(list(_places({"content": file.content})))
    many = rng.choice((1000, 10**5, _MANY))
    if way == "many lists":
        parent[key] = Raw("[" + "[]," * many + "[]]")
    elif way == "many keys":
        parent[key] = Raw("{" + ",".join(f'"{n}":0' for n in range(many // 3)) + "}")
    elif way == "deep":
        depth = rng.choice((50, 99, 100, 101, 1000, 10**5))
        parent[key] = Raw('{"a":[' * depth + "]}" * depth)
    elif way == "long string":
        parent[key] = "x" * many
    else:
        file.footer = {"not JSON": b"{", "not UTF-8": b'{"content":"\xff"}', "empty": b"", "a list": b"[]"}[way]
    if place == "/content":  # `parent` is a dict of ours
        file.content = parent["content"]
    return f"footer: {way} at {place}"


def change_slots(rng: random.Random, file: IndexFile) -> str:
    """Change the commit slots or the version."""
    way = rng.choice(
        ("sequence", "offset", "length", "crc", "slot crc", "both", "random", "version", "none", "start crc")
    )
    slot = Slot(rng.choice((0, 1, 2, 2**31, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)))
    if way == "offset":
        slot = Slot(3, offset=rng.choice((0, 64, 192, 193, 2**40, 2**63, 2**64 - 64)))
    elif way == "length":
        slot = Slot(3, length=rng.choice((0, 1, 2**20, 2**26, 2**26 + 1, 2**40, 2**64 - 1)))
    elif way == "crc":
        slot = Slot(3, crc=rng.randrange(2**32))
    elif way == "slot crc":
        slot = Slot(3, slot_crc=rng.randrange(2**32))
    if way == "version":
        file.version = rng.choice((0, 1, 3, 255, 2**32 - 1))
    elif way == "start crc":
        file.start_crc = rng.randrange(2**32)
    else:
        place = rng.randrange(2)
        other: Slot | bytes = Slot(slot.sequence) if way == "both" else rng.choice((bytes(32), Slot(1), Slot(5)))
        if way == "random":
            other = rng.randbytes(32)
        slots: list[Slot | bytes] = [bytes(32) if way == "none" else slot, other]
        file.slots = slots if place else slots[::-1]
    return f"slots: {way}, {file.slots}, version {file.version}"


def shift_sections(rng: random.Random, file: IndexFile) -> str:
    """Put bytes of no use before the sections."""
    file.before = rng.randbytes(rng.choice((1, 64, 1000)))
    return f"{len(file.before)} bytes before the sections"


_MUTATIONS: dict[Mutation, int] = {
    change_array: 30,
    change_value: 16,
    change_section_fields: 10,
    resize_array: 8,
    change_options: 5,
    change_sizes: 5,
    change_segments: 5,
    change_section_list: 5,
    change_slots: 4,
    copy_ids: 3,
    drop_value: 3,
    rename_or_repeat_key: 3,
    swap_values: 3,
    hostile_footer: 2,
    shift_sections: 1,
}


def _other_floats(rng: random.Random, values: np.ndarray) -> tuple[str, np.ndarray]:
    way = rng.choice(("nan", "inf", "zeros", "huge", "tiny", "negative", "all nan", "all huge", "random bits", "grown"))
    place, limits = rng.randrange(values.size), np.finfo(values.dtype)
    with np.errstate(all="ignore"):
        if way in ("nan", "inf", "negative"):
            values[place] = {"nan": np.nan, "inf": np.inf, "negative": -values[place]}[way]
        elif way == "zeros":
            values[:] = 0
        elif way in ("huge", "tiny"):
            values[place] = limits.max if way == "huge" else limits.smallest_subnormal
        elif way in ("all nan", "all huge"):
            values[:] = np.nan if way == "all nan" else limits.max
        elif way == "grown":
            values *= values.dtype.type(rng.choice((1e-30, 1e10, 1e18, 1e30)))
        else:
            values = np.frombuffer(rng.randbytes(values.nbytes), values.dtype).copy()
    return way, values


def _other_integers(rng: random.Random, values: np.ndarray) -> tuple[str, np.ndarray]:
    if values.dtype.kind == "b":
        values = values.view(np.uint8)
    limits = np.iinfo(values.dtype)
    way = rng.choice(("one", "one", "all", "reverse", "shuffle", "random bits", "shift", "copy", "sort", "arange"))
    place = rng.randrange(values.size)
    near = [int(values[place]) + 1, int(values[place]) - 1, values.size, values.size - 1]
    value = rng.choice([n for n in (*NUMBERS, *near) if limits.min <= n <= limits.max] + [limits.min, limits.max])
    if way == "one":
        values[place] = value
        return f"{value} at {place}", values
    if way == "all":
        values[:] = value
        return f"all {value}", values
    with np.errstate(all="ignore"):
        if way == "reverse":
            values = values[::-1].copy()
        elif way == "shuffle":
            order = list(range(values.size))
            rng.shuffle(order)
            values = values[order]
        elif way == "random bits":
            values = np.frombuffer(rng.randbytes(values.nbytes), values.dtype).copy()
        elif way == "shift":
            values = values + values.dtype.type(rng.choice((1, 2, limits.max)))
        elif way == "copy":
            values[place] = values[rng.randrange(values.size)]
        elif way == "sort":
            values = np.sort(values)
        else:
            values = np.arange(values.size).astype(values.dtype)
    return way, values


def _places(value: Any, place: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Yield every place in nested dicts and lists: what holds it, its key there, and its name."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key, f"{place}/{key}"
        yield from _places(value[key], f"{place}/{key}")
    if not place and not keys:  # nothing is left to be changed
        yield {"nothing": 0}, "nothing", "nothing"


def _any_value(rng: random.Random) -> Any:
    """Return a number or a value; a copy, because what is put into one file may be changed there."""
    return copy.deepcopy(rng.choice((*NUMBERS, *VALUES)))


def _holds(value: Any, container: Any) -> bool:
    """Return whether a value is a certain dict or list, or holds it at any depth, maybe by another name."""
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is container or any(_holds(entry, container) for entry in entries)


def _segments(file: IndexFile) -> list[Any]:
    """Return the entries of segments that are still dicts, in the list of the file."""
    rows = file.content.get("rows") if isinstance(file.content, dict) else None
    segments = rows.get("segments") if isinstance(rows, dict) else None
    return segments if isinstance(segments, list) and all(isinstance(entry, dict) for entry in segments) else []


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
