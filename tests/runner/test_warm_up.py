"""The kernels of all steps are compiled ahead, each once, and nothing is launched; no GPU is needed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import radixrt.kernels.triton as triton_kernels
from radixrt.attention.kv_cache import KVCache
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.state_rows import StateRows
from radixrt.layers.recurrence import GatedDeltaShape, GatedDeltaWeights
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.moe import MoEFeedForward
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables
from radixrt.runner.warm_up import compile_kernels, divide_into_rows, launch_experts
from tests.tiny_models import make_tiny_model

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled"),
]


class Driver:
    """Replaces Triton's driver on a machine without a GPU: an H200 that accepts every kernel."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.utils = SimpleNamespace(
            load_binary=self._load, unload_module=lambda _: None,
            get_device_properties=lambda _: {"max_shared_mem": 232448},
        )  # fmt: skip

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        assert device == 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, *_: Any) -> Any:
        def launch(*_: Any) -> None:
            raise AssertionError("a kernel was launched")

        return launch

    def _load(self, name: str, *_: Any) -> tuple[int, ...]:
        self.loaded.append(name)
        return 1, 1, 0, 0, 1024


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    from triton.runtime import driver as triton_driver

    fake = Driver()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton_driver, "_active", fake)
    return fake


def test_each_kernel_is_compiled_and_loaded_once(driver: Driver) -> None:
    from radixrt.kernels.triton.compile_ahead import compiling
    from radixrt.kernels.triton.kv_indices import _kv_indices_kernel, write_kv_indices

    table = torch.zeros(2, 64, dtype=torch.int32)
    ends = torch.arange(4, dtype=torch.int32)
    _kv_indices_kernel.device_caches.clear()
    with compiling() as names:
        for row in (0, 1):  # at any alignment
            rows = torch.zeros(4, dtype=torch.int64)[row : row + 1]
            for starts in (None, ends):
                write_kv_indices(table, rows, ends, 1, torch.empty_like(ends), starts)
        assert names == []
    assert names == driver.loaded == ["_kv_indices_kernel"] * 2
    _kv_indices_kernel.device_caches.clear()


