"""What /metrics shows of the scheduler's load."""

from __future__ import annotations

import msgspec

from radixrt.messages.scheduler import StateStats
from tests.server.fake_engine import FakeEngine, stats
from tests.server.helpers import Caller


def test_states_of_recurrent_layers_are_shown_where_there_are_any(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(stats())
    assert "radixrt_state_slots" not in caller.get("/metrics").text
    engine.client.dispatch(msgspec.structs.replace(stats(), states=StateStats(10, 3, 5, 2, 100)))
    lines = caller.get("/metrics").text.splitlines()
    for line in (
        'radixrt_state_slots{state="free"} 3.0',
        'radixrt_state_slots{state="cached"} 5.0',
        'radixrt_state_slots{state="private"} 2.0',
        "radixrt_state_slots_capacity 10.0",
        "radixrt_evicted_states_total 2.0",
        "radixrt_recomputed_tokens_total 100.0",
    ):
        assert line in lines


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
