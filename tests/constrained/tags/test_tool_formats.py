"""The table of tool formats: against xgrammar's formats of models, the option that chooses a row, and the documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import xgrammar
from xgrammar.builtin_structural_tag import _structural_tag_registry as peers

from radixrt.config.sections import ServerConfig
from radixrt.constrained.productions import Expr
from radixrt.constrained.schema import normalize
from radixrt.constrained.schema.emit.grammar import GrammarEmitter
from radixrt.constrained.schema.errors import SchemaRefused, Unsupported
from radixrt.constrained.schema.normal_form.nodes import Node
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS, ToolFormat
from radixrt.constrained.tags.tools import Tool, tools_constraint
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError

DOCS = Path(__file__).resolve().parents[3] / "docs"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"lat": {"type": "number"}}},
    },
    "required": ["city"],
}
DEFINITIONS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("get", "get_weather")
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get", {"city": "São Paulo\nand <b>more</b>", "days": 3, "exact": True, "tags": ["a"], "where": {"lat": 1.5}}),
    ("get_weather", {"city": ""}),
]
NOT_READ = {"harmony": 7, "gemma_4": 18}
"""Of xgrammar's models, the number of tags of the 18 below that are refused: ambiguous where one call is allowed,
or all because of their style, which is not JSON."""


@pytest.mark.parametrize("model", peers)
def test_tags_that_xgrammar_makes_for_a_model_are_taken(model: str) -> None:
    named = {"type": "function", "function": {"name": "get"}}
    refused = 0
    for choice in ("auto", "required", named):
        for reasoning in ("disabled", "enabled", "auto"):
            for parallel in (True, False):
                tag = xgrammar.get_model_structural_tag(
                    model, DEFINITIONS, choice, reasoning, parallel_tool_calls=parallel
                )
                try:
                    read_structural_tag(tag.model_dump_json(), StructuredOptions())[0].prune()
                except RequestError as error:
                    refused += error.param == "structural_tag"
    assert refused == NOT_READ.get(model, 0)


@pytest.mark.parametrize("form", [form for form in TOOL_FORMATS.values() if form.peer], ids=lambda form: form.name)
def test_calls_are_sentences_of_the_peers_format(form: ToolFormat) -> None:
    for peer in form.peer:
        for calls in (CALLS[:1], CALLS[1:], CALLS):
            if len(calls) > 1 and not form.several:
                continue
            tag = xgrammar.get_model_structural_tag(peer, DEFINITIONS, "auto", "disabled")
            text = form.write(calls)
            if peer == "minimax":
                text = "\n</think>\n\n\n\n" + text  # the peer's disabled reasoning
            if peer == "kimi_k3":
                text = f"<|close|>response<|sep|>{text}<|close|>message<|sep|>"  # the blocks around calls
            assert accepted(tag, text), (peer, text)


def accepted(tag: Any, text: str) -> bool:
    tokens = xgrammar.TokenizerInfo([chr(code).encode("latin-1") for code in range(256)], stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(tokens).compile_structural_tag(tag)
    matcher = xgrammar.GrammarMatcher(grammar)
    return bool(matcher.accept_string(text)) and bool(matcher.accept_token(0))


def test_every_model_of_the_peer_has_a_row_or_a_reason() -> None:
    rows = {peer for form in TOOL_FORMATS.values() for peer in form.peer}
    assert {"harmony"} <= set(peers) - rows <= NOT_READ.keys()  # gemma_4 came with xgrammar 0.2.9


def test_the_option_names_every_row() -> None:
    choices = ServerConfig.__dataclass_fields__["tool_call_format"].metadata["choices"]
    assert list(choices) == ["auto", *TOOL_FORMATS]


@pytest.mark.parametrize(
    ("schema", "place", "why"),
    [
        ({"properties": {"a<b": {"type": "string"}}}, "/", "cannot hold the name 'a<b'"),
        ({"properties": {"": {"type": "string"}}}, "/", "cannot hold the name ''"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "/properties/a", "none of its strings"),
        ({"properties": {"a": {"type": ["string", "null"], "enum": ["null", None]}}}, "", ""),
        ({"properties": {"a": {"type": "string", "pattern": "</parameter>"}}, "required": ["a"]}, "/", ""),
    ],
)
def test_what_tags_cannot_say_is_refused_with_its_place(schema: dict[str, Any], place: str, why: str) -> None:
    tool = Tool("f", json.dumps({"type": "object", **schema}), True, "tools/0/function/parameters")
    source = tools_constraint([tool], TOOL_FORMATS["qwen_3_coder"], required=True, parallel=True)
    if not place:
        assert read_structural_tag(source, StructuredOptions())[0].prune()
        return
    with pytest.raises(RequestError) as caught:
        read_structural_tag(source, StructuredOptions())
    assert caught.value.param == "tools"
    assert f"/0/function/parameters{place.rstrip('/')}" in caught.value.message
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("schema", "place", "why"),
    [
        ({"properties": {"1a": {"type": "string"}}}, "/", "cannot hold the name '1a'"),
        ({"properties": {"a": {"const": []}}, "required": ["a"]}, "", ""),
        ({"properties": {"a": {"enum": [[]]}, "b": {"anyOf": [{"type": "string"}, {"const": []}]}}}, "", ""),
        ({"properties": {"a": {"anyOf": [{"const": {}}, {"const": []}, {"maxItems": 0}]}}}, "", ""),
        (
            {"properties": {"a": {"anyOf": [{"type": "array"}, {"properties": {"item": {}}, "type": "object"}]}}},
            "/properties/a",
            "an array may stand in place of the object",
        ),
        (
            {"properties": {"a": {"type": "array", "items": {"enum": ["]<]minimax[>[", "x"]}, "uniqueItems": True}}},
            "/properties/a",
            "cannot hold ']<]minimax[>['",
        ),
    ],
)
def test_what_nested_tags_cannot_say_is_refused_with_its_place(schema: dict[str, Any], place: str, why: str) -> None:
    tool = Tool("f", json.dumps({"type": "object", **schema}), True, "tools/0/function/parameters")
    source = tools_constraint([tool], TOOL_FORMATS["minimax_m3"], required=True, parallel=True)
    if not place:
        assert read_structural_tag(source, StructuredOptions())[0].prune()
        return
    with pytest.raises(RequestError) as caught:
        read_structural_tag(source, StructuredOptions())
    assert caught.value.param == "tools"
    assert f"/0/function/parameters{place.rstrip('/')}" in caught.value.message
    assert why in caught.value.message


@pytest.mark.parametrize("name", ["qwen_3_coder", "cohere"])
def test_members_that_must_differ_are_refused_where_no_guard_keeps_them_apart(name: str) -> None:
    tool = Tool("f", '{"type":"object","minProperties":2}', origin="tools/0/function/parameters")
    source = tools_constraint([tool], TOOL_FORMATS[name], required=True, parallel=True)
    with pytest.raises(RequestError, match="'minProperties' at '/0/function/parameters'"):
        read_structural_tag(source, StructuredOptions())


def test_what_a_notation_cannot_enforce_is_refused_and_not_dropped() -> None:
    class Refusing(GrammarEmitter):
        def root(self, node: Node) -> Expr:
            self.graph.refuse(Unsupported("/items", "uniqueItems", "the notation cannot say it", "Leave it out."))
            return super().root(node)

    normal = normalize({"type": "array", "items": {"type": "string"}})
    for _ in range(2):
        with pytest.raises(SchemaRefused, match="the notation cannot say it"):
            normal.emitted_by(Refusing)
    assert normal.emitted_by(GrammarEmitter)[0].rules


def test_rows_are_consistent() -> None:
    for form in TOOL_FORMATS.values():
        assert (form.begin + form.head("x")).startswith(form.trigger)
        assert form.arguments.name == form.style
        for marker in form.markers[:1] if form.in_text else ():
            assert marker in form.trigger


def table() -> str:
    """The table of docs/structured_output.md, which is written from the rows."""
    rows = ["| format | arguments | a call |", "|---|---|---|"]
    for form in TOOL_FORMATS.values():
        text = form.write([("get", {"city": "Rome", "days": 3})]).replace("\n", "⏎").replace("|", "\\|")
        rows.append(f"| `{form.name}` | {'JSON' if form.arguments.is_json else form.style} | `` {text} `` |")
    return "\n".join(rows)


def test_the_documents_have_the_table() -> None:
    found = re.search(r"\| format \| arguments \|.*?(?=\n\n)", (DOCS / "structured_output.md").read_text(), re.DOTALL)
    assert found is not None
    assert found.group() == table(), json.dumps(table())


def test_the_documents_name_the_families_of_every_format() -> None:
    section = (DOCS / "models.md").read_text().partition("## Tool calls\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    said: dict[str, tuple[str, str]] = {}
    for _, names, inner, found_by in rows:
        said |= {name: (inner, found_by.strip(" |")) for name in re.findall(r"`(\w+)`", names)}
    for form in TOOL_FORMATS.values():
        style = form.arguments
        inner = "tags in tags" if style.nests else "JSON" if style.is_json else "JSON in tags"
        found_by = "template, architecture" if form.architectures else "template"
        assert said.pop(form.name) == (inner, found_by if form.name != "json" else "the prompt explains it")
    assert not said
