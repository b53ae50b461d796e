"""`explain`: reports on enforced and refused constraints, and checks of texts and values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest

from radixrt.constraint import as_structured_options
from radixrt.errors import ModelLoadError, RequestError
from radixrt.explain import Explainer, Report, explain
from radixrt.sampling_params import SamplingParams

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BACK_REFERENCE = {"type": "string", "pattern": r"^(a+)\1$"}


class City(pydantic.BaseModel):
    name: str
    size: int | None = None


@pytest.fixture(scope="module")
def look(tiny_model: Callable[[str], Path]) -> Iterator[Callable[..., Report]]:
    """`explain` for the tiny model, with one worker for all tests."""
    with Explainer(str(tiny_model("llama"))) as explainer:

        def explained(options: dict[str, Any] | None = None, **constraint: Any) -> Report:
            params = SamplingParams(**constraint, structured=as_structured_options(options or {})).validate()
            assert params.constraint is not None
            return explainer.explain(params.constraint)

        yield explained


Look = Callable[..., Report]


# --- what is enforced ---


def test_the_earlier_import_path_works() -> None:
    from radixrt import constrained

    assert (constrained.explain, constrained.Explainer, constrained.Report) == (explain, Explainer, Report)
    with pytest.raises(AttributeError, match="no attribute 'judge'"):
        constrained.judge  # noqa: B018


def test_an_enforced_schema(look: Look) -> None:
    report = look(json_schema=PERSON)
    assert report.enforced
    assert (report.error, report.refused, report.ignored) == (None, [], [])
    assert report.draft is not None
    assert "2020-12" in report.draft
    assert report.backend == "llguidance"
    assert report.why
    assert report.cost is not None
    assert report.cost.compile_s > 0
    assert report.cost.size > 0
    assert report.shortest == '{"name":"","age":0}'
    assert report.min_characters == len(report.shortest)
    assert 1 <= report.min_tokens <= report.min_characters
    text = str(report)
    assert text.startswith("json_schema: enforced\n")
    for said in ("backend: llguidance", "ms to compile", "us for a mask", report.shortest, "normalized: "):
        assert said in text


def test_the_normalized_schema_accepts_the_same_values(look: Look) -> None:
    report = look(
        json_schema={"allOf": [{"required": ["a"]}, {"properties": {"a": {"type": "integer"}}}], "type": "object"}
    )
    for value in ({"a": 1}, {"a": "x"}, {}, {"b": 1}, {"a": 2, "b": 3}, [], 5):
        assert report.accepts_value(value) == jsonschema.Draft202012Validator(report.normalized).is_valid(value)


@pytest.mark.parametrize("given", [PERSON, json.dumps(PERSON), City])
def test_a_schema_in_each_form(look: Look, given: Any) -> None:
    assert look(json_schema=given).enforced


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        ({"regex": "[a-z]{2,3}(-[0-9]+)?"}, ["ab", "abc-10"], ["a", "ab-", "ABC", ""]),
        ({"choices": ["left", "lefter", "right"]}, ["left", "lefter", "right"], ["lef", "leftt", ""]),
        ({"ebnf": 'root ::= "yes" tail\ntail ::= "!"*'}, ["yes", "yes!!"], ["no", "yes?", "ye"]),
        ({"json_schema": True}, ["1", "[]", '{"a":[true]}'], ["{", "nul", "[1, 2]"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_texts_of_each_kind(look: Look, constraint: dict[str, Any], good: list[str], bad: list[str]) -> None:
    report = look(**constraint)
    assert report.accepts(report.shortest)
    for text in good:
        assert report.accepts(text)
        assert report.why_not(text) is None
    for text in bad:
        assert not report.accepts(text)
        assert report.why_not(text)


def test_the_backend_is_the_callers_choice(look: Look) -> None:
    report = look({"backend": "xgrammar"}, choices=["a", "b"])
    assert report.enforced
    assert (report.backend, report.why) == ("xgrammar", "the caller's choice")


def test_whitespace_is_allowed_where_it_is_asked_for(look: Look) -> None:
    text = '{"name": "A", "age": 3}'
    assert not look(json_schema=PERSON).accepts(text)
    assert look({"whitespace": 1}, json_schema=PERSON).accepts(text)


def test_annotations_are_listed(look: Look) -> None:
    report = look(json_schema={"type": "object", "properties": {"phone": {"type": "string", "format": "phone"}}})
    assert [(f.pointer, f.keyword) for f in report.annotations] == [("/properties/phone", "format")]
    assert "#/properties/phone: format" in str(report)


# --- where and why a text or a value is not accepted ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"name":"A","age":-3}',
            ["position 18", "'-' cannot stand there", "possible: 0 1 2", "At /age: -3 is less than"],
        ),
        ('{"name":"A"', ["ends too early", "',\"age\":0}'"]),
        ('{"age":3,"name":"A"}', ["position 2", "possible: n", "The value itself is accepted", "order of the schema"]),
        ('{"name": "A","age":3}', ["position 8", "The value itself is accepted", "without spaces"]),
        ('{"name":"A","age":3}x', ["position 20", "nothing can, the text is complete"]),
        ("", ["ends too early"]),
        ("[]", ["position 0", "possible: {", "is not of type 'object'"]),
    ],
)
def test_why_not(look: Look, text: str, said: list[str]) -> None:
    why = look(json_schema=PERSON).why_not(text)
    assert why is not None
    for part in said:
        assert part in why


def test_values_are_checked_whatever_their_text(look: Look) -> None:
    report = look(json_schema=PERSON)
    assert report.accepts_value({"age": 3, "name": "A"})
    assert report.why_not_value({"age": 3, "name": "A"}) is None
    assert not report.accepts_value({"age": 3})
    assert "'name' is a required property" in (report.why_not_value({"age": 3}) or "")
    assert not report.accepts_value({"age": 3, "name": "A" * 21})


def test_a_value_of_a_constraint_on_text_is_a_text(look: Look) -> None:
    report = look(regex="[0-9]+")
    assert report.accepts_value("12")
    assert not report.accepts_value(12)
    assert report.why_not_value(12) == "the constraint is about text"


# --- what is refused ---


def test_every_refused_keyword_is_listed_with_its_place_and_a_fix(look: Look) -> None:
    report = look(json_schema={"type": "object", "properties": {"a": BACK_REFERENCE, "b": {"items": BACK_REFERENCE}}})
    assert not report.enforced
    assert sorted((f.pointer, f.keyword) for f in report.refused) == [
        ("/properties/a", "pattern"),
        ("/properties/b/items", "pattern"),
    ]
    assert all(finding.reason and finding.fix for finding in report.refused)
    text = str(report)
    assert text.startswith("json_schema: refused\n")
    assert "#/properties/b/items: pattern" in text
    with pytest.raises(RequestError, match="pattern"):
        report.accepts("{}")
    with pytest.raises(RequestError):
        report.accepts_value({})


def test_a_misspelt_keyword_is_a_warning(look: Look) -> None:
    report = look(json_schema={"type": "object", "requred": ["a"], "x-order": 1, "properties": {"a": {"minlength": 1}}})
    assert report.enforced
    assert [(f.pointer, f.keyword, f.fix) for f in report.misspelt] == [
        ("", "requred", "Is required meant?"),
        ("/properties/a", "minlength", "Is minLength meant?"),
    ]
    assert "warning: misspelt, not enforced:\n" in str(report)


def test_what_is_ignored_on_request_is_listed(look: Look) -> None:
    report = look({"on_unsupported": "ignore"}, json_schema=BACK_REFERENCE)
    assert report.enforced
    assert [(f.pointer, f.keyword) for f in report.ignored] == [("", "pattern")]
    assert report.accepts('"b"')
    assert "ignored, as asked for" in str(report)


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        ({"json_schema": {"type": "objekt"}}, "/type"),
        ({"json_schema": "{"}, "not JSON"),
        ({"json_schema": "[" * 50_000}, "nested too deeply"),
        ({"json_schema": False}, "No value can satisfy"),
        ({"regex": "(a"}, "character"),
        ({"ebnf": "root ::= nothing"}, "nothing"),
        ({"structural_tag": "{}"}, "structural_tag"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_other_refusals_are_reports_too(look: Look, constraint: dict[str, Any], said: str) -> None:
    report = look(**constraint)
    assert report.error is not None
    assert said in report.error.message
    assert report.refused == []
    assert report.error.message in str(report)


def test_what_takes_too_long_is_refused_as_an_engine_would(tiny_model: Callable[[str], Path]) -> None:
    names = [f"p{i}" for i in range(200)]
    slow = {"anyOf": [{"properties": {name: {"enum": list(range(300))}}, "required": [name]} for name in names]}
    with Explainer(str(tiny_model("llama")), compile_timeout_s=0.05) as explainer:
        constraint = SamplingParams(json_schema=slow).constraint
        assert constraint is not None
        error = explainer.explain(constraint).error
    assert error is not None
    assert error.param == "json_schema"


# --- the function ---


def test_explain_takes_what_sampling_params_take(tiny_model: Callable[[str], Path]) -> None:
    folder = str(tiny_model("llama"))
    report = explain(json_schema=City, model=folder, closed=True, whitespace=2)
    assert report.accepts('{"name": "Oslo"}')
    assert explain(choices=["a"], model=folder).shortest == "a"


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "json_schema"),
        ({"regex": "a", "choices": ["b"]}, "choices"),
        ({"regex": "a", "spaces": 1}, "structured"),
        ({"regex": "a", "whitespace": -1}, "whitespace"),
        ({"json_schema": object}, None),
        ({"json_schema": 5}, "json_schema"),
    ],
    ids=str,
)
def test_mistakes_of_the_call(
    tiny_model: Callable[[str], Path], arguments: dict[str, Any], param: str | None
) -> None:  # fmt: skip
    if param is None:
        assert explain(**arguments, model=str(tiny_model("llama"))).enforced
        return
    with pytest.raises(RequestError) as raised:
        explain(**arguments, model=str(tiny_model("llama")))
    assert raised.value.param == param


def test_a_model_that_there_is_not() -> None:
    with pytest.raises(ModelLoadError, match="/nowhere"):
        explain(regex="a", model="/nowhere")


def test_importing_the_package_loads_no_compiler() -> None:
    code = "import sys, radixrt.constraint; print([m for m in ('llguidance', 'xgrammar') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "[]\n"


def test_parts_in_any_order_are_told() -> None:
    members = {name: {"type": "null"} for name in "abc"}
    schema = {"type": "object", "properties": {**members, "s": {"items": {"enum": [1, 2]}, "uniqueItems": True}}}
    assert "in any order: 2 parts, counted by parametric rules" in str(explain(json_schema=schema))
    report = explain(json_schema={**schema, "additionalProperties": False}, key_order="any")
    assert "in any order: 2, 4 parts" in str(report)
    assert report.accepts('{"c":null,"s":[2,1],"a":null}')
    assert "in any order" not in str(explain(json_schema={"properties": members}))
