"""Length of a conversation's prompt up to the end of its last message."""

from __future__ import annotations

import numpy as np
import pytest

from radixrt.messages.parts import ChatPrompt
from radixrt.tokenizer.chat_template import ChatTemplate
from radixrt.tokenizer.generation_prompt import MAX_KNOWN, GenerationPrompts

MESSAGES = "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
HEADER = "{% if add_generation_prompt %}<assistant>{% if think %}<think>{% endif %}{% endif %}"


def encode(text: str) -> list[int]:
    return list(text.encode())


def turn(source: str, chat: ChatPrompt, prompt: str) -> int:
    return GenerationPrompts(ChatTemplate({"default": source}, {})).turn_len(
        chat, np.array(encode(prompt), np.int32), encode
    )


def test_the_generation_prompt_does_not_count_whatever_the_variables_make_of_it() -> None:
    prompts = GenerationPrompts(ChatTemplate({"default": MESSAGES + HEADER}, {}))
    for kwargs, end in ((b"{}", "<assistant>"), (b'{"think": true}', "<assistant><think>")) * 2:
        ids = np.array(encode("<user>hi;" + end), np.int32)
        assert prompts.turn_len(ChatPrompt(b"", template_kwargs=kwargs), ids, encode) == len("<user>hi;")


@pytest.mark.parametrize(
    ("source", "chat", "prompt"),
    [
        (MESSAGES + HEADER, ChatPrompt(b"", add_generation_prompt=False), "<user>hi;"),
        (MESSAGES + HEADER, ChatPrompt(b"", continue_final_message=True), "<user>hi;<assistant>"),
        (MESSAGES + HEADER, ChatPrompt(b""), "<user>hi;<other>"),
        (MESSAGES, ChatPrompt(b""), "<user>hi;"),
        ("{{ raise_exception('no') }}", ChatPrompt(b""), "x"),
        ("{% if add_generation_prompt %}!{% endif %}" + MESSAGES, ChatPrompt(b""), "!<user>hi;"),
    ],
)
def test_it_is_unknown_where_there_is_no_such_prompt(source: str, chat: ChatPrompt, prompt: str) -> None:
    assert turn(source, chat, prompt) == 0


def test_only_so_many_sets_of_variables_are_remembered() -> None:
    prompts = GenerationPrompts(ChatTemplate({"default": MESSAGES + HEADER}, {}))
    for i in range(MAX_KNOWN + 5):
        chat = ChatPrompt(b"", template_kwargs=b'{"a": %d}' % i)
        assert prompts.turn_len(chat, np.array(encode("x<assistant>"), np.int32), encode) == 1
    assert len(prompts._known) == MAX_KNOWN
