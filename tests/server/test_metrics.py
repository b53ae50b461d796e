"""Contents of /metrics: the scheduler's snapshot, requests that have ended, and names that dashboards know."""

from __future__ import annotations

import re

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from radixrt.messages.histogram import COMPILE_TIMES, Histogram
from radixrt.messages.scheduler_stats import GrammarStats, StateStats
from radixrt.server.metrics.throughput import Throughput
from tests.server.fake_engine import MODEL, FakeEngine, error_delta, stats
from tests.server.helpers import Caller, asgi_call

OF_VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_queries_total prefix_cache_hits_total
num_preemptions_total prompt_tokens_total generation_tokens_total
request_success_total{finished_reason}
time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket request_time_per_output_token_seconds_bucket
e2e_request_latency_seconds_bucket request_queue_time_seconds_sum request_inference_time_seconds_sum
request_prefill_time_seconds_sum request_decode_time_seconds_sum request_prompt_tokens_bucket
request_generation_tokens_bucket request_max_num_generation_tokens_bucket request_params_max_tokens_bucket
request_params_n_bucket iteration_tokens_total_bucket
"""
OF_SGLANG = """
num_running_reqs num_queue_reqs num_used_tokens token_usage gen_throughput cache_hit_rate prompt_tokens_total
generation_tokens_total time_to_first_token_seconds_bucket e2e_request_latency_seconds_bucket cached_tokens_total
inter_token_latency_seconds_bucket grammar_compilation_time_seconds_bucket
"""


def value(caller: Caller, series: str) -> float:
    lines = [line for line in caller.metrics().splitlines() if line.startswith(f"radixrt_{series} ")]
    assert len(lines) == 1, lines
    return float(lines[0].rpartition(" ")[2])


def with_histograms() -> object:
    gaps = Histogram((0.01, 0.1), [0, 0, 0])
    gaps.observe(0.01, 3)  # a bound belongs to its bucket
    gaps.observe(0.05)
    gaps.observe(7.0)
    grammars = GrammarStats(Histogram.empty(COMPILE_TIMES))
    return msgspec.structs.replace(stats(), token_gaps=gaps, step_tokens=Histogram((8,), [2, 1], 40), grammars=grammars)


def test_dashboards_of_vllm_and_sglang_find_their_metrics(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(with_histograms())
    families = text_string_to_metric_families(caller.get("/metrics").text)
    labels = {sample.name: sample.labels for family in families for sample in family.samples}
    for wanted in (OF_VLLM + OF_SGLANG).split():
        name, _, label = wanted.removesuffix("}").partition("{")
        found = labels[f"radixrt_{name}"]
        assert found["model_name"] == MODEL
        assert not label or label in found
    assert {name for name, found in labels.items() if "model_name" not in found} <= {
        name for name in labels if name.startswith("process_")
    }
    assert not [name for name in labels if name.endswith("_created")]


def test_histograms_of_the_scheduler_are_cumulative(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(with_histograms())
    buckets = {bound: value(caller, f'inter_token_latency_seconds_bucket{{le="{bound}"}}') for bound in ("0.01", "0.1")}
    assert buckets == {"0.01": 3, "0.1": 4}
    assert value(caller, "inter_token_latency_seconds_count") == 5
    assert value(caller, "inter_token_latency_seconds_sum") == 7.08
    assert value(caller, "iteration_tokens_total_sum") == 40


def test_gauges_of_the_cache(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(stats())  # 100 slots: 50 free, 30 evictable
    assert value(caller, "kv_cache_usage_perc") == value(caller, "token_usage") == 0.2
    assert value(caller, "num_used_tokens") == 20
    assert value(caller, "prefix_cache_hits_total") / value(caller, "prefix_cache_queries_total") == 0.4


def test_each_request_that_ends_is_observed_once(caller: Caller) -> None:
    caller.chat(max_tokens=3, n=2)
    caller.complete(["a", "b"], stream=True)
    assert value(caller, 'request_success_total{finished_reason="length"}') == 2
    assert value(caller, 'request_success_total{finished_reason="stop"}') == 2
    for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_decode_time_seconds"):
        assert value(caller, f"{name}_count") == 4
    assert value(caller, "request_queue_time_seconds_sum") == 0.04
    assert value(caller, "request_inference_time_seconds_sum") == 0.2
    assert value(caller, "request_prompt_tokens_sum") == 40
    assert value(caller, "request_generation_tokens_sum") == 3 + 3 + 4 + 4
    assert value(caller, "request_params_max_tokens_sum") == 3 + 3 + 16 + 16
    assert value(caller, 'request_params_n_bucket{le="2.0"}') == value(caller, "request_params_n_count") == 2
    assert value(caller, "request_max_num_generation_tokens_sum") == 3 + 4


def test_pooled_requests_are_observed_and_tokenizing_is_not(caller: Caller) -> None:
    caller.post("/v1/embeddings", {"input": "x"})
    caller.post("/tokenize", {"prompt": "x"})
    assert value(caller, 'request_success_total{finished_reason="stop"}') == 1
    assert value(caller, "request_generation_tokens_count") == 0


def test_requests_that_are_broken_off_count_by_reason_only(caller: Caller, engine: FakeEngine) -> None:
    engine.script = lambda request: [60.0]
    asgi_call(caller.app, "/v1/completions", {"prompt": "x"}, leave=lambda sent: bool(engine.requests))
    engine.wait_for(lambda: engine.client.open_requests == 0)
    engine.script = lambda request: [error_delta(request, "no", 500)]
    caller.complete()
    assert value(caller, 'request_success_total{finished_reason="error"}') == 1
    assert value(caller, "e2e_request_latency_seconds_count") == 0


def test_processes_are_shown_by_name(caller: Caller, engine: FakeEngine) -> None:
    engine.client.worker_pids = lambda: {"scheduler": 1, "gone": 2**22 + 1}
    assert value(caller, 'process_resident_memory_bytes{process="main"}') > 2**20
    text = caller.metrics()
    assert 'radixrt_process_cpu_seconds_total{process="scheduler"}' in text
    assert 'start_time_seconds{process="gone"}' not in text
    assert 'radixrt_restarts_total{process="gone"} 0.0' in text  # so that its first restart is an increase
    assert re.search(r"^process_resident_memory_bytes \d", text, re.MULTILINE)
    assert re.search(r'^radixrt_build_info{python="3[^"]+",torch="\d[^"]+",version="[^"]+"} 1.0$', text, re.MULTILINE)
    assert 'radixrt_engine_info{device="cpu",dtype="float32",model="/models/fake"} 1.0' in text


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_throughput_is_logged_while_there_is_work(engine: FakeEngine, caplog) -> None:
    clock = Clock()
    throughput = Throughput(engine.client, 10.0, clock)
    idle = msgspec.structs.replace(stats(), waiting=0, running=0)

    def pass_seconds(count: int, *, works: bool) -> None:
        nonlocal idle
        for _ in range(count):
            clock.now += 1
            if works:
                counts = {"prompt_tokens": 100, "cached_tokens": 25, "generated_tokens": 20}
                new = {name: getattr(idle, name) + count for name, count in counts.items()}
                idle = msgspec.structs.replace(idle, **new)
            engine.client.dispatch(msgspec.structs.replace(idle, waiting=3 * works, running=2 * works))
            throughput.tick()
            throughput.tick()

    with caplog.at_level("INFO", "radixrt.server.metrics.throughput"):
        pass_seconds(30, works=False)
        assert not caplog.messages
        pass_seconds(25, works=True)
        assert (throughput.prompt_per_s, throughput.generation_per_s, throughput.hit_rate) == (100, 20, 0.25)
        pass_seconds(60, works=False)
        assert (throughput.generation_per_s, throughput.hit_rate) == (0, 0.25)
    assert caplog.messages[0] == (
        "Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 2 reqs, "
        "Waiting: 3 reqs, KV cache usage: 20.0%, Prefix cache hit rate: 25.0%"
    )
    assert 2 <= len(caplog.messages) <= 3


def test_throughput_begins_anew_with_another_scheduler(engine: FakeEngine) -> None:
    clock = Clock()
    throughput = Throughput(engine.client, 0, clock)
    for generated in (500, 600, 0, 10):
        clock.now += 1
        engine.client.dispatch(msgspec.structs.replace(stats(), generated_tokens=generated))
        throughput.tick()
    assert throughput.generation_per_s == 10


def test_states_of_recurrent_layers_are_shown_where_there_are_any(caller: Caller, engine: FakeEngine) -> None:
    engine.client.dispatch(stats())
    assert "radixrt_state_slots" not in caller.metrics()
    engine.client.dispatch(msgspec.structs.replace(stats(), states=StateStats(10, 3, 5, 2, 100)))
    lines = caller.metrics().splitlines()
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
    lines = caller.metrics().splitlines()
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
