"""A request that brings output of another scheduler goes on as if it had been here from the start."""

from __future__ import annotations

import msgspec
import pytest

from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.sampling_params import SamplingParams
from tests.scheduler.fake_runner import Harness, expected_output
from tests.scheduler.scripted_grammar import ScriptedGrammar

PROMPT = [7, 8, 9, 10, 11]


def resumed(harness: Harness, rid: str, prompt: list[int], output: list[int], **fields: object) -> None:
    """Add a request with output, through the messages' own form."""
    sampling = SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **fields})  # type: ignore[arg-type]
    message = Request.generate(rid, pack_i32(prompt), sampling)
    harness.requests[rid] = message
    harness.scheduler.intake.add(msgspec.structs.replace(message, resume_ids=pack_i32(output)), harness.now)
    harness.outputs[rid] = list(output)


@pytest.mark.parametrize("known", [1, 5, 11])
def test_the_output_goes_on_behind_what_is_known(known: int) -> None:
    harness = Harness(depth=2)
    tokens, _ = expected_output(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True), harness.max_len)
    resumed(harness, "a", PROMPT, tokens[:known], ignore_eos=True)
    harness.drain()
    harness.assert_output("a")


def test_penalties_and_min_tokens_count_what_is_known() -> None:
    harness = Harness()
    resumed(harness, "a", PROMPT, [3, 4], ignore_eos=True, repetition_penalty=1.2, min_tokens=5)
    harness.submit()
    (row,) = harness.steps[0].sampling_rows
    assert (row.prompt_ids, row.output_ids) == (pack_i32(PROMPT), pack_i32([3, 4]))
    assert row.min_seq_len == len(PROMPT) + 5


def test_a_request_that_was_complete_ends_at_once() -> None:
    harness = Harness()
    resumed(harness, "length", PROMPT, [1, 2, 3], max_tokens=3)
    resumed(harness, "stop", PROMPT, [1, 0])
    harness.drain()
    assert harness.finishes["length"].reason == "length"
    assert (harness.finishes["stop"].reason, harness.finishes["stop"].matched) == ("stop", 0)
    assert harness.outputs["length"] == [1, 2, 3]


def test_a_request_that_has_begun_is_not_refused_by_a_full_queue() -> None:
    harness = Harness(max_running_requests=1, max_queued_requests=1)
    harness.add("a", PROMPT)
    harness.add("refused", PROMPT)
    resumed(harness, "b", PROMPT, [3])
    harness.drain()
    assert {rid: finish.reason for rid, finish in harness.finishes.items() if rid != "a"}["refused"] == "error"
    assert harness.finishes["b"].error is None


def test_output_that_does_not_fit_the_context_is_refused() -> None:
    harness = Harness()
    resumed(harness, "a", PROMPT, [1] * 60, max_tokens=100)
    harness.take()
    error = harness.finishes["a"].error
    assert error is not None
    assert error.code == "context_length_exceeded"


def constrained(harness: Harness, seed: int, output: list[int]) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    message = Request.generate("a", pack_i32(PROMPT), sampling, resume_ids=pack_i32(output))
    harness.scheduler.part(Constraints).add(message, 0.0, ScriptedGrammar(seed))
    harness.outputs["a"] = list(output)


@pytest.mark.parametrize("seed", range(6))
def test_a_grammar_has_read_what_is_known(seed: int) -> None:
    whole = Harness()
    constrained(whole, seed, [])
    cuts = []
    while whole.turn():
        cuts.append(list(whole.outputs["a"]))
    whole.take()
    for known in cuts[:-1]:
        harness = Harness()
        constrained(harness, seed, known)
        harness.drain()
        assert harness.outputs["a"] == whole.outputs["a"]
        assert harness.finishes["a"].reason == whole.finishes["a"].reason


def test_output_that_the_grammar_does_not_allow_ends_the_request() -> None:
    harness = Harness()
    grammar = next(g for g in map(ScriptedGrammar, range(50)) if g.run)
    sampling = SamplingParams(max_tokens=20)
    wrong = grammar.run[0] % 48 + 1
    harness.scheduler.part(Constraints).add(
        Request.generate("a", pack_i32(PROMPT), sampling, resume_ids=pack_i32([wrong])), 0.0, grammar
    )
    harness.take()
    error = harness.finishes["a"].error
    assert error is not None
    assert f"resume_ids holds token {wrong}" in error.message
