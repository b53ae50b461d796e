"""Fields that other servers know: served, refused by name, or ignored and said so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from radixrt.chat.dialect import make_dialect
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error, events

IGNORED = "x-radixrt-ignored-fields"
PATHS = ["/v1/chat/completions", "/v1/completions"]


def post(caller: Caller, path: str, **fields: Any) -> Any:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "say hi"}
    return caller.post(path, {**prompt, **fields})


# --- refused ---


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", [5]),
        ("bad_words", ["x"]),
        ("chat_template", "{{ messages }}"),
        ("typical_p", 0.9),
        ("length_penalty", 2),
        ("no_repeat_ngram_size", 3),
        ("mirostat", 2),
        ("dry_multiplier", 0.8),
    ],
)
def test_what_would_change_the_output_is_refused(caller: Caller, path: str, field: str, value: Any) -> None:
    assert field in check_error(post(caller, path, **{field: value}), 400, field, "unsupported_parameter")
    sampling = caller.post("/generate", {"text": "x", "sampling_params": {field: value}})
    check_error(sampling, 400, f"sampling_params.{field}", "unsupported_parameter")


def test_what_is_off_is_taken(caller: Caller) -> None:
    off = {"typical_p": 1.0, "length_penalty": 1, "bad_words": [], "allowed_token_ids": None, "mirostat": 0}
    answer = post(caller, "/v1/completions", **off)
    assert answer.status_code == 200
    assert IGNORED not in answer.headers


# --- ignored ---


def test_unknown_fields_are_named_and_counted(caller: Caller) -> None:
    answer = post(caller, "/v1/completions", verbosity="low", user="u", metadata={}, store=True, service_tier="auto")
    assert answer.status_code == 200
    assert answer.headers[IGNORED] == "verbosity"
    native = caller.post("/generate", {"text": "x", "surprise": 1, "sampling_params": {"beam": 1, "top_k": 5}})
    assert native.headers[IGNORED] == "surprise, sampling_params.beam"
    text = caller.metrics()
    assert 'radixrt_ignored_fields_total{field="verbosity"} 1.0' in text
    assert 'radixrt_ignored_fields_total{field="sampling_params.beam"} 1.0' in text


def test_names_of_ignored_fields_are_bounded_and_clean(caller: Caller) -> None:
    odd = {"a\r\nset-cookie: x": 1, "é" * 500: 1, **{f"field{i}": 1 for i in range(300)}}
    for _ in range(2):
        answer = post(caller, "/v1/completions", **odd)
        assert answer.status_code == 200
        assert len(answer.headers[IGNORED]) < 2_000
        assert answer.headers[IGNORED].startswith("a??set-cookie??x, " + "?" * 64 + ", field0")
    for i in range(100):
        post(caller, "/v1/completions", **{f"other{i}": 1})
    assert len(re.findall("^radixrt_ignored_fields_total", caller.metrics(), re.MULTILINE)) == 51


def test_an_error_names_ignored_fields_too(caller: Caller) -> None:
    answer = post(caller, "/v1/completions", verbosity="low", temperature=-1)
    check_error(answer, 400, "temperature")
    assert answer.headers[IGNORED] == "verbosity"


def test_ignored_fields_are_logged_once(caller: Caller, caplog: pytest.LogCaptureFixture) -> None:
    for fields in ({"verbosity": "low"}, {"verbosity": "low", "surprise": 1}, {"surprise": 2}):
        post(caller, "/v1/completions", **fields)
    lines = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert lines == ["fields of requests are ignored: verbosity", "fields of requests are ignored: surprise"]


# --- mistakes ---

CHAT, COMPLETIONS = PATHS
PROMPTS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "x"},
    "/generate": {"text": "x"},
    "/v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"input": "x"},
    "/v1/embeddings": {"input": "x"},
}


@pytest.mark.parametrize(
    ("path", "field", "value", "meant"),
    [
        (CHAT, "guided_jsn", {}, "did you mean guided_json"),
        (CHAT, "temprature", 0, "did you mean temperature"),
        (CHAT, "maxTokens", 5, "did you mean max_tokens"),
        (CHAT, "max_new_tokens", 5, "called max_tokens"),
        (CHAT, "best_of", 3, "n asks for several answers"),
        (COMPLETIONS, "max_completion_tokens", 5, "called max_tokens"),
        (COMPLETIONS, "presence_penality", 1, "did you mean presence_penalty"),
        ("/generate", "temperature", 0, "of the object sampling_params"),
        ("/generate", "max_new_tokens", 5, "of the object sampling_params"),
        ("/generate", "temprature", 0, "did you mean sampling_params.temperature"),
        ("/v1/messages", "stop", ["x"], "called stop_sequences"),
        ("/v1/messages", "stop_sequence", ["x"], "did you mean stop_sequences"),
        ("/v1/responses", "temprature", 0, "did you mean temperature"),
        ("/v1/embeddings", "dimension", 5, "did you mean dimensions"),
    ],
)
def test_mistakes_get_the_right_name(caller: Caller, path: str, field: str, value: Any, meant: str) -> None:
    answer = caller.post(path, {**PROMPTS[path], field: value})
    assert answer.status_code == 400
    assert meant in answer.json()["error"]["message"]
    assert field in answer.json()["error"]["message"]
    assert caller.engine.requests == []


def test_a_mistake_in_sampling_params_gets_the_right_name(caller: Caller) -> None:
    answer = caller.post("/generate", {"text": "x", "sampling_params": {"temprature": 0}})
    assert "did you mean temperature" in check_error(answer, 400, "sampling_params.temprature", "unknown_parameter")


@pytest.mark.parametrize("fields", [{"temprature": None}, {"best_of": 1}, {"models": ["a"]}, {"top_logprobs_num": 1}])
def test_fields_that_ask_for_nothing_are_no_mistakes(caller: Caller, fields: dict[str, Any]) -> None:
    answer = post(caller, CHAT, **fields)
    assert answer.status_code == 200
    assert answer.headers[IGNORED] == next(iter(fields))


@pytest.mark.parametrize(
    "field",
    [
        b'"x.max_new_tokens": 3',
        b'"foo": 1e999',
        b'"foo": ' + b"7" * 5000,
        b'"foo": "\xff"',
        b'"' + b"b" * 9999 + b'": 1',
    ],
)
@pytest.mark.parametrize("mistake", [b"", b', "max_new_tokens": 3'])
def test_values_of_unknown_fields_are_no_error_of_the_server(caller: Caller, field: bytes, mistake: bytes) -> None:
    body = b'{"messages": [{"role": "user", "content": "hi"}], ' + field + mistake + b"}"
    answer = caller.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500, answer.text


# --- served ---


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_token_ids(caller: Caller, path: str, stream: bool) -> None:
    answer = post(caller, path, return_token_ids=True, stream=stream, n=2)
    answers = events(answer) if stream else [answer.json()]
    ids: dict[int, list[int]] = {0: [], 1: []}
    prompts = []
    for one in answers:
        for choice in one["choices"]:
            ids[choice["index"]] += choice.get("token_ids") or []
            if "prompt_token_ids" in choice:
                prompts.append(choice["prompt_token_ids"])
        if "prompt_token_ids" in one:
            prompts.append(one["prompt_token_ids"])
    assert ids == {0: [5, 1, 6, 1], 1: [5, 1, 6, 1]}
    assert prompts
    assert all(prompt == list(range(10)) for prompt in prompts)
    plain = post(caller, path, stream=stream)
    assert "token_ids" not in plain.text


def test_tokens_named_by_id(caller: Caller) -> None:
    (choice,) = post(caller, PATHS[0], logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json()["choices"]
    first = choice["logprobs"]["content"][0]
    assert first["token"] == "token_id:5"
    assert first["top_logprobs"][0]["token"] == "token_id:7"
    (choice,) = post(caller, PATHS[1], logprobs=1, return_tokens_as_token_ids=True).json()["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:5", "token_id:1", "token_id:6", "token_id:1"]
    assert set(choice["logprobs"]["top_logprobs"][0]) == {"token_id:7", "token_id:5"}


@pytest.mark.parametrize("path", PATHS)
def test_prompt_logprobs(caller: Caller, path: str) -> None:
    answer = post(caller, path, prompt_logprobs=1).json()
    assert caller.engine.requests[0].sampling.prompt_logprobs == 1
    rows = answer["prompt_logprobs"] if "chat" in path else answer["choices"][0]["prompt_logprobs"]
    assert rows[0] is None
    if "chat" not in path:
        own = {"logprob": -0.5, "rank": None, "decoded_token": " hi"}
        assert rows[1] == {"7": {"logprob": -0.5, "rank": 1, "decoded_token": "alt0"}, "3": own}
    check_error(post(caller, path, prompt_logprobs=1, stream=True), 400, "prompt_logprobs")
    check_error(post(caller, path, prompt_logprobs=65), 400, "prompt_logprobs")


@pytest.mark.parametrize("path", PATHS)
def test_hidden_states(caller: Caller, path: str) -> None:
    answer = post(caller, path, return_hidden_states="prompt").json()
    assert caller.engine.requests[0].sampling.return_hidden_states == "prompt"
    found = answer["hidden_states"] if "chat" in path else answer["choices"][0]["hidden_states"]
    assert found == [[0.5, -1.0]] * 10
    assert "hidden_states" not in post(caller, path).text
    check_error(post(caller, path, return_hidden_states="last", stream=True), 400, "return_hidden_states")
    check_error(post(caller, path, return_hidden_states=True), 400, "return_hidden_states")
    assert "hidden_states" not in post(caller, path, return_hidden_states=False).text


@pytest.mark.parametrize("path", PATHS)
def test_truncated_prompts(caller: Caller, path: str) -> None:
    assert post(caller, path, truncate_prompt_tokens=5).status_code == 200
    assert post(caller, path, truncate_prompt_tokens=-1).status_code == 200
    assert [one.truncate_prompt_tokens for one in caller.engine.requests] == [5, 512]
    for wrong in (0, -2, 513):
        check_error(post(caller, path, truncate_prompt_tokens=wrong), 400, "truncate_prompt_tokens")


def test_truncated_ids_may_be_too_many_before(caller: Caller) -> None:
    assert caller.complete(list(range(600)), truncate_prompt_tokens=5).status_code == 200


def test_thinking_budget_without_a_constraint(engine: FakeEngine) -> None:
    caller = Caller(engine, dialect=make_dialect(template(templates.HERMES), reasoning_parser="think"))
    assert caller.chat(thinking_token_budget=9).status_code == 200
    structured = engine.requests[0].sampling.structured
    assert (structured.reasoning_end, structured.reasoning_budget) == ("</think>", 9)
    assert engine.requests[0].sampling.regex == r"[\s\S]*"
    assert caller.chat(thinking_token_budget=9, regex="a+").status_code == 200
    assert engine.requests[1].sampling.regex == "a+"
    assert engine.requests[1].sampling.structured.reasoning_budget == 9
    check_error(caller.chat(thinking_token_budget=0), 400, "thinking_token_budget")


def test_a_thinking_budget_changes_nothing_where_nothing_thinks(caller: Caller) -> None:
    assert caller.chat(thinking_token_budget=9).status_code == 200
    assert caller.engine.requests[0].sampling.constraint is None
