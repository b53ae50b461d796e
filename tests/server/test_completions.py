from __future__ import annotations

import msgspec
import pytest

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import FillInTokens, Finish, FinishError, TemplateText
from radixrt.messages.wire import unpack_i32
from tests.server.fake_engine import MAX_INPUT, VOCAB, Sent, info, speak
from tests.server.helpers import Caller, check_error, events

TEXT = "Hello, world!"


def test_answer_has_the_legacy_shape(caller: Caller) -> None:
    answer = caller.complete("hi").json()
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    (choice,) = answer["choices"]
    assert choice == {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop", "stop_reason": "END"}
    assert answer["usage"]["total_tokens"] == 14
    assert caller.engine.requests[0].sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "sent"),
    [("a b", ["a b"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])],
)
def test_four_forms_of_prompt(caller: Caller, prompt: object, sent: list) -> None:
    assert caller.complete(prompt).status_code == 200
    requests = sorted(caller.engine.requests, key=lambda r: r.rid)
    assert [r.prompt if r.input_ids is None else unpack_i32(r.input_ids).tolist() for r in requests] == sent


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_ordered_by_prompt_then_n(caller: Caller, stream: bool) -> None:
    def script(request: Sent):
        yield 0.05 if request.prompt == "a" else 0.0
        yield from speak(request, [f"{request.prompt}{request.rid[-1]}"])

    caller.engine.script = script
    response = caller.complete(["a", "b"], n=2, stream=stream)
    choices = [c for chunk in events(response) for c in chunk["choices"]] if stream else response.json()["choices"]
    assert sorted((c["index"], c["text"]) for c in choices) == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    if not stream:
        usage = response.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 4)
        assert [c["index"] for c in choices] == [0, 1, 2, 3]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_best_of_several_completions_are_returned(caller: Caller, logprobs: int | None) -> None:
    words = {"0": ["x", "impossible"], "1": ["long", "one"], "2": ["x", "y"]}

    def script(request: Sent):
        (output,) = speak(request, words[request.rid[-1]] if request.prompt == "a" else ["b" + request.rid[-1]])
        better = -0.25 if request.rid[-1] == "2" else -1.0
        rows = [msgspec.structs.replace(row, logprob=row.logprob * -better) for row in output.logprobs or []]
        yield msgspec.structs.replace(output, logprobs=rows)

    caller.engine.script = script
    answer = caller.complete(["a", "c"], best_of=3, n=2, logprobs=logprobs).json()
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "xy"), (1, "longone"), (2, "b2"), (3, "b0")]
    assert all((c["logprobs"] is None) == (logprobs is None) for c in answer["choices"])
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (20, 6 + 3), "all were sampled"
    assert {each.sampling.logprobs for each in caller.engine.requests} == {logprobs or 0}


def test_a_suffix_asks_for_the_text_between(caller: Caller) -> None:
    tokens = FillInTokens("<pre>", "<suf>", "<mid>", end_ids=[7, 8])
    caller.engine.deliver(msgspec.structs.replace(info(), fill_in=tokens))
    between = [TemplateText("<pre>"), "a", TemplateText("<suf>"), "b", TemplateText("<mid>")]
    (choice,) = caller.complete("a", suffix="b", stop_token_ids=[3]).json()["choices"]
    assert choice["text"] == TEXT
    (request,) = caller.engine.requests
    assert request.parts == ["", *between]
    assert request.prompt is None
    assert request.sampling.stop_token_ids == (3, 7, 8)
    assert caller.complete([[1, 2], [3]], suffix="b", stream=True).status_code == 200
    assert sorted(each.parts[2] for each in caller.engine.requests[1:] if each.parts) == [[1, 2], [3]]
    assert caller.complete("a", suffix="").status_code == 200
    assert caller.engine.requests[-1].prompt == "a"
    check_error(caller.complete("a", suffix="b", echo=True), 400, "echo")
    check_error(caller.complete("a", suffix="b", truncate_prompt_tokens=5), 400, "truncate_prompt_tokens")
    refused = Finish("error", error=FinishError("input_parts[4] is bad", "input_parts[4]", status=400))
    caller.engine.script = lambda request: [RequestOutput(request.rid, finish=refused)]
    check_error(caller.complete("a", suffix="b"), 400, "suffix")


