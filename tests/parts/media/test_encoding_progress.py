"""Progress of slow encodings."""

from __future__ import annotations

import logging

import pytest

from radixrt.parts.media.runner import encoding_progress
from radixrt.parts.media.runner.encoding_progress import EncodingProgress


def lines(caplog: pytest.LogCaptureFixture, images: int, blocks: int, block_s: float) -> list[str]:
    now = [100.0]
    with caplog.at_level(logging.INFO), EncodingProgress(images, blocks, draws=False, clock=lambda: now[0]) as progress:
        for _ in range(blocks):
            now[0] += block_s
            progress.computed()
    return [record.getMessage() for record in caplog.records]


def test_a_slow_encoding_is_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 17, 20, 0.5) == [
        "encoding images (17): 20 %, about 8 s left",
        "encoding images (17): 40 %, about 6 s left",
        "encoding images (17): 60 %, about 4 s left",
        "encoding images (17): 80 %, about 2 s left",
    ]


def test_a_fast_encoding_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 1, 20, 0.1) == []


def test_a_bar_is_drawn_for_slow_encodings_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for after_s, text in ((0.0, "encoding images (1)"), (1000.0, "")):
        monkeypatch.setattr(encoding_progress, "AFTER_S", after_s)
        with EncodingProgress(1, 3, draws=True) as progress:
            for _ in range(3):
                progress.computed()
        shown = capfd.readouterr().err
        assert text in shown
        assert bool(text) == bool(shown)
