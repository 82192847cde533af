"""The picture of the README is drawn from the results of a run."""

import json

import pytest

from benchmarks import picture

pytest.importorskip("matplotlib")


def results(path, names=("cbeindex-cells", "hnswlib", "ScaNN"), data="planted"):
    """Write results in which contenders differ in speed by their place, and reach 0.9 and 0.99."""
    part = {"data": data, "bits": 64, "threads": 1}
    rows = [{"table": "set", **part, "rows": 1_234}]
    for place, name in enumerate(names):
        group = "ours" if name.startswith("cbeindex") else "outside"
        rows.append({"table": "contender", **part, "contender": name, "group": group})
        for recall in (0.9, 0.99):
            point = {"contender": name, "group": group, "kind": "exact", "recall": [recall], "qps": 1e4 / (place + 1)}
            rows.append({"table": "point", **part, **point})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def test_draws_the_last_set(tmp_path, capsys):
    results(tmp_path / "recall.jsonl")
    output = tmp_path / "picture.svg"
    picture.main(["--results", str(tmp_path / "recall.jsonl"), "--output", str(output)])
    text = output.read_text()
    assert all(f"<!-- {name} -->" in text for name in ("cbeindex-cells", "hnswlib", "ScaNN"))
    assert "<!-- planted, 1,234 rows, 1 thread -->" in text
    assert "bytes" in capsys.readouterr().out


def test_takes_the_fastest_at_a_recall(monkeypatch, tmp_path):
    monkeypatch.setattr(picture, "MOST_LINES", 2)
    _, points = picture.of_set(results(tmp_path / "recall.jsonl"), None)
    assert list(picture.chosen(points, None)) == ["cbeindex-cells", "hnswlib"]
    assert list(picture.chosen(points, ["ScaNN"])) == ["ScaNN"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "other"], "results must have the set other, got planted"),
        (["--contenders", "nobody"], "contenders must be among"),
        (["--results", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_says_what_is_missing(tmp_path, capsys, options, message):
    results(tmp_path / "recall.jsonl")
    with pytest.raises(SystemExit):
        picture.main(["--results", str(tmp_path / "recall.jsonl"), "--output", str(tmp_path / "p.svg"), *options])
    assert message in capsys.readouterr().err


def test_refuses_a_picture_that_is_too_large(tmp_path, monkeypatch, capsys):
    results(tmp_path / "recall.jsonl")
    monkeypatch.setattr(picture, "MOST_BYTES", 1_000)
    with pytest.raises(SystemExit):
        picture.main(["--results", str(tmp_path / "recall.jsonl"), "--output", str(tmp_path / "p.svg")])
    assert "at most 1,000 bytes" in capsys.readouterr().err
