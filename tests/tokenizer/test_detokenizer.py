"""Incremental detokenization against the library's decoding of the whole sequence."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixrt.tokenizer.detokenizer import ByteDetokenizer, WindowDetokenizer
from radixrt.tokenizer.tokenizer import Tokenizer

FAMILIES = ["byte_level", "byte_fallback", "gemma_like", "unigram", "word_piece"]
relaxed = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def in_pieces(tokenizer: Tokenizer, ids: Sequence[int], sizes: Sequence[int], skip: bool = True) -> list[str]:
    """The texts of successive pushes of so many ids (the sizes repeat), and of the flush."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    texts, rest = [], list(ids)
    for size in itertools.cycle(sizes):
        if not rest:
            break
        texts.append(detokenizer.push(rest[:size]))
        rest = rest[size:]
    return [*texts, detokenizer.flush()]


def id_of(tokenizer: Tokenizer, token: str) -> int:
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None
    return token_id


def runs_are_whole(tokenizer: Tokenizer, ids: Sequence[int], skip: bool) -> bool:
    """Return True if each run of byte tokens is valid UTF-8 or has no valid character (see the module's docstring)."""
    run = b""
    for token_id in [*ids, None]:
        if token_id is not None and (token_id >= tokenizer.vocab_size or (skip and token_id in tokenizer.special_ids)):
            continue
        data = b"" if token_id is None else tokenizer.token_bytes(token_id)
        if token_id is not None and 3 <= token_id < 259:
            run += data
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            if run.decode(errors="ignore"):
                return False
        run = b""
    return True


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("skip", [True, False])
def test_deltas_add_up_to_the_library_s_text(loaded: dict[str, Tokenizer], name: str, skip: bool) -> None:
    tokenizer = loaded[name]
    has_byte_tokens = name in ("byte_fallback", "gemma_like")
    ids = st.integers(0, tokenizer.vocab_size + 3)
    if has_byte_tokens:
        ids = ids | st.integers(3, 258)

    @relaxed
    @given(st.lists(ids, max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=3))
    def check(sequence: list[int], sizes: list[int]) -> None:
        text = "".join(in_pieces(tokenizer, sequence, sizes, skip))
        assert text == "".join(in_pieces(tokenizer, sequence, [1000], skip))
        if not has_byte_tokens or runs_are_whole(tokenizer, sequence, skip):
            assert text == tokenizer.decode(sequence, skip_special_tokens=skip)

    check()


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "gemma_like"])
@given(text=st.text(max_size=60))
@relaxed
def test_any_text_streams_without_replacement_characters(loaded: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = loaded[name]
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids)
    pieces = in_pieces(tokenizer, ids, [1])
    assert "".join(pieces) == whole
    # The byte-level tokenizer has an added token "ÿé" whose characters are the bytes FF E9, which are not UTF-8.
    if "\ufffd" not in text and "ÿé" not in text:
        assert not any("\ufffd" in piece for piece in pieces)
        assert pieces[-1] == ""


@given(st.binary(max_size=30), st.lists(st.integers(1, 4), min_size=1, max_size=4))
@relaxed
def test_bytes_are_replaced_as_python_does_and_never_early(data: bytes, sizes: list[int]) -> None:
    detokenizer = ByteDetokenizer([bytes([i]) for i in range(256)])
    text, at = "", 0
    for size in itertools.cycle(sizes):
        if at >= len(data):
            break
        text += detokenizer.push(data[at : at + size])
        at += size
        assert data[:at].decode(errors="replace").startswith(text)
        assert detokenizer.bytes_held <= 3
    assert text + detokenizer.flush() == data.decode(errors="replace")


def test_half_a_character_waits_for_its_other_half(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    first, *middle, last = [id_of(tokenizer, char) for char in "ðŁĻĤ"]  # the four bytes of an emoji
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(middle) == ""
    assert detokenizer.push([last]) == "🙂"
    assert detokenizer.push([first]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_broken_character_is_replaced_once_it_cannot_complete(tokenizer: Tokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    first, letter = id_of(tokenizer, "ð"), id_of(tokenizer, "a")
    assert detokenizer.push([first]) == ""
    assert detokenizer.push([letter]) == "\ufffda"


def test_valid_characters_of_a_run_that_breaks_off_are_kept(loaded: dict[str, Tokenizer]) -> None:
    # Here, and only here, the library's text differs: it takes back the euro sign, which has been sent long ago.
    tokenizer = loaded["byte_fallback"]
    ids = [id_of(tokenizer, f"<0x{byte:02X}>") for byte in (0xE2, 0x82, 0xAC, 0xFF)]
    assert in_pieces(tokenizer, ids, [1]) == ["", "", "€", "\ufffd", ""]
    assert tokenizer.decode(ids) == "\ufffd" * 4


def test_special_tokens_are_left_out_or_shown(tokenizer: Tokenizer) -> None:
    start = id_of(tokenizer, "<|im_start|>")
    think = id_of(tokenizer, "<think>")  # added, but not special
    assert tokenizer.detokenizer().push([start, think]) == "<think>"
    assert tokenizer.detokenizer(skip_special_tokens=False).push([start, think]) == "<|im_start|><think>"


def test_ids_beyond_the_tokenizer_add_nothing_and_negative_ids_are_refused(tokenizer: Tokenizer) -> None:
    assert tokenizer.detokenizer().push([tokenizer.vocab_size + 7]) == ""
    assert tokenizer.detokenizer().push([10**9, id_of(tokenizer, "a")]) == "a"
    with pytest.raises(ValueError, match="-1"):
        tokenizer.detokenizer().push([-1])


@pytest.mark.parametrize("name", FAMILIES)
def test_work_per_token_does_not_grow(loaded: dict[str, Tokenizer], name: str) -> None:
    tokenizer = loaded[name]
    rng = random.Random(0)
    ids = [rng.randrange(tokenizer.vocab_size) for _ in range(3000)]
    detokenizer = tokenizer.detokenizer()
    text = "".join(detokenizer.push([token_id]) for token_id in ids)
    if isinstance(detokenizer, WindowDetokenizer):
        assert detokenizer.tokens_decoded < 4 * len(ids)
    else:
        assert isinstance(detokenizer, ByteDetokenizer)
        assert detokenizer.bytes_held <= 3
    assert len(text) > len(ids)


def test_a_window_that_never_reads_well_is_let_go() -> None:
    detokenizer = WindowDetokenizer(lambda ids: "\ufffd" * len(ids), lambda token_id: True)
    text = "".join(detokenizer.push([1]) for _ in range(1000))
    assert len(text) >= 900
    assert detokenizer.tokens_decoded < 200 * 1000
    assert text + detokenizer.flush() == "\ufffd" * 1000
