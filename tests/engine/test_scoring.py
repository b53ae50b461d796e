"""Scoring, tokens and programs' hints through a real engine."""

from __future__ import annotations

import asyncio

import pytest

from radixrt.engine.engine import Decision, Engine
from radixrt.errors import RequestError
from radixrt.messages.parts import ProgramHint, TemplateText
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.prompts import new_rid
from tests.client_requests import generating
from tests.engine.helpers import GREEDY, TEXT, assert_eventually, one

CHOICES = [" Paris", " Berlin", " a city"]


def test_score(engine: Engine) -> None:
    decision = engine.score(TEXT, CHOICES)
    assert decision.text == CHOICES[decision.choice]
    assert sum(decision.probabilities) == pytest.approx(1.0)
    assert decision.prompt_token_ids == engine.tokenize(TEXT)
    assert decision.usage.completion_tokens == 0
    for ids, choice in zip(decision.token_ids, CHOICES, strict=True):
        whole = decision.prompt_token_ids[: decision.kept] + ids
        assert whole == engine.tokenize(TEXT + choice)
        assert engine.detokenize(whole, skip_special_tokens=False) == TEXT + choice


def test_scores_are_those_of_prompt_logprobs(engine: Engine) -> None:
    decision = engine.score(TEXT, CHOICES)
    for ids, logprob in zip(decision.token_ids, decision.logprobs, strict=True):
        whole = decision.prompt_token_ids[: decision.kept] + ids
        scored = one(engine, whole, {"max_tokens": 1, "prompt_logprobs": 0})
        assert scored.prompt_logprobs is not None
        rows = scored.prompt_logprobs[decision.kept :]
        assert logprob == pytest.approx(sum(row.logprob or 0.0 for row in rows), abs=1e-4)


def test_async_scores_and_generations_together(engine: Engine) -> None:
    async def go() -> list[object]:
        scores = [engine.async_score(TEXT, CHOICES, method) for method in ("greedy", "token_length_normalized")]
        return await asyncio.gather(*scores, engine.async_generate(TEXT, GREEDY))

    greedy, mean, completion = asyncio.run(go())
    assert isinstance(greedy, Decision)
    assert isinstance(mean, Decision)
    assert greedy.logprobs == pytest.approx(mean.logprobs, abs=1e-4)
    assert completion == one(engine, TEXT, GREEDY) or completion.token_ids == one(engine, TEXT, GREEDY).token_ids  # type: ignore[attr-defined]


def test_a_cancelled_score_leaves_nothing_behind(engine: Engine) -> None:
    async def go() -> None:
        task = asyncio.create_task(engine.async_score(TEXT, [f" {i} {j}" for i in range(40) for j in range(40)]))
        while not engine.client.open_requests:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())


@pytest.mark.parametrize(
    ("prompt", "choices", "method", "param"),
    [
        (TEXT, [], "greedy", "choices"),
        (TEXT, ["a", "a"], "greedy", "choices[1]"),
        (TEXT, "ab", "greedy", "choices"),
        (TEXT, [5], "greedy", "choices[0]"),
        (TEXT, ["a"], "best", "method"),
        (5, ["a"], "greedy", "prompt"),
        ([TemplateText("a"), 5.5], ["a"], "greedy", "input_parts[1]"),
        ([10**6], ["a"], "greedy", "input_ids"),
        ("", ["a"], "greedy", "prompt"),
    ],
)
def test_mistakes_name_the_field(engine: Engine, prompt: object, choices: object, method: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        engine.score(prompt, choices, method)  # type: ignore[arg-type]
    assert raised.value.param == param


def test_programs_are_counted_and_released(engine: Engine) -> None:
    hint = ProgramHint("p", "0", will_continue=True)
    request = generating(new_rid(), SamplingParams(**GREEDY), prompt=TEXT * 3, program=hint)
    list(engine.client.stream(request))
    engine.score(TEXT * 3, CHOICES, program=ProgramHint("p", "0"))
    engine.release("p", "0")
    engine.release("p")
    engine.release("unknown", "branch")
    one(engine, TEXT, GREEDY)  # statistics come with work

    def released() -> bool:
        programs = engine.stats.programs if engine.stats is not None else None
        return programs is not None and programs.releases == 2 and programs.holds == 0 and programs.cached_tokens > 0

    assert_eventually(released)


@pytest.mark.parametrize(
    ("hint", "param"),
    [
        (5, "program"),
        (ProgramHint("p", 5), "program.branch"),  # type: ignore[arg-type]
        (ProgramHint("p", fork_len=2**70), "program.fork_len"),
        (ProgramHint("p", siblings=True), "program.siblings"),
        (ProgramHint(""), "program"),
        (ProgramHint("p", "b" * 2000), "program"),
    ],
)
def test_a_bad_hint_is_refused(engine: Engine, hint: object, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        engine.score(TEXT, CHOICES, program=hint)
    assert raised.value.param == param
