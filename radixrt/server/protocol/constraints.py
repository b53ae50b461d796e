"""Reads the constraint of a request from any of the forms that clients use."""

from __future__ import annotations

from typing import Any

import msgspec

from radixrt.chat.constraint import RequestedConstraint
from radixrt.constraint import Kind
from radixrt.errors import RequestError, shown
from radixrt.messages.parts import ConstraintInfo, Finish
from radixrt.server.http.receive import decode
from radixrt.server.protocol.fields import ConstraintFields, ResponseFormat, StructuredOutputs

ANY_OBJECT = '{"type":"object"}'

_format_decoder = msgspec.json.Decoder(ResponseFormat)
_text_decoder = msgspec.json.Decoder(str)


def read_constraint(body: ConstraintFields) -> RequestedConstraint | None:
    """Return the constraint of a request, or None if it has none.

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


def constraint_body(info: ConstraintInfo | None, finish: Finish) -> dict[str, Any] | None:
    """The member "radixrt" of an answer: how its constraint was enforced; None without a constraint."""
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


def _response_format(raw: msgspec.Raw) -> RequestedConstraint | None:
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
        return RequestedConstraint("json_schema", schema or ANY_OBJECT, field)
    if kind == "json_schema":
        named = form.json_schema
        schema = None if named is None else _raw_text(named.schema, f"{field}.json_schema.schema")
        if named is None or schema is None:
            raise _missing(f"{field}.json_schema.schema")
        return RequestedConstraint("json_schema", schema, field, {"closed": True} if named.strict else None)
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
        raise RequestError(
            f"{field}.whitespace_pattern is not supported; whitespace takes a number",
            param=f"{field}.whitespace_pattern",
        )
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
    if body.disable_additional_properties:
        options["closed"] = True
    return RequestedConstraint(asked.kind, asked.source, field, options)


def _plain(kind: Kind, text: str | None, field: str) -> RequestedConstraint | None:
    return None if text is None else RequestedConstraint(kind, text, field)


def _choices(texts: list[str] | None, field: str) -> RequestedConstraint | None:
    return None if texts is None else RequestedConstraint("choices", tuple(texts), field)


def _json(kind: Kind, raw: msgspec.Raw, field: str) -> RequestedConstraint | None:
    """Read JSON given as a value or as a string that holds it."""
    text = _raw_text(raw, field)
    if text is None:
        return None
    if text.startswith('"'):
        text = decode(text.encode(), _text_decoder)
    return RequestedConstraint(kind, text, field)


def _raw_text(raw: msgspec.Raw, field: str) -> str | None:
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
