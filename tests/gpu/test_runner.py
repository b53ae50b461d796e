"""The runner on a GPU, under the real scheduler: captured steps, overlap, masks, failures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixrt import Engine
from radixrt.attention.prompt_cascade import PromptPlan
from radixrt.errors import RadixRTError
from radixrt.forward_batch import batch_builder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.runner.graphs import cuda_graph_runner
from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner
from tests.scheduler.fake_runner import FREE
from tests.tiny_models import MOE_KINDS, make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

PROMPTS = [[(7 * i + j) % 500 + 3 for j in range(5 + 11 * i)] for i in range(12)]
GREEDY = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny models with heads that FlashInfer takes."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("gpu-models") / kind
            overrides: dict[str, Any] = {"head_dim": 64}
            if kind == "mistral":
                overrides["sliding_window"] = 24
            made[kind] = make_tiny_model(folder, kind, **overrides)
        return made[kind]

    return get


OPTIONS: dict[str, Any] = {"show_progress": False, "kv_cache_tokens": 8192, "executor": "uni"}


def greedy(folder: Path, prompts: list[list[int]] = PROMPTS, **options: Any) -> list[list[int]]:
    with Engine(str(folder), **{**OPTIONS, **options}) as engine:
        return [c.token_ids for c in engine.generate(prompts, GREEDY)]


def agreement(a: list[list[int]], b: list[list[int]]) -> float:
    """Part of the tokens before the first difference of each pair."""
    same = total = 0
    for x, y in zip(a, b, strict=True):
        total += len(x)
        same += next((i for i, (s, t) in enumerate(zip(x, y, strict=True)) if s != t), len(x))
    return same / total


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", *MOE_KINDS])
def test_float32_equals_the_cpu(kind: str, model: Callable[[str], Path]) -> None:
    """Token for token: the reference backend, batches, chunks and overlap on the device."""
    expected = greedy(model(kind), device="cpu", dtype="float32")
    assert greedy(model(kind), device="cuda", dtype="float32") == expected
    assert greedy(model(kind), device="cuda", dtype="float32", chunked_prefill_size=16, page_size=8) == expected


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", *MOE_KINDS])
def test_bfloat16_stays_close_to_float32(kind: str, model: Callable[[str], Path]) -> None:
    """Random weights part ways sooner or later (0.4 to 0.7 on a CPU); a wrong mask or slot would at once."""
    expected = greedy(model(kind), device="cuda", dtype="float32")
    assert agreement(greedy(model(kind), device="cuda", dtype="bfloat16"), expected) > 0.3


@pytest.mark.parametrize("kind", ["llama", "qwen3", "qwen3_moe"])
def test_one_row_is_the_same_however_its_steps_run(
    kind: str, model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphs or not, one or two steps in flight: a row alone meets the same kernels, so the tokens are the same."""
    monkeypatch.setattr(
        PromptGraphRunner, "forward", lambda self, batch, received=None: None
    )  # they pad, and round differently
    monkeypatch.setattr(cuda_graph_runner, "MAX_REREAD_BYTES", 0)  # prompts meet the kernel for single queries
    one = PROMPTS[5:6]
    expected = greedy(model(kind), one, cuda_graph="off", max_inflight_steps=1)
    assert greedy(model(kind), one, cuda_graph="off", max_inflight_steps=2) == expected
    for depth in (1, 2):
        assert (
            greedy(model(kind), one, cuda_graph="start", max_inflight_steps=depth, max_running_requests=16) == expected
        )
    assert greedy(model(kind), one, cuda_graph="auto", page_size=16) == expected


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_captured_prompts_are_those_of_uncaptured_steps(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every position's log-probability, of prompts alone and together, whole and behind a prefix from the cache."""
    overrides = {"sliding_window": 24} if kind == "mistral" else {}
    folder = make_tiny_model(tmp_path / "model", kind, head_dim=64, max_position_embeddings=4096, **overrides)
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
        lists = [answer.prompt_logprobs[1:] for answer in answers] + [answer.logprobs[:1] for answer in last]
        found.append(np.array([entry.logprob for entries in lists for entry in entries]))
    assert {100, 1500} <= set(replayed)
    assert len(found[0]) > 2000
    assert np.abs(found[0] - found[1]).max() < 0.1
    assert np.abs(found[0] - found[1]).mean() < 0.01


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_short_steps_are_captured_decode_steps(
    kind: str, model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few tokens behind cached and shared prefixes, and one token beside a decoding row: each first token's
    log-probability is that of an uncaptured step, and no step is computed piece by piece."""
    rng = np.random.default_rng(0)
    roots = [rng.integers(3, 400, n).tolist() for n in (70, 200)]
    turns = [root + rng.integers(3, 400, n).tolist() for root in roots for n in (1, 2, 5, 9, 3)]
    params = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, "logprobs": 1}
    found: dict[str, list[Any]] = {}
    pieces: list[int] = []
    for how in ("off", "start"):
        with Engine(str(model(kind)), **{**OPTIONS, "cuda_graph": how, "max_running_requests": 16}) as engine:
            engine.generate(roots, {**params, "max_tokens": 1})
            if how == "start":
                monkeypatch.setattr(
                    PromptGraphRunner, "forward", lambda self, batch, received=None: pieces.append(batch.num_tokens)
                )
            found[how] = engine.generate(turns, params)
            found[how] += [engine.generate([*turn, 7, 8], params) for turn in turns]
            engine.check_invariants()
    assert not [tokens for tokens in pieces if tokens <= 32]
    first = {how: np.array([a.logprobs[0].logprob for a in answers]) for how, answers in found.items()}
    assert np.abs(first["off"] - first["start"]).max() < 0.1
    tokens = {how: [a.token_ids for a in answers] for how, answers in found.items()}
    assert agreement(tokens["off"], tokens["start"]) > 0.7


def test_forced_tokens_are_steps_of_captured_rows(model: Callable[[str], Path]) -> None:
    """Jump-forward with graphs gives the text that it gives without them."""
    regexes = ["(ab{3}c[0-9]d){6}", "(x[a-z]yyyy){6}", "[a-z]{20}"]
    params = [{"temperature": 0.0, "max_tokens": 60, "regex": regexes[i % 3]} for i in range(12)]
    texts = []
    for how in ("off", "start"):
        with Engine(str(model("llama")), **{**OPTIONS, "cuda_graph": how, "max_running_requests": 16}) as engine:
            answers = engine.generate(PROMPTS, params)
            texts.append([a.text for a in answers])
            assert sum(a.constraint.forced_tokens for a in answers if a.constraint is not None) > 50
            engine.check_invariants()
    for which, texts_of_one in enumerate(zip(*texts, strict=True)):
        assert all(re.fullmatch(regexes[which % 3], text) for text in texts_of_one)
    assert sum(a == b for a, b in zip(*texts, strict=True)) >= 6  # random weights part ways in bfloat16


def test_padded_graphs_agree_with_uncaptured_steps(model: Callable[[str], Path]) -> None:
    """Padding changes which matrix kernels run, so bfloat16 may part ways, but late."""
    expected = greedy(model("llama"), cuda_graph="off")
    assert agreement(greedy(model("llama"), cuda_graph="start", max_running_requests=16), expected) > 0.7


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_a_narrowed_last_layer_agrees_with_a_whole_one(
    kind: str, model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its single queries go through another kernel, so bfloat16 may part ways, but late."""
    options = {"chunked_prefill_size": 64, "max_running_requests": 16}
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 2**30)
    expected = greedy(model(kind), **options)
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 1)
    assert agreement(greedy(model(kind), **options), expected) > 0.5


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_prompts_that_share_give_the_log_probabilities_of_those_that_do_not(
    kind: str, page_size: int, model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two levels of a cached tree; every prompt's first token, and its alternatives."""
    rng = np.random.default_rng(0)
    root = rng.integers(3, 500, 64).tolist()
    branches = [root + rng.integers(3, 500, n).tolist() for n in (16, 64, 33)]
    prompts = [branch + rng.integers(3, 500, int(n)).tolist() for branch in branches for n in rng.integers(2, 60, 7)]
    params = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, "logprobs": 5}
    from radixrt.attention.prompt_cascade import PromptCascade

    taken: list[int] = []
    found = []
    place = PromptCascade.place

    def spy(self: PromptCascade, plan: PromptPlan, *args: Any) -> Any:
        taken.append(len(plan.starts))
        return place(self, plan, *args)

    monkeypatch.setattr(PromptCascade, "place", spy)
    for costs in (None, FREE):
        monkeypatch.setattr("radixrt.runner.pool_sizes.cascade_costs", lambda *_, costs=costs: costs)
        options = {**OPTIONS, "max_running_requests": 32, "page_size": page_size, "cuda_graph": "start"}
        options["attention_backend"] = "flashinfer"  # waits for its kernels, without which nothing is shared
        with Engine(str(model(kind)), **options) as engine:
            engine.generate(branches, {"temperature": 0.0, "max_tokens": 1})
            answers = engine.generate(prompts, params)
            engine.check_invariants()
        found.append({(i, e.token_id): e.logprob for i, a in enumerate(answers) for e in a.logprobs[0].top})
    assert max(taken) >= 3
    both = found[0].keys() & found[1].keys()
    assert len(both) > 0.7 * len(found[0])
    assert max(abs(found[0][key] - found[1][key]) for key in both) < 0.1


