"""Prices of moves: fetch or compute."""

from __future__ import annotations

import pytest

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.tiers.policy import DISK, HOST, Prices, compute_s

TIMES = StepTimes(step=5e-3, row=2e-5, context=0.0, extend=1e-3, token=1e-4, pair=1e-8)
TOKEN = 1000
"""Bytes of a token."""


def test_computing_takes_longer_behind_more_tokens() -> None:
    assert compute_s(TIMES, 0, 100) == pytest.approx(1e-3 + 1e-2 + 5050e-8)
    assert compute_s(TIMES, 900, 100) == pytest.approx(compute_s(TIMES, 0, 100) + 90_000e-8)


def test_a_link_without_a_measurement_is_tried() -> None:
    prices = Prices(TOKEN)
    assert prices.fetch_s(HOST, 10, 10**12) == 0.0
    assert prices.pays(HOST, prices.fetch_s(HOST, 10), 1e-9, 0)
    assert prices.rate("in") == 0.0


def test_a_fetch_takes_the_time_of_its_links_and_of_the_bytes_before_it() -> None:
    prices = Prices(TOKEN)
    prices.moved("in", 10**6, 1e-3)
    prices.moved("load", 10**6, 1e-2)
    prices.moved("out", 10**6, 99.0)
    assert prices.rate("in") == pytest.approx(1e9)
    assert prices.fetch_s(HOST, 2000) == pytest.approx(2e-3)
    assert prices.fetch_s(HOST, 2000, 10**6) == pytest.approx(3e-3)
    assert prices.fetch_s(DISK, 2000, 10**6) == pytest.approx(3e-2 + 2e-3)
    assert prices.pays(HOST, 2e-3, 3e-3, 0)
    assert not prices.pays(HOST, 3e-3, 3e-3, 0)


def test_the_router_is_told_the_times_of_a_token_once_a_fetch_was_measured() -> None:
    prices = Prices(TOKEN)
    for kind, seconds in (("out", 2e-3), ("load", 1e-2)):
        prices.moved(kind, 10**6, seconds)
    assert prices.fetch_token_s() == {}
    prices.moved("in", 10**6, 1e-3)
    assert prices.fetch_token_s() == pytest.approx({"host": 1e-6, "disk": 11e-6, "peer": 3e-6})
    prices.moved("pull", 10**6, 5e-3)
    assert prices.fetch_token_s() == pytest.approx({"host": 1e-6, "disk": 11e-6, "peer": 8e-6})


def test_a_fetch_may_take_longer_if_other_requests_can_use_the_device() -> None:
    prices = Prices(TOKEN)
    assert not prices.pays(HOST, 3.5e-3, 1e-3, 2)
    assert prices.pays(HOST, 3.5e-3, 1e-3, 3)


def test_a_few_slow_moves_change_no_price_and_a_slower_link_is_learned() -> None:
    prices = Prices(TOKEN)
    for number in range(20):
        prices.moved("in", 10**6, 1.0 if number % 3 == 0 else 1e-3)
    assert prices.rate("in") == pytest.approx(1e9)
    for _ in range(8):
        prices.moved("in", 10**6, 5e-3)
    assert prices.rate("in") == pytest.approx(2e8)


def test_a_link_whose_first_move_was_slow_is_measured_again() -> None:
    prices = Prices(TOKEN)
    prices.moved("load", 10**6, 1.0)
    refusals = 0
    while not prices.pays(DISK, prices.fetch_s(DISK, 1000), 0.1, 0):
        refusals += 1
    assert 100 < refusals < 130
    prices.moved("load", 10**6, 1e-3)
    assert prices.rate("load") == pytest.approx(1e9)
