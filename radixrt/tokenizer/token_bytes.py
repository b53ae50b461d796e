"""Bytes that each token id adds to a text, derived from the tokenizer's decoder.

Three kinds of decoders convert a token to the same bytes at any position, so that text can be streamed by
concatenating bytes:

- "byte_level" (GPT-2, Llama 3, Qwen): each character of a token is one byte of the GPT-2 alphabet;
- "byte_fallback" and plain replacements (Llama 2, Gemma, Phi-3): a token is text after its replacements, or one byte
  written `<0x0A>`;
- "metaspace" (Unigram models): the same, except for the text's first token, which loses its leading space.

All further decoders (WordPiece, CTC, ...) are family "other": the text of a token depends on adjacent tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


BYTE_OF_CHAR = _byte_level_alphabet()
_CHARS = frozenset(BYTE_OF_CHAR)
_TO_LATIN1 = {ord(char): byte for char, byte in BYTE_OF_CHAR.items()}


@dataclass(frozen=True)
class DecoderPlan:
    """Conversion of tokens to bytes.

    Attributes:
        family: "byte_level", "text" (replacements, with or without byte fallback) or "other".
        replacements: (pattern, content) pairs applied to each token in order; family "text" only.
        byte_fallback: a token that is `<0xNN>` after its replacements stands for the byte NN.
        first_drops: character that is removed from the first token of a text, or "".
        strip_char, strip_left: up to `strip_left` leading `strip_char` characters are stripped from the whole text.
    """

    family: str
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    first_drops: str = ""
    strip_char: str = " "
    strip_left: int = 0

    def token_bytes(self, token: str, *, first: bool = False) -> bytes:
        """Return the bytes that a token adds to a text.

        Args:
            first: the token is the first one of the text.
        """
        if self.family == "byte_level":
            if _CHARS.issuperset(token):
                return token.translate(_TO_LATIN1).encode("latin-1")
            return token.encode()
        if first and self.first_drops:
            token = token.replace(self.first_drops, "")
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.byte_fallback and len(token) == 6 and token.startswith("<0x") and token[5] == ">":
            try:
                return bytes.fromhex(token[3:5])
            except ValueError:
                pass
        return token.encode()


def plan_decoder(backend: tokenizers.Tokenizer) -> DecoderPlan:
    """Derive the plan from a tokenizer's decoder; family "other" if it is neither "byte_level" nor "text"."""
    if backend.decoder is None:
        return DecoderPlan("other")
    state = json.loads(backend.decoder.__getstate__())
    stages = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"] or kinds == ["ByteLevel", "Fuse"]:
        return DecoderPlan("byte_level")
    return _plan_text(stages) or DecoderPlan("other")


def _plan_text(stages: list[dict[str, Any]]) -> DecoderPlan | None:
    """Plan for a sequence of replacements, an optional ByteFallback, Fuse and a left Strip; None for other orders."""
    replacements: list[tuple[str, str]] = []
    first_drops = ""
    rest = list(stages)
    while rest and rest[0]["type"] in ("Replace", "Metaspace"):
        stage = rest.pop(0)
        if stage["type"] == "Metaspace":
            if replacements:
                return None  # the first token's dropped character would depend on earlier replacements
            if stage.get("prepend_scheme", "always") != "never":
                first_drops = stage["replacement"]
            replacements.append((stage["replacement"], " "))
        else:
            pattern = stage["pattern"].get("String")
            if not pattern:
                return None
            replacements.append((pattern, stage["content"]))
    byte_fallback = bool(rest) and rest[0]["type"] == "ByteFallback"
    if byte_fallback:
        rest.pop(0)
    if rest and rest[0]["type"] == "Fuse":
        rest.pop(0)
        if rest and rest[0]["type"] == "Strip" and rest[0]["stop"] == 0:
            strip = rest.pop(0)
            if not rest:
                return DecoderPlan(
                    "text", tuple(replacements), byte_fallback, first_drops, strip["content"], strip["start"]
                )
    if rest or not (replacements or byte_fallback):
        return None
    return DecoderPlan("text", tuple(replacements), byte_fallback, first_drops)


def build_table(
    backend: tokenizers.Tokenizer, plan: DecoderPlan, convert: Callable[[int], bytes] | None = None
) -> list[bytes]:
    """Build the table of bytes by token id; b"" for unused ids.

    Args:
        convert: function from a token id to its bytes, if the plan's family is "other".
    """
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    if convert is not None:
        for token_id in vocab.values():
            table[token_id] = convert(token_id)
    else:
        token_bytes = plan.token_bytes
        for token, token_id in vocab.items():
            table[token_id] = token_bytes(token)
    # An added token can share its id with a token of the model; the added one is what the decoder sees.
    for token_id, added in backend.get_added_tokens_decoder().items():
        table[token_id] = plan.token_bytes(added.content) if convert is None else convert(token_id)
    return table
