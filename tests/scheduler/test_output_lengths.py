"""Estimates of how much of its max_tokens a request uses."""

from __future__ import annotations

import pytest

from radixrt.parts.overload.output_lengths import CLIP_TOKENS, MIN_SAMPLES, RECENT, OutputLengths


def test_without_data_all_of_max_tokens_is_expected() -> None:
    lengths = OutputLengths()
    assert not lengths.is_known
    assert lengths.expected(100, 0) == 100
    assert lengths.expected(100, 40) == 60
    assert lengths.expected(10**9, 0) == CLIP_TOKENS


def test_outputs_are_expected_as_they_were() -> None:
    lengths = OutputLengths()
    for _ in range(MIN_SAMPLES):
        lengths.ended(1000, 100)
        lengths.ended(16, 16)
    assert lengths.is_known
    assert lengths.expected(16, 0) == 16
    assert lengths.expected(16, 15) == 1
    assert lengths.expected(1000, 0) == pytest.approx(100)
    assert lengths.expected(1000, 60) == pytest.approx(40)
    assert 100 < lengths.expected(3000, 0) <= 3000 * 0.55  # no data of its own: all together


def test_what_has_gone_on_for_long_goes_on_as_the_longer_ones_did() -> None:
    lengths = OutputLengths()
    for output in (10, 10, 10, 10, 10, 10, 500, 700):
        lengths.ended(1000, output)
    assert lengths.expected(1000, 0) == pytest.approx(1260 / 8)
    assert lengths.expected(1000, 20) == pytest.approx(600 - 20)
    assert lengths.expected(1000, 600) == pytest.approx(100)
    assert 0 < lengths.expected(1000, 900) < 100  # longer than any before


def test_outputs_follow_a_change() -> None:
    lengths = OutputLengths()
    for output in [10] * 2000 + [800] * RECENT:
        lengths.ended(1000, output)
    assert lengths.expected(1000, 0) == pytest.approx(800)


def test_bounds() -> None:
    lengths = OutputLengths()
    for _ in range(MIN_SAMPLES):
        lengths.ended(10**9, 2048)
        lengths.ended(0, 0)  # samples nothing: says nothing
    assert lengths.expected(10**9, 0) == pytest.approx(2048)
    assert lengths.expected(10**9, CLIP_TOKENS + 5) == 1
    assert lengths.expected(0, 0) == 0
    assert lengths.expected(16, 16) == 0
