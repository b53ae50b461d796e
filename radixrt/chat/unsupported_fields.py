"""`UnsupportedFields`: fields of requests that would change the output and that radixrt does not serve."""

from __future__ import annotations

from typing import Any

import msgspec


class UnsupportedFields(msgspec.Struct, kw_only=True):
    """Fields of requests to other servers that radixrt refuses by name."""

    audio: Any = None
    prompt_embeds: Any = None
    input_embeds: Any = None
    images: Any = None
    image_data: Any = None
    video_data: Any = None
    audio_data: Any = None
    multi_modal_data: Any = None
    lora_path: Any = None
    custom_logit_processor: Any = None
    logits_processors: Any = None
    use_beam_search: Any = None
    guided_whitespace_pattern: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    chat_template: Any = None
    documents: Any = None
    typical_p: Any = None
    length_penalty: Any = None
    early_stopping: Any = None
    no_repeat_ngram_size: Any = None
    top_a: Any = None
    tfs: Any = None
    mirostat: Any = None
    mirostat_mode: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    dynatemp_range: Any = None
    web_search_options: Any = None
