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
    rates = [float(rate) for rate in re.findall(r"per second *(\d+)", out)]
    assert len(rates) == 2
    assert min(rates) > 0
    assert "index of 3200 granules" in out
