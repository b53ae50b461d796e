"""`describe`: the OpenAPI 3.1 description of the server's routes.

Bodies of requests are described by the types that parse them; fields of `UnsupportedFields` are not described, because
a request that uses one is refused. Fields that no type knows are ignored, so these schemas are open.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

from radixrt._version import __version__
from radixrt.chat.constraint import ResponseFormat
from radixrt.chat.unsupported_fields import UnsupportedFields
from radixrt.constraint import StructuredOptions
from radixrt.messages.http import CONTENT_TYPE
from radixrt.sampling_params import DrawParams, SamplingParams
from radixrt.server.access.checks import ADMIN_PATHS, OPEN_FILES, OPEN_PATHS
from radixrt.server.answers.errors import ErrorBody, MessagesErrorBody
from radixrt.server.answers.schemas import Json, Schemas
from radixrt.server.http.errors import speaks_anthropic
from radixrt.server.http.forms import FORM_TYPE, JSON_PART
from radixrt.server.routes.table import TAGS, Route

PARSED_LATER = {"response_format": ResponseFormat, "structured": StructuredOptions}
"""Types that parse fields whose JSON the body's own type keeps as it is."""

_SCHEMA, _GRAMMAR = "JSON Schema of the output, as a value or as its text", "grammar whose sentence the output is"
_REGEX, _CHOICES = "regular expression that matches the whole output", "texts of which the output is one"
CONSTRAINTS = {
    "response_format": "form of the output; all fields that state a constraint must state the same one",
    "json_schema": _SCHEMA,
    "guided_json": _SCHEMA,
    "regex": _REGEX,
    "guided_regex": _REGEX,
    "choice": _CHOICES,
    "choices": _CHOICES,
    "guided_choice": _CHOICES,
    "ebnf": _GRAMMAR,
    "grammar": _GRAMMAR,
    "guided_grammar": _GRAMMAR,
    "structural_tag": "free text with structured parts, in xgrammar's format",
    "structured_outputs": "a constraint in vLLM's form",
    "structured": "options for enforcing the constraint",
}
"""Texts about fields that state constraints."""

ABOUT = """Routes of this server. Unknown fields of a request are ignored, and named in the header
`X-Radixrt-Ignored-Fields` of the answer, except on `/v1/responses`; null means "not given". Streams are server-sent
events: `x-item-schema` is the schema of the data of each event. If the server has API keys, a request needs one, as
`Authorization: Bearer KEY` or `x-api-key: KEY`."""


def describe(routes: Iterable[Route], *, needs_key: bool) -> Json:
    """Describe routes.

    Args:
        needs_key: the server has API keys.
    """
    schemas = Schemas()
    paths: Json = {}
    for route in routes:
        for path in route.paths:
            name = route.handler.__name__ + (path.replace("/", "_") if path in route.aliases else "")
            described = _operation(path, route, name, schemas, needs_key=needs_key)
            paths.setdefault(path.replace(":path", ""), {})[route.method.lower()] = described
    _complete(schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "radixrt", "version": __version__, "description": ABOUT},
        "tags": [{"name": tag} for tag in TAGS],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(path: str, one: Route, name: str, schemas: Schemas, *, needs_key: bool) -> Json:
    made: Json = {
        "tags": [one.tag],
        "summary": one.summary,
        "operationId": name,
        "parameters": [
            {"name": found, "in": "path", "required": True, "schema": {"type": "string"}}
            for found in re.findall(r"{(\w+)", path)
        ]
        + [{"name": found, "in": "query", "schema": schema} for found, schema in one.query.items()],
    }
    if path not in OPEN_PATHS and not path.startswith("/docs") and path != f"{OPEN_FILES}{{file}}":
        made["security"] = [{"bearer": []}, {"key": []}] if needs_key else [{}, {"bearer": []}, {"key": []}]
        if path in ADMIN_PATHS:
            made["description"] = "If the server has API keys, this needs an admin's."
    else:
        made["security"] = []
    if one.decoder is not None:
        content: Json = {"schema": schemas.of(one.decoder.type)}
        if one.example is not None:
            content["example"] = one.example
        made["requestBody"] = {"required": True, "content": {"application/json": content}}
        if one.takes_forms:
            file = {"type": "string", "format": "binary"}
            form = {"type": "object", "properties": {JSON_PART: content["schema"]}, "required": [JSON_PART]}
            made["requestBody"]["content"][FORM_TYPE] = {"schema": {**form, "additionalProperties": file}}
    made["responses"] = _responses(path, one, schemas)
    return made


def _responses(path: str, one: Route, schemas: Schemas) -> Json:
    schema: Json = {"type": "object" if one.media_type == "application/json" else "string"}
    if one.answer is not None:
        schema = schemas.of(one.answer)
    media_types = (one.media_type,) if isinstance(one.media_type, str) else one.media_type
    content: Json = {media_type: {"schema": schema} for media_type in media_types}
    if one.event is not None:
        end = "the name of an event is its type" if one.named else "the last event is [DONE]"
        content["text/event-stream"] = {
            "schema": {"type": "string", "description": f"With stream: one event for each part of the answer; {end}."},
            "x-item-schema": schemas.of(one.event),
        }
    if one.for_clients is not None:
        content[CONTENT_TYPE] = {"schema": {"type": "string", "format": "binary", "description": one.for_clients}}
    error = MessagesErrorBody if speaks_anthropic(path) else ErrorBody
    failed = {"content": {"application/json": {"schema": schemas.of(error)}}}
    made = {
        "200": {"description": "The answer", "content": content},
        "4XX": {"description": "The request is refused; the message names the field and the fix", **failed},
        "5XX": {"description": "The server cannot answer now, or has failed", **failed},
    }
    if one.unavailable is not None:
        unavailable = {"application/json": {"schema": schemas.of(one.unavailable)}}
        made["503"] = {"description": "The server does not serve", "content": unavailable}
    return made


def _complete(schemas: Schemas) -> None:
    """Add what the types do not say: descriptions of fields, and types of fields that are parsed later; and leave out
    fields that are refused."""
    later = {name: {"anyOf": [schemas.of(kind), {"type": "null"}]} for name, kind in PARSED_LATER.items()}
    options = schemas.components[StructuredOptions.__name__]["properties"]
    for name, schema in options.items():
        options[name] = {"anyOf": [schema, {"type": "null"}]}
    described = {**field_texts(StructuredOptions), **field_texts(DrawParams), **field_texts(SamplingParams)}
    described |= CONSTRAINTS
    refusing = {kind.__name__ for kind in _subclasses(UnsupportedFields)}
    for name, component in schemas.components.items():
        properties = component["properties"]
        if name in refusing:
            for refused in UnsupportedFields.__struct_fields__:
                properties.pop(refused, None)
            properties |= {field: dict(schema) for field, schema in later.items() if field in properties}
        if "additionalProperties" not in component:
            for field, schema in properties.items():
                if field in described and "$ref" not in schema:
                    schema["description"] = described[field]


def _subclasses(kind: type[Any]) -> Iterable[type[Any]]:
    below: type[Any]
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def field_texts(kind: type) -> dict[str, str]:
    """Return the texts about fields in the section `Attributes` of a class's docstring."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", section):
        names, _, text = entry.strip().partition(":")
        for name in names.split(","):
            found[name.strip()] = re.sub(r"\s+", " ", text).strip()
    return found
