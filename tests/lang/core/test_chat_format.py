"""The pieces of a rendered conversation add up to the template's own text, for every kind of template."""

from __future__ import annotations

import re
from typing import Any

import pytest

from radixrt.errors import RequestError
from radixrt.lang.core.chat_format import ChatFormat, Piece
from radixrt.lang.core.prompt import Composer
from radixrt.lang.core.transcript import Answer, Begin, End, Known, Message, Text, Transcript, append
from radixrt.messages.parts import TemplateText
from radixrt.tokenizer.chat_template import ChatTemplate
from tests.tokenizer.model_templates import TEMPLATES

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are S.<|im_end|>\n{% endif %}" + TEMPLATES["chatml"]
)
GEMMA = """{{ bos_token }}\
{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
ALL = {**TEMPLATES, "default system": DEFAULT_SYSTEM, "gemma": GEMMA}


def chat(source: str) -> ChatFormat:
    return ChatFormat({"default": source}, TOKENS)


def whole(source: str, messages: list[Message], **options: Any) -> str:
    plain = [{"role": m.role, "content": m.content} for m in messages]
    text = ChatTemplate({"default": source}, TOKENS).render(plain, **options)
    return re.sub(r"Today Date: .*", "", text)


def joined(pieces: list[Piece]) -> str:
    return re.sub(r"Today Date: .*", "", "".join(piece.text for piece in pieces))


CONVERSATIONS = [
    [Message("user", "Hi")],
    [Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "")],
    [
        Message("system", "S"),
        Message("user", " spaces \n"),
        Message("assistant", "  a\n"),
        Message("user", "<|im_end|>"),
    ],
    [Message("user", "\ue000c0\ue001"), Message("assistant", "<think>\nx\n</think>\n\ny"), Message("user", "z")],
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_pieces_come_to_the_templates_text(name: str, messages: list[Message]) -> None:
    form = chat(ALL[name])
    try:
        expected = whole(ALL[name], messages, add_generation_prompt=False)
    except RequestError as refused:
        with pytest.raises(RequestError, match=re.escape(refused.message)):
            form.render(messages)
        return
    assert joined(form.render(messages)) == expected
    assert joined(form.render(messages)) == expected  # from the remembered shape
    header = whole(ALL[name], messages, add_generation_prompt=True)
    assert joined(form.render([*messages, Message("assistant", "")], open=True)) == header
    assert joined(form.render([*messages, Message("assistant", " x ")], open=True)) == header + " x "


@pytest.mark.parametrize("name", ["chatml", "llama3", "qwen", "default system", "gemma"])
def test_control_tokens_of_contents_are_contents(name: str) -> None:
    messages = [Message("user", " <|im_end|>\n"), Message("assistant", "ok"), Message("user", "<|eot_id|>")]
    pieces = chat(ALL[name]).render(messages)
    contents = [piece.text.strip() for piece in pieces if not piece.template]
    assert contents == ["<|im_end|>", "ok", "<|eot_id|>"]


def test_what_a_template_makes_of_reasoning_leaves_the_users_contents_apart() -> None:
    messages = [Message("user", "<|im_end|>"), Message("assistant", "<think>\nx\n</think>\n\ny"), Message("user", "z")]
    pieces = chat(TEMPLATES["qwen"]).render(messages)
    assert [piece.text for piece in pieces if not piece.template] == ["<|im_end|>", "z"]
    assert "x" not in joined(pieces)


def test_an_open_message_of_the_user_goes_on() -> None:
    pieces = chat(TEMPLATES["chatml"]).render([Message("system", "S"), Message("user", "I am")], open=True)
    assert joined(pieces) == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nI am"


def test_tools_are_given_to_the_template() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    pieces = chat(TEMPLATES["qwen"]).render([Message("user", "Hi")], tools=[tool])
    assert '"name": "look"' in joined(pieces)


# --- prompts ---


def answered(transcript: Transcript, text: str, composer: Composer, ids: list[int]) -> Transcript:
    """The transcript with an answer, whose prompt's and own ids are made up."""
    from array import array

    before = composer.compose(transcript)
    return append(transcript, Answer(text, 0, Known(array("i", ids), before.text + text)))


def said(transcript: Transcript, role: str, text: str) -> Transcript:
    for entry in (Begin(role), Text(text), End()):
        transcript = append(transcript, entry)
    return transcript


def test_a_prompt_goes_on_from_the_ids_of_the_last_answer() -> None:
    composer = Composer(chat(TEMPLATES["chatml"]), tokens=True)
    asked = append(said(None, "user", "a"), Begin("assistant"))
    done = append(answered(asked, "b", composer, [1, 2, 3]), End())
    composed = composer.compose(append(said(done, "user", "c"), Begin("assistant")))
    assert not composed.rerendered
    assert [list(composed.prompt.parts[0]), *composed.prompt.parts[1:]] == [  # type: ignore[arg-type]
        [1, 2, 3],
        TemplateText("<|im_end|>\n<|im_start|>user\n"),
        "c",
        TemplateText("<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert composed.prompt.open_message
    assert composed.prompt.messages == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(("template", "answer"), [("qwen", "<think>\nx\n</think>\n\ny"), ("llama3", " spaces ")])
def test_a_template_that_rewrites_what_was_said_is_noticed(template: str, answer: str) -> None:
    composer = Composer(chat(TEMPLATES[template]), tokens=True)
    first = append(said(None, "user", "a"), Begin("assistant"))
    done = append(answered(first, answer, composer, [1, 2]), End())
    composed = composer.compose(append(said(done, "user", "c"), Begin("assistant")))
    assert composed.rerendered
    assert composed.known == 0
    messages = [Message("user", "a"), Message("assistant", answer), Message("user", "c")]
    assert joined([Piece(composed.text, True)]) == whole(TEMPLATES[template], messages)


def test_an_answer_before_the_rewritten_one_is_still_sent_as_ids() -> None:
    composer = Composer(chat(TEMPLATES["llama3"]), tokens=True)
    first = append(said(None, "user", "a"), Begin("assistant"))
    kept = append(answered(first, "fine", composer, [1, 2]), End())
    second = append(said(kept, "user", "b"), Begin("assistant"))
    done = append(answered(second, " spaces ", composer, [1, 2, 3, 4]), End())
    composed = composer.compose(append(said(done, "user", "c"), Begin("assistant")))
    assert composed.rerendered
    assert composed.known == 2


def test_texts_without_roles_are_one_text() -> None:
    composer = Composer(None, tokens=True)
    transcript = append(append(None, Text("a ")), Text("b"))
    assert composer.compose(transcript).prompt.parts == ["a b"]
    with pytest.raises(RequestError, match="no text yet"):
        composer.compose(None)
    with pytest.raises(RequestError, match="no chat template"):
        composer.compose(said(None, "user", "a"))
