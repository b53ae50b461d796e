"""The tables of keywords, types, regex features and formats in docs/structured_output.md, made from the examples here.

Each example is enforced: the grammar takes the first value and not the second. `python -m
tests.constrained.test_documented_features` writes the tables into the document, and a test fails while they are stale.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.regex import matches, parse_regex
from radixrt.constrained.schema import normalize
from radixrt.constrained.schema.document.dialects import ASSERTIONS
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from radixrt.explain.value_check import accepts
from tests.constrained.models.pydantic_types import OTHERS, SCALARS
from tests.constrained.models.test_models import REFUSED, SAYS_LESS, SCHEMAS

DOCUMENT = Path(__file__).parents[2] / "docs" / "structured_output.md"
BEGIN, END = "<!-- tables of enforced features: begin -->\n", "<!-- tables of enforced features: end -->\n"
FORMATS_BEGIN, FORMATS_END = "<!-- table of formats: begin -->\n", "<!-- table of formats: end -->\n"
CALL, ID = "<call>", 7
"""A control token, which the model writes as one token, and its id."""

KEYWORDS: dict[str, tuple[Any, Any, Any]] = {
    "additionalItems": ({"items": [True], "additionalItems": {"type": "null"}}, [1, None], [1, 2]),
    "additionalProperties": ({"properties": {"a": {}}, "additionalProperties": {"const": 1}}, {"b": 1}, {"b": 2}),
    "allOf": ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2, 4),
    "anyOf": ({"anyOf": [{"type": "null"}, {"const": 1}]}, 1, 2),
    "const": ({"const": {"a": 1}}, {"a": 1}, {"a": 2}),
    "contains": ({"contains": {"const": 1}}, [0, 1], [0]),
    "dependencies": ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    "dependentRequired": ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    "dependentSchemas": ({"dependentSchemas": {"a": {"maxProperties": 1}}}, {"a": 1}, {"a": 1, "b": 1}),
    "enum": ({"enum": ["x", 1, None]}, None, "y"),
    "exclusiveMaximum": ({"exclusiveMaximum": 3}, 2.5, 3),
    "exclusiveMinimum": ({"exclusiveMinimum": 3}, 3.5, 3),
    "format": ({"type": "string", "format": "date"}, "2024-02-29", "2023-02-29"),
    "if": ({"if": {"minimum": 5}, "then": {"multipleOf": 5}, "else": {"const": 1}}, 10, 6),
    "items": ({"items": {"type": "integer"}}, [1, 2], ["a"]),
    "maxContains": ({"contains": {"const": 1}, "maxContains": 1}, [1, 2], [1, 1]),
    "maxItems": ({"maxItems": 1}, [1], [1, 2]),
    "maxLength": ({"maxLength": 2}, "ab", "abc"),
    "maxProperties": ({"maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
    "maximum": ({"maximum": 3}, 3, 3.1),
    "minContains": ({"contains": {"const": 1}, "minContains": 2}, [1, 1], [1]),
    "minItems": ({"minItems": 1}, [1], []),
    "minLength": ({"minLength": 2}, "ab", "a"),
    "minProperties": ({"properties": {"a": {}}, "additionalProperties": False, "minProperties": 1}, {"a": 1}, {}),
    "minimum": ({"minimum": 3}, 3, 2.9),
    "multipleOf": ({"type": "integer", "multipleOf": 86400}, 172800, 86401),
    "not": ({"not": {"type": "string"}}, 1, "a"),
    "oneOf": ({"oneOf": [{"minimum": 2}, {"maximum": 4}]}, 5, 3),
    "pattern": ({"pattern": "^a+$"}, "aa", "ab"),
    "patternProperties": ({"patternProperties": {"^x-": {"type": "null"}}}, {"x-a": None}, {"x-a": 1}),
    "prefixItems": ({"prefixItems": [{"type": "integer"}]}, [1, "a"], ["a"]),
    "properties": ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, {"a": "b"}),
    "propertyNames": ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"ab": 1}),
    "required": ({"properties": {"a": True}, "required": ["a"]}, {"a": 1}, {}),
    "type": ({"type": ["integer", "null"]}, 1, 1.5),
    "unevaluatedItems": ({"prefixItems": [True], "unevaluatedItems": False}, [1], [1, 2]),
    "unevaluatedProperties": (
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False}, {"a": 1}, {"b": 1},
    ),
    "uniqueItems": ({"items": {"enum": [1, 2, 3]}, "uniqueItems": True}, [2, 1], [1, 1]),
    "$ref": ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}, None, 1),
    "$dynamicRef": ({"$dynamicRef": "#n", "$defs": {"n": {"$dynamicAnchor": "n", "type": "null"}}}, None, 1),
}  # fmt: skip
"""For each keyword a schema, a value that it takes and one that it refuses."""
NAMES = {
    "$anchor", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$recursiveRef", "definitions", "else", "id",
    "then",
}  # fmt: skip
"""Keywords that name schemas, or are parts of another keyword."""
REGEX = {
    "characters, classes, groups, `*` `+` `?` `{m,n}`, lazy too": (r"^(?:[a-c]x{2,3}?)+$", "axxbxxx", "dxx"),
    "anchors anywhere": (r"^a|b$", "xb", "xa"),
    "`\\A` `\\Z` `\\z`": (r"\Aab\Z", "ab", "xab"),
    "lookahead": (r"^(?=.*\d)(?!.*--)[\w-]+$", "a-1", "a--1"),
    "lookbehind": (r"(?<=^|,)x(?<!,,x)", "a,x", "a,,x"),
    "word boundaries": (r"\bcat\b", "a cat.", "cats"),
    "`\\d` `\\w` `\\s`": (r"^\w\s\d$", "a 1", "é 1"),
    "`\\D` `\\W` `\\S`": (r"^\W\D\S$", "-a.", "éa."),
    "categories": (r"^\p{Lu}\P{L}$", "É1", "é1"),
    "scripts": (r"^\p{Script=Greek}+$", "αβγ", "abc"),
    "binary properties": (r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$", "🙂", "a"),
    "octal, `\\x`, `\\u`, `\\u{...}`, `\\U`": (r"^\101\x42\u0043\u{44}\U00000045$", "ABCDE", "ABCD"),
    "flags `i` and `s`": (r"^(?i:a)(?s:.)$", "A\n", "\nA"),
    "named groups": (r"^(?<year>\d{4})-(?P<month>\d\d)$", "2024-01", "24-01"),
    "references to groups of few texts": (r"^([\"'])(?<mark>!|\?)\k<mark>.*\1$", "'!!a'", "'!?a'"),
}
"""For each feature a pattern, a text that it matches and one that it does not."""


_YES = {"type": "const_string", "value": "yes"}
_TAG = {"type": "tag", "begin": "<b>", "content": {"type": "any_text"}, "end": "</b>"}
_FLAG = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
FORMATS: dict[str, tuple[dict[str, Any], str, str]] = {
    "const_string": (_YES, "yes", "no"),
    "json_schema": ({"json_schema": _FLAG}, '{"a":true}', '{"a":1}'),
    "qwen_xml_parameter": (
        {"json_schema": _FLAG}, "<parameter=a>\ntrue\n</parameter>\n", "<parameter=a>\n1\n</parameter>\n",
    ),
    "regex": ({"pattern": "[0-9]{2}"}, "42", "4"),
    "grammar": ({"grammar": 'root ::= "(" root? ")"'}, "(())", "(()"),
    "token": ({"token": CALL}, CALL, "call"),
    "sequence": ({"elements": [_YES, {"type": "regex", "pattern": "!+"}]}, "yes!!", "yes"),
    "or": ({"elements": [_YES, {"type": "const_string", "value": "no"}]}, "no", "yesno"),
    "tag": ({key: value for key, value in _TAG.items() if key != "type"}, "<b>free text</b>", "<b>free text"),
    "tags_with_separator": ({"tags": [_TAG], "separator": ", "}, "<b>1</b>, <b>2</b>", "<b>1</b><b>2</b>"),
    "optional": ({"content": _YES}, "", "yesyes"),
    "star": ({"content": _YES}, "yesyes", "ye"),
    "plus": ({"content": _YES}, "yesyes", ""),
    "repeat": ({"content": _YES, "min": 2, "max": 3}, "yesyes", "yes"),
    "any_text": ({"excludes": ["no"], "max_chars": 9}, "free text", "none"),
    "any_tokens": ({"exclude_tokens": [ID]}, "free text", CALL),
    "triggered_tags": ({"triggers": ["<b>"], "tags": [_TAG]}, "free <b>text</b>", "free <b>text"),
    "token_triggered_tags": (
        {"trigger_tokens": [ID], "tags": [{**_TAG, "begin": {"type": "token", "token": CALL}}]},
        f"free {CALL}text</b>", f"free {CALL}text",
    ),
    "dispatch": ({"rules": [["say ", _YES]]}, "I say yes", "I say no"),
    "token_dispatch": ({"rules": [[CALL, _YES]], "loop": False}, f"free {CALL}yes", f"free {CALL}no"),
}  # fmt: skip
"""For each format of structural tags an example, a text that it takes and one that it refuses."""


def table_of_formats() -> str:
    """Return the table of structural tags in Markdown."""
    lines = ["| format | for example | taken; not taken |", "|---|---|---|"]
    for name, (example, taken, refused) in FORMATS.items():
        shown = {key: value for key, value in example.items() if key != "type"}
        lines.append(f"| `{name}` | {_code(shown)} | {_code(taken)}; {_code(refused)} |")
    return "\n".join(lines) + "\n"


def tables() -> str:
    """Return the tables in Markdown."""
    lines = ["| keyword | for example | taken; not taken |", "|---|---|---|"]
    for keyword, (schema, taken, refused) in sorted(KEYWORDS.items()):
        lines.append(f"| `{keyword}` | {_code(schema)} | {_code(taken)}; {_code(refused)} |")
    lines += ["", "| in patterns | for example | found; not found |", "|---|---|---|"]
    for feature, (pattern, taken, refused) in REGEX.items():
        shown = pattern.replace("|", "\\|")
        lines.append(f"| {feature} | `{shown}` | {_code(taken)}; {_code(refused)} |")
    lines += ["", "| types | |", "|---|---|"]
    scalars = [name for name in {**SCALARS, **OTHERS} if name not in SAYS_LESS and name not in REFUSED]
    lines.append(f"| pydantic, from its schema | {', '.join(scalars)}; lists, tuples, dicts, unions of them |")
    less = "; ".join(f"{name} ({why})" for name, why in SAYS_LESS.items())
    lines.append(f"| pydantic, where the schema says less than the type | {less} |")
    zod = dict.fromkeys(name.partition(".")[0] for name in SCHEMAS if name not in REFUSED)
    lines.append(f"| zod | {', '.join(zod)} |")
    lines.append(f"| refused | {'; '.join(f'{name} ({why})' for name, why in REFUSED.items())} |")
    return "\n".join(lines) + "\n"


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`".replace("|", "\\|")


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_documented_keyword_is_enforced(keyword: str) -> None:
    schema, taken, refused = KEYWORDS[keyword]
    normal = normalize(schema)
    assert accepts(normal, taken)
    assert not accepts(normal, refused)
    recognizer = Recognizer(normal.productions().prune())
    for value in (taken, refused):
        state = recognizer.advance(recognizer.start(), json.dumps(value, separators=(",", ":"), ensure_ascii=False))
        assert (state is not None and recognizer.is_complete(state)) is (value is taken)


@pytest.mark.parametrize("feature", REGEX)
def test_a_documented_feature_of_patterns_is_enforced(feature: str) -> None:
    pattern, taken, refused = REGEX[feature]
    regex = parse_regex(pattern, search=True)
    assert matches(regex, taken)
    assert not matches(regex, refused)


@pytest.mark.parametrize("name", FORMATS)
def test_a_documented_format_is_enforced(name: str) -> None:
    example, taken, refused = FORMATS[name]
    source = json.dumps({"type": "structural_tag", "format": {**example, "type": name}})
    tag = read_structural_tag(source, StructuredOptions(), None, {CALL: ID})
    recognizer = Recognizer(tag.productions.prune(), {CALL: ID})
    assert not tag.ignored
    for text in (taken, refused):
        state: State | None = recognizer.start()
        for piece in re.split(f"({CALL})", text):
            if state is not None and piece:
                move = recognizer.advance_special if piece == CALL else recognizer.advance
                state = move(state, piece)
        assert (state is not None and recognizer.is_complete(state)) is (text == taken)


def test_every_format_has_an_example() -> None:
    with pytest.raises(RequestError) as caught:
        read_structural_tag('{"format": {"type": "x"}}', StructuredOptions())
    assert sorted(FORMATS) == sorted(caught.value.message.rpartition("there are ")[2].split(", "))


def test_every_keyword_has_an_example() -> None:
    assert set(KEYWORDS) | NAMES == set(ASSERTIONS)


def test_the_tables_of_the_document_are_these() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = text.partition(BEGIN)[2].partition(END)[0]
    assert found == tables(), "stale: run python -m tests.constrained.test_documented_features"
    found = text.partition(FORMATS_BEGIN)[2].partition(FORMATS_END)[0]
    assert found == table_of_formats(), "stale: run python -m tests.constrained.test_documented_features"


def main() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for begin, made, end in ((BEGIN, tables(), END), (FORMATS_BEGIN, table_of_formats(), FORMATS_END)):
        before, _, rest = text.partition(begin)
        text = before + begin + made + end + rest.partition(end)[2]
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
