"""One quantization_config for each way in which a checkpoint can store a weight, with a packer of such weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from tests.layers.formats import packers
from tests.layers.formats.packers import Packer


class Case(NamedTuple):
    """A config, a packer, and the numbers that its outputs and inputs must be multiples of."""

    config: dict[str, Any]
    packer: Packer
    outputs: int = 1
    inputs: int = 1


def compressed(kind: str, *, ignore: list[str] | None = None, **weights: Any) -> dict[str, Any]:
    """A config as llm-compressor writes it, with one group."""
    group = {
        "targets": ["Linear"],
        "weights": {"dynamic": False, "symmetric": True, "observer": "minmax", **weights},
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"] if ignore is None else ignore,
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
    }


def compressed_int(bits: int, group: int, **weights: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    return compressed("pack-quantized", num_bits=bits, type="int", **strategy, **weights)


def fp8_blocks(rows: int, columns: int) -> dict[str, Any]:
    return {
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [rows, columns],
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip


def gptq(bits: int, group: int, **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "gptq", "bits": bits, "group_size": group or -1, "sym": True, "desc_act": False,
        "checkpoint_format": "gptq", "pack_dtype": "int32", "lm_head": False, "damp_percent": 0.05,
        "true_sequential": True, "meta": {"quantizer": ["gptqmodel:2.2.0"]}, **fields,
    }  # fmt: skip


def awq(group: int, **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "awq", "bits": 4, "group_size": group or -1, "version": "gemm", "zero_point": True,
        "modules_to_not_convert": None, **fields,
    }  # fmt: skip


def modelopt(algorithm: str, **fields: Any) -> dict[str, Any]:
    return {
        "quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"],
        "producer": {"name": "modelopt", "version": "0.33.0"}, **fields,
    }  # fmt: skip


FLOAT8: dict[str, Any] = {"num_bits": 8, "type": "float"}
E8M0 = torch.float8_e8m0fnu
CASES = {
    "ct-fp8-tensor": Case(
        compressed("float-quantized", strategy="tensor", **FLOAT8), packers.floats((0, 0), shape="flat")
    ),
    "ct-fp8-channel": Case(
        compressed("float-quantized", strategy="channel", **FLOAT8), packers.floats((1, 0), dtype=torch.bfloat16)
    ),
    "ct-fp8-block": Case(
        compressed("float-quantized", strategy="block", block_structure=[16, 32], **FLOAT8),
        packers.floats((16, 32), dtype=torch.bfloat16),
    ),
    "ct-mxfp8": Case(
        compressed("mxfp8-quantized", strategy="group", group_size=32, scale_dtype="torch.uint8", **FLOAT8),
        packers.floats((1, 32), name="exponents", dtype=E8M0),
    ),
    "ct-int8-channel": Case(
        compressed("int-quantized", strategy="channel", num_bits=8, type="int"), packers.integers()
    ),
    "ct-int8-tensor": Case(
        compressed("int-quantized", strategy="tensor", num_bits=8, type="int"), packers.integers(per_tensor=True)
    ),
    "ct-int4": Case(compressed_int(4, 16), packers.compressed_ints(4, 16)),
    "ct-int4-channel": Case(compressed_int(4, 0), packers.compressed_ints(4, 0)),
    "ct-int4-asymmetric": Case(
        compressed_int(4, 16, symmetric=False), packers.compressed_ints(4, 16, symmetric=False)
    ),
    "ct-int4-ordered": Case(
        compressed_int(4, 16, actorder="group"), packers.compressed_ints(4, 16, ordered=True)
    ),
    "ct-int8-packed": Case(compressed_int(8, 16), packers.compressed_ints(8, 16)),
    "ct-int8-packed-asymmetric": Case(
        compressed_int(8, 16, symmetric=False), packers.compressed_ints(8, 16, symmetric=False)
    ),
    "ct-nvfp4": Case(
        compressed("nvfp4-pack-quantized", strategy="tensor_group", group_size=16, num_bits=4, type="float"),
        packers.fp4(16, "nvfp4"),
        inputs=2,
    ),
    "ct-mxfp4": Case(
        compressed("mxfp4-pack-quantized", strategy="group", group_size=32, num_bits=4, type="float"),
        packers.fp4(32, "mxfp4"),
        inputs=2,
    ),
    "fp8-block": Case(fp8_blocks(16, 32), packers.floats((16, 32), name="weight_scale_inv")),
    "fp8-block-bf16": Case(
        fp8_blocks(16, 32), packers.floats((16, 32), name="weight_scale_inv", dtype=torch.bfloat16)
    ),
    "fp8-block-e8m0": Case(fp8_blocks(16, 32), packers.floats((16, 32), name="weight_scale_inv", dtype=E8M0)),
    "fp8-tensor": Case(
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
        packers.floats((0, 0), shape="scalar"),
    ),
    "modelopt-fp8": Case(modelopt("FP8", kv_cache_quant_algo="FP8"), packers.floats((0, 0), shape="scalar")),
    "modelopt-fp8-channel": Case(modelopt("FP8_PER_CHANNEL_PER_TOKEN"), packers.floats((1, 0), shape="flat")),
    "modelopt-fp8-block": Case(modelopt("FP8_PB_WO"), packers.floats((128, 128), shape="blocks")),
    "modelopt-nvfp4": Case(modelopt("NVFP4", group_size=16), packers.fp4(16, "modelopt"), inputs=2),
    "awq": Case(awq(16), packers.awq(16), outputs=8),
    "awq-channel": Case(awq(0), packers.awq(0), outputs=8),
    "awq-symmetric": Case(awq(16, zero_point=False), packers.awq(16, zero_point=False), outputs=8),
    "gptq": Case(gptq(4, 16), packers.gptq(4, 16), outputs=8),
    "gptq-channel": Case(gptq(4, 0), packers.gptq(4, 0), outputs=8),
    "gptq-asymmetric": Case(gptq(4, 16, sym=False), packers.gptq(4, 16, symmetric=False), outputs=8),
    "gptq-v2": Case(
        gptq(4, 16, sym=False, checkpoint_format="gptq_v2"),
        packers.gptq(4, 16, symmetric=False, version=2),
        outputs=8,
    ),
    "gptq-ordered": Case(gptq(4, 16, desc_act=True), packers.gptq(4, 16, ordered=True), outputs=8),
    "gptq-int8": Case(gptq(8, 16), packers.gptq(8, 16), outputs=4),
    "gptq-int8-asymmetric": Case(
        gptq(8, 16, sym=False), packers.gptq(8, 16, symmetric=False), outputs=4
    ),
}  # fmt: skip
