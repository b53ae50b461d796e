"""`ArgumentStyle`: how a model writes the arguments of a call, as one JSON object or member by member between tags.

    JSON      {"city": "Rome", "days": 3}
    tags      <parameter=city>Rome</parameter><parameter=days>3</parameter>
    nesting   <value name="tags" type="list"><value type="raw">a</value></value>

Between tags a string stands as it is, without quotes and escapes, so that code of several lines survives unchanged.
Other values are JSON texts, except that styles which nest write objects and arrays as tags in tags. Styles that do not
mark the type of a value have a rule instead, which the grammar and the reader of calls share (`split_kinds`): where a
parameter takes strings and other values, a text that is the JSON text of one of the other kinds is that value, and
every other text is a string. Where such a style nests, the first tag tells objects and arrays (`nested_kind`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["string", "number", "boolean", "null", "array", "object"]
"""The JSON type of a value."""

KINDS: frozenset[Kind] = frozenset(("string", "number", "boolean", "null", "array", "object"))
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
"""Pattern of the JSON texts of numbers."""
NAME = "{name}"
"""Stands for the name of a member in the tag behind the value."""
ITEM = "item"
"""The name of the items of an array in styles that nest and do not mark kinds."""
LITERALS: Mapping[Kind, tuple[str, ...]] = {"boolean": ("true", "false"), "null": ("null",)}
OPENINGS: Mapping[Kind, str] = {"array": "[", "object": "{"}
"""First characters of the JSON texts of arrays and objects."""

_NUMBER = re.compile(NUMBER)
_NUMBER_CHARS = frozenset("0123456789+-.eE")


@dataclass(frozen=True, slots=True)
class ArgumentStyle:
    """The style of arguments; the default is one JSON object.

    Attributes:
        name: in structural tags, the field `style`.
        opening: text before the name of a member; empty for JSON.
        named: text between the name and the value, by the kind of the value; `None` is the key for all other kinds.
        closing: text after the value, with `NAME` for the name of the member if it is repeated there.
        excluded: texts that no string holds, because a reader would take them for a tag.
        item: text before an item of an array, by the kind of the item, as `named`; empty in styles that write arrays
            and objects as JSON. Members of inner objects are written as members of the outermost one.
    """

    name: str = "json"
    opening: str = ""
    named: Mapping[Kind | None, str] = field(default_factory=dict)
    closing: str = ""
    excluded: tuple[str, ...] = ()
    item: Mapping[Kind | None, str] = field(default_factory=dict)

    @property
    def is_json(self) -> bool:
        return not self.opening

    @property
    def marks_kinds(self) -> bool:
        """Whether the text before a value says of which kind the value is."""
        return len(self.named) > 1

    @property
    def nests(self) -> bool:
        """Whether arrays and objects are tags in tags."""
        return bool(self.item)

    @property
    def repeats_name(self) -> bool:
        """Whether the text after a value names the member again."""
        return NAME in self.closing

    @property
    def behind_name(self) -> str:
        """The text that ends a name, whatever the kind of the value is."""
        first, *others = self.named.values()
        while not all(text.startswith(first) for text in others):
            first = first[:-1]
        return first

    def before_value(self, kind: Kind) -> str:
        """Return the text between the name and a value."""
        return self.named.get(kind) or self.named[None]

    def before_item(self, kind: Kind) -> str:
        """Return the text before an item of an array."""
        return self.item.get(kind) or self.item[None]

    def after_value(self, name: str) -> str:
        """Return the text after the value of a member, or of an item, whose name is `ITEM`."""
        return self.closing.replace(NAME, name)

    def write(self, arguments: Any) -> str:
        """Return the text of arguments.

        Args:
            arguments: an object; anything else is written as JSON.
        """
        if self.is_json or not isinstance(arguments, dict):
            return _json(arguments)
        return self._members(arguments)

    def write_value(self, value: Any) -> str:
        """Return the text of a value between its tags."""
        if isinstance(value, str):
            return value
        if self.nests and isinstance(value, dict):
            return self._members(value)
        if self.nests and isinstance(value, list):
            return "".join(self.write_item(item) for item in value)
        return _json(value)

    def write_item(self, item: Any) -> str:
        """Return the text of an item of an array, with its tags."""
        return self.before_item(kind_of(item)) + self.write_value(item) + self.after_value(ITEM)

    def _members(self, members: Mapping[str, Any]) -> str:
        return "".join(
            self.opening + name + self.before_value(kind_of(value)) + self.write_value(value) + self.after_value(name)
            for name, value in members.items()
        )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def kind_of(value: Any) -> Kind:
    """Return the kind of a decoded JSON value."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def split_kinds(text: str, kinds: Iterable[Kind]) -> Kind | None:
    """Return the kind of the value that a whole text between tags is, where a parameter takes strings and the other
    kinds; "string" unless the text is a JSON text of another of the kinds."""
    for kind in kinds:
        if kind == "number" and _NUMBER.fullmatch(text):
            return kind
        if text in LITERALS.get(kind, ()) or (kind in OPENINGS and text.startswith(OPENINGS[kind])):
            return kind
    return "string"


