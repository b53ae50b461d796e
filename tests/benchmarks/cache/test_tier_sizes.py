"""The table of docs/tiers.md is what the command prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cache import tier_sizes

DOCUMENT = (Path(__file__).parents[3] / "docs" / "tiers.md").read_text()


def test_the_document_has_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    tier_sizes.main()
    assert capsys.readouterr().out in DOCUMENT


def test_sizes_follow_from_the_configuration() -> None:
    found = {row[0]: row[1:] for row in tier_sizes.rows()}
    assert found["llama-3.1-8b"][:3] == ["128 KiB", "8,192", "1.00 GiB"], "32 layers of 8 heads of 128 numbers, twice"
    ratio = float(found["llama-3.1-8b"][3]) / float(found["llama-3.1-8b"][4])
    assert ratio == pytest.approx(989 / 312, rel=0.05), "a faster card needs a faster link"
