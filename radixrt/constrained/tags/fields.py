"""The fields of a structural tag's JSON; a malformed or unknown field is refused with its JSON pointer."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from radixrt.errors import RequestError, shown

PARAM = "structural_tag"

Node = dict[str, Any]


def malformed(at: str, problem: str) -> RequestError:
    return RequestError(f"structural_tag at {at or '/'}: {problem}", param=PARAM, code="invalid_structural_tag")


def refuse(at: str, problem: str) -> NoReturn:
    raise malformed(at, problem)


def check_keys(node: Node, at: str, *known: str) -> None:
    for key, value in node.items():
        if key != "type" and key not in known and value is not None:
            refuse(at, f"{shown(key)} is not supported here")


def get(node: Node, at: str, name: str, kind: type) -> Any:
    value = node.get(name)
    if not isinstance(value, kind):
        refuse(f"{at}/{name}", f"must be {'an array' if kind is list else 'an object'}")
    return value


def flag(node: Node, at: str, name: str, *, default: bool = False) -> bool:
    value = node.get(name, default)
    if not isinstance(value, bool):
        refuse(f"{at}/{name}", "must be true or false")
    return value


def text(node: Node, at: str, name: str) -> str:
    value = node.get(name)
    if not isinstance(value, str):
        refuse(f"{at}/{name}", "must be a text")
    return value


def checked_text(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(at, "must be a text that is not empty")
    return value


def texts(node: Node, at: str, name: str) -> list[str]:
    value = node.get(name, [])
    if not isinstance(value, list):
        refuse(f"{at}/{name}", "must be an array of texts")
    return list(dict.fromkeys(checked_text(one, f"{at}/{name}/{i}") for i, one in enumerate(value)))


def from_legacy(value: Node) -> Node:
    """The older form, as a format."""
    check_keys(value, "", "structures", "triggers")
    tags = []
    for i, structure in enumerate(get(value, "", "structures", list)):
        at = f"/structures/{i}"
        if not isinstance(structure, dict):
            refuse(at, "must be an object with begin, schema and end")
        check_keys(structure, at, "begin", "schema", "end")
        schema = structure.get("schema", True)
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                refuse(f"{at}/schema", f"is not JSON: {error}")
        content = {"type": "json_schema", "json_schema": schema, "origin": f"{PARAM}{at}/schema"}
        tags.append({"type": "tag", "begin": structure.get("begin"), "content": content, "end": structure.get("end")})
    return {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}
