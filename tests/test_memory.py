"""Memory that a process may use: the limits of its control groups, of versions 1 and 2."""

import sys

import pytest

from cbeindex._core import memory

GROUPS_2 = "0::/user/one\n"
GROUPS_1 = "3:cpuset:/\n4:memory:/user/one\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        (GROUPS_2, {}, sys.maxsize),
        (GROUPS_2, {"user/one/memory.max": "5000\n", "user/memory.max": "max\n"}, 5_000),
        (GROUPS_2, {"user/one/memory.max": "max\n", "user/memory.max": "7000\n"}, 7_000),
        (GROUPS_2, {"memory.max": "900\n"}, 900),  # a container sees its own group as the mount
        (GROUPS_1, {"memory/user/one/memory.limit_in_bytes": "6000\n"}, 6_000),
        (GROUPS_1, {"memory/memory.limit_in_bytes": "800\n", "user/one/memory.max": "1\n"}, 800),
        (GROUPS_1, {"cpuset/memory.limit_in_bytes": "800\n"}, sys.maxsize),
        (None, {"memory.max": "900\n"}, sys.maxsize),
    ],
)
def test_the_least_limit_of_a_group_and_of_those_around_it(groups, limits, expected, tmp_path):
    if groups is not None:
        (tmp_path / "groups").write_text(groups)
    for name, text in limits.items():
        path = tmp_path / "mounts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.group_limit(tmp_path / "groups", tmp_path / "mounts") == expected


def test_a_process_may_not_use_more_than_its_group(monkeypatch, tmp_path):
    (tmp_path / "groups").write_text("0::/\n")
    (tmp_path / "memory.max").write_text("123456\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_MOUNTS", tmp_path)
    assert memory.memory_bytes.__wrapped__() == 123_456