def test_sampling_with_seeds_does_not_depend_on_graphs(
    model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PromptGraphRunner, "forward", lambda self, batch, received=None: None
    )  # they pad, and round differently
    monkeypatch.setattr(cuda_graph_runner, "MAX_REREAD_BYTES", 0)
    params = {"temperature": 0.8, "max_tokens": 30, "ignore_eos": True, "seed": 5}

    def sampled(**options: Any) -> list[int]:
        # flashinfer waits for its kernels; otherwise one of the two may compute the prompt without them.
        with Engine(str(model("llama")), **OPTIONS, attention_backend="flashinfer", **options) as engine:
            return engine.generate(PROMPTS[3], params).token_ids

    assert sampled(cuda_graph="off") == sampled(cuda_graph="start", max_running_requests=8)


def test_a_mixed_batch_of_constrained_filtered_and_plain_rows(model: Callable[[str], Path]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    with Engine(str(model("llama")), show_progress=False, kv_cache_tokens=8192, max_running_requests=16) as engine:
        params: list[dict[str, Any]] = []
        for i in range(12):
            extra: dict[str, Any] = [
                {"json_schema": schema},
                {"temperature": 0.9, "top_p": 0.8, "top_k": 20, "seed": i},
                {"temperature": 0.0, "logprobs": 2},
                {"temperature": 1.0, "frequency_penalty": 0.5, "seed": i},
            ][i % 4]
            params.append({"max_tokens": 24, **extra})
        answers = engine.generate(PROMPTS, params)
    for i, answer in enumerate(answers):
        assert answer.token_ids
        if i % 4 == 0:
            assert isinstance(json.loads(answer.text)["a"], int)
        if i % 4 == 2:
            assert [entry.token_id for entry in answer.logprobs] == answer.token_ids
            assert all(entry.logprob == entry.top[0].logprob for entry in answer.logprobs)


def test_an_out_of_memory_step_ends_its_requests_and_nothing_else(tmp_path: Path) -> None:
    """The process may have no more memory than it has: a prompt of thousands of tokens fails, and works once it may.
    Steps that are captured have their memory from the start."""
    folder = make_tiny_model(tmp_path / "model", "llama", head_dim=64, max_position_embeddings=16384)
    long = [i % 400 + 3 for i in range(8000)]
    with Engine(str(folder), **{**OPTIONS, "kv_cache_tokens": 20_000, "cuda_graph": "off"}) as engine:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties("cuda").total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**20) / total)
        with pytest.raises(RadixRTError, match="out of GPU memory"):
            engine.generate(long, GREEDY)
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert len(engine.generate(long, GREEDY).token_ids) == GREEDY["max_tokens"]
