"""gpt-oss on a GPU: attention sinks behind every kernel, and whole models under the real scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from radixrt import Engine
from radixrt.attention import flashinfer_plans
from radixrt.attention.base import AttentionLayer
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner
from tests.gpu.test_flashinfer import DEVICE, STEPS, Compiling, make_batch
from tests.gpu.test_hybrid import scored
from tests.gpu.test_runner import GREEDY, OPTIONS, PROMPTS, greedy
from tests.models.loading.test_mxfp4 import make_mxfp4_models
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LARGER: dict[str, Any] = {"head_dim": 64, "sliding_window": 24}
"""Heads that FlashInfer takes, and a window that prompts exceed."""
ROUNDING = 0.08
"""Mean difference of log-probabilities: 0.013 in bfloat16 with float32 activations on a CPU; 0.17 with each head's sink
given to the next one, 0.24 without sinks."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("gpt-oss") / "model", "gpt_oss", **LARGER)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rows", STEPS)
def test_sinks_equal_the_reference(rows: str, *, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full layer and one with a window, as they alternate in a model."""
    from radixrt.attention.flashinfer import FlashInferBackend

    heads, kv_heads, dim = 16, 2, 64
    layers = [AttentionLayer(i, heads, kv_heads, dim, dim**-0.5, (None, 50)[i], has_sinks=True) for i in range(2)]
    batch, slots = make_batch(STEPS[rows], 1, seed=1)
    generator = torch.Generator(DEVICE).manual_seed(2)

    def random(tokens: int, count: int) -> torch.Tensor:
        return torch.randn(tokens, count, dim, device=DEVICE, generator=generator).bfloat16()

    ours = KVCache(layers, slots, 1, torch.bfloat16, DEVICE)
    exact = KVCache(layers, slots, 1, torch.float32, DEVICE)
    for mine, theirs in zip(ours.k + ours.v, exact.k + exact.v, strict=True):
        theirs.copy_(random(slots + 1, kv_heads))
        mine.copy_(theirs)
    monkeypatch.setattr(
        flashinfer_plans, "MAX_GATHERED_BYTES", 2 * kv_heads * dim * 2 * 300
    )  # so that rows are divided
    backend = FlashInferBackend(
        ours, layers, dtype=torch.bfloat16, max_rows=8, context_length=2048, modules=None if compiled else Compiling()
    )
    reference = TorchNativeBackend(exact)
    sinks = torch.linspace(-2.0, 8.0, heads, device=DEVICE)
    backend.prepare(batch)
    reference.prepare(batch)
    for layer in layers:
        q, k, v = (random(batch.num_tokens, n) for n in (heads, kv_heads, kv_heads))
        got = backend.attend(layer, q, k, v, batch, sinks).float()
        expected = reference.attend(layer, q.float(), k.float(), v.float(), batch, sinks)
        assert (got - expected).norm() / expected.norm() < 1e-2
        assert ((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < 3e-2


def test_float32_equals_the_cpu(model: Path) -> None:
    """Token for token: the reference backend, batches, chunks and overlap on the device."""
    expected = greedy(model, device="cpu", dtype="float32")
    assert greedy(model, device="cuda", dtype="float32") == expected
    assert greedy(model, device="cuda", dtype="float32", chunked_prefill_size=16, page_size=8) == expected


def test_mxfp4_experts_equal_the_dequantized_ones(tmp_path: Path) -> None:
    """In float32 token for token, on the device as on the CPU, which dequantizes while it loads; in bfloat16 as near to
    that as the dequantized checkpoint is."""
    packed, plain = make_mxfp4_models(tmp_path / "packed", tmp_path / "plain", **LARGER)
    expected = greedy(plain, device="cpu", dtype="float32")
    assert greedy(packed, device="cpu", dtype="float32") == expected
    assert greedy(packed, device="cuda", dtype="float32") == expected
    rng = np.random.default_rng(0)
    texts = [rng.integers(3, 400, n).tolist() for n in (3, 20, 100, 300)]
    exact = scored(plain, texts, device="cuda", dtype="float32")
    for options in ({"cuda_graph": "off"}, {"cuda_graph": "start"}):
        found = scored(packed, texts, device="cuda", dtype="bfloat16", **options)
        assert np.abs(found - exact).mean() < ROUNDING
    with Engine(str(packed), **OPTIONS, device="cuda", dtype="bfloat16", load_format="dummy") as engine:
        engine.generate(PROMPTS, GREEDY)


def test_decoded_tokens_have_the_log_probabilities_of_float32(model: Path) -> None:
    with Engine(str(model), **OPTIONS, device="cuda", dtype="bfloat16") as engine:
        answers = engine.generate(PROMPTS, {**GREEDY, "logprobs": 1})
    decoded = np.array([entry.logprob for answer in answers for entry in answer.logprobs])
    texts = [prompt + answer.token_ids for prompt, answer in zip(PROMPTS, answers, strict=True)]
    asked = np.concatenate([np.arange(1, len(text)) >= len(p) for text, p in zip(texts, PROMPTS, strict=True)])
    again = scored(model, texts, device="cuda", dtype="float32")[asked]
    assert len(again) == len(decoded) == sum(len(answer.token_ids) for answer in answers)
    assert np.abs(decoded - again).mean() < ROUNDING


def test_one_row_is_the_same_however_its_steps_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs or not, one or two steps in flight: a row alone meets the same kernels, so the tokens are the same."""
    monkeypatch.setattr(
        PromptGraphRunner, "forward", lambda self, batch, received=None: None
    )  # they pad, and round differently
    one = PROMPTS[5:6]
    expected = greedy(model, one, cuda_graph="off", max_inflight_steps=1)
    for depth in (1, 2):
        assert greedy(model, one, cuda_graph="off", max_inflight_steps=depth) == expected
        options: dict[str, Any] = {"max_inflight_steps": depth, "max_running_requests": 16}
        assert greedy(model, one, cuda_graph="start", **options) == expected


def test_log_probabilities_in_graphs_and_without(tmp_path: Path) -> None:
    """Every position's log-probability, of prompts alone and together, whole and behind cached prefixes: captured
    steps, uncaptured ones, and float32 on torch's own operations."""
    folder = make_tiny_model(tmp_path / "model", "gpt_oss", max_position_embeddings=2048, **LARGER)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 400, n).tolist() for n in (5, 16, 17, 100, 700, 300)]
    turns = [prompt + rng.integers(3, 400, 30).tolist() for prompt in prompts[3:]]
    params = {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True}
    found = []
    for options in ({"cuda_graph": "off"}, {"cuda_graph": "start"}, {"dtype": "float32"}):
        with Engine(str(folder), **{**OPTIONS, "device": "cuda", "max_running_requests": 8, **options}) as engine:
            answers = [engine.generate(prompt, {**params, "prompt_logprobs": 1}) for prompt in prompts]
            answers += engine.generate(prompts[::-1], {**params, "prompt_logprobs": 1})
            answers += engine.generate(turns, {**params, "prompt_logprobs": 1})
            engine.check_invariants()
        found.append(np.array([entry.logprob for answer in answers for entry in answer.prompt_logprobs[1:]]))
    assert len(found[0]) > 3000
    assert np.abs(found[0] - found[1]).mean() < 0.01
    assert np.abs(found[0] - found[2]).mean() < ROUNDING
