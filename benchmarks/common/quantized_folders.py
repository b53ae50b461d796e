"""Folders of quantized models as other tools write them, made from a folder of plain weights.

The weights of linear layers are rounded to the nearest numbers, without calibration. Embedding and output head stay
plain.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FP8_MAX, BLOCK = 448.0, 128

Tensors = dict[str, torch.Tensor]


def fp8_rows(weight: torch.Tensor) -> Tensors:
    """Float8 codes, and a scale for each row."""
    scale = _scale(weight.float().abs().amax(dim=1, keepdim=True) / FP8_MAX)
    return {"weight": _e4m3(weight.float() / scale), "weight_scale": scale}


def fp8_blocks(weight: torch.Tensor) -> Tensors:
    """Float8 codes, and a scale for each block of 128 x 128; blocks at the end may be smaller."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = _scale(blocks.abs().amax(dim=(1, 3)) / FP8_MAX)
    wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[:rows, :columns]
    return {"weight": _e4m3(weight.float() / wide), "weight_scale_inv": scale}


def int8_rows(weight: torch.Tensor) -> Tensors:
    """Integers of 8 bits, and a scale for each row."""
    scale = _scale(weight.float().abs().amax(dim=1, keepdim=True) / 127.0)
    return {"weight": (weight.float() / scale).round().to(torch.int8), "weight_scale": scale}


def int4_groups(weight: torch.Tensor, group: int) -> Tensors:
    """Integers of 4 bits, eight in an int32, and a scale for each group of columns of a row."""
    groups = weight.float().unflatten(1, (-1, group))
    scale = _scale(groups.abs().amax(dim=2) / 7.5).bfloat16()
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7).flatten(1).long() + 8
    packed = (codes.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(dim=2)
    return {
        "weight_packed": (packed - (packed >> 31 << 32)).to(torch.int32),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }


def _scale(scale: torch.Tensor) -> torch.Tensor:
    """Return float32 scales, 1 for weights that are all 0."""
    return torch.where(scale > 0, scale, 1.0)


def _e4m3(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def _compressed(kind: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": activations}},
    }


def _numbers(bits: int, kind: str, strategy: str, *, dynamic: bool = False, group: int | None = None) -> dict[str, Any]:
    found = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": dynamic}
    return {**found, "group_size": group}


def _int4_config(group: int) -> dict[str, Any]:
    return _compressed("pack-quantized", _numbers(4, "int", "group", group=group), None)


WRITERS: dict[str, tuple[Callable[[torch.Tensor], Tensors], dict[str, Any]]] = {
    "fp8-rows": (
        fp8_rows,
        _compressed("float-quantized", _numbers(8, "float", "channel"), _numbers(8, "float", "token", dynamic=True)),
    ),
    "fp8-blocks": (
        fp8_blocks,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]},
    ),
    "int8-rows": (
        int8_rows,
        _compressed("int-quantized", _numbers(8, "int", "channel"), _numbers(8, "int", "token", dynamic=True)),
    ),
    "int4-g32": (lambda weight: int4_groups(weight, 32), _int4_config(32)),
    "int4-g64": (lambda weight: int4_groups(weight, 64), _int4_config(64)),
}
"""By name: the tensors of one weight, and the quantization_config of such a checkpoint."""


def write_quantized(plain: Path, target: Path, name: str) -> Path:
    """Write a quantized copy of a folder; return it.

    Args:
        name: one of WRITERS.
    """
    write, quantization = WRITERS[name]
    target.mkdir(parents=True, exist_ok=True)
    for file in plain.iterdir():
        if file.suffix != ".safetensors" and file.name != "model.safetensors.index.json" and file.is_file():
            shutil.copy(file, target / file.name)
    config = json.loads((plain / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    index: dict[str, str] = {}
    for file in sorted(plain.glob("*.safetensors")):
        tensors: Tensors = {}
        with safe_open(str(file), framework="pt") as opened:
            for path in opened.keys():  # noqa: SIM118 (not a dict)
                module, _, kind = path.rpartition(".")
                tensor = opened.get_tensor(path)
                if kind == "weight" and module.endswith(PROJECTIONS):
                    tensors |= {f"{module}.{part}": each.contiguous() for part, each in write(tensor).items()}
                else:
                    tensors[path] = tensor
        save_file(tensors, target / file.name, metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, file.name)
    if len(set(index.values())) > 1:
        (target / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return target
