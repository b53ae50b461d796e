"""config.json and preprocessor_config.json of public vision models, for `model_shapes`."""

from __future__ import annotations

from typing import Any

QWEN_TOKENS = {
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
}
QWEN_TEXT: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "model_type": "qwen3_vl_text",
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    "rope_theta": 5000000,
    "vocab_size": 151936,
}
QWEN_VISION: dict[str, Any] = {
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "model_type": "qwen3_vl",
    "num_heads": 16,
    "num_position_embeddings": 2304,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
QWEN_VL: dict[str, Any] = {
    **QWEN_TOKENS,
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "torch_dtype": "bfloat16",
}
VISION_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-vl-2b": {
        **QWEN_VL,
        "tie_word_embeddings": True,
        "text_config": {
            **QWEN_TEXT,
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_attention_heads": 16,
            "num_hidden_layers": 28,
        },
        "vision_config": {
            **QWEN_VISION,
            "deepstack_visual_indexes": [5, 11, 17],
            "depth": 24,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "out_hidden_size": 2048,
        },
    },
    "qwen3-vl-8b": {
        **QWEN_VL,
        "tie_word_embeddings": False,
        "text_config": {
            **QWEN_TEXT,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_hidden_layers": 36,
        },
        "vision_config": {
            **QWEN_VISION,
            "deepstack_visual_indexes": [8, 16, 24],
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "out_hidden_size": 4096,
        },
    },
    "smolvlm-256m": {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": 49190,
        "scale_factor": 4,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "text_config": {
            "bos_token_id": 1,
            "eos_token_id": 49279,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "max_position_embeddings": 8192,
            "model_type": "llama",
            "num_attention_heads": 9,
            "num_hidden_layers": 30,
            "num_key_value_heads": 3,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100000,
            "vocab_size": 49280,
        },
        "vision_config": {
            "hidden_size": 768,
            "image_size": 512,
            "intermediate_size": 3072,
            "model_type": "smolvlm_vision",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "patch_size": 16,
        },
    },
}
"""The config.json of each shape, with the published values."""
HALF = {"do_normalize": True, "do_rescale": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PREPROCESSORS: dict[str, dict[str, Any]] = {
    "Qwen3VLForConditionalGeneration": {
        **HALF,
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "size": {"longest_edge": 16777216, "shortest_edge": 65536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
    },
    "SmolVLMForConditionalGeneration": {
        **HALF,
        "image_processor_type": "SmolVLMImageProcessor",
        "do_convert_rgb": True,
        "do_image_splitting": True,
        "do_pad": True,
        "do_resize": True,
        "max_image_size": {"longest_edge": 512},
        "resample": 1,
        "size": {"longest_edge": 2048},
    },
}
"""The preprocessor_config.json of an architecture, with the published values."""