@pytest.fixture
def kernels(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the kernels that Triton is told to compile, which it does not do."""
    import triton.compiler
    from triton.runtime.jit import JITFunction

    compiled: list[str] = []

    def compile_nothing(src: Any, **_: Any) -> Any:
        compiled.append(src.fn.__name__)
        return SimpleNamespace(name=src.fn.__name__, run=None, src=src, metadata=None)

    def forget() -> None:
        for module in pkgutil.iter_modules(triton_kernels.__path__, triton_kernels.__name__ + "."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, JITFunction):
                    value.device_caches.clear()

    monkeypatch.setattr(triton.compiler, "compile", compile_nothing)
    forget()
    yield compiled
    forget()


def test_experts_of_every_number_of_tokens_are_prepared(kernels: list[str], tmp_path: Path) -> None:
    from radixrt.kernels.triton.compile_ahead import compiling
    from radixrt.layers.cuda_ops import CudaOps

    folder = make_tiny_model(tmp_path / "model", "qwen3_moe", num_experts=64, num_experts_per_tok=6, hidden_size=512)
    spec = load_model_spec(folder)
    model = load_model(folder, spec, dtype="bfloat16", device="cpu", ops=CudaOps(early=True))
    mixture = next(module for module in model.modules() if isinstance(module, MoEFeedForward))
    with torch.inference_mode():
        with compiling():
            launch_experts(mixture, max_tokens=3000)
        assert Counter(kernels) == {
            "_route_few_kernel": 4,  # tokens
            "_logits_kernel": 3,  # tiles
            "_choose_kernel": 3,  # splits
            "_count_kernel": 1,
            "_list_tiles_kernel": 4,  # tiles
            "_gate_up_kernel": 1,
            "_down_kernel": 1,
            "_expert_gemm_kernel": 8,
            "_weighted_sum_kernel": 1,
        }
        prepared = len(kernels)
        with compiling():
            for tokens in range(1, 3001, 23):
                mixture.launch_all(tokens)
    assert len(kernels) == prepared


def test_recurrent_layers_are_prepared_for_every_step(kernels: list[str]) -> None:
    from radixrt.kernels.triton.compile_ahead import compiling
    from radixrt.layers.cuda_recurrence import CudaRecurrence

    shape, bf16 = GatedDeltaShape(1, 2, 64, 64), torch.bfloat16
    weights = GatedDeltaWeights(torch.zeros(256, 4).to(bf16), *torch.zeros(2, 2), torch.zeros(64), 1e-6)
    pools = torch.zeros(4, 256, 3).to(bf16), torch.zeros(4, 2, 64, 64)
    ops, short_weight, short_pool = (
        CudaRecurrence(early=True),
        torch.zeros(64, 3).to(bf16),
        torch.zeros(4, 64, 2).to(bf16),
    )

    def launch(rows: StateRows, tokens: int) -> None:
        ops.gated_delta_net(torch.zeros(tokens, shape.in_features).to(bf16), shape, weights, *pools, rows)
        ops.short_conv(torch.zeros(tokens, 192).to(bf16), short_weight, short_pool, rows)

    def rows_of(lens: list[int]) -> StateRows:
        single, starts = torch.ones(len(lens), dtype=torch.int64), torch.tensor([0, *np.cumsum(lens)])
        return StateRows(single, single, starts, None if set(lens) == {1} else np.array(lens, np.int32))

    with torch.inference_mode():
        with compiling():
            for tokens in (1, 4, 512):
                for rows in divide_into_rows(rows_of([1] * tokens), tokens):
                    launch(rows, tokens)
        assert Counter(kernels) == {
            "_gated_delta_decode_kernel": 4,  # all rows have one token, or some; they run at once, or in turns
            "_conv_heads_kernel": 1,
            "_delta_chunk_kernel": 1,
            "_delta_rows_kernel": 1,
            "_gated_norm_kernel": 1,
            "_short_conv_kernel": 2,
        }
        prepared = len(kernels)
        with compiling():
            for lens in ([1, 1], [3], [300, 1, 64], [2] * 200, [1, *[7] * 30], [*[1] * 300, 2]):
                launch(rows_of(lens), sum(lens))
    assert len(kernels) == prepared


def test_every_kind_of_step_is_prepared(kernels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where linear layers do not use Triton; with FlashInfer's backend, whose modules never come."""
    from radixrt.attention.flashinfer import FlashInferBackend
    from radixrt.layers.cuda_ops import CudaOps

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    device, folder = torch.device("cpu"), make_tiny_model(tmp_path / "model", "qwen3", head_dim=64)
    spec = load_model_spec(folder)
    model = load_model(folder, spec, dtype="bfloat16", device=device, ops=CudaOps(early=True))
    cache = KVCache(model.attention_layers, 64, 1, torch.bfloat16, device)
    modules = SimpleNamespace(loaded=False)
    attention = FlashInferBackend(
        cache, model.attention_layers, dtype=torch.bfloat16, max_rows=8, context_length=64, modules=modules
    )
    sampler = Sampler(SamplingTables(8, spec.vocab_size, device), fused=True)
    with torch.inference_mode():
        compile_kernels(model, attention, sampler, BatchBuilder(8, 64, device), max_rows=8, max_tokens=64)
    assert Counter(kernels) == {
        "_add_rms_norm_kernel": 2,  # with and without an addend
        "_prepare_heads_kernel": 2,  # into the pool, or into tensors of their own
        "_silu_and_mul_kernel": 1,
        "_store_kv_kernel": 1,
        "_decode_list_kernel": 1,
        "_decode_attention_kernel": 2,  # with and without log-sum-exp
        "_kv_indices_kernel": 3,  # from the start, from later positions, and for groups of prompts
        "_gather_kv_kernel": 1,
        "_shared_attention_kernel": 2,  # tiles
        "_merge_kernel": 2,  # in order or not
        "_apply_bitmask_kernel": 1,
        "_chunk_kernel": 1,
        "_row_kernel": 1,
        "_band_kernel": 1,
        "_collect_kernel": 1,
        "_filtered_kernel": 1,
    }
