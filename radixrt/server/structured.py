"""What a client asks of the output's structure, in any of the forms that clients use, as a constraint of the engine.

The engine knows five kinds of constraints by its own names. Clients have other names for them, in which errors must
come back: `Asked.field` remembers the client's, and `Names` translates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from radixrt.constraint import Kind, StructuredOptions, as_structured_options
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ConstraintInfo, Finish
from radixrt.server.parsing import decode
from radixrt.server.protocol import ConstraintFields, ResponseFormat, StructuredOutputs

ANY_OBJECT = '{"type":"object"}'

Names = Mapping[str, str]
"""The client's name for each field of the engine's that has another."""

_format_decoder = msgspec.json.Decoder(ResponseFormat)
_text_decoder = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class Asked:
    """One constraint.

    Attributes:
        source: JSON text, pattern or grammar; the texts themselves for choices.
        field: the field in which the client stated it.
        options: those that come with this form of it.
    """

    kind: Kind
    source: str | tuple[str, ...]
    field: str
    options: Mapping[str, Any] | None = None


def read_constraint(body: ConstraintFields) -> Asked | None:
    """The request's constraint, None if it has none.

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
    if len(found) > 1:
        first, second = found[0].field, found[1].field
        raise RequestError(f"{first} and {second} exclude each other; ask for one", param=second)
    return found[0] if found else None


def read_options(body: ConstraintFields, asked: Asked | None, **defaults: Any) -> StructuredOptions:
    """How the constraint is enforced: what `structured` says, then the form of the constraint, then the defaults."""
    given = {name: value for name, value in (body.structured or {}).items() if value is not None}
    if given and asked is None:
        raise RequestError("structured needs a constraint that it is about", param="structured")
    try:
        return as_structured_options({**defaults, **(asked.options or {} if asked is not None else {}), **given})
    except RequestError as error:
        raise renamed(error, OPTION_NAMES) from None


OPTION_NAMES = {name: f"structured.{name}" for name in StructuredOptions.__struct_fields__}


def names_of(asked: Asked | None, **others: str) -> dict[str, str]:
    """The client's names for what errors of this request may be about."""
    names = {**OPTION_NAMES, **others}
    if asked is not None:
        names[asked.kind] = asked.field
    return names


def renamed(error: RequestError, names: Names) -> RequestError:
    """The error in the client's words."""
    name = names.get(error.param or "")
    if name is None or name == error.param:
        return error
    message = error.message
    if message.startswith((f"{error.param} ", f"{error.param}:")):
        message = name + message[len(error.param or "") :]
    return RequestError(message, param=name, code=error.code, status=error.status)


def sampling_fields(asked: Asked | None, options: StructuredOptions) -> dict[str, Any]:
    """The fields of `SamplingParams`."""
    return {} if asked is None else {asked.kind: asked.source, "structured": options}


def constraint_body(info: ConstraintInfo | None, finish: Finish) -> dict[str, Any] | None:
    """What an answer says about how its constraint was enforced, under the name "radixrt"."""
    if info is None:
        return None
    return {
        "backend": info.backend,
        "forced_close": finish.forced_close,
        "forced_tokens": info.forced_tokens,
        "closing_tokens": info.closing_tokens,
        "ignored": info.ignored,
    }


# --- the forms ---


def _response_format(raw: msgspec.Raw) -> Asked | None:
    text = _raw_text(raw, "response_format")
    if text is None:
        return None
    field = "response_format"
    try:
        form = decode(text.encode(), _format_decoder)
    except RequestError as error:
        raise RequestError(
            error.message.replace("the body", field), param=f"{field}.{error.param}" if error.param else field,
            code=error.code,
        ) from None  # fmt: skip
    kind = form.type
    if kind == "text":
        return None
    if kind == "json_object":
        schema = _raw_text(form.schema, f"{field}.schema")
        return Asked("json_schema", schema or ANY_OBJECT, field)
    if kind == "json_schema":
        named = form.json_schema
        schema = None if named is None else _raw_text(named.schema, f"{field}.json_schema.schema")
        if named is None or schema is None:
            raise _missing(f"{field}.json_schema.schema")
        return Asked("json_schema", schema, field, {"closed": True} if named.strict else None)
    if kind == "structural_tag":
        return Asked("structural_tag", text, field)
    if kind == "regex":
        return _plain("regex", form.regex or form.pattern, field) or _raise_missing(f"{field}.regex")
    if kind == "ebnf":
        return _plain("ebnf", form.ebnf or form.grammar, field) or _raise_missing(f"{field}.ebnf")
    if kind == "choice":
        return _choices(form.choice or form.choices, field) or _raise_missing(f"{field}.choice")
    known = "text, json_object, json_schema, regex, ebnf, choice, structural_tag"
    raise RequestError(f"{field} of type {shown(kind)} is not known; there are {known}", param=field)


def _structured_outputs(body: StructuredOutputs | None) -> Asked | None:
    if body is None:
        return None
    field = "structured_outputs"
    if body.whitespace_pattern is not None:
        raise RequestError(
            f"{field}.whitespace_pattern is not supported; whitespace takes a number",
            param=f"{field}.whitespace_pattern",
        )
    found = {
        "json": _json("json_schema", body.json, field),
        "json_object": Asked("json_schema", ANY_OBJECT, field) if body.json_object else None,
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
    if body.disable_additional_properties:
        options["closed"] = True
    return Asked(asked.kind, asked.source, field, options)


def _plain(kind: Kind, text: str | None, field: str) -> Asked | None:
    return None if text is None else Asked(kind, text, field)


def _choices(texts: list[str] | None, field: str) -> Asked | None:
    return None if texts is None else Asked("choices", tuple(texts), field)


def _json(kind: Kind, raw: msgspec.Raw, field: str) -> Asked | None:
    """JSON as a value, or as a text that holds it."""
    text = _raw_text(raw, field)
    if text is None:
        return None
    if text.startswith('"'):
        text = decode(text.encode(), _text_decoder)
    return Asked(kind, text, field)


def _raw_text(raw: msgspec.Raw, field: str) -> str | None:
    """The JSON text as the client wrote it; None where it is absent or null."""
    data = bytes(raw)
    if data in (b"", b"null"):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"{field} is not valid UTF-8: {error.reason}", param=field, code="invalid_utf8") from None


def _missing(field: str) -> RequestError:
    return RequestError(f"{field} is required", param=field, code="missing_field")


def _raise_missing(field: str) -> Asked:
    raise _missing(field)