def test_stream(caller: Caller) -> None:
    *chunks, last = events(caller.complete(stream=True, stream_options={"include_usage": True}))
    assert [c["choices"][0]["text"] for c in chunks] == ["Hello", ",", " world", "!"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert all(c["object"] == "text_completion" and c["usage"] is None for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


def test_legacy_logprobs_count_characters_over_bytes(caller: Caller) -> None:
    caller.engine.script = lambda request: speak(request, ["é", "impossible", "c"])
    (choice,) = caller.complete(logprobs=1).json()["choices"]
    assert choice["logprobs"] == {
        "tokens": ["é", "impossible", "c"],
        "token_logprobs": [-1.0, -9999.0, -1.0],
        "top_logprobs": [
            {"alt0": -1.0, "é": -1.0},
            {"alt0": -9999.0, "impossible": -9999.0},
            {"alt0": -1.0, "c": -1.0},
        ],
        "text_offset": [0, 1, 11],
    }


@pytest.mark.parametrize("stream", [False, True])
def test_echo_brings_the_prompt_and_its_logprobs(caller: Caller, stream: bool) -> None:
    response = caller.complete("say hi", echo=True, logprobs=0, stream=stream)
    if stream:
        parts = [c["choices"][0] for c in events(response)]
        choice = {"text": "".join(p["text"] for p in parts), "logprobs": {}}
        for key in parts[0]["logprobs"]:
            choice["logprobs"][key] = [x for p in parts for x in p["logprobs"][key]]
    else:
        (choice,) = response.json()["choices"]
    assert choice["text"] == "say hi" + TEXT
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == ["say", " hi", "Hello", ",", " world", "!"]
    assert logprobs["token_logprobs"] == [None, -0.5, -1.0, -1.0, -1.0, -1.0]
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"] == [0, 3, 6, 11, 12, 18]


def test_scoring_a_prompt_generates_nothing(caller: Caller) -> None:
    """lm-evaluation-harness sends such requests."""
    (choice,) = caller.complete([[9]], echo=True, logprobs=1, max_tokens=0).json()["choices"]
    assert choice["text"] == "<9>"
    assert choice["finish_reason"] == "length"
    sampling = caller.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.prompt_logprobs) == (0, 1)
    (choice,) = caller.complete("x y", echo=True, max_tokens=0).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == ("x y", None)
    check_error(caller.complete("x", max_tokens=0), 400, "max_tokens")


def test_echoed_text_without_logprobs_costs_no_recomputation(caller: Caller) -> None:
    assert caller.complete("x y", echo=True).json()["choices"][0]["text"] == "x y" + TEXT
    assert caller.engine.requests[0].sampling.prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [[1], 2]}, "prompt[1]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [VOCAB]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": ["a"] * 256, "n": 128}, "n"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 129}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 0, "best_of": 2}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_refusals_name_the_field(caller: Caller, fields: dict, param: str) -> None:
    check_error(caller.post("/v1/completions", {"prompt": "hi", **fields}), 400, param)
    assert not caller.engine.requests


def test_prompt_that_is_too_long_is_refused_before_it_is_sent(caller: Caller) -> None:
    check_error(caller.complete([1] * (MAX_INPUT + 1)), 400, "prompt", "context_length_exceeded")
    assert caller.complete([1] * MAX_INPUT).status_code == 200


def test_harmless_fields_are_accepted(caller: Caller) -> None:
    assert caller.complete(best_of=1, suffix=None, user="u", response_format={"type": "text"}).status_code == 200
    assert caller.complete(best_of=2, n=2, use_beam_search=False).status_code == 200
