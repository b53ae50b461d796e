"""Conversion of a GGUF file to a Hugging Face folder: config.json, the tokenizer's files and model.safetensors.

Every field of the file that would change the result is converted or refused by name.
"""

from __future__ import annotations

import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radixrt.errors import ModelLoadError
from radixrt.models.families import FAMILIES
from radixrt.models.families.family import Family, GGUFFiles
from radixrt.models.loading.gguf_file import GGUFFile
from radixrt.models.loading.gguf_tokenizer import write_tokenizer
from radixrt.models.loading.gguf_weights import WrittenTensor, mean_bits, packed_types, write_weights

logger = logging.getLogger(__name__)

READ_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "vocab_size",
    "expert_count",
    "expert_used_count",
}
HARMLESS_KEYS = {"tensor_data_layout", "use_parallel_residual", "rope.scaling.finetuned", "attention.causal"}

TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDING = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
PLAIN_TYPES = {"F32", "F16", "BF16", "F64"}


def convert_gguf(path: Path, folder: Path, dtype: str, *, packed: bool = False, show_progress: bool) -> None:
    """Write `path` as a Hugging Face folder with weights in `dtype` ("bfloat16" or "float32").

    Args:
        packed: keep the linear layers and the output head in few bits, where their type is one of `PACKED_TYPES`; a
            tied head is then written beside the embedding.

    Raises:
        ModelLoadError: the file is malformed or has an unsupported feature; the message names it.
    """
    file = GGUFFile(path)
    config, files = model_config(file, dtype)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = _written_tensors(file, heads if files.rotated_pairs else {}, packed=packed)
    if types := {each.name.removesuffix(".weight"): each.kind for each in tensors if each.kind is not None}:
        config["quantization_config"] = {
            "quant_method": "gguf",
            "types": types,
            "bits_per_weight": mean_bits(file, tensors, dtype),
        }
    write_tokenizer(file.metadata, folder, config["max_position_embeddings"])
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(file.metadata))
    write_weights(file, tensors, folder / "model.safetensors", dtype, show_progress=show_progress)


def _written_tensors(file: GGUFFile, heads: dict[str, int], *, packed: bool) -> list[WrittenTensor]:
    """Return what is written of a file.

    Args:
        heads: of the tensors whose rows are in another order than in transformers, by their kind.
        packed: see `convert_gguf`.
    """
    names = {name: _hub_name(name) for name in file.tensors if name != ROPE_FACTORS}
    types = packed_types(file, names) if packed else {}
    head = WrittenTensor(EMBEDDING, "lm_head.weight", types.pop(EMBEDDING, None))
    tensors = [
        WrittenTensor(name, hub_name, types.get(name), heads.get(name.split(".")[-2], 0))
        for name, hub_name in names.items()
    ]
    if packed and (expanded := {file.kind(each.source) for each in tensors if _is_expanded(file, each)}):
        logger.info("%s: tensors of type %s are expanded", file.path.name, ", ".join(sorted(expanded)))
    tied = "output.weight" not in file.tensors
    return [*tensors, head] if tied and head.kind is not None else tensors


def _is_expanded(file: GGUFFile, tensor: WrittenTensor) -> bool:
    """Return True if the weight of a linear layer loses its packing."""
    matrix = len(file.tensors[tensor.source].shape) == 2 and tensor.source != EMBEDDING
    return matrix and tensor.kind is None and file.kind(tensor.source) not in PLAIN_TYPES


