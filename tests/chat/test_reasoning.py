from __future__ import annotations

import pytest

from radixrt.chat.reasoning import REASONING_MARKERS, THINK, ReasoningMarkers, ReasoningSplitter, Thinking


def split(text: str, thinking: Thinking, size: int, markers: ReasoningMarkers = THINK) -> tuple[str, str]:
    splitter = ReasoningSplitter(thinking, markers)
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
        ("</think>\n\nyes", Thinking.FREE, "", "yes"),  # families whose models skip reasoning so
        ("</thing>", Thinking.FREE, "", "</thing>"),
    ],
)
def test_however_it_is_cut(text: str, thinking: Thinking, reasoning: str, answer: str, size: int) -> None:
    assert split(text, thinking, size) == (reasoning, answer)


@pytest.mark.parametrize("size", [1, 3, 5, 100])
@pytest.mark.parametrize("markers", REASONING_MARKERS, ids=lambda markers: markers.start)
def test_markers_of_each_family(markers: ReasoningMarkers, size: int) -> None:
    before, after = markers.frame
    text = f"a < [b]{markers.end}\n{before}<x>[yes]{after}"
    assert split(markers.start + text, Thinking.FREE, size, markers) == ("a < [b]", "<x>[yes]")
    assert split(text, Thinking.BEGUN, size, markers) == ("a < [b]", "<x>[yes]")
    assert split(f"{markers.end}{before}yes{after}", Thinking.FREE, size, markers) == ("", "yes")
    assert split(f"{before}no {markers.end[:-1]}{after}", Thinking.FREE, size, markers) == (
        "",
        f"no {markers.end[:-1]}",
    )
    assert split("yes", Thinking.FREE, size, markers) == ("", "yes")
    assert split(f"{before} a < b{after}", Thinking.OFF, size, markers) == ("", " a < b")


def test_answer_is_not_held_back() -> None:
    splitter = ReasoningSplitter(Thinking.FREE)
    assert splitter.feed("<think>a</think>") == ("a", "")
    assert splitter.feed("{") == ("", "{")
    assert splitter.feed("  ") == ("", "  ")
