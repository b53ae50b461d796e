"""`RequestedConstraint`: a constraint read from any of the forms that clients use, and the client's names for fields.

The engine has five kinds of constraint. Clients use different field names, and an error must name the client's field:
`RequestedConstraint.field` records the name, and `renamed` translates an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from radixrt.chat.decoding import DECODING_ERRORS, decoding_error
from radixrt.chat.tools import OfferedTools
from radixrt.chat.unsupported_fields import UnsupportedFields
from radixrt.chat.whitespace import check_whitespace_pattern
from radixrt.constrained.tags.fields import from_legacy
from radixrt.constrained.tags.tool_formats import ToolFormat
from radixrt.constrained.tags.tools import Tool
from radixrt.constraint import Kind, StructuredOptions, as_structured_options
from radixrt.errors import RequestError, shown
from radixrt.sampling_params import check_stops_of_choices

FieldNames = Mapping[str, str]
"""The client's name for each field of the engine that has another name there."""

ANY_OBJECT = '{"type":"object"}'
ANY_TEXT = r"[\s\S]*"
OPTION_NAMES = {name: f"structured.{name}" for name in StructuredOptions.__struct_fields__}


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's form of a constraint: exactly one of the first six fields, and options."""

    json: msgspec.Raw = msgspec.Raw()
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: msgspec.Raw = msgspec.Raw()
    whitespace: int | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Any = None


