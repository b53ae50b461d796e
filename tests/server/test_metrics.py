"""What /metrics shows of the scheduler's load."""

from __future__ import annotations

from tests.server.fake_engine import FakeEngine, stats
from tests.server.helpers import Caller


def test_the_load_is_shown(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(stats())
    lines = caller.get("/metrics").text.splitlines()
    for line in (
        "radixrt_refused_total 6.0",
        "radixrt_predicted_wait_seconds 1.5",
        "radixrt_queued_tokens 3000.0",
        "radixrt_queued_output_tokens 400.0",
        "radixrt_prefill_tokens_per_second 2500.0",
        "radixrt_decode_tokens_per_second 120.0",
        "radixrt_step_model_error 0.1",
        'radixrt_step_model_seconds{part="step"} 0.01',
        'radixrt_step_model_seconds{part="pair"} 1e-07',
    ):
        assert line in lines
