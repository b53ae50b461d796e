"""Recorded decode steps on a CPU: the same tokens as kernel by kernel, and no recording of what cannot be replayed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.attention.cpu import CpuBackend
from radixrt.kernels.build import load_kernels
from radixrt.kernels.compiled import CannotRecord, Kernel, Recording
from radixrt.layers.formats.panels import PanelWeight
from radixrt.layers.ops import CpuOps
from radixrt.models.decoder import Decoder
from radixrt.runner.graphs.cpu_graph_runner import CpuGraphRunner
from tests.runner.test_model_runner import Bench
from tests.tiny_models import make_tiny_model

SIZES: dict[str, Any] = {"head_dim": 32, "intermediate_size": 128, "hidden_size": 64}
PROMPTS = [[*range(3, 40), 100 + i, *range(50, 50 + 5 * i)] for i in range(7)]


def run(folder: Path, cuda_graph: str, **options: Any) -> tuple[dict[str, list[int]], Bench]:
    """Tokens of requests that share a prefix, arrive at different steps and end at different ones."""
    bench = Bench(folder, cuda_graph=cuda_graph, kv_cache_tokens=1024, max_running_requests=6, **options)
    for i, prompt in enumerate(PROMPTS):
        bench.send(f"r{i}", prompt, max_tokens=8 + 3 * i, ignore_eos=True)
        bench.turn()
    bench.drain()
    return bench.tokens, bench


def recorded_rows(bench: Bench) -> list[int]:
    graphs = bench.runner._cpu_graphs
    return [] if graphs is None else [rows for rows, graph in graphs._graphs.items() if graph is not None]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3"])
def test_replayed_steps_have_the_tokens_of_launched_ones(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", kind, **SIZES)
    expected, launched = run(folder, "off", dtype="bfloat16")
    tokens, bench = run(folder, "auto", dtype="bfloat16")
    assert tokens == expected
    assert launched.runner._cpu_graphs is None
    model = bench.runner._model
    assert isinstance(model, Decoder)
    weight = model.layers[0].mixer.qkv_proj._weight  # type: ignore[union-attr]
    if isinstance(weight, PanelWeight) and isinstance(bench.runner._attention, CpuBackend):
        assert len(recorded_rows(bench)) > 3


def test_steps_in_float32_are_recorded(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", **SIZES)
    expected, _ = run(folder, "off", dtype="float32")
    tokens, bench = run(folder, "auto", dtype="float32")
    assert tokens == expected
    assert len(recorded_rows(bench)) > 3


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_steps_of_quantized_models_are_recorded(quantization: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3", **SIZES)
    expected, _ = run(folder, "off", dtype="bfloat16", quantization=quantization)
    tokens, bench = run(folder, "auto", dtype="bfloat16", quantization=quantization)
    assert tokens == expected
    assert len(recorded_rows(bench)) > 3


def test_steps_with_other_operations_are_launched(tmp_path: Path) -> None:
    """Biases are added by torch, and so a step is not recorded."""
    folder = make_tiny_model(tmp_path / "m", "qwen2", hidden_size=128, intermediate_size=128, num_attention_heads=4)
    expected, _ = run(folder, "off", dtype="bfloat16")
    tokens, bench = run(folder, "auto", dtype="bfloat16")
    assert tokens == expected
    assert recorded_rows(bench) == []
    assert isinstance(bench.runner._cpu_graphs, CpuGraphRunner | None)


def test_a_hybrid_model_has_no_recorded_steps(tmp_path: Path) -> None:
    _, bench = run(make_tiny_model(tmp_path / "m", "lfm2"), "auto", dtype="bfloat16")
    assert bench.runner._cpu_graphs is None


class TestRecording:
    @pytest.fixture
    def ops(self, tmp_path_factory: pytest.TempPathFactory) -> CpuOps:
        return CpuOps(load_kernels(tmp_path_factory.mktemp("kernels")))

    def test_a_replay_calls_the_kernels_with_changed_arguments(self, ops: CpuOps) -> None:
        recording = Recording(ops.library)
        residual, added = torch.randn(3, 32), torch.randn(3, 32)
        weight, start = torch.randn(32), residual.clone()
        with recording:
            out = ops.add_rms_norm(residual, added, weight, 1e-5, torch.float32)
        assert recording.names == ["radixrt_add_rms_norm_f32"]
        expected, other = out.clone(), start * 2
        recording.args[recording.args == residual.data_ptr()] = start.data_ptr()
        out.zero_()
        recording.replay()
        torch.testing.assert_close(out, expected, atol=0, rtol=0)
        recording.args[recording.args == start.data_ptr()] = other.data_ptr()
        before = other.clone()
        recording.replay()
        torch.testing.assert_close(out, ops.add_rms_norm(before, added, weight, 1e-5, torch.float32), atol=0, rtol=0)

    def test_a_kernel_without_a_replay_is_refused_by_name(self, ops: CpuOps) -> None:
        kernel = Kernel(ops.library, "radixrt_gemm_pack", [])
        with pytest.raises(CannotRecord, match="radixrt_gemm_pack cannot be replayed"), Recording(ops.library) as made:
            made.add(kernel, ())

    def test_two_recordings_are_refused(self, ops: CpuOps) -> None:
        with (
            Recording(ops.library),
            pytest.raises(CannotRecord, match="another recording is active"),
            Recording(ops.library),
        ):
            pass
        with Recording(ops.library) as later:
            ops.silu_and_mul(torch.randn(1, 64))
        assert later.names == ["radixrt_silu_and_mul_f32"]


def test_recording_a_step_does_not_import_torchs_compiler() -> None:
    """The import takes more than a second, which the first request after each start would wait."""
    code = (
        "import sys, torch; from radixrt.runner.graphs.cpu_graph_runner import _StepMemory\n"
        "with _StepMemory(): torch.empty(2)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "False"
