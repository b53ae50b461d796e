"""The examples with pictures, run as a user runs them, on a tiny random model that reads pictures."""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests.examples.helpers import refused, run
from tests.examples.test_programs import reuse


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3_vl")


def test_receipts_to_rows_and_resuming_it(folder: Path, tmp_path: Path) -> None:
    pictures = tmp_path / "receipts"
    pictures.mkdir()
    for i in range(3):
        Image.new("RGB", (64, 48 + 16 * i), (80 * i, 9, 9)).save(pictures / f"{i}.png")
    (pictures / "3.jpg").write_bytes(b"no picture")
    arguments = ("--model", folder, "--folder", pictures, "--output", "rows.jsonl")
    printed = run("receipts_to_rows", *arguments, cwd=tmp_path)
    assert re.search(r"^3\.jpg: .*image: .*PNG, JPEG or WEBP$", printed, re.M)
    assert "rows.csv: 3 of 4 receipts" in printed
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == ["0.png", "1.png", "2.png"]
    for row in rows:
        datetime.date.fromisoformat(row["date"])
        assert row["currency"] in ("EUR", "GBP", "USD")
        assert row["paid_by"] in ("card", "cash")
    calls, _, cached = reuse(printed)
    assert calls == 3
    assert cached > 0
    Image.new("RGB", (64, 64)).save(pictures / "3.jpg")
    again = run("receipts_to_rows", *arguments, cwd=tmp_path)
    assert reuse(again)[0] == 1, "the line is about this run alone"
    assert again.count("(had it)") == 3
    assert "rows.csv: 4 of 4 receipts" in again
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sorted(line["index"] for line in lines if "values" in line) == [0, 1, 2, 3]


def test_judge_screenshots(folder: Path, tmp_path: Path) -> None:
    printed = run("judge_screenshots", "--model", folder, cwd=tmp_path)
    found = re.findall(r"^(\w+) +(\d+)% for the second page$", printed, re.M)
    assert [name for name, _ in found] == ["contrast", "spacing", "buttons"]
    calls, prompt, cached = reuse(printed)
    assert calls == 6
    assert cached > prompt / 2


def test_mistakes_end_with_a_message(tiny_model: Callable[[str], Path], folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    assert "there is no folder" in refused("receipts_to_rows", "--folder", empty, cwd=tmp_path)
    empty.mkdir()
    assert "has no pictures (*.png" in refused("receipts_to_rows", "--folder", empty, cwd=tmp_path)
    message = refused("judge_screenshots", "--model", folder, "--before", "nothing.png", cwd=tmp_path)
    assert "there is no file 'nothing.png'" in message
    message = refused("judge_screenshots", "--model", tiny_model("llama"), cwd=tmp_path)
    assert "reads no images; use a model of text and vision" in message
