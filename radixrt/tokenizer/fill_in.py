"""Control tokens with which a model writes the text between two others (fill in the middle)."""

from __future__ import annotations

from collections.abc import Mapping

from radixrt.messages.parts import FillInTokens

FORMATS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, StableCode, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
"""Texts of the tokens before the text in front, before the text behind, and before the text to be written. Models whose
tokenizers put a space before texts (Code Llama, Codestral) are not among them: their texts behind would begin with one.
"""

ENDS = (
    "<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|repo_name|>", "<repo_name>", "<reponame>",
    "<|file_sep|>", "<file_sep>", "<|file_separator|>", "<filename>", "<|EOT|>",
)  # fmt: skip
"""Further tokens behind which such a text does not go on: a model writes them where the next file would begin."""


def find_fill_in_tokens(control_tokens: Mapping[str, int]) -> FillInTokens | None:
    """Return the tokens of a tokenizer for filling in; None if it has none.

    Args:
        control_tokens: id of each control token by its text.
    """
    for texts in FORMATS:
        if all(text in control_tokens for text in texts):
            ends = sorted({control_tokens[text] for text in (*texts, *ENDS) if text in control_tokens})
            return FillInTokens(*texts, end_ids=ends)
    return None


def fill_in_texts(control_tokens: Mapping[str, int]) -> set[str]:
    """Texts of the tokens that `find_fill_in_tokens` finds; many tokenizers do not declare them special."""
    found = find_fill_in_tokens(control_tokens)
    return set() if found is None else {text for text, token in control_tokens.items() if token in found.end_ids}
