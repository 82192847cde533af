"""The measurement of transforms: a smoke run."""

import json

import numpy as np

from benchmarks import transform


def test_transform(tmp_path, capsys):
    path = tmp_path / "transform.jsonl"
    transform.main(["--quick", "--dims", "64", "--output", str(path)])
    assert "one row" in capsys.readouterr().out
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    measured, errors = ([row for row in rows if row["table"] == name] for name in ("transform", "accuracy"))
    assert [row["d"] for row in measured] == [row["d"] for row in errors] == [64]
    assert measured[0]["kernel"] > 0
    assert 0 < errors[0]["kernel"] < 1e-6


def test_contenders_encode_alike():
    """The kernel gives the codes of the encoder that it stands for."""
    kernel, encoder = transform.Kernel(100, 3), transform.Encoder(100, 3)
    assert kernel.encode(kernel.rows) == -1
    bits = np.unpackbits(kernel.codes.astype("<u8").view(np.uint8), axis=1, bitorder="little")[:, :100]
    expected = np.unpackbits(encoder.encode(encoder.rows), axis=1, bitorder="little")[:, :100]
    np.testing.assert_array_equal(bits, expected)