class NamedSchema(msgspec.Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw = msgspec.Raw()
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """Every form of `response_format`; the type determines the fields that count."""

    type: str
    json_schema: NamedSchema | None = None
    schema: msgspec.Raw = msgspec.Raw()
    regex: str | None = None
    pattern: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    choices: list[str] | None = None


class ConstraintFields(UnsupportedFields, kw_only=True):
    """Forms of a constraint on the output, read by `read_constraint`. JSON is kept as the client
    wrote it; a Raw that is absent is empty."""

    response_format: msgspec.Raw = msgspec.Raw()
    json_schema: msgspec.Raw = msgspec.Raw()
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    choices: list[str] | None = None
    structural_tag: msgspec.Raw = msgspec.Raw()
    structured_outputs: StructuredOutputs | None = None
    guided_json: msgspec.Raw = msgspec.Raw()
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RequestedConstraint:
    """One constraint.

    Attributes:
        source: JSON text, regular expression or grammar; the texts themselves for choices.
        field: the field in which the client stated the constraint.
        options: fields of `StructuredOptions` that come with the client's form of the constraint.
    """

    kind: Kind
    source: str | tuple[str, ...]
    field: str
    options: Mapping[str, Any] | None = None


def constraint_fields(
    constraint: RequestedConstraint | None, structured: Mapping[str, Any] | None, **defaults: Any
) -> dict[str, Any]:
    """Return the fields of `SamplingParams` for a constraint; empty without a constraint.

    Args:
        structured: the client's own options, which come before the constraint's, which come before the defaults.

    Raises:
        RequestError: an option is malformed, or options are given without a constraint.
    """
    given = {name: value for name, value in (structured or {}).items() if value is not None}
    if constraint is None:
        if given:
            raise RequestError("structured needs a constraint that it is about", param="structured")
        return {}
    try:
        options = as_structured_options({**defaults, **(constraint.options or {}), **given})
    except RequestError as error:
        raise renamed(error, OPTION_NAMES) from None
    return {constraint.kind: constraint.source, "structured": options}


def field_names(constraint: RequestedConstraint | None, **others: str) -> dict[str, str]:
    """The client's names for the fields that errors of a request may name."""
    names = {**OPTION_NAMES, **others}
    if constraint is not None:
        names[constraint.kind] = constraint.field
    return names


def renamed(error: RequestError, names: FieldNames) -> RequestError:
    """The error with the client's name of the field, in `param` and at the start of the message."""
    name = names.get(error.param or "")
    if name is None or name == error.param:
        return error
    message = error.message
    if message.startswith((f"{error.param} ", f"{error.param}:")):
        message = name + message[len(error.param or "") :]
    return RequestError(message, param=name, code=error.code, status=error.status)


def decoded(source: str, field: str) -> Any:
    """Return the value of a constraint's JSON text; errors name the field."""
    try:
        return msgspec.json.decode(source)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{field} is not JSON: {error}", param=field, code="invalid_json") from None


# --- constraints as parts of a structural tag ---


def part_of_tag(constraint: RequestedConstraint | None, field: str) -> RequestedConstraint:
    """The structural tag that a constraint becomes a part of, with its options; errors name the field."""
    options = {} if constraint is None else {k: v for k, v in (constraint.options or {}).items() if k != "closed"}
    return RequestedConstraint("structural_tag", "", field, options)


def with_closed(
    constraint: RequestedConstraint | None, offered: OfferedTools | None, structured: Mapping[str, Any] | None
) -> tuple[RequestedConstraint | None, tuple[Tool, ...]]:
    """The constraint and the tools, with the client's option `closed`, which comes before `strict` of each schema."""
    tools = () if offered is None else offered.tools
    chosen = (structured or {}).get("closed")
    if chosen is None:
        return constraint, tools
    if constraint is not None:
        constraint = replace(constraint, options={**(constraint.options or {}), "closed": chosen})
    return constraint, tuple(replace(tool, strict=chosen) for tool in tools)


def as_format(constraint: RequestedConstraint, form: ToolFormat | None, stops: tuple[str, ...]) -> dict[str, Any]:
    """A constraint as a format of a structural tag; no text of it other than JSON holds a stop string.

    Args:
        form: format of calls that the answer may begin with instead; None if it may not.
    """
    source, field = constraint.source, constraint.field
    without = {"without": list(stops)} if stops else {}
    if isinstance(source, tuple):
        check_stops_of_choices(source, stops)
        return {"type": "or", "elements": [{"type": "const_string", "value": text} for text in source]}
    if constraint.kind == "json_schema":
        decoded(source, field)
        closed = (constraint.options or {}).get("closed")
        return {"type": "json_schema", "json_schema": msgspec.Raw(source.encode()), "closed": closed, "origin": field}
    if constraint.kind == "regex":
        # A text that begins like a call is a call.
        no_call = "" if form is None else f"(?!{re.escape(form.trigger)})"
        return {"type": "regex", "pattern": f"{no_call}(?:{source})", **without}
    if constraint.kind == "ebnf":
        return {"type": "grammar", "grammar": source, **without}
    if stops:
        raise RequestError(f"stop beside tools and {field} is not supported; leave one of them out", param="stop")
    tag = decoded(source, field)
    if isinstance(tag, dict) and "structures" in tag:
        return from_legacy({name: value for name, value in tag.items() if name != "type"})
    if not isinstance(tag, dict) or not isinstance(tag.get("format"), dict):
        raise RequestError(f"{field} must be an object with a format", param=field)
    found: dict[str, Any] = tag["format"]
    return found


# --- reading the client's forms ---

_format_decoder = msgspec.json.Decoder(ResponseFormat)
_text_decoder = msgspec.json.Decoder(str)


def read_constraint(body: ConstraintFields) -> RequestedConstraint | None:
    """Return the constraint of a request, or None if it has none. The same constraint in several fields is one.

    Raises:
        RequestError: malformed, or a second constraint; names the field.
    """
    found = [
        asked
        for asked in (
            _response_format(body.response_format),
            _json("json_schema", body.json_schema, "json_schema"),
            _plain("regex", body.regex, "regex"),
            _plain("ebnf", body.ebnf, "ebnf"),
            _plain("ebnf", body.grammar, "grammar"),
            _choices(body.choice, "choice"),
            _choices(body.choices, "choices"),
            _json("structural_tag", body.structural_tag, "structural_tag"),
            _structured_outputs(body.structured_outputs),
            _json("json_schema", body.guided_json, "guided_json"),
            _plain("regex", body.guided_regex, "guided_regex"),
            _choices(body.guided_choice, "guided_choice"),
            _plain("ebnf", body.guided_grammar, "guided_grammar"),
        )
        if asked is not None
    ]
    if not found:
        return None
    first, *others = found
    for other in others:
        if _meaning(other) != _meaning(first):
            raise RequestError(
                f"{first.field} and {other.field} state different constraints; ask for one", param=other.field
            )
        ours, theirs = first.options or {}, other.options or {}
        differing = next((name for name in ours.keys() & theirs if ours[name] != theirs[name]), None)
        if differing is not None:
            raise RequestError(
                f"{first.field} and {other.field} state different values of {differing}; ask for one", param=other.field
            )
        first = replace(first, options={**theirs, **ours})
    return first


def _meaning(constraint: RequestedConstraint) -> tuple[Kind, str | tuple[str, ...] | bytes]:
    """Return a value that is equal for equal constraints, wherever the client stated them: of JSON, the value."""
    kind, source = constraint.kind, constraint.source
    if kind in ("json_schema", "structural_tag") and isinstance(source, str):
        value = decoded(source, constraint.field)
        if kind == "structural_tag" and isinstance(value, dict):
            value.pop("type", None)  # response_format has it, the other fields need not
        return kind, msgspec.json.encode(value, order="sorted")
    return kind, source


def _response_format(raw: msgspec.Raw) -> RequestedConstraint | None:
    text = raw_text(raw, "response_format")
    if text is None:
        return None
    field = "response_format"
    try:
        form = _format_decoder.decode(text)
    except DECODING_ERRORS as refused:
        error = decoding_error(text.encode(), refused)
        raise RequestError(
            error.message.replace("the body", field),
            param=f"{field}.{error.param}" if error.param else field,
            code=error.code,
        ) from None
    kind = form.type
    if kind == "text":
        return None
    if kind == "json_object":
        schema = raw_text(form.schema, f"{field}.schema")
        return RequestedConstraint("json_schema", schema or ANY_OBJECT, field)
    if kind == "json_schema":
        named = form.json_schema
        schema = None if named is None else raw_text(named.schema, f"{field}.json_schema.schema")
        if named is None or schema is None:
            raise _missing(f"{field}.json_schema.schema")
        return RequestedConstraint(
            "json_schema", schema, field, None if named.strict is None else {"closed": named.strict}
        )
    if kind == "structural_tag":
        return RequestedConstraint("structural_tag", text, field)
    if kind == "regex":
        return _plain("regex", form.regex or form.pattern, field) or _raise_missing(f"{field}.regex")
    if kind == "ebnf":
        return _plain("ebnf", form.ebnf or form.grammar, field) or _raise_missing(f"{field}.ebnf")
    if kind == "choice":
        return _choices(form.choice or form.choices, field) or _raise_missing(f"{field}.choice")
    known = "text, json_object, json_schema, regex, ebnf, choice, structural_tag"
    raise RequestError(f"{field} of type {shown(kind)} is not known; there are {known}", param=field)


def _structured_outputs(body: StructuredOutputs | None) -> RequestedConstraint | None:
    if body is None:
        return None
    field = "structured_outputs"
    if body.whitespace_pattern is not None:
        check_whitespace_pattern(body.whitespace_pattern, body.whitespace, field)
    found = {
        "json": _json("json_schema", body.json, field),
        "json_object": RequestedConstraint("json_schema", ANY_OBJECT, field) if body.json_object else None,
        "regex": _plain("regex", body.regex, field),
        "choice": _choices(body.choice, field),
        "grammar": _plain("ebnf", body.grammar, field),
        "structural_tag": _json("structural_tag", body.structural_tag, field),
    }
    given = [name for name, asked in found.items() if asked is not None]
    if len(given) > 1:
        raise RequestError(
            f"{field}: {given[0]} and {given[1]} exclude each other; ask for one", param=f"{field}.{given[1]}"
        )
    if not given:
        raise RequestError(f"{field} must hold one of {', '.join(found)}", param=field)
    asked = found[given[0]]
    assert asked is not None
    options: dict[str, Any] = {}
    if body.whitespace is not None:
        options["whitespace"] = body.whitespace
    if body.disable_any_whitespace:
        options["whitespace"] = 0
    if body.disable_additional_properties is not None:
        options["closed"] = body.disable_additional_properties
    return RequestedConstraint(asked.kind, asked.source, field, options)


def _plain(kind: Kind, text: str | None, field: str) -> RequestedConstraint | None:
    return None if text is None else RequestedConstraint(kind, text, field)


def _choices(texts: list[str] | None, field: str) -> RequestedConstraint | None:
    return None if texts is None else RequestedConstraint("choices", tuple(texts), field)


def _json(kind: Kind, raw: msgspec.Raw, field: str) -> RequestedConstraint | None:
    """Read JSON that is given as a value or as a JSON string."""
    text = raw_text(raw, field)
    if text is None:
        return None
    if text.startswith('"'):
        try:
            text = _text_decoder.decode(text)
        except DECODING_ERRORS as error:
            raise decoding_error(text.encode(), error) from None
    return RequestedConstraint(kind, text, field)


def raw_text(raw: msgspec.Raw, field: str) -> str | None:
    """Return the JSON text as the client wrote it, or None if it is absent or null."""
    data = bytes(raw)
    if data in (b"", b"null"):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{field} is not valid UTF-8: {error.reason}", param=field, code="invalid_utf8") from None


def _missing(field: str) -> RequestError:
    return RequestError(f"{field} is required", param=field, code="missing_field")


def _raise_missing(field: str) -> RequestedConstraint:
    raise _missing(field)
