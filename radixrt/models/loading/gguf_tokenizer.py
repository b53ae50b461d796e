"""Conversion of the tokenizer in a GGUF file's metadata to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from radixrt.errors import ModelLoadError

CONTROL, USER_DEFINED = 3, 4
"""Token types that a tokenizer must find in the text before splitting."""

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_WORDS = LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (GPT2_WORDS,),
    "smollm": (r"\p{N}", GPT2_WORDS),
    "starcoder": (r"\p{N}", GPT2_WORDS),
    "refact": (r"\p{N}", GPT2_WORDS),
    "llama-bpe": (LLAMA3_WORDS,),
    "llama3": (LLAMA3_WORDS,),
    "llama-v3": (LLAMA3_WORDS,),
    "qwen2": (QWEN2_WORDS,),
    "tekken": (TEKKEN_WORDS,),
}
"""`tokenizer.ggml.pre` -> regular expressions that split text before merging, one after the other (llama.cpp)."""

WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""Pre-tokenizers under which a word that is a token is not merged, and a text starts with bos unless the file denies
it.
"""


def write_tokenizer(metadata: dict[str, Any], folder: Path, context_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, chat template and special tokens included.

    Raises:
        ModelLoadError: the tokenizer or pre-tokenizer is not supported, or metadata is missing; the message names it.
    """
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    tokens = metadata["tokenizer.ggml.tokens"]
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_length,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= token_id < len(tokens):
            config[f"{name}_token"] = tokens[token_id]
    if "tokenizer.chat_template" in metadata:
        config["chat_template"] = metadata["tokenizer.chat_template"]
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def build_tokenizer(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """Build the byte-level BPE tokenizer of the metadata. Raises ModelLoadError as `write_tokenizer` does."""
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise ModelLoadError(
            f"the GGUF file's tokenizer is of kind {kind!r}; only byte-level BPE ('gpt2') is supported"
        )
    if pre not in SPLITS:
        raise ModelLoadError(f"the GGUF file's pre-tokenizer {pre!r} is not supported; {', '.join(SPLITS)} are")
    for key in ("tokens", "merges", "token_type"):
        if not isinstance(metadata.get(f"tokenizer.ggml.{key}"), list):
            raise ModelLoadError(f"the GGUF file has no tokenizer.ggml.{key}")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocab = {token: i for i, token in enumerate(tokens)}
    try:
        model = models.BPE(vocab, merges, ignore_merges=pre in WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"the GGUF file's tokenizer cannot be built: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(words), "isolated") for words in SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(tokens, metadata["tokenizer.ggml.token_type"]))
    tokenizer.post_processor = _post_processor(metadata, tokens, pre)
    return tokenizer


def _added_tokens(tokens: list[str], types: list[int]) -> list[AddedToken]:
    return [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _post_processor(metadata: dict[str, Any], tokens: list[str], pre: str) -> Any:
    """Return the post-processor that adds bos and eos where the file asks for it."""
    byte_level = processors.ByteLevel(trim_offsets=False)
    parts, special = ["$A"], []
    for name, default in (("bos", pre in WHOLE_WORDS_FIRST), ("eos", False)):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if not metadata.get(f"tokenizer.ggml.add_{name}_token", default) or token_id is None:
            continue
        special.append((tokens[token_id], token_id))
        parts = [tokens[token_id], *parts] if name == "bos" else [*parts, tokens[token_id]]
    if not special:
        return byte_level
    return processors.Sequence([byte_level, processors.TemplateProcessing(single=parts, special_tokens=special)])
