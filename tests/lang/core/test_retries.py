"""Further attempts after an answer that is not acceptable, and items of a batch that are run again."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

import radixrt as rt
from radixrt.errors import RequestError
from radixrt.lang.core.batch import MAX_RETRY_S, retry_pause_s

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


class Refusal:
    """A check that refuses the first values that it is given."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.seen: list[Any] = []

    def __call__(self, value: Any) -> None:
        self.seen.append(value)
        if len(self.seen) <= self.times:
            raise ValueError(f"attempt {len(self.seen)} is too long")


@rt.function(**GREEDY)
def chat(s: rt.State, check: Refusal) -> None:
    s += rt.user("A town?") + rt.assistant("It is" + rt.gen("town", check=check, retries=2))
    s += rt.user("Why?") + rt.assistant(rt.gen("why"))


def test_the_model_is_told_and_the_conversation_keeps_only_what_was_accepted(engine: rt.Engine) -> None:
    check = Refusal(times=2)
    state = chat.run(check, backend=engine)
    first, second, third, why = state.log.calls
    assert check.seen == [first.text, second.text, third.text]
    assert state["town"] == third.text
    assert (first.error, second.error, third.error) == (
        "ValueError: attempt 1 is too long", "ValueError: attempt 2 is too long", None
    )  # fmt: skip
    assert "This answer is not accepted: attempt 1 is too long\nAnswer again." in second.prompt_text
    assert second.prompt_text.startswith(first.prompt_text + first.text)
    assert second.prompt_text.endswith("<|im_start|>assistant\nIt is")
    assert second.cached_tokens >= first.prompt_tokens
    assert third.prompt_text.startswith(second.prompt_text + second.text)
    assert "not accepted" not in why.prompt_text
    assert f"It is{third.text}<|im_end|>" in why.prompt_text
    assert not why.rerendered
    assert [message["role"] for message in state.messages()] == ["user", "assistant"] * 2


def test_when_no_attempt_is_left_the_last_error_is_raised(engine: rt.Engine) -> None:
    check = Refusal(times=3)
    with pytest.raises(rt.CallError, match=r'chat, branch 0, gen "town": ValueError: attempt 3 is too long'):
        chat.run(check, backend=engine)
    assert len(check.seen) == 3


def test_the_rule_of_a_type_is_told_by_field(engine: rt.Engine) -> None:
    class Trip(pydantic.BaseModel):
        days: int = pydantic.Field(ge=0, le=9)

        @pydantic.field_validator("days")
        @classmethod
        def never(cls, days: int) -> int:
            raise ValueError("no trip has so many days")

    @rt.function(**GREEDY)
    def plan(s: rt.State) -> None:
        s += rt.user("Plan.") + rt.assistant(rt.gen("trip", Trip, retries=1, max_tokens=20))

    with pytest.raises(rt.CallError, match="no trip has so many days") as raised:
        plan.run(backend=engine)
    told = raised.value.state.log.calls[1].prompt_text
    assert "This answer is not accepted: days: no trip has so many days\nAnswer again." in told


def test_without_roles_another_answer_is_sampled(engine: rt.Engine) -> None:
    check = Refusal(times=3)

    @rt.function(max_tokens=12, temperature=0)
    def plain(s: rt.State) -> None:
        s += "A town is" + rt.gen("town", check=check, retries=5, seed=1)

    state = plain.run(backend=engine)
    assert len({call.prompt_text for call in state.log.calls}) == 1
    assert len(set(check.seen)) > 1
    assert state.text().endswith(state["town"])


def test_explain_checks_no_placeholders(engine: rt.Engine) -> None:
    check = Refusal(times=9)
    assert len(chat.explain(check, backend=engine).calls) == 2
    assert check.seen == []


def test_wrong_retries_are_refused() -> None:
    for options, message in (
        ({"retries": -1}, "retries must be a whole number from 0 to 16, not -1"),
        ({"retries": True}, "retries must be a whole number"),
        ({"retries": 1, "n": 2}, "retries cannot be used with n > 1"),
        ({"retries": 1, "tools": [len]}, "retries cannot be used with tools"),
    ):
        with pytest.raises(RequestError, match=message):
            rt.gen("x", **options)  # type: ignore[arg-type]


def test_items_of_a_batch_are_run_again(engine: rt.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.lang.core.batch.RETRY_S", 0.0)
    runs: dict[int, int] = {}

    @rt.function(**GREEDY)
    def flaky(s: rt.State, item: int) -> None:
        runs[item] = runs.get(item, 0) + 1
        if runs[item] <= item:
            raise RuntimeError("not now")
        s += "Go" + rt.gen("x")

    items = flaky.batch(range(4), backend=engine, retries=2, progress=False)
    assert [item.error for item in items] == [None, None, None, "RuntimeError: not now"]
    assert runs == {0: 1, 1: 2, 2: 3, 3: 3}
    with pytest.raises(rt.ProgramError, match="retries must be a whole number from 0 on, not -1"):
        flaky.batch([], backend=engine, retries=-1)


def test_pauses_between_attempts_are_bounded() -> None:
    assert [retry_pause_s(attempt) for attempt in (0, 1, 2, 7, 5000)] == [0.25, 0.5, 1.0, MAX_RETRY_S, MAX_RETRY_S]


def test_the_bar_shows_reuse_errors_and_what_was_resumed(
    engine: rt.Engine, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    @rt.function(**GREEDY)
    def one(s: rt.State, item: int) -> None:
        if item == 2:
            raise RuntimeError("never")
        s += "A long beginning that all of them share, word by word, to the end" + rt.gen("x")

    options: dict[str, Any] = {"backend": engine, "output": tmp_path / "out.jsonl", "progress": True, "concurrency": 1}
    one.batch([0, 1], **options)
    one.batch([0, 1, 2], resume=True, **options)
    shown = capsys.readouterr().err
    assert "reused=" in shown
    assert "resumed=2, errors=1" in shown
