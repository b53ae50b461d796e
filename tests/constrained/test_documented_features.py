"""The tables of keywords, types and regex features in docs/structured_output.md, made from the examples here.

Each example is enforced: the grammar takes the first value and not the second. `python -m
tests.constrained.test_documented_features` writes the tables into the document, and a test fails while they are stale.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.regex import matches, parse_regex
from radixrt.constrained.schema import normalize
from radixrt.constrained.schema.document.dialects import ASSERTIONS
from radixrt.explain.value_check import accepts
from tests.constrained.models.pydantic_types import SCALARS
from tests.constrained.models.test_models import REFUSED, SAYS_LESS, SCHEMAS

DOCUMENT = Path(__file__).parents[2] / "docs" / "structured_output.md"
BEGIN, END = "<!-- tables of enforced features: begin -->\n", "<!-- tables of enforced features: end -->\n"

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
}
"""For each feature a pattern, a text that it matches and one that it does not."""


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
    scalars = [name for name in SCALARS if name not in SAYS_LESS and name not in REFUSED]
    lines.append(f"| pydantic, from its schema | {', '.join(scalars)}; lists, tuples, dicts, unions of them |")
    less = "; ".join(f"{name} ({why})" for name, why in SAYS_LESS.items())
    lines.append(f"| pydantic, where the schema says less than the type | {less} |")
    zod = dict.fromkeys(name.partition(".")[0] for name in SCHEMAS if name not in REFUSED)
    lines.append(f"| zod | {', '.join(zod)} |")
    lines.append(f"| refused | {'; '.join(f'{name} ({why})' for name, why in REFUSED.items())} |")
    return "\n".join(lines) + "\n"


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


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


def test_every_keyword_has_an_example() -> None:
    assert set(KEYWORDS) | NAMES == set(ASSERTIONS)


def test_the_tables_of_the_document_are_these() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = text.partition(BEGIN)[2].partition(END)[0]
    assert found == tables(), "stale: run python -m tests.constrained.test_documented_features"


def main() -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + tables() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
