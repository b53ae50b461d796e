"""`Vocabulary`: text tokens, control tokens and end tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.constrained.regex.charset import LAST, CharSet
from radixrt.constrained.vocabulary import Vocabulary, split_utf8
from tests.constrained.vocabularies import SMALL, bits, small_vocabulary, text_of

NOT_ASCII = CharSet.span(0x80, LAST)
TEXTS = ["", "a", " a", '{"name":"Ada", "age": 36}', "two  spaces", "naïve café", "\n\n\tx\n", "日本語 🙂👍🏽", "12345"]


@pytest.mark.parametrize("family", SMALL)
def test_encode_gives_exactly_the_text_and_only_text_tokens(family: str) -> None:
    vocabulary = small_vocabulary(family)
    for text in TEXTS:
        if family == "unigram" and not set(text) <= set("a ,.xbcdefghijklmnopqrstuvw"):
            continue  # it has no token for every byte
        ids = vocabulary.encode(text)
        assert text_of(vocabulary, ids) == text
        assert set(ids) <= bits(vocabulary.text_mask)


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "gemma_like"])
def test_encode_bytes_takes_what_is_no_text(family: str) -> None:
    vocabulary = small_vocabulary(family)
    for data in (b"\xf0\x9f", b'"\xf0\x9f\x98', b"\x80\x80a", b"\xff", "é".encode()[1:] + b"x"):
        assert vocabulary.decode(vocabulary.encode_bytes(data)) == data


def test_a_text_that_goes_on_gets_no_space_of_its_own() -> None:
    vocabulary = small_vocabulary("gemma_like")
    assert text_of(vocabulary, vocabulary.encode("quick")) == "quick"
    assert vocabulary.encode("fox jumps")[-1] == vocabulary.encode(" jumps")[-1]


def test_control_tokens_are_never_text(vocabulary: Vocabulary) -> None:
    assert vocabulary.control_tokens["<|im_start|>"] == 1
    assert not bits(vocabulary.text_mask) & set(range(17))
    ids = vocabulary.encode("<|im_start|>user<|im_end|>")
    assert text_of(vocabulary, ids) == "<|im_start|>user<|im_end|>"
    assert not set(ids) & set(range(17))


def test_added_tokens_that_look_like_control_tokens_are_control_tokens() -> None:
    vocabulary = small_vocabulary("byte_level")
    assert "<think>" in vocabulary.control_tokens  # declared as an ordinary added token
    assert "two words é" not in vocabulary.control_tokens
    assert text_of(vocabulary, vocabulary.encode("a <think> b")) == "a <think> b"
    assert vocabulary.control_tokens["<think>"] not in bits(vocabulary.text_mask)


def test_ids_without_a_token_are_not_allowed() -> None:
    vocabulary = small_vocabulary("byte_level", padding=40)
    allowed = bits(vocabulary.text_mask) | bits(vocabulary.eos_mask)
    assert max(allowed) < vocabulary.vocab_size - 40
    assert bits(vocabulary.eos_mask) == set(vocabulary.eos_ids)
    assert vocabulary.decode([-1, vocabulary.vocab_size, 10**9]) == b""


def test_the_fingerprint_tells_vocabularies_apart(vocabulary: Vocabulary, model_folder: Path) -> None:
    same = Vocabulary.from_folder(model_folder, vocabulary.vocab_size, vocabulary.eos_ids)
    assert same.fingerprint == vocabulary.fingerprint
    for changed in (
        Vocabulary.from_folder(model_folder, vocabulary.vocab_size, [2]),
        Vocabulary.from_folder(model_folder, vocabulary.vocab_size + 32, vocabulary.eos_ids),
        small_vocabulary("byte_level"),
    ):
        assert changed.fingerprint != vocabulary.fingerprint


@pytest.mark.parametrize(
    ("data", "text", "rest"),
    [
        (b"abc", "abc", b""),
        ("a\N{SNOWMAN}".encode()[:-1], "a", "\N{SNOWMAN}".encode()[:-1]),
        (b"\xf0\x9f", "", b"\xf0\x9f"),
        (b"\x80", None, b""),
        (b"a\xc3a", None, b""),
        (b"\xed\xa0", None, b""),  # the beginning of a surrogate, which is no text
    ],
)
def test_split_utf8(data: bytes, text: str | None, rest: bytes) -> None:
    assert split_utf8(data) == (text, rest)


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize(
    "pairs", [[], [(0x61, 0x7A)], [(0, 0x21), (0x23, LAST)], [(0x20, 0xFF)], [(0, LAST)], [(0x80, LAST)]]
)
def test_tokens_of_characters(family: str, pairs: list[tuple[int, int]]) -> None:
    vocabulary, chars = small_vocabulary(family), CharSet.ranges(pairs)
    found = vocabulary.tokens_of(chars)
    assert len(found) == vocabulary.vocab_size
    assert vocabulary.tokens_of(CharSet.ranges(pairs)) is found
    for inside, data in zip(found, vocabulary.table, strict=True):
        text, rest = split_utf8(data)
        is_of_them = bool(data) and text is not None and not rest and all(ord(char) in chars for char in text)
        if is_of_them and not data.isascii() and chars & NOT_ASCII != NOT_ASCII:
            continue  # may be left out
        assert bool(inside) == is_of_them, data
