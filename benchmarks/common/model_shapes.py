"""Model folders without weights, for `--load-format dummy`: the shape of a public model and a synthetic tokenizer.

Speed depends on the shape of a model and not on its weights, so that a benchmark needs no model hub. The
tokenizer has a token for each id of the model's vocabulary and is of the usual kind (byte-level), so that detokenizing
costs what it costs for a real one; it has no merges, and texts are tokenized byte by byte.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.vision_shapes import PREPROCESSORS, VISION_CONFIGS
from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.online import OnlineQuantization
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.model_config import parse_model_spec

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "max_position_embeddings": 40960,
        "max_window_layers": 28,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 128256,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "bos_token_id": 151643,
        "decoder_sparse_step": 1,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "output_router_logits": False,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "tiny": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "bos_token_id": 10238,
        "eos_token_id": 10239,
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 16384,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": 10240,
    },
}
CONFIGS["llama-3.1-70b"] = {
    **CONFIGS["llama-3.1-8b"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
}
CONFIGS["tiny-moe"] = {
    **CONFIGS["tiny"],
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "num_experts": 16,
    "num_experts_per_tok": 4,
}
CONFIGS["gpt-oss-20b"] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "bos_token_id": 199998,
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "max_position_embeddings": 131072,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 201088,
}
CONFIGS["gpt-oss-120b"] = {**CONFIGS["gpt-oss-20b"], "num_hidden_layers": 36, "num_local_experts": 128}
QWEN3_5: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000000,
        "rope_type": "default",
    },
    "torch_dtype": "bfloat16",
    "vocab_size": 248320,
}
"""Fields that the text parts of Qwen3.5 have in common."""
CONFIGS |= {
    "qwen3.5-0.8b": {
        **QWEN3_5,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "linear_num_value_heads": 16,
        "num_attention_heads": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3.5-4b": {
        **QWEN3_5,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "linear_num_value_heads": 32,
        "num_attention_heads": 16,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
    "qwen3.5-35b-a3b": {
        **QWEN3_5,
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "linear_num_value_heads": 32,
        "moe_intermediate_size": 512,
        "num_attention_heads": 16,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
    },
    "lfm2-350m": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.0,
        "block_multiple_of": 256,
        "bos_token_id": 1,
        "conv_L_cache": 3,
        "conv_bias": False,
        "eos_token_id": 7,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "hidden_size": 1024,
        "intermediate_size": 6656,
        "max_position_embeddings": 128000,
        "norm_eps": 1e-5,
        "num_attention_heads": 16,
        "num_hidden_layers": 16,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 65536,
    },
}
CONFIGS["tiny-hybrid"] = {
    **CONFIGS["tiny"],
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 4,
}
CONFIGS |= VISION_CONFIGS
"""The config.json of each shape: the published values, and of three tiny ones to try a benchmark on any machine."""


MXFP4_BYTES = 17 / 32
"""Bytes of an MXFP4 number: four bits, and a byte for every 32."""
PLAIN_BYTES = 2
"""Bytes of a plain weight, which is bfloat16."""
MANY = 1 << 30
"""Weights of which the bytes are computed, so that rounding to whole bytes does not count."""


@dataclass(frozen=True)
class Shape:
    """Cost of running a shape, in bfloat16 but for quantized weights and keys and values in fp8.

    Attributes:
        layer_params: parameters of all layers together that a token is multiplied with; of a mixture of experts, the
            router and as many experts as a token is routed to.
        head_params: of the output head, multiplied only with tokens that are sampled from.
        kv_bytes: keys and values of one token in all layers without a window, in which they are read for ever.
        attention_flops: for one new token and one earlier position, over these layers and all heads (q.k and p.v).
        expert_params: of one expert in all layers together.
        layer_bytes: of each parameter of a layer but those of experts.
        expert_bytes: of each parameter of an expert.
        num_experts, top_k: of a layer with a mixture of experts; 0 where there is none.
        state_bytes: recurrent states of one sequence in all layers, which each token reads and writes.
    """

    layer_params: int
    head_params: int
    kv_bytes: int
    attention_flops: int
    expert_params: int = 0
    layer_bytes: float = PLAIN_BYTES
    expert_bytes: float = PLAIN_BYTES
    num_experts: int = 0
    top_k: int = 0
    state_bytes: int = 0

    def weight_bytes(self, tokens: int) -> float:
        """Weights that a step with so many tokens reads; the input embedding is a look-up of a few rows.

        Of a mixture, these are the experts that are hit: on average, if tokens are routed evenly and by chance.
        """
        dense = self.layer_bytes * (self.layer_params - self.top_k * self.expert_params)
        dense += PLAIN_BYTES * self.head_params
        if not self.num_experts:
            return dense
        missed = (1 - self.top_k / self.num_experts) ** tokens
        return dense + self.expert_bytes * self.expert_params * self.num_experts * (1 - missed)


def shape_of(name: str, options: Mapping[str, Any] | None = None) -> Shape:
    """The costs of one of CONFIGS, without norms, which are a thousandth of the parameters.

    Args:
        options: of the engine; `quantization` and `kv_cache_dtype` count.
    """
    options = options or {}
    spec = parse_model_spec(CONFIGS[name], {})
    decoder = spec.decoder
    assert decoder is not None
    hidden, experts = decoder.hidden_size, decoder.experts
    recurrent = sum(layer.is_recurrent for layer in decoder.layers)
    quantization = decoder.quantization
    if options.get("quantization") in ("fp8", "int8", "int4"):
        quantization = OnlineQuantization(options["quantization"])
    formats = quantization or Quantization()
    kv_item = 1 if options.get("kv_cache_dtype") == "fp8_e4m3" else PLAIN_BYTES
    attention = sum(not layer.is_recurrent and layer.sliding_window is None for layer in decoder.layers)
    mixtures = sum(layer.feed_forward == "moe" for layer in decoder.layers)
    params, expert, num_experts, top_k = decoder.num_linear_parameters, 0, 0, 0
    if experts is not None:
        expert, num_experts, top_k = 3 * hidden * experts.intermediate_size, experts.num_experts, experts.top_k
        # Experts that a token is not routed to do not count; the router counts twice, because it is float32.
        params -= mixtures * ((num_experts - top_k) * expert - hidden * num_experts)
    return Shape(
        layer_params=params,
        head_params=hidden * spec.vocab_size,
        kv_bytes=attention * 2 * decoder.num_kv_heads * decoder.head_dim * kv_item,
        attention_flops=attention * 4 * decoder.num_heads * decoder.head_dim,
        expert_params=mixtures * expert,
        layer_bytes=formats.num_bytes("linear", MANY, PLAIN_BYTES, "cuda") / MANY,
        # A checkpoint's own numbers count as they are stored, whatever kernels add to them.
        expert_bytes=MXFP4_BYTES
        if decoder.quantization is not None
        else formats.num_bytes("experts", MANY, PLAIN_BYTES, "cuda") / MANY,
        num_experts=num_experts,
        top_k=top_k,
        state_bytes=recurrent * _state_bytes(decoder),
    )


def _state_bytes(decoder: DecoderSpec) -> int:
    """The state of one recurrent layer: matrices in float32, inputs of the convolution in bfloat16."""
    sizes = decoder.recurrent
    if sizes is None:
        return 0
    keys, values = sizes.k_heads * sizes.k_dim, sizes.v_heads * sizes.v_dim
    channels = 2 * keys + values if sizes.v_heads else decoder.hidden_size
    return 4 * values * sizes.k_dim + 2 * channels * (sizes.taps - 1)


def shape_folder(name: str, root: Path | None = None) -> Path:
    """The folder of one of CONFIGS, written if it is not there yet.

    Args:
        root: where; default: a folder of the user's in the system's temporary one.
    """
    root = Path(tempfile.gettempdir()) / f"radixrt-shapes-{os.getuid()}" if root is None else root
    folder = root / name
    config = CONFIGS[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if processing := PREPROCESSORS.get(config["architectures"][0]):
        (folder / "preprocessor_config.json").write_text(json.dumps(processing, indent=1))
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.is_file():
        unfinished = tokenizer.with_suffix(f".{os.getpid()}")
        unfinished.write_text(made_up_tokenizer(config.get("text_config", config)["vocab_size"]))
        unfinished.replace(tokenizer)
    return folder


def made_up_tokenizer(vocab_size: int) -> str:
    """A tokenizer.json, byte-level, with a token of its own for each id below vocab_size (at least 256)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for i in range(len(vocab), vocab_size):
        vocab["Ġ" + _word(i)] = i
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return str(backend.to_str())


def _word(number: int) -> str:
    letters = ""
    while number:
        number, digit = divmod(number, 26)
        letters += chr(ord("a") + digit)
    return letters
