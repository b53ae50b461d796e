"""No JSON in a structural tag or a call of a tool repeats a key, or an item where items must differ."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from radixrt.chat.tool_parser import CallArguments, ToolCallParser
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile import compiler
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.obligations import JSON_PREFIX
from radixrt.constrained.productions import Productions
from radixrt.constrained.runtime.text_grammar import TextTemplate
from radixrt.constrained.schema.emit import arrays, plan
from radixrt.constrained.schema.normal_form import graph
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.tags.tagged_arguments import JSON_RULE
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS
from radixrt.constrained.tags.tools import Tool, tools_constraint
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.errors import RequestError
from radixrt.explain.text_checker import TextChecker
from tests.constrained.guards.languages import Repeated, strict, texts, walk, without
from tests.constrained.guards.test_keys import answer
from tests.constrained.tags.test_tool_walks import with_control_tokens
from tests.constrained.vocabularies import small_vocabulary, text_of

A_SET: dict[str, Any] = {
    "type": "array", "items": {"type": "string", "pattern": "^[ab]$"}, "uniqueItems": True, "maxItems": 2,
}  # fmt: skip
A_DICT: dict[str, Any] = {
    "type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False, "maxProperties": 2,
}  # fmt: skip
TWO_KEYS = {**A_DICT, "minProperties": 2}
CLOSED: dict[str, Any] = {
    "type": "object", "properties": {"c": {"enum": ["{", "["]}}, "required": ["c"], "additionalProperties": False,
}  # fmt: skip
LISTED = {"enum": ["[", '{"', "b{"]}


def const(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def schema(of: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": of, **more}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def tool(style: str, **properties: Any) -> dict[str, Any]:
    """Arguments in a style, whose parameters are all required."""
    of = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return schema(of, style=style)


VALUE = r"(?:<parameter=m>)(.*?)</parameter>"
"""The JSON of a parameter `m`."""

TINY: dict[str, tuple[dict[str, Any], str, Any]] = {
    "a set": (sequence(const("<"), schema(A_SET), const(">")), "<(.*)>", A_SET),
    "a dict": (sequence(const("<"), schema(A_DICT), const(">")), "<(.*)>", A_DICT),
    "at least two keys": (sequence(const("<"), schema(TWO_KEYS), const(">")), "<(.*)>", TWO_KEYS),
    "two texts of JSON have nothing to do with each other": (
        sequence(const("<"), schema(A_SET), const("; "), schema(A_SET), const(">")), r"(\[.*?])[;>]", A_SET),
    "any number of texts of JSON": (
        {"type": "repeat", "min": 1, "max": 2, "content": sequence(const("<"), schema(A_DICT), const(">"))},
        "<(.*?)>", A_DICT),
    "other text with brackets and quotes": (
        sequence(const('{"it\'s": ["a", "'), schema(A_SET), const('"a", "a", {"')), r' "(\[.*])"', A_SET),
    "other JSON with brackets in strings": (
        sequence(schema(CLOSED), const(";"), schema(A_DICT)), ";(.*)", A_DICT),
    "alternatives that begin alike": (
        {"type": "or", "elements": [schema({"anyOf": [A_SET, A_DICT]}), const('{"a":1,"call":['), schema(CLOSED)]},
        r"(.*)", {"anyOf": [A_SET, A_DICT, CLOSED]}),
    "a parameter": (tool("qwen_xml_plain", m=A_DICT), VALUE, A_DICT),
    "a parameter behind texts with brackets": (
        tool("qwen_xml_plain", **{"x[": LISTED, 'y{': {"const": "["}}, m=A_SET), VALUE, A_SET),
    "a parameter that may be a string": (
        tool("qwen_xml_plain", m={"anyOf": [{"enum": ["{a", "a"]}, A_SET, {"const": {"b": 1}}]}), VALUE,
        {"anyOf": [{"enum": ["{a", "a"]}, A_SET, {"const": {"b": 1}}]}),
    "parameters with the same schema": (
        tool("qwen_xml_plain", l={"const": "[["}, m={"anyOf": [A_DICT, A_SET]}, n=A_SET), r"=[mn]>(.*?)</parameter>",
        {"anyOf": [A_DICT, A_SET]}),
    "a parameter with a marked kind": (tool("deepseek_xml", l={"const": '{"'}, m=A_SET), r'="false">(.*?)</', A_SET),
    "parameters that share a rule": (
        tool("qwen_xml_plain", l={"$ref": "#/$defs/r"}, m={"anyOf": [{"$ref": "#/$defs/r"}, {"const": "{"}]}),
        r"=[lm]>(.*?)</parameter>", {"anyOf": [A_DICT, {"const": "{"}]}),
}  # fmt: skip
"""Formats with few texts; a pattern for the JSON in a text; the schema of the JSON."""
TINY["parameters that share a rule"][0]["json_schema"]["$defs"] = {"r": A_DICT}


@pytest.fixture(autouse=True)
def no_value_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few values and names are left to guards, as many would be."""
    monkeypatch.setattr(arrays, "MAX_LISTED_VALUES", 0)
    monkeypatch.setattr(plan, "MAX_LISTED_NAMES", 0)
    monkeypatch.setattr(graph, "MAX_LISTED_NAMES", 0)


