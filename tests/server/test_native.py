from __future__ import annotations

import base64

import numpy as np
import pytest

from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, ProgramHint, TemplateText, Usage
from radixrt.messages.scheduler import ReleaseReq
from radixrt.messages.wire import unpack_i32
from radixrt.server.answers.native import NativeEncoder, Shown
from tests.server.helpers import Caller, check_error, events


def test_answer(caller: Caller) -> None:
    answer = caller.post("/generate", {"text": "hi", "rid": "r"}).json()
    assert answer == {
        "text": "Hello, world!",
        "output_ids": [5, 1, 6, 1],
        "index": 0,
        "meta_info": {
            "id": "r",
            "finish_reason": {"type": "stop", "matched": "END"},
            "prompt_tokens": 10,
            "completion_tokens": 4,
            "cached_tokens": 4,
            "queue_s": 0.01,
            "prefill_s": 0.02,
            "decode_s": 0.03,
            "retractions": 1,
        },
    }


def test_input_ids_and_sampling_params(caller: Caller) -> None:
    params = {"max_new_tokens": 2, "temperature": 0, "stop": ["x"], "logit_bias": {"1": 1.5}}
    answer = caller.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": params}).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "matched": None}
    (request,) = caller.engine.requests
    assert request.input_ids is not None
    assert unpack_i32(request.input_ids).tolist() == [1, 2, 3]
    assert request.sampling.max_tokens == 2
    assert request.sampling.is_greedy
    assert request.sampling.logit_bias == {1: 1.5}


@pytest.mark.parametrize("wanted", [None, True, False])
def test_detokenize(caller: Caller, wanted: bool | None) -> None:
    caller.post("/generate", {"text": "hi", "sampling_params": {"detokenize": wanted}})
    assert caller.engine.requests[0].sampling.detokenize is (wanted is not False)


def test_batches_answer_with_lists(caller: Caller) -> None:
    assert isinstance(caller.post("/generate", {"text": "a"}).json(), dict)
    assert len(caller.post("/generate", {"text": ["a"]}).json()) == 1
    assert len(caller.post("/generate", {"input_ids": [[1], [2]]}).json()) == 2
    several = caller.post("/generate", {"text": ["a", "b"], "sampling_params": {"n": 2}, "rid": "r"}).json()
    assert [(a["index"], a["meta_info"]["id"]) for a in several] == [
        (0, "r-p0-0"),
        (1, "r-p0-1"),
        (2, "r-p1-0"),
        (3, "r-p1-1"),
    ]


def test_logprobs(caller: Caller) -> None:
    body = {"text": "say hi", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    meta = caller.post("/generate", body).json()["meta_info"]
    assert meta["output_token_logprobs"][0] == [-1.0, 5, "Hello"]
    assert meta["output_top_logprobs"][0] == [[-1.0, 7, "alt0"], [-1.5, 8, "alt1"]]
    assert meta["input_token_logprobs"] == [[None, 3, "say"], [-0.5, 3, " hi"]]
    assert meta["input_top_logprobs"][0] == []
    sampling = {"logprobs": 1, "prompt_logprobs": 0}
    same = caller.post("/generate", {"text": "say hi", "sampling_params": sampling}).json()["meta_info"]
    assert len(same["output_top_logprobs"][0]) == 1
    assert "input_token_logprobs" in same


def test_prompt_logprobs_start_where_asked(caller: Caller) -> None:
    body = {"text": "a b c", "return_logprob": True, "logprob_start_len": 1}
    meta = caller.post("/generate", body).json()["meta_info"]
    assert [row[2] for row in meta["input_token_logprobs"]] == [" b", " c"]


@pytest.mark.parametrize(("wanted", "rows"), [("last", 1), ("prompt", 10)])
def test_hidden_states(caller: Caller, wanted: str, rows: int) -> None:
    expected = [[0.5, -1.0]] * rows
    for fields in ({"return_hidden_states": wanted}, {"sampling_params": {"return_hidden_states": wanted}}):
        answer = caller.post("/generate", {"text": "hi", **fields}).json()
        assert answer["meta_info"]["hidden_states"] == expected
    body = {"text": "hi", "return_hidden_states": wanted}
    text = caller.post("/generate", {**body, "encoding_format": "base64"}).json()["meta_info"]["hidden_states"]
    assert np.frombuffer(base64.b64decode(text), "<f4").reshape(-1, 2).tolist() == expected
    parts = events(caller.post("/generate", {**body, "stream": True}))
    assert [part["meta_info"].get("hidden_states") for part in parts] == [expected, None, None, None]
    for fields in ({}, {"return_hidden_states": False}):
        assert "hidden_states" not in caller.post("/generate", {"text": "hi", **fields}).text


def test_stream_sends_only_what_is_new(caller: Caller) -> None:
    parts = events(caller.post("/generate", {"text": "hi", "stream": True, "sampling_params": {"logprobs": 0}}))
    assert [p["text"] for p in parts] == ["Hello", ",", " world", "!"]
    assert [p["output_ids"] for p in parts] == [[5], [1], [6], [1]]
    assert [p["meta_info"]["finish_reason"] for p in parts[:-1]] == [None] * 3
    assert [p["meta_info"]["output_token_logprobs"][0][2] for p in parts] == ["Hello", ",", " world", "!"]
    assert parts[-1]["meta_info"]["completion_tokens"] == 4


def test_aborted_request_says_so(caller: Caller) -> None:
    caller.engine.script = lambda request: caller.engine.client.abort(request.rid) or [60.0]
    meta = caller.post("/generate", {"text": "hi"}).json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states"),
        ({"text": "a", "return_hidden_states": "all"}, "return_hidden_states"),
        ({"text": "a", "sampling_params": {"return_hidden_states": 1}}, "sampling_params.return_hidden_states"),
        ({"text": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"text": "a", "input_ids": [1]}, "text"),
        ({"text": []}, "text"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": ["a"]}, "input_ids[0]"),
        ({"input_ids": [1000]}, "input_ids"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"temperature": "x"}}, "sampling_params.temperature"),
        ({"text": "a", "sampling_params": {"regex": ""}}, "sampling_params.regex"),
        ({"text": "a", "sampling_params": {"n": 5_000_000}}, "sampling_params.n"),
        ({"text": "a", "sampling_params": [{}]}, "sampling_params"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 10**9}, "top_logprobs_num"),
        ({"text": "a", "sampling_params": {"logprobs": 10**9}}, "sampling_params.logprobs"),
        ({"text": "a", "image_data": "x"}, "image_data"),
        ({"text": "a", "lora_path": "x"}, "lora_path"),
        ({"text": "a", "rid": ["x"]}, "rid"),
    ],
)
def test_refusals_name_the_field(caller: Caller, body: dict, param: str) -> None:
    check_error(caller.post("/generate", body), 400, param)
    assert not caller.engine.requests


