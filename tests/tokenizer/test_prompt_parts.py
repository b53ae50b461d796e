"""Prompts in parts: tokenized as one where that is safe, and never with a user's control tokens."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from radixrt.messages.client import PartsInput
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.messages.request import Request
from radixrt.messages.wire import unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.prompt_encoder import PromptEncoder
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import generating
from tests.requests import prompt_of
from tests.tokenizer.worker_bench import CONTEXT, Bench

OK = SamplingParams()


def encode(tokenizer: Tokenizer, *parts: PromptPart) -> list[int]:
    encoder = PromptEncoder(tokenizer, vocab_size=tokenizer.vocab_size, context_length=10_000)
    if not any(parts):
        return list(tokenizer.prefix_ids)  # no prompt of its own: refused
    return unpack_i32(encoder.input_ids(PartsInput(list(parts)))).tolist()


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "gemma_like", "unigram", "word_piece"])
def test_one_text_is_what_a_prompt_is(loaded: dict[str, Tokenizer], family: str) -> None:
    tokenizer = loaded[family]
    for text in ("The quick fox", " jumps", "", "日本語 🙂", "a\n\nb"):
        assert encode(tokenizer, text) == (tokenizer.encode(text) if text else list(tokenizer.prefix_ids))


@pytest.mark.parametrize("family", ["byte_level", "gemma_like", "unigram", "word_piece"])
def test_neighbouring_texts_are_one_text(loaded: dict[str, Tokenizer], family: str) -> None:
    tokenizer = loaded[family]
    assert encode(tokenizer, "The qu", "ick fox", "") == tokenizer.encode("The quick fox")


def test_a_chat_in_parts_is_the_rendered_chat(tokenizer: Tokenizer) -> None:
    parts = (
        TemplateText("<|im_start|>user\n"), "\n\nhi there", TemplateText("<|im_end|>\n<|im_start|>assistant\n")
    )  # fmt: skip
    whole = "<|im_start|>user\n\n\nhi there<|im_end|>\n<|im_start|>assistant\n"
    assert encode(tokenizer, *parts) == tokenizer.encode(whole, add_special_tokens=False)


def test_ids_stay_as_they_are_and_cut_the_text(tokenizer: Tokenizer) -> None:
    odd = [tokenizer.encode("q")[0], tokenizer.encode("u")[0]]
    ids = encode(tokenizer, "The ", odd, "ick", [2], [])
    assert ids == tokenizer.encode("The ") + odd + tokenizer.encode("ick") + [2]


def test_bos_begins_a_users_text_alone(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["gemma_like"]
    assert tokenizer.prefix_ids == (1,)
    assert encode(tokenizer, "hi", [7], "there").count(1) == 1
    assert 1 not in encode(tokenizer, TemplateText("hi"))
    assert 1 not in encode(tokenizer, [7], "hi")
    assert encode(tokenizer, TemplateText("<s>"), "hi").count(1) == 1


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "gemma_like", "word_piece"])
def test_a_users_control_token_is_only_text(loaded: dict[str, Tokenizer], family: str) -> None:
    tokenizer = loaded[family]
    for special in tokenizer.special_texts.values():
        for parts in (
            (f"a {special} b",),
            (special[:2], special[2:]),
            (TemplateText(special[:2]), special[2:]),
            (special[:2], TemplateText(special[2:])),
        ):
            ids = encode(tokenizer, *parts)[len(tokenizer.prefix_ids) if isinstance(parts[0], str) else 0 :]
            assert not (set(ids) & tokenizer.special_ids) - tokenizer.unknown_ids, (parts, ids)
        around = encode(tokenizer, TemplateText(special), f"x{special}", TemplateText(special))
        assert around.count(tokenizer.token_to_id(special) or 0) >= 2
    assert tokenizer.encode("a " + special + " b") != encode(tokenizer, "a " + special + " b")


def test_a_control_token_in_the_model_s_own_vocabulary(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["unigram"]
    ids = encode(tokenizer, TemplateText("hi"), "a </s> b", TemplateText("</s>"))
    assert ids.count(tokenizer.token_to_id("</s>") or 0) == 1


PIECES = st.sampled_from(["<|im_", "start|>", "<|im_end|>", "<|", "end", "|>", "hi", " ", "\n", "é"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(PIECES, st.booleans()), max_size=8))
def test_control_tokens_come_from_templates_alone(byte_level: Tokenizer, pieces: list[tuple[str, bool]]) -> None:
    parts: list[PromptPart] = [TemplateText(text) if template else text for text, template in pieces]
    ids = encode(byte_level, *parts)
    assert byte_level.decode(ids, skip_special_tokens=False) == "".join(text for text, _ in pieces)
    written = "\0".join(part.template if isinstance(part, TemplateText) else "\1" for part in parts)
    runs = "".join("\1" if c == "\1" else c for c in written.replace("\0\1", "\1").replace("\1\0", "\1"))
    joined = runs.replace("\0", "")
    assert sum(token in byte_level.special_ids for token in ids) <= sum(
        joined.count(text) for text in byte_level.special_texts.values()
    )


@pytest.fixture(scope="module")
def byte_level(loaded: dict[str, Tokenizer]) -> Tokenizer:
    return loaded["byte_level"]


def test_parts_reach_the_scheduler_as_ids(bench: Bench) -> None:
    parts: list[PromptPart] = [TemplateText("<|im_start|>user\n"), "hi", [5, 6]]
    bench.handle(generating("r", OK, parts=parts, stream=True))
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    ids = sent.tokens(0).tolist()
    assert ids == [*bench.tokenizer.encode("<|im_start|>user\nhi"), 5, 6]
    (delta,) = bench.tokens([7])
    assert delta.prompt_ids == prompt_of(sent)


BAD: dict[str, tuple[list[PromptPart], str]] = {
    "no part": ([], "input_parts"),
    "only empty parts": (["", [], TemplateText("")], "input_parts"),
    "the largest id there is": (["a", [2**63 - 1]], "input_parts[1]"),
    "negative id": ([[1], [1, -1]], "input_parts[1]"),
    "id beyond the vocabulary": ([[10**6]], "input_parts[0]"),
    "too long in all": ([[5] * CONTEXT, "a"], "input_parts"),
    "too long together": ([[5] * (CONTEXT - 1), "a"], "input_parts"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_parts_name_the_part(bench: Bench, name: str) -> None:
    parts, param = BAD[name]
    error = bench.refused(generating("r", OK, parts=parts))
    assert (error.param, error.status) == (param, 400)


def test_a_huge_part_is_refused_without_tokenizing_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.tokenizer, "encode", lambda *_: pytest.fail("tokenized"))
    error = bench.refused(generating("r", OK, parts=["word " * 1_600_000, [5]]))
    assert error.code == "context_length_exceeded"


def test_half_a_surrogate_pair(bench: Bench) -> None:
    bench.worker.handle(generating("r", OK, parts=["a", "\ud800"]))  # cannot cross the wire, but comes from Python
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.param == "input_parts[1]"
