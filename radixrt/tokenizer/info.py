"""`tokenizer_info`: the configuration of a tokenizer as vLLM serves it to clients that render prompts themselves."""

from __future__ import annotations

import json
from typing import Any

from radixrt.tokenizer.tokenizer import Tokenizer

PATHS = ("vocab_file", "merges_file", "tokenizer_file", "special_tokens_map_file", "name_or_path", "_name_or_path")
"""Fields that name files of this machine."""

FAST_CLASS = "PreTrainedTokenizerFast"
"""Class of transformers that reads any tokenizer.json."""


def tokenizer_info(tokenizer: Tokenizer) -> bytes:
    """Return tokenizer_config.json as it is in use, a JSON object; empty if there is no tokenizer.

    Special tokens are their texts, and the chat template is the one that renders requests. Files are left out.
    """
    if tokenizer.is_none:
        return b""
    info = {name: _plain(value) for name, value in tokenizer.config.items() if name not in PATHS}
    info.setdefault("tokenizer_class", FAST_CLASS)
    info.pop("chat_template", None)
    if tokenizer.chat_template is not None:
        sources = tokenizer.chat_template.sources
        info["chat_template"] = sources.get("default") or next(iter(sources.values()))
    return json.dumps({**info, **tokenizer.special_tokens}).encode()


def _plain(value: Any) -> Any:
    """The value with the declarations of tokens in it replaced by their texts."""
    if isinstance(value, dict):
        content = value.get("content")
        return content if isinstance(content, str) else {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
