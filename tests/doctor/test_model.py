"""The doctor's report on a model folder: from made-up facts about the machine and real config.json files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.common.model_shapes import CONFIGS
from radixrt.doctor import probes
from radixrt.doctor.advice import advise
from radixrt.doctor.child import probe
from radixrt.doctor.facts import GIB, Disk, Facts, Gpu
from radixrt.doctor.model import ModelNeeds, model_needs
from radixrt.doctor.report import as_text
from radixrt.kernels.build import load_kernels
from radixrt.layers.ops import CpuOps
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.chat.tool_templates import TEMPLATES
from tests.doctor.test_advice import CPU_MACHINE, GPU_MACHINE
from tests.models.loading.test_mxfp4 import PUBLISHED
from tests.models.test_gpt_oss_config import GPT_OSS_20B
from tests.models.test_model_config import LLAMA
from tests.tiny_models import make_tiny_model

EMPTY = (2).to_bytes(8, "little") + b"{}"
"""Header of a safetensors file without tensors."""

GPT_OSS_120B = {
    **GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}  # fmt: skip


def folder(path: Path, config: dict[str, Any], *, file_bytes: int = 0) -> str:
    (path / "config.json").write_text(json.dumps(config))
    if file_bytes:
        (path / "model.safetensors").write_bytes(EMPTY.ljust(file_bytes, b"\0"))
    return str(path)


def needs(path: Path, config: dict[str, Any], **options: Any) -> ModelNeeds:
    return model_needs(folder(path, config), **{"device": "cuda", "free_bytes": 139 * GIB, **options})


def on(machine: Facts, found: ModelNeeds, *, gpus: int = 1, ranks: int = 1) -> Facts:
    return dataclasses.replace(machine, model=found, ranks=ranks, gpus=machine.gpus * gpus)


def test_gpt_oss(tmp_path: Path) -> None:
    found = needs(tmp_path, {**GPT_OSS_20B, "quantization_config": PUBLISHED})
    assert (found.architecture, found.runs_on, found.dtype) == ("GptOssForCausalLM", "radixrt's decoder", "bfloat16")
    assert found.weight_bytes == pytest.approx(14.6e9, rel=0.01)
    assert found.token_bytes == 48 * 1024
    assert found.kv_tokens == pytest.approx(0.9 * (139 * GIB - found.weight_bytes) / found.token_bytes, rel=0.01)
    assert found.ranks == (1, 2, 4, 8, 16, 32, 64)
    assert any("MXFP4" in note and "in registers" in note for note in found.notes)
    assert advise(on(GPU_MACHINE, found)) == []
    text = as_text(on(GPU_MACHINE, found), [])
    assert "GptOssForCausalLM on radixrt's decoder, bfloat16, 131072 tokens of context" in text
    assert "48.0 KiB a token; about" in text


def test_mxfp4_numbers_stay_small_on_a_gpu_alone(tmp_path: Path) -> None:
    published = {**GPT_OSS_120B, "quantization_config": PUBLISHED}
    found = needs(tmp_path, published)
    assert found.weight_bytes == pytest.approx(70.5e9, rel=0.01)
    assert found.kv_tokens > 800_000
    assert advise(on(GPU_MACHINE, found)) == []
    on_cpu = needs(tmp_path, published, device="cpu", dtype="bfloat16")
    assert on_cpu.weight_bytes == pytest.approx(233.7e9, rel=0.01)
    assert any("while they load" in note for note in on_cpu.notes)


def test_weights_that_need_more_gpus(tmp_path: Path) -> None:
    found = needs(tmp_path, GPT_OSS_120B)
    assert found.kv_tokens == 0
    (alone,) = advise(on(GPU_MACHINE, found))
    assert (alone.severity, alone.fix) == ("error", None)
    assert "the weights need 217" in alone.what
    (four,) = advise(on(GPU_MACHINE, found, gpus=4))
    assert four.fix == f"radixrt launch --model {tmp_path} --tp 2"
    for options in ({"tp": 2}, {"pp": 2}):
        split = needs(tmp_path, GPT_OSS_120B, **options)
        assert split.kv_tokens > 500_000
        assert advise(on(GPU_MACHINE, split, gpus=4, ranks=2)) == []
    (missing,) = advise(on(GPU_MACHINE, split, ranks=2))
    assert missing.what == "tp * pp = 2 needs 2 GPUs, and there are 1"


def test_weights_that_need_a_number_of_gpus_that_divides_no_layer(tmp_path: Path) -> None:
    """They are divided into stages, and no more than there must be."""
    found = needs(tmp_path, GPT_OSS_120B, free_bytes=78 * GIB)
    assert "--pp may be 1 to 36" in as_text(on(GPU_MACHINE, found), [])
    for free_gib, gpus, options in ((78, 2, None), (78, 3, " --pp 3"), (78, 8, " --pp 3"), (60, 4, " --tp 4")):
        gpu = dataclasses.replace(GPU_MACHINE.gpus[0], memory_free=free_gib * GIB)
        findings = advise(on(dataclasses.replace(GPU_MACHINE, gpus=(gpu,)), found, gpus=gpus))
        (finding,) = [each for each in findings if "the weights need" in each.what]
        assert finding.fix == (None if options is None else f"radixrt launch --model {tmp_path}{options}")


def test_a_cpu_in_float32(tmp_path: Path) -> None:
    found = needs(tmp_path, LLAMA, device="cpu", free_bytes=20 * GIB, dtype="float32")
    assert (found.dtype, found.token_bytes) == ("float32", 4 * 2 * 64 * 4)
    assert advise(on(CPU_MACHINE, found)) == []
    assert "there are no safetensors files" in as_text(on(CPU_MACHINE, found), [])


def test_a_model_of_transformers_is_measured_by_its_files(tmp_path: Path) -> None:
    path = folder(tmp_path, {**LLAMA, "architectures": ["OlmoForCausalLM"]}, file_bytes=5000)
    found = model_needs(path, device="cpu", free_bytes=GIB)
    assert (found.runs_on, found.weight_bytes, found.token_bytes) == ("transformers' modeling code", 5000, 0)
    assert found.ranks == (1,)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({**GPT_OSS_20B, "hidden_act": "gelu"}, {}, "hidden_act 'gelu' is not supported"),
        (GPT_OSS_20B, {"tp": 3}, "tp=3 does not divide"),
        (GPT_OSS_20B, {"pp": 25}, "pp=25: GptOssForCausalLM has 24 layers with attention"),
        ({}, {}, "architectures must name one model class"),
    ],
)
def test_a_model_that_does_not_run(tmp_path: Path, config: Any, options: dict[str, Any], message: str) -> None:
    found = needs(tmp_path, config, **options)
    assert message in found.problem
    (finding,) = advise(on(GPU_MACHINE, found))
    assert (finding.severity, finding.what) == ("error", found.problem)
    assert "model " not in as_text(on(GPU_MACHINE, found), [finding]).split("error:")[0]


def test_no_folder() -> None:
    assert "is not a folder" in model_needs("/nowhere", device="cpu", free_bytes=GIB).problem


def test_the_pool_of_a_cpu_is_bounded(tmp_path: Path) -> None:
    """1 GiB, or one request of the context length (`DEVICE_DEFAULTS`)."""
    small = needs(tmp_path, LLAMA, device="cpu")
    assert small.kv_tokens == max(GIB // small.token_bytes, small.context_length)
    long = needs(tmp_path, {**LLAMA, "max_position_embeddings": 10**7}, device="cpu")
    assert long.kv_tokens == min(10**7, int(0.5 * (139 * GIB - long.weight_bytes)) // long.token_bytes)


def test_states_share_the_bound_of_a_cpu_with_keys_and_values(tmp_path: Path) -> None:
    short = {**CONFIGS["qwen3.5-0.8b"], "max_position_embeddings": 4096}
    found = needs(tmp_path, short, device="cpu")
    states = found.num_states * found.state_bytes
    assert 0.4 * GIB < states <= 0.5 * GIB
    assert states + found.kv_tokens * found.token_bytes <= GIB
    assert found.kv_tokens * found.token_bytes > 0.4 * GIB


def test_the_smallest_gpu_counts() -> None:
    small = Gpu("x", (9, 0), 80 * GIB, 10 * GIB)
    assert dataclasses.replace(GPU_MACHINE, gpus=(*GPU_MACHINE.gpus, small)).device_memory == 10 * GIB
    assert CPU_MACHINE.device_memory == 20 * GIB


def test_recurrent_states_are_counted(tmp_path: Path) -> None:
    """The sizes are those of docs/models.md; what remains is for keys and values."""
    qwen = needs(tmp_path, CONFIGS["qwen3.5-0.8b"])
    assert qwen.state_bytes / 2**20 == pytest.approx(18.6, abs=0.1)
    assert qwen.requests == 256 < qwen.num_states
    left = 0.9 * (139 * GIB - qwen.weight_bytes)
    assert qwen.num_states * qwen.state_bytes + qwen.kv_tokens * qwen.token_bytes == pytest.approx(left, rel=0.01)
    text = as_text(on(GPU_MACHINE, qwen), [])
    assert f"KiB for each running request (at most 256) and each prefix that is kept; about {qwen.num_states}" in text
    assert needs(tmp_path, CONFIGS["lfm2-350m"]).state_bytes == 40 * 1024
    assert needs(tmp_path, CONFIGS["lfm2-350m"], device="cpu").state_bytes == 80 * 1024
    crowded = needs(tmp_path, CONFIGS["qwen3.5-0.8b"], free_bytes=GIB)
    assert (crowded.num_states, crowded.kv_tokens) == (0, 0)
    assert needs(tmp_path, LLAMA).state_bytes == 0


# --- quantized weights ---


def tensors_of(weight: Any) -> list[Any]:
    if isinstance(weight, tuple):
        return [tensor for part in weight for tensor in tensors_of(part)]
    return [weight] if isinstance(weight, torch.Tensor) else []


def test_the_tower_of_a_vision_model(tmp_path: Path) -> None:
    config = CONFIGS["qwen3-vl-2b"]
    found, both = (needs(tmp_path, config, tp=tp) for tp in (1, 2))
    text = {**config, "architectures": ["Qwen3ForCausalLM"], **config["text_config"]}
    without = needs(tmp_path, {key: value for key, value in text.items() if key != "rope_scaling"})
    assert found.tower_bytes == pytest.approx(2 * 0.407e9, rel=0.01)
    assert found.weight_bytes - without.weight_bytes == found.tower_bytes
    assert both.weight_bytes - found.weight_bytes == found.tower_bytes, "each rank has the whole tower"
    assert without.tower_bytes == 0
    alone = needs(tmp_path, config, text_only=True)
    assert (alone.tower_bytes, alone.weight_bytes, alone.kv_tokens) == (0, without.weight_bytes, without.kv_tokens)
    assert (found.kv_tokens < without.kv_tokens, found.stages, without.stages) == (True, 26, 28)
    assert "tower 775 MiB of the weights, on each rank" in " ".join(as_text(on(GPU_MACHINE, found), []).split())


@pytest.mark.parametrize("kind", ["none", "fp8", "int8", "int4"])
def test_bytes_are_those_of_the_loaded_weights(kind: str, tmp_path: Path, cache_folder: Path) -> None:
    """Of a model so large that norms do not count."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 512}
    path = make_tiny_model(tmp_path / "m", "llama", **sizes)
    found = model_needs(str(path), device="cpu", free_bytes=GIB, dtype="float32", quantization=kind)
    ops = CpuOps(load_kernels(cache_folder / "kernels"))
    model = load_model(path, load_model_spec(path, kind), dtype="float32", device="cpu", ops=ops)
    tensors = [tensor for module in model.modules() for tensor in module.parameters(recurse=False)]
    for module in model.modules():
        # Weights that are no parameters any more, and the plain head beside the quantized one.
        tensors += tensors_of((getattr(module, "_weight", None), getattr(module, "_rows", None)))
    loaded = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
    assert found.weight_bytes == pytest.approx(loaded, rel=0.02)
    assert found.scheme == {"none": "", "fp8": "fp8 rows", "int8": "int8 rows", "int4": "int4 groups"}[kind]


