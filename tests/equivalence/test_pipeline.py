"""Pipeline stages, with tensor parallelism and without, each rank a real process, give the results of one process.

Few engines with many kinds of requests, because starting four ranks takes seconds. tests/models/test_stages.py has the
other kinds of models, as stages of one process, and tests/scheduler/test_pipeline_stages.py the rules of steps.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import radixrt
from benchmarks.common.step_traces import answering_trace, busy_shares, rank_steps, rank_traces
from tests.equivalence.test_tiny_models import prompts
from tests.tiny_models import make_tiny_model

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "num_threads": 1, "check_invariants": True, "show_progress": False, "chunked_prefill_size": 24,
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22]}}, "required": ["ok", "n"]}
LONG = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
ROOM, LITTLE = {"kv_cache_tokens": 4096}, {"kv_cache_tokens": 144, "schedule_conservativeness": 0.0}


def greedy(engine: radixrt.Engine) -> list[list[int]]:
    """Prompts of several lengths in chunks, and again, from the cache."""
    inputs = prompts()[:12]
    lengths = [{"temperature": 0, "max_tokens": 4 + 2 * (i % 4), "ignore_eos": True} for i in range(len(inputs))]
    return [c.token_ids for chosen in (slice(12), slice(3)) for c in engine.generate(inputs[chosen], lengths[chosen])]


def constrained(engine: radixrt.Engine) -> list[list[int]]:
    params = [
        {"temperature": 0, "max_tokens": 60, "json_schema": SCHEMA},
        {"temperature": 0, "max_tokens": 30, "ignore_eos": True},
        {"temperature": 1, "seed": 4, "max_tokens": 60, "json_schema": SCHEMA},
        {"temperature": 0.9, "seed": 1, "max_tokens": 20, "ignore_eos": True, "top_k": 40, "frequency_penalty": 0.5},
    ]
    found = engine.generate(["Once upon a time", "Numbers", "The quick brown", "fox"], params)
    for completion in (found[0], found[2]):
        assert set(json.loads(completion.text)) >= {"ok", "n"}
    return [c.token_ids for c in found]


def numbers(engine: radixrt.Engine) -> np.ndarray[Any, Any]:
    """Log-probabilities of prompts and outputs, scores, embeddings and hidden states."""
    params = {"temperature": 0, "max_tokens": 5, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    outputs = engine.generate(prompts()[:3], params)
    found = [x.logprob for c in outputs for x in (*c.logprobs, *c.prompt_logprobs) if x.logprob is not None]
    scores = engine.score("The capital of France is ", ["Paris", "London", "a small engine"]).logprobs
    embedded = engine.embed([*prompts()[:4], "The capital of France"], normalize=False).vectors
    return np.concatenate([found, scores, np.ravel(embedded)])


def test_two_stages_of_two_ranks(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = str(tiny_model("qwen3_moe"))
    with radixrt.Engine(folder, executor="uni", **OPTIONS, **ROOM) as one:
        expected = greedy(one), constrained(one)
    trace = tmp_path / "steps.json"
    with radixrt.Engine(folder, tp=2, pp=2, pp_layers="1,2", step_trace=str(trace), **OPTIONS, **ROOM) as engine:
        assert [name for name in engine.pids if "Runner" in name] == [f"ModelRunner {rank}" for rank in range(4)]
        assert greedy(engine) == expected[0]
        assert constrained(engine) == expected[1]
        engine.check_invariants()
    traces = rank_traces(trace)
    assert len(traces) == 4
    assert len({len(rank_steps(each)) for each in traces}) == 1, "every rank has all steps"
    assert answering_trace(trace) == traces[2]
    shares = busy_shares([traces[0], traces[2]])
    assert all(0 < share < 1 for share in shares)


def test_three_stages_with_too_little_memory_and_a_death(tiny_model: Callable[[str], Path]) -> None:
    """Requests are retracted; one rank is killed, and all go on."""
    folder = str(tiny_model("llama"))
    with radixrt.Engine(folder, executor="uni", **OPTIONS, **ROOM) as one:
        expected, others = greedy(one), constrained(one)
        long = [c.token_ids for c in one.generate(prompts()[:6], LONG)]
    with radixrt.Engine(folder, pp=3, **OPTIONS, **LITTLE) as engine:
        assert greedy(engine) == expected
        assert constrained(engine) == others
        stream = engine.stream("hello", {"max_tokens": 80, "ignore_eos": True})
        assert len(next(stream).token_ids) == 1
        os.kill(engine.pids["ModelRunner 1"], signal.SIGKILL)
        assert [c.token_ids for c in engine.generate(prompts()[:6], LONG)] == long
        assert sum(len(output.token_ids) for output in stream) == 79
        engine.flush_cache()  # brings the counters up to date
        assert engine.stats is not None
        assert engine.stats.runner_restarts == 1
        assert engine.stats.retractions
        engine.check_invariants()


def test_two_stages_of_a_hybrid_model_one_without_states(tmp_path: Path) -> None:
    kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
    folder = str(make_tiny_model(tmp_path / "m", "qwen3_next", layer_types=kinds))
    with radixrt.Engine(folder, executor="uni", **OPTIONS, **ROOM, num_states=12) as one:
        expected = greedy(one), constrained(one)
        logprobs = numbers(one)
    with radixrt.Engine(folder, pp=2, pp_layers="3,1", **OPTIONS, **ROOM, num_states=12) as engine:
        assert (greedy(engine), constrained(engine)) == expected
        np.testing.assert_allclose(numbers(engine), logprobs, atol=1e-4)
