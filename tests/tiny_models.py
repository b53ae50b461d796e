"""Tiny random models with a real tokenizer, made with transformers' save_pretrained.

The folders are what a hub would deliver: config.json, generation_config.json, model.safetensors, tokenizer.json,
tokenizer_config.json with a chat template.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VOCAB_SIZE = 512
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = 0, 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_VISION_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION_TEMPLATES = {
    "qwen": _VISION_TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
    "tiles": _VISION_TEMPLATE.replace("IMAGE", "<image>"),
}
KINDS = ("llama", "mistral", "qwen2", "qwen3")
MOE_KINDS = ("mixtral", "qwen3_moe")
GPT_OSS_KIND = "gpt_oss"
HYBRID_KINDS = ("lfm2", "qwen3_5", "qwen3_5_moe", "qwen3_next")

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # wide enough that two implementations agree on the greedy token
    "bos_token_id": IM_START_ID,
    "eos_token_id": IM_END_ID,
    "pad_token_id": IM_END_ID,
    "tie_word_embeddings": False,
}
CONFIG_CLASSES = {
    "gpt_oss": "GptOssConfig",
    "lfm2": "Lfm2Config",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "mixtral": "MixtralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "qwen3_5": "Qwen3_5TextConfig",
    "qwen3_5_moe": "Qwen3_5MoeTextConfig",
    "qwen3_moe": "Qwen3MoeConfig",
    "qwen3_next": "Qwen3NextConfig",
}
GATED_DELTA_NET: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
SHARED_EXPERT: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt_oss": {
        "intermediate_size": 64,
        "head_dim": 16,
        "sliding_window": 12,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "swiglu_limit": 0.6,  # low enough that a missing clamp shows
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    },
    "lfm2": {
        "num_hidden_layers": 4,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "block_multiple_of": 16,
        "norm_eps": 1e-5,
    },
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "mistral": {"sliding_window": 8, "head_dim": 16},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "qwen3_5": GATED_DELTA_NET,
    "qwen3_5_moe": {**GATED_DELTA_NET, **SHARED_EXPERT},
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
        "mlp_only_layers": [0],
    },
    "qwen3_next": {**GATED_DELTA_NET, **SHARED_EXPERT, "mlp_only_layers": [1]},
}
VISION_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TILE_TOKENS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
FIRST_VISION_ID = len(SPECIAL_TOKENS)
QWEN_TOWER: dict[str, Any] = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 4,
    "patch_size": 8,
    "num_position_embeddings": 36,
    "initializer_range": 0.1,  # wide enough that every part of the tower shows in its rows
    "out_hidden_size": COMMON["hidden_size"],
}
QWEN_IDS: dict[str, Any] = {
    "vision_start_token_id": FIRST_VISION_ID,
    "vision_end_token_id": FIRST_VISION_ID + 1,
    "image_token_id": FIRST_VISION_ID + 2,
    "video_token_id": FIRST_VISION_ID + 3,
}
TILE_TOWER: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
    "initializer_range": 0.1,
}
INTERLEAVED: dict[str, Any] = {
    "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
}  # fmt: skip
VISION_KINDS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "qwen3_vl": (
        "Qwen3VLConfig",
        "qwen3",
        {"num_hidden_layers": 4, "rope_parameters": INTERLEAVED},
        {**QWEN_TOWER, "deepstack_visual_indexes": [0, 1, 3]},
        QWEN_IDS,
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeConfig",
        "qwen3_moe",
        {"num_hidden_layers": 4, "rope_parameters": INTERLEAVED},
        {**QWEN_TOWER, "deepstack_visual_indexes": [0, 1, 3]},
        QWEN_IDS,
    ),
    "qwen3_5_vl": (
        "Qwen3_5Config",
        "qwen3_5",
        {"rope_parameters": {**INTERLEAVED, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}},
        QWEN_TOWER,
        QWEN_IDS,
    ),
    "qwen3_5_moe_vl": (
        "Qwen3_5MoeConfig",
        "qwen3_5_moe",
        {"rope_parameters": {**INTERLEAVED, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}},
        QWEN_TOWER,
        QWEN_IDS,
    ),
    "smolvlm": ("SmolVLMConfig", "llama", {}, TILE_TOWER, {"image_token_id": FIRST_VISION_ID, "scale_factor": 4}),
    "idefics3": ("Idefics3Config", "llama", {}, TILE_TOWER, {"image_token_id": FIRST_VISION_ID, "scale_factor": 2}),
    "llava": (
        "LlavaConfig",
        "llama",
        {},
        {**TILE_TOWER, "model_type": "clip_vision_model", "initializer_factor": 2.0},
        {"image_token_index": FIRST_VISION_ID},
    ),
    "llava_siglip": (
        "LlavaConfig",
        "qwen2",
        {},
        {**TILE_TOWER, "model_type": "siglip_vision_model", "vision_use_head": False},
        {
            "image_token_index": FIRST_VISION_ID,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    ),
}
"""Models of text and vision: configuration class, kind of the text and its fields, fields of the tower, others."""
TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.",
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "ok": true, "nothing": null}',
    "Once upon a time there was a small engine that shared its prefixes with everyone who asked politely.",
    "Numbers 0 1 2 3 4 5 6 7 8 9 10 100 2026; symbols ()[]{}<>!?,.:;-_+*/=; naïve café, Zürich, 東京, 😀.",
)


def make_tiny_model(folder: Path, kind: str = "llama", *, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny random float32 model of a kind, one of the tuples above or of `VISION_KINDS`, with its tokenizer;
    return the folder.

    Args:
        overrides: fields of the configuration class, e.g. num_hidden_layers=2 or sliding_window=None.
    """
    import transformers

    if kind in VISION_KINDS:
        return make_tiny_vision_model(folder, kind, seed=seed, **overrides)
    fields = {**COMMON, **DEFAULTS[kind], **overrides}
    save_random_model(folder, getattr(transformers, CONFIG_CLASSES[kind])(**fields), seed=seed)
    save_tokenizer(folder)
    return folder


