"""`RequestedConstraint`: a constraint as a client stated it, and the client's names for the engine's fields.

The engine knows five kinds of constraint by names of its own. Clients use other names, and an error must name the field
that the client sent: `RequestedConstraint.field` records it, and `renamed` translates an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixrt.constraint import Kind, StructuredOptions, as_structured_options
from radixrt.errors import RequestError

FieldNames = Mapping[str, str]
"""The client's name for each field of the engine that has another name there."""

OPTION_NAMES = {name: f"structured.{name}" for name in StructuredOptions.__struct_fields__}


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
    """The fields of `SamplingParams` that state a constraint; empty without one.

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
