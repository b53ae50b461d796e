"""Greedy output equals transformers', token for token, whatever the engine does on the way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import radixrt
from radixrt.engine.engine import Completion
from tests.equivalence.reference import greedy_continuation, reference_logits
from tests.tiny_models import MOE_KINDS, VISION_KINDS

KINDS = ["llama", "mistral", "qwen2", "qwen3"]

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth-1": {"max_inflight_steps": 1},
    "no-cache": {"prefix_cache": False},
    "no-cache-depth-1": {"prefix_cache": False, "max_inflight_steps": 1},
    "page-16": {"page_size": 16},
    "chunk-16": {"chunked_prefill_size": 16},
    "chunk-16-page-16-depth-1": {"chunked_prefill_size": 16, "page_size": 16, "max_inflight_steps": 1},
    "torch-native": {"attention_backend": "torch_native"},
    "torch-native-chunk-16": {"attention_backend": "torch_native", "chunked_prefill_size": 16},
    "fcfs-lfu": {"schedule_policy": "fcfs", "eviction_policy": "lfu"},
    "one-at-a-time": {"max_running_requests": 1},
    "evicting": {"kv_cache_tokens": 128, "max_running_requests": 3},
    "evicting-page-16": {"kv_cache_tokens": 192, "page_size": 16, "max_running_requests": 3},
    "retracting": {"kv_cache_tokens": 160, "schedule_conservativeness": 0.0, "max_running_requests": 8},
    "retracting-no-cache": {
        "kv_cache_tokens": 160,
        "schedule_conservativeness": 0.0,
        "max_running_requests": 8,
        "prefix_cache": False,
    },
}

CASES = [
    *itertools.product(("llama", "mistral"), VARIANTS),  # without and with a window of positions
    *itertools.product(
        ("qwen2", "qwen3"),
        ("default", "no-cache-depth-1", "chunk-16-page-16-depth-1", "torch-native-chunk-16", "evicting", "retracting"),
    ),
    ("mixtral", "default"),
    ("mixtral", "no-cache-depth-1"),
    ("qwen3_moe", "default"),
    ("qwen3_moe", "chunk-16-page-16-depth-1"),
    ("qwen3_moe", "retracting"),
    ("gpt_oss", "default"),
    ("gpt_oss", "chunk-16-page-16-depth-1"),
    ("gpt_oss", "torch-native-chunk-16"),
    ("gpt_oss", "retracting"),
    ("qwen3_vl", "default"),
    ("llava", "default"),
]
"""Models and variants of the engine. Schedules and caches know no more of a model than its kind of attention, so that
the others, which differ in their linear layers and norms, take each mechanism once: in models, layers, attention,
forward_batch and runner, the other variants run no line with qwen2 or qwen3 that these six do not.
"""


def prompts() -> list[list[int]]:
    """Prompts that share nothing, everything, all but one token, and more than the other is long."""
    rng = random.Random(3)

    def text(n: int) -> list[int]:
        return [rng.randrange(3, 500) for _ in range(n)]

    base = text(48)
    out = [base, base[:-1], [*base[:-1], 7], base + text(20), base[:24] + text(9), base[:1] + text(5), base, base[:16]]
    out += [base[:17], [*base[:32], 9], [11], [11, 12]]
    return out + [text(rng.randrange(1, 60)) for _ in range(20)]


def engine(folder: Path, **options: Any) -> radixrt.Engine:
    options = {
        "kv_cache_tokens": 4096,
        "executor": "uni",
        "dtype": "float32",
        "check_invariants": True,
        "num_threads": 1,
        **options,
    }
    return radixrt.Engine(str(folder), show_progress=False, **options)


def assert_same(folder: Path, inputs: list[list[int]], results: list[Completion], lengths: list[int]) -> None:
    for ids, result, length in zip(inputs, results, lengths, strict=True):
        assert len(result.token_ids) == length
        assert result.token_ids == greedy_continuation(folder, ids, result.token_ids)


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_greedy_equals_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    inputs = prompts()
    lengths = [4 + i % 13 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    # A model with its tower never samples tokens of images, as transformers does.
    text_only = {"text_only": True} if kind in VISION_KINDS else {}
    with engine(folder, **VARIANTS[variant], **text_only) as e:
        cold = e.generate(inputs, params)
        warm = e.generate(inputs, params)
        alone = [e.generate(ids, p) for ids, p in zip(inputs[:4], params[:4], strict=True)]
        second_turn = [ids + r.token_ids + [5, 6] for ids, r in zip(inputs, cold, strict=True)]
        turned = e.generate(second_turn, params)
        stats = e.client.control("check")
    assert stats.ok, stats.message
    assert_same(folder, inputs, cold, lengths)
    assert_same(folder, inputs, warm, lengths)
    assert_same(folder, inputs[:4], alone, lengths[:4])
    assert_same(folder, second_turn, turned, lengths)
    if VARIANTS[variant].get("prefix_cache", True) and "kv_cache_tokens" not in VARIANTS[variant]:
        assert sum(r.usage.cached_tokens for r in warm) > 0
    if "retracting" in variant:
        assert sum(r.timings.retractions for r in cold + warm + turned) > 0


@pytest.mark.parametrize("kind", ["llama", *MOE_KINDS])
def test_several_answers_to_each_prompt(kind: str, tiny_model: Callable[[str], Path]) -> None:
    """Forks of one prompt, greedy and drawn."""
    folder, inputs = tiny_model(kind), prompts()[:6]
    forked = [ids for ids in inputs for _ in range(3)]
    drawn = {"max_tokens": 6, "ignore_eos": True, "temperature": 0.9, "seed": 5, "logprobs": 1}
    with engine(folder, max_running_requests=12) as e:
        results = e.generate(inputs, {"temperature": 0, "max_tokens": 9, "min_tokens": 9, "n": 3})
        answers = e.generate(inputs[0], {**drawn, "n": 4})
    assert_same(folder, forked, results, [9] * 18)
    assert len({tuple(answer.token_ids) for answer in answers}) > 1
    for answer in answers:
        expected = reference_logits(folder, inputs[0] + answer.token_ids).log_softmax(-1)
        wanted = [expected[len(inputs[0]) - 1 + i, t].item() for i, t in enumerate(answer.token_ids)]
        np.testing.assert_allclose([entry.logprob for entry in answer.logprobs], wanted, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_over_the_wire_form(kind: str, tiny_model: Callable[[str], Path]) -> None:
    """In one process, but every message is encoded and decoded as between processes."""
    from radixrt.config import make_config
    from radixrt.engine.in_process import InProcessEngine
    from radixrt.engine.settings import resolve_settings

    folder = tiny_model(kind)
    config = make_config(model=str(folder), dtype="float32", kv_cache_tokens=2048, executor="uni", num_threads=1)
    launched = InProcessEngine(*resolve_settings(config, show_progress=False), encode=True)
    e = object.__new__(radixrt.Engine)
    e.config, e._launcher = config, launched
    e.client = launched.start()
    with e:
        inputs = prompts()[:8]
        results = e.generate(inputs, {"temperature": 0, "max_tokens": 6, "min_tokens": 6})
    assert_same(folder, inputs, results, [6] * 8)


@pytest.mark.parametrize(("kind", "depth"), [("llama", 1), ("llama", 2), ("qwen3", 2), ("qwen3_moe", 2)])
def test_between_processes(kind: str, depth: int, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    inputs = prompts()
    with engine(folder, executor="mp", max_inflight_steps=depth, chunked_prefill_size=64) as e:
        results = e.generate(inputs, {"temperature": 0, "max_tokens": 8, "min_tokens": 8})
        again = e.generate(inputs, {"temperature": 0, "max_tokens": 8, "min_tokens": 8})
        e.check_invariants()
    assert_same(folder, inputs, results, [8] * len(inputs))
    assert_same(folder, inputs, again, [8] * len(inputs))


LOGPROBS_VARIANTS = ["default", "chunk-16", "torch-native", "page-16"]


@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *itertools.product(KINDS, LOGPROBS_VARIANTS),
        ("mixtral", "default"),
        ("qwen3_moe", "chunk-16"),
        ("gpt_oss", "default"),
        ("gpt_oss", "torch-native"),
    ],
)
def test_logprobs_equal_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    """Log-probabilities of prompt and output agree within 1e-4, with a warm cache and other requests in the batch."""
    folder = tiny_model(kind)
    inputs = prompts()[:6]
    params = {"temperature": 0, "max_tokens": 5, "min_tokens": 5, "logprobs": 3, "prompt_logprobs": 2}
    with engine(folder, **VARIANTS[variant]) as e:
        e.generate(inputs, {"temperature": 0, "max_tokens": 2})
        results = e.generate(inputs, params)
    for ids, result in zip(inputs, results, strict=True):
        expected = reference_logits(folder, ids + result.token_ids).log_softmax(-1)
        got = [*result.prompt_logprobs, *result.logprobs]
        assert [g.token_id for g in got] == ids + result.token_ids
        assert got[0].logprob is None
        wanted = [expected[i - 1, t].item() for i, t in enumerate(ids + result.token_ids) if i]
        np.testing.assert_allclose([g.logprob for g in got[1:]], wanted, atol=1e-4)
        for i, entry in enumerate(result.logprobs):
            top = expected[len(ids) - 1 + i].topk(3)
            np.testing.assert_allclose([t.logprob for t in entry.top], top.values, atol=1e-4)
        assert all(len(g.top) == 2 for g in result.prompt_logprobs[1:])


def test_logits_within_1e4_of_transformers(tiny_model: Callable[[str], Path], cache_folder: Path) -> None:
    """The runner by itself: an EXTEND of a whole prompt, then DECODE steps."""
    from radixrt.forward_batch.forward_batch import ForwardMode
    from radixrt.runner.model_runner import ModelRunner
    from radixrt.runner.runner_config import RunnerConfig

    folder = tiny_model("llama")
    runner = ModelRunner(
        RunnerConfig(
            folder=str(folder),
            dtype="float32",
            load_format="auto",
            device="cpu",
            attention_backend="auto",
            num_threads=1,
            context_length=128,
            max_running_requests=4,
            page_size=1,
            kv_cache_tokens=256,
            memory_fraction=0.5,
            kv_cache_dtype="auto",
            max_step_tokens=128,
            cuda_graph="off",
            random_seed=0,
            kernel_cache=str(cache_folder / "kernels"),
        )
    )
    runner.initialize()
    ids = prompts()[0]
    expected = reference_logits(folder, ids)
    row, first = np.array([1], np.int32), 40
    with torch.inference_mode():
        batch = runner.batches.build_extend(
            np.array(ids[:first], np.int32),
            row,
            np.array([first], np.int32),
            np.array([first], np.int32),
            np.arange(1, first + 1, dtype=np.int32),
            np.array([True]),
        )
        out = runner.forward(batch)
        assert out.hidden_states.shape == (first, 64)
        torch.testing.assert_close(out.next_token_logits[0], expected[first - 1], atol=1e-4, rtol=0)
        for n in range(first, len(ids)):
            runner.batches.future_token_ids[1] = ids[n]
            batch = runner.batches.build_decode(row, np.array([n + 1], np.int32), np.array([n + 1], np.int32))
            assert batch.mode is ForwardMode.DECODE
            logits = runner.forward(batch).next_token_logits
            torch.testing.assert_close(logits[0], expected[n], atol=1e-4, rtol=0)
    runner.shutdown()
