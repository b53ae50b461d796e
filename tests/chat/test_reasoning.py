from __future__ import annotations

import pytest

from radixrt.chat.reasoning import ReasoningSplitter, Thinking


def split(text: str, thinking: Thinking, size: int) -> tuple[str, str]:
    splitter = ReasoningSplitter(thinking)
    parts = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
    parts.append(splitter.finish())
    return "".join(one for one, _ in parts), "".join(two for _, two in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "thinking", "reasoning", "answer"),
    [
        ("<think>\na b\n</think>\n\nyes\n", Thinking.FREE, "a b", "yes\n"),
        ("\n<think>a</think>yes", Thinking.FREE, "a", "yes"),
        ("<think></think>yes", Thinking.FREE, "", "yes"),
        ("<think>\n\n</think>\n\n", Thinking.FREE, "", ""),
        ("just an answer", Thinking.FREE, "", "just an answer"),
        ("  <thin", Thinking.FREE, "", "  <thin"),
        ("<thing> b", Thinking.FREE, "", "<thing> b"),
        ("<think>never ends </thi", Thinking.FREE, "never ends </thi", ""),
        ("a < b</think>{}", Thinking.BEGUN, "a < b", "{}"),
        ("\na\n\nb </thin k> \n</think> c </think>", Thinking.BEGUN, "a\n\nb </thin k>", "c </think>"),
        ("<think>\na</think>b", Thinking.BEGUN, "a", "b"),
        ("a", Thinking.BEGUN, "a", ""),
        ("", Thinking.BEGUN, "", ""),
        ("<think>a</think>b", Thinking.OFF, "", "<think>a</think>b"),
        (" a", Thinking.OFF, "", " a"),
    ],
)
def test_however_it_is_cut(text: str, thinking: Thinking, reasoning: str, answer: str, size: int) -> None:
    assert split(text, thinking, size) == (reasoning, answer)


def test_answer_is_not_held_back() -> None:
    splitter = ReasoningSplitter(Thinking.FREE)
    assert splitter.feed("<think>a</think>") == ("a", "")
    assert splitter.feed("{") == ("", "{")
    assert splitter.feed("  ") == ("", "  ")
