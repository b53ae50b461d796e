from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from radixrt.config import ServerConfig
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish
from tests.server.fake_engine import MODEL, FakeEngine, Sent, error_delta, info, speak
from tests.server.helpers import Caller, check_error, events

TEXT = "Hello, world!"
USER = {"role": "user", "content": "hi"}


def test_answer_has_the_shape_that_clients_validate(caller: Caller) -> None:
    answer = caller.chat(model=MODEL).json()
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert isinstance(answer["created"], int)
    assert answer["model"] == MODEL
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["stop_reason"] == "END"
    assert choice["logprobs"] is None
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_stream_is_role_then_deltas_then_one_finish(caller: Caller) -> None:
    chunks = events(caller.chat(stream=True))
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in c for c in chunks)
    choices = [c["choices"][0] for c in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["delta"] for c in choices[1:-1]] == [{"content": w} for w in ["Hello", ",", " world", "!"]]
    assert choices[-1]["delta"] == {}
    assert [c["finish_reason"] for c in choices] == [None] * 5 + ["stop"]
    assert all("logprobs" in c and c["logprobs"] is None for c in choices)


def test_usage_chunk_comes_last_and_only_when_asked(caller: Caller) -> None:
    *chunks, last = events(caller.chat(stream=True, stream_options={"include_usage": True}))
    assert all(c["usage"] is None for c in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_each_of_n_choices_is_streamed_whole_and_finishes_once(caller: Caller) -> None:
    chunks = events(caller.chat(stream=True, n=3, stream_options={"include_usage": True}))
    for index in range(3):
        mine = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(c["delta"].get("content", "") for c in mine) == TEXT
        assert [c["finish_reason"] for c in mine if c["finish_reason"]] == ["stop"]
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (10, 12)


def test_n_requests_share_the_prompt_and_count_the_seed_up(caller: Caller) -> None:
    answer = caller.chat(n=2, seed=5).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1]
    assert sorted((r.sampling.n, r.sampling.seed) for r in caller.engine.requests) == [(1, 5), (1, 6)]
    assert answer["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_aligned_with_tokens_and_finite(caller: Caller, stream: bool) -> None:
    caller.engine.script = lambda request: speak(request, ["é", "impossible"])
    response = caller.chat(logprobs=True, top_logprobs=2, stream=stream)
    if stream:
        chunks = [c["choices"][0] for c in events(response)]
        rows = [row for c in chunks if c["logprobs"] for row in c["logprobs"]["content"]]
        assert [c["logprobs"]["content"][0]["token"] for c in chunks if c["delta"].get("content")] == [
            "é",
            "impossible",
        ]
    else:
        rows = response.json()["choices"][0]["logprobs"]["content"]
    assert [(row["token"], row["logprob"]) for row in rows] == [("é", -1.0), ("impossible", -9999.0)]
    assert rows[0]["bytes"] == list("é".encode())
    assert [top["token"] for top in rows[0]["top_logprobs"]] == ["alt0", "alt1"]
    assert all(math.isfinite(top["logprob"]) for row in rows for top in row["top_logprobs"])


def test_text_that_is_held_back_makes_no_empty_chunk(caller: Caller) -> None:
    def script(request: Sent):
        yield RequestOutput(request.rid, "", b"\1\0\0\0")
        yield from speak(request, ["x"])

    caller.engine.script = script
    deltas = [c["choices"][0]["delta"] for c in events(caller.chat(stream=True))]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "x"}, {}]


def test_conversation_reaches_the_template_as_plain_strings(caller: Caller) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "refusal": None, "audio": None},
    ]
    body = {"messages": messages, "chat_template_kwargs": {"k": 1}, "add_generation_prompt": False}
    assert caller.post("/v1/chat/completions", body).status_code == 200
    (request,) = caller.engine.requests
    assert request.chat is not None
    assert request.prompt is None
    assert request.input_ids is None
    assert json.loads(request.chat.messages) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "name": "ann", "content": "ab"},
        {"role": "assistant", "content": None},
    ]
    assert json.loads(request.chat.template_kwargs) == {"k": 1}
    assert not request.chat.add_generation_prompt


def test_continued_message_gets_no_new_header(caller: Caller) -> None:
    assert caller.chat(continue_final_message=True).status_code == 200
    chat = caller.engine.requests[0].chat
    assert chat is not None
    assert (chat.continue_final_message, chat.add_generation_prompt) == (True, False)
    both = caller.chat(continue_final_message=True, add_generation_prompt=True)
    check_error(both, 400, "continue_final_message")


def test_every_field_arrives(caller: Caller) -> None:
    fields = {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "logit_bias": {"5": -100},
        "stop": "x",
        "stop_token_ids": [3],
        "ignore_eos": True,
        "seed": -1,
        "min_tokens": 1,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    routing = {"rid": "mine", "priority": 4, "cache_salt": "s", "timeout": 1.5}
    ignored = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": True,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "prediction": {"type": "content", "content": "x"},
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "reasoning_effort": "low",
        "response_format": {"type": "text"},
        "tools": [],
        "tool_choice": "auto",
        "modalities": ["text"],
        "never_heard_of": [{}],
        "top_logprobs": None,
        "functions": None,
    }
    response = caller.chat(**fields, **routing, **ignored)
    assert response.json()["id"] == "chatcmpl-mine"
    (request,) = caller.engine.requests
    assert request.rid == response.headers["x-request-id"]
    assert (request.priority, request.cache_salt, request.timeout_s) == (4, "s", 1.5)
    for name, value in fields.items():
        got = getattr(request.sampling, name)
        assert got == {"logit_bias": {5: -100.0}, "stop": ("x",), "stop_token_ids": (3,)}.get(name, value), name


