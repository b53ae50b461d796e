"""OpenAI's `response_format` for a constraint, and the conversion of its answer.

OpenAI's schemas describe an object. A constraint that describes anything else (a number, a list, one of some choices)
is wrapped as the only property of an object, and the answer is unwrapped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radixrt.constraint import Constraint
from radixrt.lang.backends.base import Unsupported

VALUE = "value"
DEFINITIONS = ("$defs", "definitions")
REFUSALS = {
    "regex": "a regular expression",
    "ebnf": "a grammar",
    "structural_tag": "a structural tag",
}


@dataclass(frozen=True)
class Format:
    """A `response_format` and the form of its answer.

    Attributes:
        wrapped: the answer is an object with the only property "value".
        bare: the property is a string, and the output is the string's text.
    """

    body: dict[str, Any]
    wrapped: bool = False
    bare: bool = False

    def text(self, answer: str) -> str:
        """Unwrap the output; the answer itself if it was cut or has another form."""
        if not self.wrapped:
            return answer
        try:
            value = json.loads(answer)[VALUE]
        except (ValueError, KeyError, TypeError):
            return answer
        if self.bare and isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def response_format(constraint: Constraint) -> Format:
    """Convert a constraint.

    Raises:
        Unsupported: the constraint is neither a JSON Schema nor choices.
    """
    if constraint.kind == "choices":
        return _wrapped({"type": "string", "enum": json.loads(constraint.source)}, False, bare=True)
    if constraint.kind != "json_schema":
        raise Unsupported(
            f"rt.OpenAI cannot hold an output to {REFUSALS[constraint.kind]} ({constraint.kind}=): OpenAI's API has no "
            "field for it. Ask for a type, a json_schema or choices, or run on an Engine or rt.Endpoint"
        )
    schema = json.loads(constraint.source)
    if isinstance(schema, dict) and schema.get("type") == "object":
        return Format(_body(schema, bool(constraint.options.closed)))
    return _wrapped(schema, bool(constraint.options.closed))


def _wrapped(schema: Any, closed: bool, *, bare: bool = False) -> Format:
    """Wrap the schema as the only property of an object; its definitions move to the new root."""
    outer: dict[str, Any] = {"type": "object"}
    if isinstance(schema, dict):
        inner = {name: value for name, value in schema.items() if name not in DEFINITIONS}
        outer |= {name: schema[name] for name in DEFINITIONS if name in schema}
        if any(reference == "#" for reference in _references(schema)):
            raise Unsupported(
                "rt.OpenAI cannot ask for a schema that is not an object and refers to itself as '#'; name the part "
                "in $defs, or make the root an object"
            )
        schema = inner
    outer |= {"properties": {VALUE: schema}, "required": [VALUE], "additionalProperties": False}
    return Format(_body(outer, closed), wrapped=True, bare=bare)


def _references(node: Any) -> Iterator[Any]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def _body(schema: dict[str, Any], closed: bool) -> dict[str, Any]:
    """Set "strict" wherever OpenAI allows it, because without it a server need not enforce the schema."""
    named = {"name": "answer", "schema": schema, "strict": closed or _is_strict(schema)}
    return {"type": "json_schema", "json_schema": named}


def _is_strict(node: Any) -> bool:
    """Return True if each object requires all its properties and allows no others, as OpenAI's strict mode asks."""
    if isinstance(node, list):
        return all(_is_strict(value) for value in node)
    if not isinstance(node, dict):
        return True
    if node.get("type") == "object" or "properties" in node:
        properties = node.get("properties")
        if not isinstance(properties, dict) or node.get("additionalProperties") is not False:
            return False
        if set(node.get("required") or ()) != set(properties):
            return False
        rest = [value for name, value in node.items() if name != "properties"]
        return all(_is_strict(value) for value in [*properties.values(), *rest])
    return all(_is_strict(value) for value in node.values())