def test_the_floor_of_one_request(tmp_path: Path) -> None:
    found = needs(tmp_path, {**GPT_OSS_20B, "quantization_config": PUBLISHED})
    # 4 of 32 experts; everything else but the embedding.
    assert found.step_bytes == pytest.approx(3.8e9, rel=0.05)
    machine = dataclasses.replace(on(GPU_MACHINE, found), bandwidth={"cpu": 10**10, "cuda": 4 * 10**12})
    text = as_text(machine, [])
    rate = 4e12 / found.step_bytes
    assert f"at most {rate:,.0f} tokens/s for one request, each of which reads 3.6 GiB of weights at 4,000 GB/s" in text
    two = dataclasses.replace(needs(tmp_path, GPT_OSS_20B, tp=2), step_bytes=found.step_bytes)
    assert f"at most {2 * rate:,.0f} tokens/s" in as_text(dataclasses.replace(machine, model=two), [])
    assert "tokens/s" not in as_text(on(GPU_MACHINE, found), [])  # where the bandwidth is not known


def test_an_option_that_the_model_cannot_have(tmp_path: Path) -> None:
    published = {**GPT_OSS_20B, "quantization_config": PUBLISHED}
    assert "stored as mxfp4 experts" in needs(tmp_path, published, quantization="int8").problem