def test_defaults_are_openais(caller: Caller) -> None:
    caller.chat()
    sampling = caller.engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.logprobs) == (info().context_length, 1.0, None)


def test_max_completion_tokens_wins(caller: Caller) -> None:
    answer = caller.chat(max_tokens=4, max_completion_tokens=2).json()
    assert caller.engine.requests[0].sampling.max_tokens == 2
    assert answer["choices"][0]["finish_reason"] == "length"
    check_error(caller.chat(max_completion_tokens=-1), 400, "max_completion_tokens")
    check_error(caller.chat(max_tokens=-1), 400, "max_tokens")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_embeds": "x"}, "prompt_embeds"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
)
def test_what_is_not_served_yet_is_refused_by_name(caller: Caller, fields: dict, param: str) -> None:
    message = check_error(caller.chat(**fields), 400, param, "unsupported_parameter")
    assert "not supported yet" in message
    assert not caller.engine.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "code"), [(400, "context_length_exceeded"), (429, "queue_full"), (503, None)])
def test_engine_errors_before_the_first_token_are_http_statuses(
    caller: Caller, stream: bool, status: int, code: str | None
) -> None:
    caller.engine.script = lambda request: [error_delta(request, "no", status, code)]
    response = caller.chat(stream=stream)
    check_error(response, status, None, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert not caller.app.state.service.groups.open


@pytest.mark.parametrize(("seconds", "header"), [(None, "1"), (0.0, "1"), (0.2, "1"), (7.01, "8"), (3600.0, "3600")])
def test_retry_after_is_what_the_engine_predicts(caller: Caller, seconds: float | None, header: str) -> None:
    caller.engine.script = lambda request: [error_delta(request, "full", 429, "queue_full", retry_after_s=seconds)]
    assert caller.chat().headers["retry-after"] == header


def test_engine_error_after_the_first_token_is_an_event(caller: Caller) -> None:
    def script(request: Sent):
        yield RequestOutput(request.rid, "Hel")
        yield error_delta(request, "broken", 500, "step_failed")

    caller.engine.script = script
    *_, last = events(caller.chat(stream=True))
    assert last == {"error": {"message": "broken", "type": "server_error", "param": None, "code": "step_failed"}}


def test_500_tells_clients_not_to_repeat_it(caller: Caller) -> None:
    caller.engine.script = lambda request: [error_delta(request, "broken", 500)]
    response = caller.chat()
    check_error(response, 500)
    assert response.headers["x-should-retry"] == "false"


def test_one_failing_choice_fails_all_and_aborts_the_rest(caller: Caller) -> None:
    def script(request: Sent):
        if request.rid.endswith("-1"):
            yield 0.05
            yield error_delta(request, "no", 429)
        else:
            yield 60.0

    caller.engine.script = script
    check_error(caller.chat(n=3, rid="r"), 429)
    caller.engine.wait_for(lambda: sorted(rid[-2:] for rid in caller.engine.aborted) == ["-0", "-2"])


def test_engine_death_ends_a_stream_with_an_error(engine: FakeEngine) -> None:
    def script(request: Sent):
        yield RequestOutput(request.rid, "Hel")
        engine.client.fail("the scheduler died (exit code -9)")

    engine.script = script
    *_, last = events(Caller(engine).chat(stream=True))
    assert last["error"]["code"] == "engine_dead"
    assert "exit code -9" in last["error"]["message"]


@pytest.mark.parametrize(
    ("device", "option", "fields", "limit"),
    [
        ("cpu", 0, {}, 1_024),
        ("cuda", 0, {}, 16_384),
        ("cpu", 77, {}, 77),
        ("cuda", 10**6, {}, 32_768),  # the context
        ("cpu", 0, {"max_tokens": 5}, 5),
        ("cpu", 0, {"max_completion_tokens": 4_000}, 4_000),
        ("cpu", 0, {"min_tokens": 2_000}, 2_000),
    ],
)
def test_an_answer_without_a_limit_has_the_servers(
    engine: FakeEngine, device: str, option: int, fields: dict[str, Any], limit: int
) -> None:
    engine.deliver(msgspec.structs.replace(info(), device=device, context_length=32_768))
    caller = Caller(engine, ServerConfig(default_max_tokens=option))
    assert caller.chat(**fields).status_code == 200
    assert engine.requests[-1].sampling.max_tokens == limit
    if "min_tokens" not in fields:
        fields = {"max_output_tokens": limit} if fields else {}
        assert caller.post("/v1/responses", {"input": "hi", **fields}).status_code == 200
        assert engine.requests[-1].sampling.max_tokens == limit


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_its_deadline_cut_says_so_on_each_route(engine: FakeEngine, stream: bool) -> None:
    def cut(request: Sent) -> list[RequestOutput]:
        *first, last = speak(request, ["Hel", "lo"])
        return [*first, msgspec.structs.replace(last, finish=Finish("timeout"))]

    engine.script = cut
    caller = Caller(engine)

    def last(path: str, **body: Any) -> Any:
        answer = caller.post(path, {**body, "stream": stream})
        assert answer.status_code == 200
        return events(answer)[-1] if stream else answer.json()

    for path, body in [("/v1/chat/completions", {"messages": [USER]}), ("/v1/completions", {"prompt": "x"})]:
        choice = last(path, **body)["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "timeout")
    assert last("/generate", text="x")["meta_info"]["finish_reason"] == {"type": "timeout", "matched": None}
    if not stream:
        response = last("/v1/responses", input="x")
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert last("/v1/messages", max_tokens=99, messages=[USER])["stop_reason"] == "max_tokens"
    assert 'radixrt_request_success_total{finished_reason="timeout"' in caller.get("/metrics").text