def make_tiny_vision_model(folder: Path, kind: str, *, seed: int = 0, **overrides: Any) -> Path:
    """Write a tiny random float32 model of text and vision of a kind in `VISION_KINDS`, with a tokenizer that has the
    tokens of images, a chat template that writes them, and preprocessor_config.json; return the folder.

    Args:
        overrides: "text_config", "vision_config" and fields beside them; the first two are added to the kind's own.
    """
    import transformers

    config_class, text_kind, text, tower, fields = VISION_KINDS[kind]
    text = {**COMMON, **DEFAULTS[text_kind], **text, "model_type": "", **overrides.pop("text_config", {})}
    text["model_type"] = text["model_type"] or text_kind
    if kind.startswith("qwen"):
        del text["model_type"]
    tower = {**tower, **overrides.pop("vision_config", {})}
    config = getattr(transformers, config_class)(text_config=text, vision_config=tower, **{**fields, **overrides})
    save_random_model(folder, config, seed=seed, auto_class="AutoModelForImageTextToText")
    tokens = VISION_TOKENS if kind.startswith("qwen") else TILE_TOKENS
    save_tokenizer(folder, tokens, VISION_TEMPLATES["qwen" if kind.startswith("qwen") else "tiles"])
    (folder / "preprocessor_config.json").write_text(json.dumps(_preprocessor(kind, tower, config), indent=2))
    return folder


def _preprocessor(kind: str, tower: dict[str, Any], config: Any) -> dict[str, Any]:
    """Return preprocessor_config.json, with the fields that files of the hub have."""
    normal = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True}
    half = {**normal, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    if kind.startswith("qwen"):
        side = tower["patch_size"] * 2
        return {
            **half,
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "size": {"shortest_edge": 4 * side**2, "longest_edge": 64 * side**2},
            "patch_size": tower["patch_size"],
            "temporal_patch_size": 2,
            "merge_size": 2,
        }
    side = tower["image_size"]
    if kind in ("smolvlm", "idefics3"):
        return {
            **half,
            "image_processor_type": "SmolVLMImageProcessor" if kind == "smolvlm" else "Idefics3ImageProcessor",
            "do_resize": True,
            "do_image_splitting": True,
            "do_pad": True,
            "resample": 1,
            "size": {"longest_edge": 4 * side},
            "max_image_size": {"longest_edge": side},
        }
    if kind == "llava":
        return {
            **normal,
            "image_processor_type": "CLIPImageProcessor",
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "do_resize": True,
            "size": {"shortest_edge": side},
            "do_center_crop": True,
            "crop_size": {"height": side, "width": side},
            "resample": 3,
        }
    return {
        **half,
        "image_processor_type": "SiglipImageProcessor",
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 3,
    }


def make_tiny_classifier(folder: Path, kind: str, *, num_labels: int, **overrides: Any) -> Path:
    """Write a tiny random sequence classification model, as `make_tiny_model` does a causal one."""
    import transformers

    fields = {**COMMON, **DEFAULTS[kind], "num_labels": num_labels, **overrides}
    config = getattr(transformers, CONFIG_CLASSES[kind])(**fields)
    save_random_model(folder, config, auto_class="AutoModelForSequenceClassification")
    save_tokenizer(folder)
    return folder


def save_random_model(folder: Path, config: Any, *, seed: int = 0, auto_class: str = "AutoModelForCausalLM") -> Path:
    """Write a random float32 model of any transformers configuration (no tokenizer)."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, auto_class).from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):  # slow decays, so that what was read long ago still counts
                torch.nn.init.uniform_(parameter, -5.0, -2.0)
            elif name.endswith("sinks"):  # as large as scores
                torch.nn.init.normal_(parameter, 1.0, 1.0)
            elif name.endswith("conv.weight"):
                torch.nn.init.normal_(parameter, 0.0, 0.6)
            elif name.endswith(("bias", "norm.weight")):  # not left at zero or one, where a missing one would not show
                torch.nn.init.normal_(parameter, float(parameter.detach().mean()), 0.2)
    if model.can_generate():
        model.generation_config.eos_token_id = [IM_END_ID, ENDOFTEXT_ID]
    model.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, further: Sequence[str] = (), template: str = CHAT_TEMPLATE) -> None:
    """Write a byte-level BPE of VOCAB_SIZE tokens at most, and a chat template. SPECIAL_TOKENS are the first tokens,
    and `further` ones follow."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(text, special=True) for text in (*SPECIAL_TOKENS, *further)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[IM_START_ID],
        "eos_token": SPECIAL_TOKENS[IM_END_ID],
        "pad_token": SPECIAL_TOKENS[IM_END_ID],
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": COMMON["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