def model_config(file: GGUFFile, dtype: str) -> tuple[dict[str, Any], GGUFFiles]:
    """Return config.json for the file, and what its family says of such files. Raises ModelLoadError as `convert_gguf`
    does."""
    meta = file.metadata
    architecture = meta.get("general.architecture")
    known = dict.fromkeys(family.gguf.architecture for family in FAMILIES if family.gguf is not None)
    if architecture not in known:
        raise ModelLoadError(f"GGUF architecture {architecture!r} is not supported; {', '.join(known)} are")
    _refuse_unknown(architecture, meta)

    def get(key: str, default: Any = None) -> Any:
        value = meta.get(f"{architecture}.{key}", default)
        if value is None:
            raise ModelLoadError(f"the GGUF file has no {architecture}.{key}")
        if isinstance(value, list):
            raise ModelLoadError(f"GGUF: {architecture}.{key} differs between layers, which is not supported")
        return value

    hidden, heads = get("embedding_length"), get("attention.head_count")
    head_dim = get("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_dim) != head_dim:
            raise ModelLoadError(f"GGUF: {architecture}.{key} {get(key)} differs from the head size {head_dim}")
    window = get("attention.sliding_window", 0)
    family, files = _find_family(architecture, has_window=bool(window))
    config = {
        "architectures": [family.architectures[0]],
        "model_type": files.model_type,
        "vocab_size": _shape(file, "token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": _decimal(get("attention.layer_norm_rms_epsilon")),
        "rope_theta": _decimal(get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(file, architecture, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": dtype,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }
    if files.has_window:
        config["sliding_window"] = window
    if files.has_bias_field:
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return config, files


def _find_family(architecture: str, *, has_window: bool) -> tuple[Family, GGUFFiles]:
    for family in FAMILIES:
        files = family.gguf
        if files is not None and (files.architecture, files.has_window) == (architecture, has_window):
            return family, files
    raise ModelLoadError(f"GGUF: {architecture}.attention.sliding_window is not supported")


def _refuse_unknown(architecture: str, meta: dict[str, Any]) -> None:
    prefix = f"{architecture}."
    keys = {key.removeprefix(prefix) for key in meta if key.startswith(prefix)}
    if unknown := sorted(keys - READ_KEYS - HARMLESS_KEYS - {"rope.scaling.original_context_length"}):
        raise ModelLoadError(f"GGUF: {', '.join(prefix + key for key in unknown)} is not supported")
    if meta.get(prefix + "expert_count", 0):
        raise ModelLoadError(f"GGUF: mixtures of experts ({prefix}expert_count) are not supported")
    if meta.get("split.count", 1) > 1:
        raise ModelLoadError("GGUF: the model is split into several files (split.count); merge them with gguf-split")
    if not meta.get(prefix + "attention.causal", True):
        raise ModelLoadError(f"GGUF: {prefix}attention.causal is false: not a causal language model")


def _rope_scaling(file: GGUFFile, architecture: str, head_dim: int) -> dict[str, Any] | None:
    kind = file.metadata.get(f"{architecture}.rope.scaling.type", "none")
    factor = file.metadata.get(f"{architecture}.rope.scaling.factor", 1.0)
    if kind not in ("none", "linear"):
        raise ModelLoadError(f"GGUF: {architecture}.rope.scaling.type {kind!r} is not supported; none and linear are")
    if ROPE_FACTORS in file.tensors:
        if kind != "none":
            raise ModelLoadError(f"GGUF: {ROPE_FACTORS} together with rope.scaling.type {kind!r} is not supported")
        theta = file.metadata.get(f"{architecture}.rope.freq_base", 10000.0)
        return _llama3_scaling(file.read(ROPE_FACTORS), theta, head_dim)
    return {"rope_type": "linear", "factor": _decimal(factor)} if kind == "linear" and factor != 1.0 else None


def _llama3_scaling(factors: npt.NDArray[np.float32], theta: float, head_dim: int) -> dict[str, Any]:
    """Return the rope_scaling of Llama 3.1 and later, which GGUF stores as the divisor of each frequency."""
    largest = float(factors.max())
    for original in (8192, 4096, 16384, 32768):
        low, high = 1.0, 4.0
        wavelen = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
        smooth = np.clip((original / wavelen - low) / (high - low), 0.0, 1.0)
        expected = 1.0 / ((1 - smooth) / largest + smooth)
        if expected.shape == factors.shape and np.allclose(expected, factors, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": _decimal(largest),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelLoadError(f"GGUF: {ROPE_FACTORS} holds factors that are not those of Llama 3")


def _decimal(value: float) -> float:
    """Return the short decimal that was rounded to float32: 1e-05 for 9.9999997e-06."""
    return float(f"{value:.6g}")


def _generation_config(meta: dict[str, Any]) -> dict[str, Any]:
    ids = [meta.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return {
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": sorted({i for i in ids if i is not None}),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def _shape(file: GGUFFile, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ModelLoadError(f"the GGUF file has no tensor {name}")
    return file.tensors[name].shape


def _hub_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in LAYER_TENSORS:
        return f"model.layers.{layer[1]}.{LAYER_TENSORS[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    if stem in TENSORS and kind == "weight":
        return f"{TENSORS[stem]}.{kind}"
    raise ModelLoadError(f"GGUF: the tensor {name} is not supported")


def _write_json(path: Path, data: dict[str, Any]) -> None:
    present = {key: value for key, value in data.items() if value is not None}
    path.write_text(json.dumps(present, indent=2), encoding="utf-8")
