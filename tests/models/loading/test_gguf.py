"""GGUF files become Hugging Face folders that give the same model and the same tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from radixrt.errors import ModelLoadError
from radixrt.models.loading.gguf import convert_gguf
from radixrt.models.loading.gguf_file import GGUFFile
from radixrt.models.loading.gguf_tokenizer import SPLITS, build_tokenizer
from radixrt.models.loading.source import PreparedModel
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.models.dense_attention import DenseAttention, logits_of, run_in_steps
from tests.models.test_decoder import sequences, transformers_logits
from tests.tiny_models import make_tiny_model

QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path,
    path: Path,
    arch: str,
    extra: dict[str, int] | None = None,
    pre: str = "gpt-2",
    quantize: Callable[[str, np.ndarray], tuple[np.ndarray, str]] | None = None,
) -> None:
    """Write a tiny Hugging Face folder as a GGUF file, as llama.cpp's converter does.

    Args:
        quantize: returns rows of blocks and their GGML type for a GGUF name and a matrix; default: float32.
    """
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    for key, value in (extra or {}).items():
        writer.add_uint32(f"{arch}.{key}", value)
    _add_tokenizer(writer, folder, pre)
    for name, tensor in load_file(folder / "model.safetensors").items():
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
            halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        own, values = _gguf_name(name), np.ascontiguousarray(tensor)
        if quantize is None or values.ndim == 1:
            writer.add_tensor(own, values)
        else:
            blocks, kind = quantize(own, values)
            writer.add_tensor(own, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    if config["tie_word_embeddings"] is False and "lm_head.weight" not in load_file(folder / "model.safetensors"):
        raise AssertionError("an untied model without a head")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in GGUF_NAMES:
        return f"{GGUF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab: dict[str, int] = data["model"]["vocab"]
    special = {token["content"] for token in data["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


@pytest.mark.parametrize(
    ("arch", "kind", "overrides"),
    [
        ("llama", "llama", {}),
        ("llama", "llama", {"tie_word_embeddings": True, "attention_bias": True, "rms_norm_eps": 1e-5}),
        ("llama", "mistral", {}),
        ("qwen2", "qwen2", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}),
        ("qwen3", "qwen3", {}),
    ],
)
def test_a_converted_model_is_the_model(arch: str, kind: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    folder, target = make_tiny_model(tmp_path / "hf", kind, **overrides), tmp_path / "converted"
    extra = {"attention.sliding_window": 8} if kind == "mistral" else {}
    write_gguf(folder, tmp_path / "model.gguf", arch, extra)
    target.mkdir()
    convert_gguf(tmp_path / "model.gguf", target, "float32", show_progress=False)
    original, spec = load_model_spec(folder), load_model_spec(target)
    assert spec.decoder == original.decoder
    assert (spec.vocab_size, spec.context_length) == (original.vocab_size, original.context_length)
    inputs = sequences(1)
    ours = run_in_steps(load_model(target, spec, dtype="float32", device="cpu"), inputs)
    theirs = transformers_logits(folder, inputs)
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("extra", "arch", "pre", "named"),
    [
        ({"expert_count": 8}, "llama", "gpt-2", "expert_count"),
        ({"attention.some_new_thing": 1}, "llama", "gpt-2", "some_new_thing"),
        ({"rope.dimension_count": 8}, "llama", "gpt-2", "rope.dimension_count"),
        ({}, "gemma", "gpt-2", "gemma"),
        ({}, "llama", "klingon", "klingon"),
    ],
)
def test_what_is_not_supported_is_named(extra: dict[str, int], arch: str, pre: str, named: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf")
    write_gguf(folder, tmp_path / "model.gguf", arch, extra, pre)
    with pytest.raises(ModelLoadError, match=named):
        convert_gguf(tmp_path / "model.gguf", tmp_path, "float32", show_progress=False)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf")
    write_gguf(folder, tmp_path / "whole.gguf", "llama")
    data = (tmp_path / "whole.gguf").read_bytes()
    for size in (0, 3, 20, 1000, len(data) - 100):
        (tmp_path / "cut.gguf").write_bytes(data[:size])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            convert_gguf(tmp_path / "cut.gguf", tmp_path, "float32", show_progress=False)


def test_rope_factors_of_llama3_become_its_parameters(tmp_path: Path) -> None:
    from radixrt.layers.rotary import RopeSpec, inverse_frequencies
    from radixrt.models.loading.gguf import _llama3_scaling

    spec = RopeSpec(500000.0, "llama3", 32.0, 1.0, 4.0, 8192)
    factors = inverse_frequencies(RopeSpec(500000.0), 64) / inverse_frequencies(spec, 64)
    scaling = _llama3_scaling(factors.numpy(), 500000.0, 64)
    assert (scaling["factor"], scaling["original_max_position_embeddings"]) == (32.0, 8192)
    with pytest.raises(ModelLoadError, match="rope_freqs"):
        _llama3_scaling(np.linspace(1, 5, 32, dtype=np.float32), 500000.0, 64)


@pytest.mark.parametrize("pre", SPLITS)
def test_every_pre_tokenizer_keeps_the_text(pre: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf")
    write_gguf(folder, tmp_path / "model.gguf", "llama", pre=pre)
    tokenizer = build_tokenizer(GGUFFile(tmp_path / "model.gguf").metadata)
    text = "Hello  World's 12345 café\n\n\tif (x<=3): don't  東京😀 <|im_end|> \r\n A1b2"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert 2 in ids
    assert (tokenizer.encode("a").ids[0] == 1) == (pre in ("llama-bpe", "llama3", "llama-v3", "tekken"))


def test_smollm_answers(converted_smollm: PreparedModel) -> None:
    from tokenizers import Tokenizer

    spec = load_model_spec(converted_smollm.folder)
    assert spec.decoder is not None
    assert (spec.decoder.rms_norm_eps, spec.decoder.rope.theta, spec.eos_token_ids) == (1e-5, 1e5, (2,))
    # In float32, because in bfloat16 the first two tokens nearly tie.
    model = load_model(converted_smollm.folder, spec, dtype="float32", device="cpu")
    tokenizer, attention = Tokenizer.from_file(str(converted_smollm.folder / "tokenizer.json")), DenseAttention()
    step, position, answer = tokenizer.encode(QUESTION).ids, 0, []
    while not answer or (answer[-1] != 2 and len(answer) < 20):
        logits = logits_of(model, attention, [(0, position, len(step))], step)
        position += len(step)
        step = [int(logits[-1].argmax())]
        answer += step
    assert tokenizer.decode(answer, skip_special_tokens=False) == "The capital of France is Paris.<|im_end|>"


def test_smollm_folder_loads_in_transformers(converted_smollm: PreparedModel) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted_smollm.folder)
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert text == QUESTION
    assert tokenizer("Hello world! 123")["input_ids"] == [19556, 905, 17, 216, 33, 34, 35]  # as llama.cpp
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    ids, spec = tokenizer(text, return_tensors="pt").input_ids, load_model_spec(converted_smollm.folder)
    for dtype in ("float32", "bfloat16"):
        model = AutoModelForCausalLM.from_pretrained(converted_smollm.folder, dtype=getattr(torch, dtype)).eval()
        with torch.inference_mode():
            theirs = model(ids).logits[0].float()
        ours = run_in_steps(load_model(converted_smollm.folder, spec, dtype=dtype, device="cpu"), [ids[0].tolist()])
        if dtype == "float32":
            torch.testing.assert_close(ours[0], theirs, atol=1e-2, rtol=0)
        else:  # two ways of rounding to bfloat16, of logits around 20
            assert (ours[0] - theirs).abs().mean() < 0.5