def source(form: dict[str, Any]) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


def productions_of(form: dict[str, Any]) -> Productions:
    return read_structural_tag(source(form), StructuredOptions(bounded=False)).productions.prune()


def template_of(form: dict[str, Any], backends: Backends) -> TextTemplate:
    constraint = Constraint(kind="structural_tag", source=source(form), options=StructuredOptions(bounded=False))
    template = load(compile_constraint(constraint, backends), backends)
    assert isinstance(template, TextTemplate)
    return template


def good_texts(name: str) -> set[str]:
    """The texts whose JSON is valid, by enumerating those of the format without `uniqueItems`."""
    form, pattern, of = TINY[name]
    validator = jsonschema.Draft202012Validator(of)
    found = set()
    for text in texts(productions_of(without(form)), 200):
        if all(is_good(part, validator) for part in re.findall(pattern, text)):
            found.add(text)
    return found


def is_good(text: str, validator: jsonschema.Draft202012Validator) -> bool:
    try:
        return validator.is_valid(strict(text))
    except Repeated:
        return False
    except ValueError:  # a string between tags, or another text
        return True


@pytest.mark.parametrize("name", TINY)
def test_the_mask_has_exactly_the_tokens_with_a_completion(name: str) -> None:
    backends = Backends(small_vocabulary("byte_level"))
    template = template_of(TINY[name][0], backends)
    assert isinstance(template, GuardedTemplate)
    reached, banned = walk(template, backends.vocabulary, good_texts(name), name, 20)
    assert reached
    assert banned, "the guard had nothing to do"


@pytest.mark.parametrize("name", TINY)
def test_a_text_that_is_cut_anywhere_is_completed_without_repeated_units(name: str, backends: Backends) -> None:
    vocabulary, good = backends.vocabulary, good_texts(name)
    template = template_of(TINY[name][0], backends)
    for text in random.Random(1).sample(sorted(good), min(12, len(good))):
        grammar, tokens = template.new(), []
        for token in vocabulary.encode_greedily(text.encode()):
            assert grammar.accept(token), text
            tokens.append(token)
            closing = grammar.closing()
            assert text_of(vocabulary, tokens + closing) in good
            copied = grammar.copy()
            assert all(map(copied.accept, closing))


PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "counts": {"type": "object", "additionalProperties": {"type": "integer", "maximum": 9}, "minProperties": 2},
        "names": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2},
        "note": {"type": "string"},
    },
    "required": ["note", "counts", "names"],
    "additionalProperties": False,
}
TOOL = Tool("f", json.dumps(PARAMETERS), True, "tools/0/function/parameters")


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("name", ["hermes", "llama3", "deepseek_v3_2", "qwen_3_coder", "kimi_k3"])
def test_random_calls_of_every_length_repeat_nothing(name: str, as_tokens: bool, model_folder: Path) -> None:
    form = TOOL_FORMATS[name]
    markers = form.markers if as_tokens else ()
    vocabulary = with_control_tokens(model_folder, markers)
    shown = {id: text.encode() for text, id in vocabulary.control_tokens.items()}
    source = tools_constraint([TOOL], form, required=True, parallel=True, tokens=markers)
    compiled = compile_constraint(Constraint(kind="structural_tag", source=source), Backends(vocabulary))
    template = load(compiled, Backends(vocabulary))
    assert isinstance(template, GuardedTemplate)
    # Tokens of which few keys and items are made, so that they would often repeat.
    texts = ('"', "a", "b", '":', ",", '{"', '","', "{", "}", "1", "]", '["', "</", ">", "<", "\n")
    likely = [id for text in texts if (id := vocabulary.by_bytes[0].get(text.encode()))] + [*shown]
    repeated = found = 0
    for seed in range(4):
        generator = random.Random(seed)
        tokens, bans = answer(template.new(), vocabulary, generator, likely, generator.randrange(150))
        text = b"".join(shown.get(token) or vocabulary.table[token] for token in tokens).decode()
        parser = ToolCallParser(form, [TOOL])
        calls: dict[int, str] = {}
        for part in [*parser.feed(text), *parser.finish()]:
            if isinstance(part, CallArguments):
                calls[part.index] = calls.get(part.index, "") + part.text
        for arguments in calls.values():
            jsonschema.validate(strict(arguments), PARAMETERS)
        repeated += bans
        found += len(calls)
    assert found
    assert repeated, "nothing would have been repeated"


