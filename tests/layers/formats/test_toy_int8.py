"""A weight format of its own, in this file alone: rows of int8 with a scale, from the checkpoint to the logits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.errors import ModelLoadError
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats import registry
from radixrt.layers.formats.base import Quantization, StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import ALL, Projection, Units, sources
from radixrt.layers.linear import Linear
from radixrt.layers.ops import LayerOps
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

PLAIN = ["model.layers.1.mlp", "lm_head"]
"""Modules that are not quantized. Layer 1 mixes both: its attention is."""
ROUTERS = (".mlp.gate.weight", ".shared_expert_gate.weight")


class Rows(NamedTuple):
    """int8 [..., rows, columns], and float32 [..., rows, 1]."""

    codes: torch.Tensor
    scales: torch.Tensor


class Int8Rows(WeightFormat):
    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        rows, columns = sum(each.height for each in projections), projections[0].width
        codes = [t for p in projections for t in sources(p, "weight", dtype="int8", numbers="codes")]
        scales = [
            t for p in projections for t in sources(p, "weight_scale", Units(1, ALL), dtype="float32", dummy=0.02 / 74)
        ]
        return {
            "weight": StoredParameter((rows, columns), torch.int8, tuple(codes)),
            "weight_scale": StoredParameter((rows, 1), torch.float32, tuple(scales)),
        }

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Rows:
        return Rows(tensors["weight"], tensors["weight_scale"])

    def expert(self, weight: Rows, index: int) -> Rows:
        return Rows(weight.codes[index], weight.scales[index])

    def linear(self, weight: Rows, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._ops.linear(x, (weight.codes * weight.scales).to(x.dtype), bias)


@dataclass(frozen=True)
class ToyQuantization(Quantization):
    plain: tuple[str, ...]

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        answers = {is_in(each.name, self.plain) for each in projections}
        if len(answers) > 1:
            names = ", ".join(each.name for each in projections)
            raise ModelLoadError(f"quantization_config: only some of {names} are quantized")
        return None if answers == {True} else Int8Rows(ops)

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        return self.linear([*gate_up, *down], ops)

    def num_bytes(self, what: str, numbers: int, item: int, device: str) -> int:
        return numbers


def read_toy(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    return ToyQuantization(tuple(config["quantization_config"]["modules_to_not_convert"]))


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.READERS, "toy-int8", f"{__name__}:read_toy")


def is_in(module: str, modules: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{each}.") for each in modules)


def is_quantized(name: str, tensor: torch.Tensor) -> bool:
    is_weight = name.startswith("model.layers.") and name.endswith(".weight") and tensor.dim() == 2
    return is_weight and not name.endswith(ROUTERS) and not is_in(name, PLAIN)


def quantized(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The tensors of a checkpoint in the toy's format, and those of the same model in float32."""
    stored, plain = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if is_quantized(name, tensor):
            scale = tensor.abs().amax(1, keepdim=True) / 127
            codes = (tensor / scale).round().to(torch.int8)
            stored |= {name: codes, f"{name}_scale": scale}
            plain[name] = codes * scale
    return stored, plain


def make_models(folder: Path, kind: str, plain_modules: list[str] = PLAIN, **overrides: Any) -> tuple[Path, Path]:
    """Folders of a quantized model, and of the same one in float32."""
    packed, plain = (make_tiny_model(folder / name, kind, **overrides) for name in ("packed", "plain"))
    for path, tensors in zip((packed, plain), quantized(load_file(plain / "model.safetensors")), strict=True):
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "toy-int8", "modules_to_not_convert": plain_modules}
    (packed / "config.json").write_text(json.dumps(config))
    return packed, plain


def load(folder: Path, group: ThreadGroup | None = None, **options: Any) -> Decoder:
    options = {"dtype": "float32", "device": "cpu", "group": group, **options}
    model = load_model(folder, load_model_spec(folder), **options)
    assert isinstance(model, Decoder)
    return model


KINDS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen3_moe": {},
    "qwen3_next": {},  # its rows are divided among blocks, and it has a shared expert
}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_dequantized_model(kind: str, ranks: int, tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, kind, **KINDS[kind])
    expected = run_in_steps(load(plain), sequences())
    for found in on_ranks(ranks, lambda group: run_in_steps(load(packed, group), sequences())):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_layer_has_the_format_that_the_checkpoint_has(kind: str, tmp_path: Path) -> None:
    model = load(make_models(tmp_path, kind, **KINDS[kind])[0])
    seen = set()
    for path, module in model.named_modules():
        if isinstance(module, (Linear, FusedExperts)):
            weights = [p for name, p in module.named_parameters() if name.endswith(("weight", "proj"))]
            is_plain = path == "lm_head" or (path.startswith("layers.1.") and "feed_forward" in path)
            assert {p.dtype for p in weights} == {torch.float32 if is_plain else torch.int8}, path
            seen.add(is_plain)
    assert seen == {True, False}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_make_slices_of_the_same_random_model(kind: str, tmp_path: Path) -> None:
    folder = make_models(tmp_path, kind, **KINDS[kind])[0]
    (folder / "model.safetensors").unlink()
    whole = run_in_steps(load(folder, load_format="dummy"), sequences(1))
    assert whole[0].std() > 0
    for found in on_ranks(2, lambda group: run_in_steps(load(folder, group, load_format="dummy"), sequences(1))):
        torch.testing.assert_close(found[0], whole[0], atol=1e-4, rtol=0)


def test_a_rank_holds_its_rows_or_columns_alone(tmp_path: Path) -> None:
    folder = make_models(tmp_path, "llama")[0]
    whole = dict(load(folder).named_parameters())
    for rank, found in enumerate(on_ranks(2, lambda group: dict(load(folder, group).named_parameters()))):
        down = found["layers.0.feed_forward.down_proj.weight"]
        assert torch.equal(down, whole["layers.0.feed_forward.down_proj.weight"][:, 56 * rank :][:, :56])
        scale = found["layers.0.feed_forward.down_proj.weight_scale"]
        assert torch.equal(scale, whole["layers.0.feed_forward.down_proj.weight_scale"])
        gate, up = whole["layers.0.feed_forward.gate_up_proj.weight_scale"].chunk(2)
        part = slice(56 * rank, 56 * rank + 56)
        assert torch.equal(found["layers.0.feed_forward.gate_up_proj.weight_scale"], torch.cat((gate[part], up[part])))


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    folder = make_models(tmp_path, "llama")[0]
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file({**tensors, name: tensors[name].float()}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"{name} holds torch\.float32, but codes are stored as torch\.int8"):
        load(folder)
    del tensors[f"{name}_scale"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match=rf"missing: {name}_scale$"):
        load(folder)
    with pytest.raises(ModelLoadError, match=r"only some of .*q_proj"):
        load(make_models(tmp_path / "mixed", "llama", plain_modules=["model.layers.0.self_attn.q_proj"])[0])