def nested_kind(text: str, kinds: Collection[Kind], style: ArgumentStyle) -> Kind:
    """Return the kind of a value of a style that nests and does not mark kinds, by the beginning of its text.

    Args:
        text: empty, or beginning with a whole opening tag.
        kinds: kinds that the value may have.
    """
    order: tuple[Kind, ...] = ("string", "array", "object")
    if text:
        order = ("array", "object") if text.startswith(style.before_item("string")) else ("object",)
    return next((kind for kind in order if kind in kinds), order[-1])


def is_undecided(text: str, kinds: Iterable[Kind]) -> bool:
    """Return whether the beginning of a text between tags may still become a value of several kinds."""
    if not text:
        return True
    return any(
        (kind == "number" and _NUMBER_CHARS.issuperset(text))
        or any(literal.startswith(text) for literal in LITERALS.get(kind, ()))
        for kind in kinds
    )


def _tags(
    name: str,
    opening: str,
    named: str | Mapping[Kind | None, str],
    closing: str,
    *excluded: str,
    item: Mapping[Kind | None, str] | None = None,
) -> ArgumentStyle:
    given: Mapping[Kind | None, str] = {None: named} if isinstance(named, str) else named
    return ArgumentStyle(name, opening, given, closing, excluded or (closing.strip(),), item or {})


def _dsml(name: str, gap: str) -> ArgumentStyle:
    tag = f"｜DSML｜{gap}parameter"
    marks: dict[Kind | None, str] = {"string": '" string="true">', None: '" string="false">'}
    return _tags(name, f'<{tag} name="', marks, f"</{tag}>\n", f"</{tag}>")


_M3 = "]<]minimax[>["
_COFL_TYPES: dict[Kind | None, str] = {
    "string": 'type="raw">', "array": 'type="list">', "object": 'type="dict">', None: 'type="json">',
}  # fmt: skip
_K3_TYPES: dict[Kind | None, str] = {kind: f'" type="{kind}"<|sep|>' for kind in sorted(KINDS)}

ARGUMENT_STYLES: dict[str, ArgumentStyle] = {
    style.name: style
    for style in (
        ArgumentStyle(),
        _tags("qwen_xml", "<parameter=", ">\n", "\n</parameter>\n"),
        _tags("qwen_xml_lines", "<parameter=", ">", "</parameter>\n"),
        _tags("qwen_xml_plain", "<parameter=", ">", "</parameter>"),
        _tags("minimax_xml", '<parameter name="', '">', "</parameter>\n"),
        _tags("glm_xml", "<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
        _tags("glm_xml_lines", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
        _dsml("deepseek_xml", ""),
        _dsml("deepseek_v4_1_xml", " "),
        _tags("minimax_m3_xml", f"{_M3}<", ">", f"{_M3}</{NAME}>", _M3, item={None: f"{_M3}<{ITEM}>"}),
        _tags(
            "cohere_xml",
            '<cofl:value name="',
            {kind: f'" {mark}' for kind, mark in _COFL_TYPES.items()},
            "</cofl:value>",
            item={kind: f"<cofl:value {mark}" for kind, mark in _COFL_TYPES.items()},
        ),
        _tags(
            "kimi_k3_xml", '<|open|>argument key="', _K3_TYPES, "<|close|>argument<|sep|>",
            "<|open|>", "<|close|>", "<|sep|>",
        ),
    )
}  # fmt: skip