def test_input_parts(caller: Caller) -> None:
    parts = [{"template": "<s>"}, "hi", [4, 5], ""]
    answer = caller.post("/generate", {"input_parts": parts, "return_prompt_ids": True}).json()
    assert isinstance(answer, dict)
    assert answer["prompt_ids"] == list(range(10))
    (request,) = caller.engine.requests
    assert request.parts == [TemplateText("<s>"), "hi", [4, 5], ""]
    assert len(caller.post("/generate", {"input_parts": parts, "sampling_params": {"n": 2}}).json()) == 2


def test_prompt_ids_are_in_a_streams_first_event(caller: Caller) -> None:
    body = {"input_parts": ["hi"], "return_prompt_ids": True, "stream": True}
    got = events(caller.post("/generate", body))
    assert [event.get("prompt_ids") for event in got] == [list(range(10)), None, None, None]
    assert "prompt_ids" not in caller.post("/generate", {"text": "hi"}).json()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_parts": ["a"], "text": "a"}, "text"),
        ({"input_parts": ["a"], "input_ids": [1]}, "text"),
        ({"input_parts": "a"}, "input_parts"),
        ({"input_parts": [5]}, "input_parts[0]"),
        ({"input_parts": ["a", [1, "b"]]}, "input_parts[1][1]"),
        ({"input_parts": ["a", [1, 1000]]}, "input_parts[1]"),
        ({"input_parts": ["a", [-1]]}, "input_parts[1]"),
        ({"input_parts": ["a", {}]}, "input_parts[1].template"),
        ({"input_parts": ["a", {"template": 5}]}, "input_parts[1].template"),
        ({"input_parts": ["a"] * 70_000}, "input_parts"),
        ({"text": "a", "return_prompt_ids": 1}, "return_prompt_ids"),
    ],
)  # fmt: skip
def test_bad_input_parts(caller: Caller, fields: dict, param: str) -> None:
    check_error(caller.post("/generate", fields), 400, param)
    assert not caller.engine.requests


def test_program(caller: Caller) -> None:
    program = {"id": "p", "branch": "0/1", "fork_len": 7, "siblings": 3, "will_continue": True}
    assert caller.post("/generate", {"text": "a", "program": program}).status_code == 200
    assert caller.post("/v1/decisions", {"text": "a", "choices": ["b"], "program": {"id": "p"}}).status_code == 200
    assert caller.engine.requests[0].program == ProgramHint("p", "0/1", 7, 3, True)
    assert caller.engine.questions[0].program == ProgramHint("p")
    assert caller.post("/release", {"program": "p"}).json() == {"status": "ok"}
    assert caller.post("/release", {"program": "p", "branch": "0/1"}).json() == {"status": "ok"}
    caller.engine.wait_for(lambda: len(caller.engine.released) == 2)
    assert caller.engine.released == [ReleaseReq("p"), ReleaseReq("p", "0/1")]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/generate", {"program": "p"}, "program"),
        ("/generate", {"program": {}}, "program.id"),
        ("/generate", {"program": {"id": ""}}, "program.id"),
        ("/generate", {"program": {"id": "x" * 97}}, "program.id"),
        ("/generate", {"program": {"id": "p", "branch": "x" * 1025}}, "program.branch"),
        ("/generate", {"program": {"id": "p", "fork_len": -1}}, "program.fork_len"),
        ("/generate", {"program": {"id": "p", "siblings": 2**31}}, "program.siblings"),
        ("/generate", {"program": {"id": "p", "siblings": 1.5}}, "program.siblings"),
        ("/generate", {"program": {"id": "p", "will_continue": 1}}, "program.will_continue"),
        ("/v1/decisions", {"choices": ["a"], "program": {"id": 5}}, "program.id"),
        ("/release", {}, "program"),
        ("/release", {"program": "p", "branch": 5}, "branch"),
    ],
)  # fmt: skip
def test_a_bad_program(caller: Caller, path: str, fields: dict, param: str) -> None:
    check_error(caller.post(path, {"text": "a", **fields}), 400, param)
    assert not caller.engine.requests


def test_an_answer_says_how_far_the_nearest_state_was() -> None:
    output = RequestOutput("r", finish=Finish("length"), usage=Usage(5000, 1, cached_tokens=300, matched_tokens=4096))
    answer = NativeEncoder(["r"], Shown(), single=True).generation(0, output)
    assert answer.meta_info.missed == "KV matched 4096, nearest state at 300"
