"""`Constraint`: the constraint on a request's output, in the form that is compiled, cached and sent.

A client states it through `SamplingParams`: json_schema, regex, ebnf, choices or structural_tag, and `structured`.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from radixrt.errors import RequestError, shown

Kind = Literal["json_schema", "regex", "ebnf", "choices", "structural_tag"]
KeyOrder = Literal["schema", "any"]
BackendChoice = Literal["auto", "xgrammar", "llguidance"]
KINDS: tuple[Kind, ...] = ("json_schema", "regex", "ebnf", "choices", "structural_tag")

MAX_SOURCE_BYTES = {
    "json_schema": 4 * 1024 * 1024,
    "regex": 10_000,
    "ebnf": 256 * 1024,
    "choices": 1024 * 1024,
    "structural_tag": 4 * 1024 * 1024,
}
MAX_WHITESPACE = 64
MIN_DIGITS, MAX_DIGITS = 1, 307
MAX_REASONING_MARKER_CHARS = 64


class StructuredOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Options for enforcing a constraint.

    Attributes:
        whitespace: most whitespace characters at each position where JSON allows it; 0 is compact.
        closed: objects that declare properties allow no others (OpenAI's "strict"), as if
            `unevaluatedProperties: false` stood beside all schemas that apply to an object; None: as the engine's
            option `closed_objects` says.
        formats: "assert" holds strings to the formats that are known; "annotate" ignores `format`, as the standard
            does by default.
        bounded: parts that a schema leaves free have the bounds of `radixrt.constrained.schema.emit.free_parts`: number
            and length of undeclared names, length of free strings, digits of numbers.
        key_order: "schema" writes the declared keys of an object in the order of the schema, "any" in any order; values
            that `enum` or `const` lists keep the order in which they are listed.
        max_digits: most digits after the first digit of a number, and after its point, where the schema sets no bound
            on that side; None is 40, or 307 if not `bounded`.
        max_repetition: an output whose last so many tokens repeat a few is closed early; 0 never closes for that.
        on_unsupported: "error" refuses a schema with a keyword that cannot be enforced; "ignore" drops such keywords
            and lists them in the answer.
        backend: the library that fills the masks; "auto" is llguidance.
        on_length: finish reason of an answer that had to be closed early: "length", or "stop" for clients that discard
            an answer on "length"; `forced_close` is true either way.
        jump_forward: append tokens without sampling them where the grammar allows only one continuation.
        reasoning_end: free text comes first, up to and including this marker; the constraint holds from there.
        reasoning_budget: largest number of tokens of that free text, including the marker; None: max_tokens alone.
    """

    whitespace: int = 0
    closed: bool | None = None
    formats: Literal["assert", "annotate"] = "assert"
    key_order: KeyOrder = "schema"
    bounded: bool = True
    max_digits: int | None = None
    max_repetition: int = 512
    on_unsupported: Literal["error", "ignore"] = "error"
    backend: BackendChoice = "auto"
    on_length: Literal["length", "stop"] = "length"
    jump_forward: bool = True
    reasoning_end: str | None = None
    reasoning_budget: int | None = None

    def validate(self) -> StructuredOptions:
        """Return self if every field is within its bounds; raises RequestError naming the field."""
        whitespace, budget, marker = self.whitespace, self.reasoning_budget, self.reasoning_end
        if isinstance(whitespace, bool) or not isinstance(whitespace, int) or not 0 <= whitespace <= MAX_WHITESPACE:
            raise RequestError(
                f"whitespace must be an integer between 0 and {MAX_WHITESPACE}, not {shown(whitespace)}",
                param="whitespace",
            )
        for name in ("jump_forward", "bounded"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", param=name)
        digits = self.max_digits
        if digits is not None and (type(digits) is not int or not MIN_DIGITS <= digits <= MAX_DIGITS):
            raise RequestError(
                f"max_digits must be an integer between {MIN_DIGITS} and {MAX_DIGITS}, not {shown(digits)}; readers of "
                "doubles take longer numbers for infinity",
                param="max_digits",
            )
        if self.closed is not None and not isinstance(self.closed, bool):
            raise RequestError("closed must be true or false", param="closed")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                value = shown(getattr(self, name))
                raise RequestError(f"{name} must be one of {', '.join(allowed)}, not {value}", param=name)
        if marker is not None and not (isinstance(marker, str) and 1 <= len(marker) <= MAX_REASONING_MARKER_CHARS):
            raise RequestError(
                f"reasoning_end must be a string of 1 to {MAX_REASONING_MARKER_CHARS} characters",
                param="reasoning_end",
            )
        most = self.max_repetition
        if isinstance(most, bool) or not isinstance(most, int) or not (most == 0 or 32 <= most <= 10_000_000):
            raise RequestError(
                f"max_repetition must be 0 or an integer from 32 on, not {shown(most)}", param="max_repetition"
            )
        if budget is not None:
            if isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget <= 10_000_000:
                raise RequestError("reasoning_budget must be an integer above 0", param="reasoning_budget")
            if marker is None:
                raise RequestError("reasoning_budget needs reasoning_end", param="reasoning_budget")
        return self


_CHOICES = {
    "key_order": ("schema", "any"),
    "formats": ("assert", "annotate"),
    "on_unsupported": ("error", "ignore"),
    "backend": ("auto", "xgrammar", "llguidance"),
    "on_length": ("length", "stop"),
}


def as_structured_options(value: Any) -> StructuredOptions:
    """StructuredOptions from itself or a dict of its fields.

    Raises:
        RequestError: an unknown field, or a value out of bounds; names it.
    """
    if isinstance(value, StructuredOptions):
        return value.validate()
    if not isinstance(value, dict):
        raise RequestError("structured must be a StructuredOptions or a dict", param="structured")
    for name in value:
        if name not in StructuredOptions.__struct_fields__:
            known = ", ".join(StructuredOptions.__struct_fields__)
            raise RequestError(f"unknown field {shown(name)} of structured; known are {known}", param="structured")
    return StructuredOptions(**value).validate()


class Constraint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One constraint, ready to compile.

    Attributes:
        kind: kind of `source`.
        source: JSON text of the schema, of the array of choices or of the structural tag; else the regex or the EBNF.
        options: how to enforce it.
        stop: for a regex or an EBNF: stop strings, one of which may follow the text and end the output.
    """

    kind: Kind
    source: str
    options: StructuredOptions = StructuredOptions()
    stop: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Identity for caches: equal for constraints that compile to the same grammar."""
        o = self.options
        parts = (
            self.kind,
            o.whitespace,
            bool(o.closed),
            o.formats,
            o.key_order,
            o.bounded,
            o.max_digits,
            o.on_unsupported,
            o.backend,
            self.source,
            self.stop,
        )
        return hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()