@pytest.mark.parametrize("name", ["hermes", "qwen_3_coder"])
def test_too_few_values_are_refused_with_the_place_in_the_tool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_COUNTED_VALUES", 0)  # the values are not counted beforehand
    two = {"type": "array", "items": {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3}}
    parameters = {"type": "object", "properties": {"m": {**two, "uniqueItems": True, "minItems": 3}}, "required": ["m"]}
    tool = Tool("g", json.dumps(parameters), True, "tools/1/function/parameters")
    other = Tool("f", '{"type":"object"}')
    source = tools_constraint([other, tool], TOOL_FORMATS[name], required=False, parallel=True)
    constraint = Constraint(kind="structural_tag", source=source)
    with pytest.raises(RequestError, match="no array of different items") as caught:
        compile_constraint(constraint, Backends(small_vocabulary("byte_level")))
    assert caught.value.param == "tools"
    assert "'/1/function/parameters/properties/m'" in caught.value.message


def three_sets() -> Constraint:
    """The tools f and g, each with three arrays of different items that have to have some."""
    items = {"type": "array", "items": {"const": 1}}
    sets = {
        name: {"type": "array", "items": items, "uniqueItems": True, "minItems": least}
        for least, name in enumerate("abc", 2)
    }
    parameters = json.dumps({"type": "object", "properties": sets, "required": [*sets]})
    tools = [Tool(name, parameters, True, f"tools/{at}/function/parameters") for at, name in enumerate("fg")]
    return Constraint(
        kind="structural_tag", source=tools_constraint(tools, TOOL_FORMATS["hermes"], required=False, parallel=True)
    )


def test_the_counts_of_one_tool_take_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    shortest = compiler._shortest
    monkeypatch.setattr(compiler, "_shortest", lambda *args: (found.append(len(args[2])), shortest(*args))[1])
    compiled = compile_constraint(three_sets(), Backends(small_vocabulary("byte_level")))
    counts = [one.rule for one in compiled.obligations if one.counts]
    assert len(counts) > len(set(counts))
    assert len(found) == len(set(counts)) + 1
    assert sum(found[:-1]) == len(counts)


def test_the_time_to_compile_is_bounded_between_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = compiler.parse_constraint
    monkeypatch.setattr(compiler, "parse_constraint", lambda constraint, vocabulary, _: parse(constraint, vocabulary))
    backends = Backends(small_vocabulary("byte_level"))
    with pytest.raises(RequestError, match="takes too long") as caught:
        compile_constraint(three_sets(), backends, time.thread_time() - 1)
    assert caught.value.code == "too_complex"


def test_a_text_around_json_is_explained_up_to_the_item_that_repeats(vocabulary: Vocabulary) -> None:
    token = next(iter(vocabulary.control_tokens))
    form = sequence(const("é"), {"type": "token", "token": token}, schema({**A_SET, "items": {"type": "string"}}))
    productions, _, obligations = read_structural_tag(source(form), StructuredOptions())
    checker = TextChecker(productions.prune(), vocabulary, obligations)
    assert checker.accepts(f'é{token}["a","b"]')
    assert not checker.accepts(f'é{token}["a","a"]')
    problem = checker.problem(f'é{token}["a","a"]')
    assert problem is not None
    assert problem.startswith(f"position {len(token) + 9}: ")
    assert "the item before repeats" in problem


def test_a_tag_whose_json_repeats_nothing_has_no_guard(backends: Backends) -> None:
    template = template_of(sequence(const("<"), schema(CLOSED), tool("qwen_xml", m=CLOSED)), backends)
    assert not isinstance(template, GuardedTemplate)
    productions = productions_of(tool("qwen_xml", m=CLOSED))
    assert not any(JSON_PREFIX in rule or JSON_RULE in rule for rule in productions.rules)
