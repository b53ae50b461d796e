"""How the weights of each module are stored, by the configs of each producer; everything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.per_layer import PerLayer
from radixrt.layers.formats.registry import read_quantization
from radixrt.layers.ops import TorchOps
from radixrt.models.model_config import load_model_spec
from tests.layers.formats.formats import CASES, awq, compressed, compressed_int, fp8_blocks, gptq, modelopt

LAYER = "model.layers.0"
INT4 = compressed_int(4, 128)


def read(config: Any, **fields: Any) -> PerLayer:
    found = read_quantization(
        {"num_hidden_layers": 2, "quantization_config": config, **fields}, decodes=True, stacked_experts=False
    )
    assert isinstance(found, PerLayer)
    return found


def said(config: dict[str, Any], *modules: str) -> list[str | None]:
    """How modules are stored."""
    found = read(config)
    return [None if (stored := found.stored(module)) is None else str(stored) for module in modules]


SCHEMES = {
    "ct-fp8-tensor": "fp8 rows",
    "ct-fp8-channel": "fp8 rows",
    "ct-fp8-block": "fp8 blocks of 16 x 32",
    "ct-mxfp8": "fp8 groups of 32",
    "ct-int8-channel": "int8 rows",
    "ct-int4": "int4 groups of 16",
    "ct-int4-channel": "int4 rows",
    "ct-int8-packed": "int8 groups of 16",
    "ct-nvfp4": "fp4 groups of 16",
    "ct-mxfp4": "fp4 groups of 32",
    "fp8-block": "fp8 blocks of 16 x 32",
    "fp8-tensor": "fp8 rows",
    "modelopt-fp8": "fp8 rows",
    "modelopt-fp8-channel": "fp8 rows",
    "modelopt-fp8-block": "fp8 blocks of 128 x 128",
    "modelopt-nvfp4": "fp4 groups of 16",
    "awq": "int4 groups of 16",
    "gptq": "int4 groups of 16",
    "gptq-channel": "int4 rows",
    "gptq-int8": "int8 groups of 16",
}


@pytest.mark.parametrize("name", SCHEMES)
def test_all_linear_layers_but_the_head_are_quantized(name: str) -> None:
    config = CASES[name].config
    expected = [SCHEMES[name]] * 2 + [None]
    assert said(config, f"{LAYER}.self_attn.q_proj", f"{LAYER}.mlp.experts.7.down_proj", "lm_head") == expected
    assert read(config).scheme == SCHEMES[name]
    assert read(config) == read(json.loads(json.dumps(config)))
    assert hash(read(config)) == hash(read(config))


def test_compressed_tensors_prefers_paths_to_patterns_to_classes() -> None:
    fp8 = {"num_bits": 8, "type": "float", "strategy": "channel"}
    config = {
        **compressed("mixed-precision"),
        "config_groups": {
            "a": {
                "targets": ["Linear"],
                "weights": INT4["config_groups"]["group_0"]["weights"],
                "format": "pack-quantized",
            },
            "b": {"targets": [r"re:.*self_attn\.[qkv]_proj$"], "weights": fp8, "format": "float-quantized"},
            "c": {
                "targets": [f"{LAYER}.self_attn.q_proj"],
                "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                "format": "int-quantized",
            },
        },
        "ignore": ["lm_head", r"re:.*\.down_proj$", f"{LAYER}.self_attn.o_proj"],
    }
    assert said(
        config,
        f"{LAYER}.self_attn.q_proj",
        f"{LAYER}.self_attn.k_proj",
        f"{LAYER}.self_attn.o_proj",
        f"{LAYER}.mlp.up_proj",
        f"{LAYER}.mlp.down_proj",
        "model.layers.1.self_attn.o_proj",
    ) == ["int8 rows", "fp8 rows", None, "int4 groups of 128", None, "int4 groups of 128"]
    assert read(config).scheme == "int8 rows + int4 groups of 128 + fp8 rows"


@pytest.mark.parametrize("part", ["model.language_model.", "language_model.model."])
def test_modules_of_a_vision_model_have_their_own_names(part: str) -> None:
    config = compressed_int(4, 128, ignore=["re:.*visual.*", "lm_head", f"{part}layers.0.mlp.up_proj"])
    assert said(config, f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj") == [None, "int4 groups of 128"]
    blocks = {**fp8_blocks(128, 128), "modules_to_not_convert": ["model.visual", f"{part}layers.0.mlp"]}
    assert said(blocks, f"{LAYER}.mlp.up_proj", "model.layers.1.mlp.up_proj") == [None, "fp8 blocks of 128 x 128"]


def test_fp8_lists_modules_by_whole_names() -> None:
    """ "mlp.gate" is a router, and no beginning of "mlp.gate_proj"; "layers.1" is none of "layers.10"."""
    names = ["lm_head", f"{LAYER}.mlp.gate", "model.layers.1", "shared_expert_gate"]
    for field in ("modules_to_not_convert", "ignored_layers"):
        config = {**fp8_blocks(128, 128), "modules_to_not_convert": None, field: names}
        modules = [
            f"{LAYER}.mlp.gate_proj",
            "model.layers.10.mlp.up_proj",
            f"{LAYER}.mlp.gate",
            "model.layers.1.mlp.up_proj",
        ]
        quantized = "fp8 blocks of 128 x 128"
        assert said(config, *modules, f"{LAYER}.mlp.shared_expert_gate") == [quantized, quantized, None, None, None]


def test_awq_lists_parts_of_names() -> None:
    config = awq(128, modules_to_not_convert=["visual", "mlp.gate.", "shared_expert"])
    modules = [f"{LAYER}.mlp.experts.0.up_proj", f"{LAYER}.mlp.shared_expert.up_proj", "lm_head"]
    assert said(config, *modules) == ["int4 groups of 128", None, None]
    old = {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True, "version": "GEMM"}
    assert said(old, modules[0]) == ["int4 groups of 64"]


def test_gptq_takes_the_first_rule_that_matches() -> None:
    config = gptq(
        4,
        128,
        lm_head=True,
        dynamic={
            r"-:model\.layers\.0\.mlp\.down.*": {},
            r"+:.*\.0\..*down.*": {"bits": 8},
            r".*\.1\..*(?:up|gate).*": {"bits": 8, "group_size": 64},
        },
    )
    modules = [f"model.layers.{i}.mlp.{name}_proj" for i in (0, 1) for name in ("down", "up")]
    eight, four = "int8 groups of 64", "int4 groups of 128"
    assert said(config, *modules, "lm_head") == [None, four, four, eight, four]


def test_modelopt_lists_wildcards_and_layers() -> None:
    config = modelopt("NVFP4", ignore=["lm_head", "*self_attn*", "model.layers.1.mlp", "mtp*"])
    modules = [f"model.layers.{i}.{name}" for i in (0, 1) for name in ("self_attn.q_proj", "mlp.up_proj")]
    assert said(config, *modules) == [None, "fp4 groups of 16", None, None]
    layers = {modules[0]: {"quant_algo": "FP8"}, modules[1]: {"quant_algo": "NVFP4", "group_size": 16}}
    mixed = modelopt("MIXED_PRECISION", ignore=None, quantized_layers=layers)
    assert said(mixed, *modules, "lm_head") == ["fp8 rows", "fp4 groups of 16", None, None, None]


def test_modelopts_own_file_is_read(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64, "intermediate_size": 112,
        "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    details = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    file = {"producer": {"name": "modelopt", "version": "0.19.0"}, "quantization": details}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(file))
    decoder = load_model_spec(tmp_path).decoder
    assert decoder is not None
    assert decoder.quantization == read(modelopt("FP8"), num_hidden_layers=3)


def test_a_tied_head_is_plain() -> None:
    config = compressed_int(4, 128, ignore=[])
    assert said(config, "lm_head") == ["int4 groups of 128"]
    assert read(config, tie_word_embeddings=True).stored("lm_head") is None


def test_files_are_believed_more_than_the_config() -> None:
    head, up, down = "lm_head", f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.down_proj"
    config = modelopt("NVFP4", ignore=[])
    dtypes = {
        f"{head}.weight": "BF16",
        f"{up}.weight": "BF16",
        f"{down}.weight": "U8",
        f"{down}.weight_scale": "F8_E4M3",
    }
    found = read(config).of_files(dtypes)
    assert isinstance(found, PerLayer)
    assert [found.stored(path) is None for path in (head, up, down)] == [True, True, False]
    with pytest.raises(ModelLoadError, match=rf"{down} is not quantized, but {down}\.weight holds U8"):
        read(modelopt("NVFP4", ignore=["*down_proj"])).of_files(dtypes)
    tied = read(config).of_files({f"{down}.weight": "U8"})
    assert isinstance(tied, PerLayer)
    assert tied.stored(head) is None


def test_shards_of_a_layer_must_agree() -> None:
    config = compressed_int(4, 64, ignore=[f"{LAYER}.self_attn.k_proj"])
    shards = [whole_weight(f"{LAYER}.self_attn.{name}_proj", 8, 64) for name in "qkv"]
    message = rf"{LAYER}.self_attn.q_proj is stored as int4 .* and {LAYER}.self_attn.k_proj not quantized"
    with pytest.raises(ModelLoadError, match=message):
        read(config).linear(shards, TorchOps())
    gptq_config = gptq(4, 64, dynamic={r".*\.up_proj": {"bits": 8}})
    shards = [whole_weight(f"{LAYER}.mlp.{name}_proj", 8, 64) for name in ("gate", "up")]
    with pytest.raises(ModelLoadError, match=r"gate_proj is stored as int4 .*up_proj stored as int8 groups of 64"):
        read(gptq_config).linear(shards, TorchOps())
    with pytest.raises(ModelLoadError, match="experts with desc_act are not supported"):
        read(gptq(4, 64, desc_act=True)).experts(shards, shards[:1], TorchOps())


def test_memory_is_estimated_by_layer() -> None:
    def share(config: dict[str, Any], what: Any = "linear", device: str = "cuda") -> float:
        return read(config).num_bytes(what, 10**6, 2, device) / 10**6

    assert share(CASES["fp8-tensor"].config) == pytest.approx(1.0)
    assert share(CASES["fp8-tensor"].config, device="cpu") == pytest.approx(2.0)
    assert share(CASES["ct-nvfp4"].config) == pytest.approx(0.5 + 4 / 16)
    assert share(CASES["ct-nvfp4"].config, device="cpu") == pytest.approx(1 + 4 / 16)
    assert share(compressed_int(4, 128)) == pytest.approx(0.5 + 1 / 32)
    assert share(awq(128)) == pytest.approx(0.5 + 2 / 32)
    assert share(compressed_int(4, 128), "experts") == pytest.approx(0.5 + 1 / 32)
    # Half of the sampled modules are plain.
    assert share(compressed_int(4, 128, ignore=["re:.*self_attn.*"])) == pytest.approx((2 + 0.5 + 1 / 32) / 2)


def weights(**changes: Any) -> dict[str, Any]:
    return compressed(
        "pack-quantized", **{"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, **changes}
    )


ROTATED = {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "input"}]}}}
MERGED = {"config_groups": {"u": {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_input"}]}}}
REFUSED = [
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, r"\(bitsandbytes\).*awq or gptq"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, r"\(bitsandbytes\).*float-quantized"),
    ({"quant_method": "fbgemm_fp8"}, r"\(fbgemm_fp8\).* fp8 or compressed-tensors"),
    ({"quant_method": "quanto"}, r"\(quanto\).* compressed-tensors \(int-quantized\)"),
    ({"quant_method": "torchao"}, r"\(torchao\).* fp8"),
    *(
        ({"quant_method": name}, rf"\({name}\).* compressed-tensors \(pack-quantized\), awq or gptq")
        for name in ("aqlm", "hqq", "exl2", "vptq", "spqr", "higgs", "bitnet", "auto-round")
    ),
    (compressed("marlin-24", num_bits=4, type="int", strategy="group", group_size=128), "marlin-24 .*pack-quantized"),
    (compressed("dense", num_bits=4, type="int", strategy="group", group_size=128), "dense .*pack-quantized"),
    (weights(num_bits=3), "pack-quantized with int weights of 3 bits is not supported; use pack-quantized"),
    (weights(group_size=None), "group_size must be a positive number, not None"),
    (weights(strategy="token"), "strategy 'token' is not supported"),
    (weights(new_field=1), "weights: new_field is not supported"),
    (compressed("int-quantized", num_bits=8, type="int", strategy="channel", symmetric=False), "asymmetric int"),
    (compressed("float-quantized", num_bits=4, type="float", strategy="channel"), "float weights of 4 bits"),
    ({**INT4, "sparsity_config": {"format": "sparse-24-bitmask"}}, r"sparsity_config \(sparse-24-bitmask\)"),
    ({**INT4, "transform_config": ROTATED}, r"transform_config: u rotates activations \(input\)"),
    ({**INT4, "config_groups": {}}, "config_groups must describe groups"),
    ({**INT4, "moe_sparsity_config": {"method": "prune"}}, "moe_sparsity_config is not supported"),
    ({**INT4, "ignore": "lm_head"}, "ignore must list names"),
    ({**fp8_blocks(128, 128), "fmt": "e5m2"}, "fmt 'e5m2' is not supported; use e4m3"),
    ({**fp8_blocks(128, 128), "weight_block_size": [128]}, "weight_block_size must be two"),
    ({**fp8_blocks(128, 128), "extra": 1}, "extra is not supported for fp8"),
    (modelopt("W4A8_AWQ"), "quant_algo 'W4A8_AWQ' is not supported; use FP8"),
    (modelopt("MIXED_PRECISION"), "quantized_layers must give"),
    (awq(128, version="gemv"), "version 'gemv' is not supported for awq; use gemm"),
    (awq(128, bits=8), "bits 8 is not supported for awq; use 4 bits"),
    (awq(128, group_size=0), "group_size must be -1"),
    (gptq(3, 128), "bits 3 is not supported for gptq; use 4 or 8 bits"),
    (gptq(4, 128, checkpoint_format="marlin"), "checkpoint_format 'marlin' is not supported; use gptq or gptq_v2"),
    (gptq(4, 128, is_marlin_format=True), "is_marlin_format is not supported"),
    (gptq(4, 128, dynamic={"+:[": {}}), "is no regular expression"),
    (gptq(4, 128, dynamic={"+:a": {"adapter": 1}}), r"dynamic: \+:a: only bits"),
    (gptq(4, 128, adapter={"rank": 8}), "adapter is not supported for gptq"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_everything_else_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json: quantization_config.*{message}"):
        read(config)


def test_rotations_that_the_weights_contain_are_accepted() -> None:
    assert said({**INT4, "transform_config": MERGED}, f"{LAYER}.mlp.up_proj") == ["int4 groups of 128"]
