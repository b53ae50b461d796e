"""Every form of constraint in requests: what the engine receives, and how the answer reports its enforcement."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from radixrt.constraint import StructuredOptions
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ConstraintInfo, Finish, Usage
from tests.server.fake_engine import Sent, error_delta, speak
from tests.server.helpers import Caller, check_error, events

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
TEXT = json.dumps(SCHEMA)
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OLD_TAG = {"type": "structural_tag", "structures": [], "triggers": []}

FORMS: list[tuple[dict[str, Any], str, Any, str]] = [
    ({"response_format": {"type": "json_object"}}, "json_schema", {"type": "object"}, "response_format"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, "json_schema",
     SCHEMA, "response_format"),
    ({"response_format": {"type": "regex", "regex": "a+"}}, "regex", "a+", "response_format"),
    ({"response_format": {"type": "regex", "pattern": "a+"}}, "regex", "a+", "response_format"),
    ({"response_format": {"type": "ebnf", "grammar": "root ::= x"}}, "ebnf", "root ::= x", "response_format"),
    ({"response_format": {"type": "choice", "choices": ["a", "b"]}}, "choices", ("a", "b"), "response_format"),
    ({"response_format": TAG}, "structural_tag", TAG, "response_format"),
    ({"response_format": OLD_TAG}, "structural_tag", OLD_TAG, "response_format"),
    ({"json_schema": SCHEMA}, "json_schema", SCHEMA, "json_schema"),
    ({"json_schema": TEXT}, "json_schema", SCHEMA, "json_schema"),
    ({"json_schema": True}, "json_schema", True, "json_schema"),
    ({"regex": "é"}, "regex", "é", "regex"),
    ({"ebnf": "root ::= x"}, "ebnf", "root ::= x", "ebnf"),
    ({"grammar": "root ::= x"}, "ebnf", "root ::= x", "grammar"),
    ({"choice": ["a"]}, "choices", ("a",), "choice"),
    ({"choices": ["a"]}, "choices", ("a",), "choices"),
    ({"structural_tag": TAG}, "structural_tag", TAG, "structural_tag"),
    ({"structural_tag": json.dumps(TAG)}, "structural_tag", TAG, "structural_tag"),
    ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA, "structured_outputs"),
    ({"structured_outputs": {"json": TEXT}}, "json_schema", SCHEMA, "structured_outputs"),
    ({"structured_outputs": {"json_object": True}}, "json_schema", {"type": "object"}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}}, "regex", "a", "structured_outputs"),
    ({"structured_outputs": {"choice": ["a"]}}, "choices", ("a",), "structured_outputs"),
    ({"structured_outputs": {"grammar": "root ::= x"}}, "ebnf", "root ::= x", "structured_outputs"),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "structural_tag", TAG, "structured_outputs"),
    ({"guided_json": SCHEMA}, "json_schema", SCHEMA, "guided_json"),
    ({"guided_json": TEXT}, "json_schema", SCHEMA, "guided_json"),
    ({"guided_regex": "a"}, "regex", "a", "guided_regex"),
    ({"guided_choice": ["a"]}, "choices", ("a",), "guided_choice"),
    ({"guided_grammar": "root ::= x"}, "ebnf", "root ::= x", "guided_grammar"),
]  # fmt: skip
ROUTES = ["chat", "completions", "native"]


def post(caller: Caller, route: str, fields: dict[str, Any], **outer: Any) -> Any:
    if route == "chat":
        return caller.chat(**fields, **outer)
    if route == "completions":
        return caller.complete(**fields, **outer)
    return caller.post("/generate", {"text": "hi", "sampling_params": fields, **outer})


def named(route: str, field: str) -> str:
    return f"sampling_params.{field}" if route == "native" else field


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("fields", "kind", "source", "field"), FORMS, ids=lambda value: str(value)[:50])
def test_each_form_becomes_a_constraint_and_errors_come_back_in_its_name(
    caller: Caller, route: str, fields: dict, kind: str, source: Any, field: str
) -> None:
    caller.engine.script = lambda request: [error_delta(request, f"{kind} is wrong at '/x'", 400, "invalid", kind)]
    message = check_error(post(caller, route, fields), 400, named(route, field), "invalid")
    assert message == f"{named(route, field)} is wrong at '/x'"
    (request,) = caller.engine.requests
    constraint = request.sampling.constraint
    assert constraint is not None
    assert constraint.kind == kind
    got = getattr(request.sampling, kind)
    assert (json.loads(got) if kind in ("json_schema", "structural_tag") else got) == source


def test_keys_keep_their_order_and_numbers_their_digits(caller: Caller) -> None:
    text = '{"properties":{"z":{"maximum":12345678901234567890.10},"a":{"const":1e400}} ,"type" :"object"}'
    body = '{"prompt":"hi","response_format":{"json_schema":{"schema":' + text + ',"name":"n"},"type":"json_schema"}}'
    response = caller.post("/v1/completions", content=body.encode(), headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
    assert caller.engine.requests[0].sampling.json_schema == text


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"json_schema": None, "regex": None, "choices": None, "structured_outputs": None, "structured": None},
        {"structured": {}},
    ],
)
def test_no_constraint(caller: Caller, route: str, fields: dict) -> None:
    response = post(caller, route, fields)
    assert response.status_code == 200, response.text
    assert "radixrt" not in response.text
    assert caller.engine.requests[0].sampling.constraint is None
    assert caller.engine.requests[0].sampling.structured == StructuredOptions()


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"regex": "a"}, {}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}}},
            {"closed": True},
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}, {}),
        ({"structured_outputs": {"json": {}, "whitespace": 3}}, {"whitespace": 3}),
        ({"structured_outputs": {"json": {}, "disable_any_whitespace": True}}, {}),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": r"[\n\t ]*"}}, {}),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": ""}}, {}),
        ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, {"closed": True}),
        ({"structured_outputs": {"json": {}, "disable_additional_properties": False}}, {"closed": False}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": False}}},
            {"closed": False},
        ),
        (
            {
                "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": False}},
                "structured": {"closed": True},
            },
            {"closed": True},
        ),
        (
            {"json_schema": {}, "structured": {"on_length": "stop", "whitespace": 8, "backend": None}},
            {"on_length": "stop", "whitespace": 8},
        ),
        (
            {"json_schema": {}, "structured": {"on_unsupported": "ignore", "formats": "annotate"}},
            {"on_unsupported": "ignore", "formats": "annotate"},
        ),
        (
            {"regex": "a", "structured": {"reasoning_end": "</x>", "reasoning_budget": 9, "jump_forward": False}},
            {"reasoning_end": "</x>", "reasoning_budget": 9, "jump_forward": False},
        ),
        ({"regex": "a", "structured": {"backend": "xgrammar"}}, {"backend": "xgrammar"}),
    ],
)
def test_options(caller: Caller, fields: dict, options: dict) -> None:
    assert caller.complete(**fields).status_code == 200
    assert caller.engine.requests[0].sampling.structured == StructuredOptions(**options)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": 5}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": []}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": []}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": 1}}},
         "response_format.json_schema.strict"),
        ({"response_format": {"type": "regex"}}, "response_format.regex"),
        ({"response_format": {"type": "ebnf"}}, "response_format.ebnf"),
        ({"response_format": {"type": "choice"}}, "response_format.choice"),
        ({"response_format": {"type": "choice", "choice": [1]}}, "response_format.choice[0]"),
        ({"regex": ""}, "regex"),
        ({"regex": 5}, "regex"),
        ({"regex": "x" * 20_000}, "regex"),
        ({"choice": []}, "choice"),
        ({"choice": [""]}, "choice"),
        ({"choices": "a"}, "choices"),
        ({"json_schema": ""}, "json_schema"),
        ({"ebnf": ""}, "ebnf"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": "["}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": r"([ \t]?)\1"}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " ?", "whitespace": 2}},
         "structured_outputs.whitespace"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": 1}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": {}, "whitespace_pattern": " ?" * 101}},
         "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"json": {}, "whitespace": 999}}, "structured.whitespace"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
        ({"json_schema": {}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"regex": "a", "structured": {"unknown": 1}}, "structured"),
        ({"regex": "a", "structured": {"whitespace": -1}}, "structured.whitespace"),
        ({"regex": "a", "structured": {"backend": "outlines"}}, "structured.backend"),
        ({"regex": "a", "structured": {"closed": 1}}, "structured.closed"),
        ({"regex": "a", "structured": {"reasoning_budget": 5}}, "structured.reasoning_budget"),
        ({"structured": {"whitespace": 1}}, "structured"),
        ({"structured": 5}, "structured"),
        ({"choice": ["a", "axe"], "stop": ["b", "x"]}, "stop"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_wrong_is_named(caller: Caller, route: str, fields: dict, param: str) -> None:
    message = check_error(post(caller, route, fields), 400, named(route, param))
    assert message
    assert not caller.engine.requests


def test_two_constraints_are_both_named(caller: Caller) -> None:
    message = check_error(caller.chat(response_format={"type": "json_object"}, guided_regex="a"), 400, "guided_regex")
    assert "response_format and guided_regex" in message
    other = {"properties": {"a": {"const": 1.0}}}
    message = check_error(caller.chat(response_format=as_format(FORMER), guided_json=other), 400, "guided_json")
    assert "response_format and guided_json state different constraints" in message


FORMER = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
REORDERED = {"required": ["a"], "properties": {"a": {"const": 1}}, "type": "object"}
TAG = {"format": {"type": "any_text"}}


def as_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "kind", "options"),
    [
        ({"response_format": as_format(FORMER), "guided_json": FORMER}, "json_schema", {}),
        ({"response_format": as_format(FORMER), "guided_json": json.dumps(REORDERED)}, "json_schema", {}),
        ({"response_format": as_format(FORMER, strict=True), "structured_outputs": {"json": FORMER}}, "json_schema",
         {"closed": True}),
        ({"json_schema": FORMER, "structured_outputs": {"json": FORMER, "whitespace": 1}, "guided_json": FORMER},
         "json_schema", {"whitespace": 1}),
        ({"regex": "a+", "guided_regex": "a+"}, "regex", {}),
        ({"choice": ["a", "b"], "guided_choice": ["a", "b"]}, "choices", {}),
        ({"ebnf": 'root ::= "a"', "guided_grammar": 'root ::= "a"'}, "ebnf", {}),
        ({"response_format": {"type": "structural_tag", **TAG}, "structural_tag": json.dumps(TAG)}, "structural_tag",
         {}),
    ],
)  # fmt: skip
def test_equal_constraints_in_several_fields_are_one(
    caller: Caller, fields: dict[str, Any], kind: str, options: dict[str, Any]
) -> None:
    assert caller.chat(**fields).status_code == 200
    sampling = caller.engine.requests[-1].sampling
    assert sampling.constraint is not None
    assert sampling.constraint.kind == kind
    assert sampling.structured == StructuredOptions(**options)
    assert caller.complete(**fields).status_code == 200
    assert caller.engine.requests[-1].sampling.constraint == sampling.constraint


def test_equal_constraints_with_different_options_are_refused(caller: Caller) -> None:
    fields = {"structured_outputs": {"json": FORMER, "disable_additional_properties": False}}
    message = check_error(
        caller.chat(response_format=as_format(FORMER, strict=True), **fields), 400, "structured_outputs"
    )
    assert "response_format and structured_outputs state different values of closed" in message


def test_invalid_utf8_and_depth(caller: Caller) -> None:
    def raw(body: bytes) -> Any:
        return caller.post("/v1/completions", content=body, headers={"content-type": "application/json"})

    check_error(raw(b'{"prompt": "x", "json_schema": {"const": "\xff"}}'), 400, "json_schema", "invalid_utf8")
    check_error(
        raw(b'{"prompt": "x", "json_schema": ' + b"[" * 10**6 + b"]" * 10**6 + b"}"), 400, None, "json_limit_exceeded"
    )
    check_error(raw(b'{"prompt": "x", "json_schema": {"const": NaN}}'), 400, "json_schema.const", "invalid_json")


def test_echo_makes_no_sense_with_a_constraint(caller: Caller) -> None:
    check_error(caller.complete(regex="a", echo=True), 400, "echo")


# --- answers ---

INFO = ConstraintInfo("llguidance", ["/a: uniqueItems"], forced_tokens=3, closing_tokens=2, compile_s=0.5, cached=True)
ENFORCED = {
    "backend": "llguidance",
    "forced_close": True,
    "forced_tokens": 3,
    "closing_tokens": 2,
    "ignored": ["/a: uniqueItems"],
    "repetition": False,
}


def closed_early(request: Sent) -> list[RequestOutput]:
    first, *rest = speak(request, ["{", "}"])
    deltas = [first, *rest]
    last = msgspec.structs.replace(
        deltas[-1], finish=Finish("length", forced_close=True), constraint=INFO, usage=Usage(1, 2, 0)
    )
    return [*deltas[:-1], last]


@pytest.mark.parametrize("route", ["chat", "completions"])
def test_answer_tells_how_its_constraint_was_enforced(caller: Caller, route: str) -> None:
    caller.engine.script = closed_early
    (choice,) = post(caller, route, {"json_schema": {}}).json()["choices"]
    assert choice["radixrt"] == ENFORCED
    assert choice["finish_reason"] == "length"
    chunks = events(post(caller, route, {"json_schema": {}}, stream=True))
    told = [chunk["choices"][0].get("radixrt") for chunk in chunks]
    assert told == [None] * (len(chunks) - 1) + [ENFORCED]


def test_native_answer_tells_it_too(caller: Caller) -> None:
    caller.engine.script = closed_early
    body = {"text": "x", "sampling_params": {"json_schema": {}}}
    assert caller.post("/generate", body).json()["meta_info"]["radixrt"] == ENFORCED
    *rest, last = events(caller.post("/generate", {**body, "stream": True}))
    assert last["meta_info"]["radixrt"] == ENFORCED
    assert all("radixrt" not in part["meta_info"] for part in rest)


def test_engine_errors_about_other_fields_keep_the_clients_names(caller: Caller) -> None:
    def too_small(request: Sent) -> list[RequestOutput]:
        return [error_delta(request, "max_tokens is 1, but the shortest output has 5", 400, "x", "max_tokens")]

    caller.engine.script = too_small
    message = check_error(caller.chat(json_schema={}, max_completion_tokens=1), 400, "max_completion_tokens")
    assert message.startswith("max_completion_tokens is 1")
    check_error(caller.chat(json_schema={}, max_tokens=1), 400, "max_tokens")
    native = caller.post("/generate", {"text": "x", "sampling_params": {"regex": "a", "max_tokens": 1}})
    check_error(native, 400, "sampling_params.max_tokens")