def test_a_checkpoint_whose_tensors_do_not_fit(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m", "llama")
    assert probe(f"checkpoint={path}") == {"problem": ""}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    problem = probe(f"checkpoint={path}")["problem"]
    assert "missing: model.layers.3" in problem
    found = model_needs(str(path), device="cpu", free_bytes=GIB)
    (finding,) = advise(dataclasses.replace(on(CPU_MACHINE, found), checkpoint=problem))
    assert (finding.severity, finding.what) == ("error", problem)
    (path / "model.safetensors").unlink()
    assert probe(f"checkpoint={path}") == {"problem": ""}


def test_how_many_tokens_host_memory_and_a_disk_keep(tmp_path: Path) -> None:
    found = needs(tmp_path, GPT_OSS_20B)
    text = as_text(dataclasses.replace(on(GPU_MACHINE, found), memory_left=8 * GIB), [])
    assert "--kv-host-gib 1 keeps 21,845 tokens; 8.0 GiB of memory are left" in text
    assert "disk " not in text
    disk = Disk("/data", 100 * GIB, 1.2e9, 1.8e9)
    text = as_text(dataclasses.replace(on(GPU_MACHINE, found), disk=disk), [])
    assert "/data writes 1,200 MB/s and reads 1,800 MB/s, 100.0 GiB free" in text
    assert "a prefix of 8,192 tokens (384 MiB) loads in 0.22 s" in text
    on_cpu = needs(tmp_path, LLAMA, device="cpu")
    facts = dataclasses.replace(on(CPU_MACHINE, on_cpu), memory_left=on_cpu.weight_bytes + GIB)
    assert "1.0 GiB are left for it and the KV cache" in as_text(facts, [])
    assert "no memory is left for it" in as_text(dataclasses.replace(facts, memory_left=on_cpu.weight_bytes), [])
    hybrid = dataclasses.replace(on_cpu, state_bytes=4096, num_states=8)
    line = next(line for line in as_text(on(CPU_MACHINE, hybrid), []).splitlines() if line.startswith("host tier"))
    assert "tokens, of which the state of each prefix takes" in line


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBE_BYTES", 4 << 20)
    prober = probes.Prober()
    disk = prober.ask("disk", lambda: probes._disk(tmp_path), None)
    assert disk is not None
    assert disk.write_rate > 0 < disk.read_rate
    assert list(tmp_path.iterdir()) == []
    assert prober.ask("disk", lambda: probes._disk(tmp_path / "none"), None) is None
    assert "is not a folder" in prober.unknown["disk"]


def test_the_format_of_tool_calls_is_named(tmp_path: Path) -> None:
    config = {"chat_template": TEMPLATES["qwen_3_coder"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = needs(tmp_path, LLAMA)
    assert any("in the format qwen_3_coder" in note for note in found.notes)
