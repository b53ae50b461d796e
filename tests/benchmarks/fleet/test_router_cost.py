"""The benchmark of the router's cost runs, and its calls and tokens arrive."""

from __future__ import annotations

import re

import pytest

from benchmarks.fleet import router_cost


def test_calls_and_tokens_pass_the_router(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(router_cost, "WARM_S", 1.2)
    router_cost.main(["--rate", "100", "--tokens", "3", "--replicas", "2", "--seconds", "0.5", "--granules", "3200"])
    out = capsys.readouterr().out
    rates = [float(rate) for line in re.findall(r"per second *\|.*", out) for rate in re.findall(r"\d+", line)]
    assert len(rates) == 4  # calls and tokens, without and through the router
    assert min(rates) > 0
    assert re.search(r"call, p99 +\| \d+.\d\d ms +\| \d+.\d\d ms +\| [+-]\d", out)
    assert "index of 3200 granules" in out


def test_the_routers_time_is_divided_between_calls_and_tokens() -> None:
    """A call costs 50 us and a token half of one in both runs."""
    routed, few = (
        router_cost.Seen(calls, seconds, tokens / seconds, [], [], calls * 50e-6 + tokens * 0.5e-6, 0.0)
        for calls, seconds, tokens in ((2000, 1.0, 100_000), (1900, 1.1, 3800))
    )
    call_us, token_us = router_cost.shares(routed, few)
    assert call_us == pytest.approx(50)
    assert token_us == pytest.approx(0.5)
