"""`AnswerType`: the constraint of a gen, and the conversion of its text to a value."""

from __future__ import annotations

import re
import typing
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pydantic_core

from radixrt.constraint import KINDS
from radixrt.errors import RequestError, shown
from radixrt.python_types import parse, schema_text

TEXT_TOKENS = 256
PATTERN_TOKENS = 512
VALUE_TOKENS = 1024
SCALAR_TOKENS: dict[Any, int] = {bool: 8, int: 32, float: 48}
"""Defaults of max_tokens: for text, for regular expressions and grammars, for JSON and for single values. A constrained
answer that reaches its last tokens is closed along the grammar's shortest completion."""


@dataclass(frozen=True)
class AnswerType:
    """See the module's docstring. Make one with `answer_type`.

    Attributes:
        name: name for reports.
        constraint: field of `SamplingParams` that enforces the type, with its value; empty for text.
        max_tokens: default of max_tokens.
        schema: type or schema of the JSON text; None where the value is the text, or one of `values`.
        values: values of choices, by their text.
        python_type: type of the value that the program gave; None for text, patterns and JSON schemas.
    """

    name: str
    constraint: dict[str, Any]
    max_tokens: int
    schema: Any = None
    values: dict[str, Any] = field(default_factory=dict)
    python_type: Any = None

    def read(self, text: str) -> Any:
        """The value of a complete answer.

        Raises:
            ValueError: the text was cut off, or breaks a rule that the type has beyond its schema.
        """
        if self.schema is not None:
            return parse(self.schema, text)
        if not self.values:
            return text
        if text not in self.values:
            raise ValueError(f"{shown(text)} is none of the choices")
        return self.values[text]

    def partial(self, text: str) -> Any:
        """The value so far, in plain JSON values where the type is written in JSON; NOTHING while there is none."""
        if self.schema is not None:
            return partial_json(text)
        return self.values.get(text, NOTHING) if self.values else text


def answer_type(kind: Any, constraint: dict[str, Any]) -> AnswerType:
    """The type of a gen.

    Args:
        kind: type of the value: str, int, float, bool, Literal, Enum, a pydantic model, dataclass, TypedDict, a list of
            these, ...
        constraint: the program's values of the fields of `SamplingParams` that constrain the output.

    Raises:
        RequestError: there are several constraints, or the type has no JSON form; the error names the field.
    """
    given = [name for name in KINDS if constraint.get(name) is not None]
    if kind is not str:
        if given:
            raise RequestError(f"{given[0]} is given beside the type {_name(kind)}; ask for one", param=given[0])
        return _of_type(kind)
    if not given:
        return AnswerType("str", {}, TEXT_TOKENS)
    if len(given) > 1:
        raise RequestError(f"{given[0]} and {given[1]} exclude each other; ask for one", param=given[1])
    value = constraint[given[0]]
    if given[0] == "choices":
        return _of_choices({text: text for text in value}, "choices")
    if given[0] == "json_schema":
        python_type = None if isinstance(value, (str, dict, bool)) else value
        return AnswerType(
            _schema_name(value), {"json_schema": schema_text(value)}, VALUE_TOKENS, schema=value,
            python_type=python_type,
        )  # fmt: skip
    return AnswerType(given[0], {given[0]: value}, PATTERN_TOKENS)


def _of_type(kind: Any) -> AnswerType:
    options = _texts(kind)
    if options is not None:
        return _of_choices(options, _name(kind), kind)
    return AnswerType(
        _name(kind), {"json_schema": schema_text(kind)}, SCALAR_TOKENS.get(_bare(kind), VALUE_TOKENS), schema=kind,
        python_type=kind,
    )  # fmt: skip


def _of_choices(values: dict[str, Any], name: str, kind: Any = None) -> AnswerType:
    # A token has at least one byte; one more ends the answer.
    longest = max((len(text.encode(errors="replace")) for text in values if isinstance(text, str)), default=0)
    return AnswerType(name, {"choices": tuple(values)}, longest + 1, values=values, python_type=kind)


def _texts(kind: Any) -> dict[str, Any] | None:
    """Values by text of a type that has only texts, which are then written without quotation marks."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        values = {member.value: member for member in kind}
    elif typing.get_origin(kind) is Literal:
        values = {value: value for value in typing.get_args(kind)}
    else:
        return None
    return values if values and all(isinstance(text, str) and text for text in values) else None


def _bare(kind: Any) -> Any:
    """The type inside of Annotated."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind


def _name(kind: Any) -> str:
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        return kind.__name__
    return str(kind).replace("typing.", "")[:80]


def _schema_name(schema: Any) -> str:
    title = schema.get("title") if isinstance(schema, dict) else None
    return title if isinstance(title, str) else "json_schema"


_UNSURE = re.compile(r"-?(?:[0-9][-+0-9.eE]*)?\Z")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class Nothing:
    """Type of NOTHING: no part of the value is certain yet."""

    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False


NOTHING = Nothing()


def partial_json(text: str) -> Any:
    """Parse the beginning of a JSON text: objects and lists with their complete members, strings as far as they are.

    A number at the end of the text may be incomplete, and a key may lack its value, so both are left out. Later text
    only adds to the value.

    Args:
        text: the beginning of a valid JSON text.

    Returns:
        Plain JSON values; NOTHING while there is none, or if the text is not the beginning of JSON.
    """
    unsure = _UNSURE.search(text)
    if unsure is not None and '"' not in _STRING.sub("", text):
        text = text[: unsure.start()]
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return NOTHING
