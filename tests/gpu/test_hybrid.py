"""Hybrid models on a GPU, under the real scheduler: states in graphs, between them, and without graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixrt import Engine
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner
from tests.gpu.test_runner import GREEDY, OPTIONS, PROMPTS, agreement, greedy
from tests.tiny_models import HYBRID_KINDS, make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny models with heads that FlashInfer takes."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            overrides = {"hidden_size": 256} if kind == "lfm2" else {"head_dim": 64}
            made[kind] = make_tiny_model(tmp_path_factory.mktemp("hybrid") / kind, kind, **overrides)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", HYBRID_KINDS)
def test_float32_equals_the_cpu(kind: str, model: Callable[[str], Path]) -> None:
    """Token for token: batches, chunks, cached states and overlap on the device."""
    expected = greedy(model(kind), device="cpu", dtype="float32")
    assert greedy(model(kind), device="cuda", dtype="float32") == expected
    chunks = {"chunked_prefill_size": 16, "num_states": 20, "max_running_requests": 6}
    assert greedy(model(kind), device="cuda", dtype="float32", **chunks) == expected


def scored(folder: Path, texts: list[list[int]], **options: Any) -> np.ndarray:
    """Return the log-probability of every token but the first of each text, one text after another."""
    with Engine(str(folder), **{**OPTIONS, **options}) as engine:
        answers = engine.generate(texts, {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 1})
    return np.array([entry.logprob for answer in answers for entry in answer.prompt_logprobs[1:]])


@pytest.mark.parametrize("kind", HYBRID_KINDS)
def test_bfloat16_is_as_close_to_float32_as_on_the_cpu(kind: str, model: Callable[[str], Path]) -> None:
    """Prompts, and tokens decoded from states, which are scored as prompts too; a wrong slot would be far off."""
    folder = model(kind)
    exact = scored(folder, PROMPTS, device="cuda", dtype="float32")
    rounding = np.abs(scored(folder, PROMPTS, device="cpu", dtype="bfloat16") - exact).mean()
    assert np.abs(scored(folder, PROMPTS, device="cuda", dtype="bfloat16") - exact).mean() < 2 * rounding
    with Engine(str(folder), **OPTIONS, device="cuda", dtype="bfloat16") as engine:
        answers = engine.generate(PROMPTS, {**GREEDY, "logprobs": 1})
    decoded = np.array([entry.logprob for answer in answers for entry in answer.logprobs])
    texts = [prompt + answer.token_ids for prompt, answer in zip(PROMPTS, answers, strict=True)]
    asked = np.concatenate([np.arange(1, len(text)) >= len(p) for text, p in zip(texts, PROMPTS, strict=True)])
    again = scored(folder, texts, device="cuda", dtype="float32")[asked]
    assert len(again) == len(decoded) == sum(len(answer.token_ids) for answer in answers)
    assert np.abs(decoded - again).mean() < 3 * rounding


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5", "qwen3_next"])
def test_one_row_is_the_same_however_its_steps_run(
    kind: str, model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs or not, one or two steps in flight: a row alone meets the same kernels, so the tokens are the same."""
    monkeypatch.setattr(
        PromptGraphRunner, "forward", lambda self, batch, received=None: None
    )  # they pad, and round differently
    one = PROMPTS[5:6]
    expected = greedy(model(kind), one, cuda_graph="off", max_inflight_steps=1)
    for depth in (1, 2):
        assert greedy(model(kind), one, cuda_graph="off", max_inflight_steps=depth) == expected
        options: dict[str, Any] = {"max_inflight_steps": depth, "max_running_requests": 16}
        assert greedy(model(kind), one, cuda_graph="start", **options) == expected


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5"])
def test_captured_prompts_are_those_of_uncaptured_steps(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position's log-probability, of prompts alone and together, whole and behind cached prefixes and states."""
    overrides = {"hidden_size": 256} if kind == "lfm2" else {"head_dim": 64}
    folder = make_tiny_model(tmp_path / "model", kind, max_position_embeddings=4096, **overrides)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 400, n).tolist() for n in (5, 16, 17, 100, 700, 300, 1500)]
    turns = [prompt + rng.integers(3, 400, n).tolist() for prompt in prompts[3:] for n in (30, 1100)]
    params = {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True}
    replayed: list[int] = []
    replay = PromptGraphRunner._replay

    def counted(self: PromptGraphRunner, captured: Any, batch: ForwardBatch) -> torch.Tensor:
        replayed.append(batch.num_tokens)
        return replay(self, captured, batch)

    monkeypatch.setattr(PromptGraphRunner, "_replay", counted)
    found = []
    for how in ("off", "start"):
        with Engine(str(folder), **{**OPTIONS, "cuda_graph": how, "max_running_requests": 8}) as engine:
            answers = [engine.generate(prompt, {**params, "prompt_logprobs": 1}) for prompt in prompts]
            answers += engine.generate(prompts[::-1], {**params, "prompt_logprobs": 1})
            last = engine.generate(turns, {**params, "logprobs": 1})
            engine.check_invariants()
        assert sum(answer.usage.cached_tokens for answer in last) > 1000
        lists = [answer.prompt_logprobs[1:] for answer in answers] + [answer.logprobs[:1] for answer in last]
        found.append(np.array([entry.logprob for entries in lists for entry in entries]))
    assert {100, 1500} <= set(replayed)
    assert len(found[0]) > 2000
    assert np.abs(found[0] - found[1]).max() < 0.1
    assert np.abs(found[0] - found[1]).mean() < 0.01


def test_padding_rows_of_graphs_leave_states_alone(model: Callable[[str], Path]) -> None:
    """Three rows decode in graphs of more rows, with states of finished requests in the tree; each comes back right."""
    folder, prompts = model("qwen3_5"), PROMPTS[2:5]
    with Engine(str(folder), **{**OPTIONS, "cuda_graph": "start", "max_running_requests": 16}) as engine:
        first = [c.token_ids for c in engine.generate(prompts, GREEDY)]
        for _ in range(3):
            engine.generate(PROMPTS[8:], GREEDY)
        again = engine.generate(prompts, GREEDY)
        engine.check_invariants()
    assert sum(c.usage.cached_tokens for c in again) > 0
    assert agreement([c.token_ids for c in again], first) > 0.7
