"""`Leaves`: the formats of a structural tag that have no parts, as pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from radixrt.constrained.productions import Productions, Term
from radixrt.constrained.regex import RegexError, parse_regex
from radixrt.constrained.stop_strings import check_stops
from radixrt.constrained.tags.argument_styles import ARGUMENT_STYLES, ArgumentStyle
from radixrt.constrained.tags.embedding import Embedding
from radixrt.constrained.tags.fields import PARAM, Node, check_keys, flag, refuse, text, texts
from radixrt.constrained.tags.pieces import Piece, constant, regular, token
from radixrt.constrained.tags.tagged_arguments import TaggedObject
from radixrt.constraint import MAX_WHITESPACE
from radixrt.errors import RequestError, shown

MAX_TOKENS = 64
FIRST_SIGN = 0xD800


def _style(node: Node, at: str) -> ArgumentStyle:
    name = node.get("style", "json")
    style = ARGUMENT_STYLES.get(name) if isinstance(name, str) else None
    if style is None:
        refuse(f"{at}/style", f"the style {shown(name)} is not supported; there are {', '.join(ARGUMENT_STYLES)}")
    return style


class Leaves:
    """Reads them; `at` is always the JSON pointer of the format.

    Args:
        tokens: id of each control token of the model by its text; None if unknown, so that every text names a token.

    Attributes:
        kinds: the reader of each format type.
    """

    def __init__(self, embedding: Embedding, tokens: Mapping[str, int] | None) -> None:
        self._embedding = embedding
        self._tokens = tokens
        self._names = {number: text for text, number in (tokens or {}).items()}
        self._signs: dict[str, str] = {}
        self.kinds: dict[str, Callable[[Node, str], Piece]] = {
            "const_string": self.const_string,
            "json_schema": self.json_schema,
            "qwen_xml_parameter": self.qwen_xml_parameter,
            "regex": self.regex,
            "grammar": self.grammar,
            "token": self.token,
        }

    def const_string(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "value")
        return constant(text(node, at, "value"))

    def json_schema(self, node: Node, at: str) -> Piece:
        check_keys(
            node,
            at,
            "json_schema",
            "style",
            "any_order",
            "max_whitespace_cnt",
            "excludes",
            "closed",
            "origin",
            "tokens",
        )
        style = _style(node, at)
        excludes = [one for one in texts(node, at, "excludes") if one not in style.excluded]
        if excludes and not style.is_json:
            refuse(
                f"{at}/excludes", f"the style {style.name} excludes its own tags alone; a pattern of the schema can "
                "exclude other texts",
            )  # fmt: skip
        any_order = flag(node, at, "any_order") if node.get("any_order") is not None else False
        if any_order and not style.is_json:
            refuse(f"{at}/any_order", f"members of the style {style.name} have the schema's order; leave any_order out")
        if "json_schema" not in node:
            refuse(at, "json_schema is missing")
        whitespace = node.get("max_whitespace_cnt")
        if whitespace is not None and (type(whitespace) is not int or not 0 <= whitespace <= MAX_WHITESPACE):
            refuse(f"{at}/max_whitespace_cnt", f"must be an integer between 0 and {MAX_WHITESPACE}")
        closed: bool | Literal["preferred"] | None = None
        if node.get("closed") is not None:
            closed = "preferred" if node["closed"] == "preferred" else flag(node, at, "closed")
        origin = node.get("origin") or f"{PARAM}{at}/json_schema"
        schema = node["json_schema"]
        tokens = tuple(texts(node, at, "tokens"))
        tagged = None if style.is_json else TaggedObject.of(style, schema, tokens, partial(self.sign, at=at))
        return self._embedding.schema(
            schema,
            origin=str(origin),
            closed=closed,
            whitespace=whitespace,
            key_order="any" if any_order else None,
            excludes=excludes,
            tagged=tagged,
        )

    def qwen_xml_parameter(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "json_schema")
        return self.json_schema({**node, "style": "qwen_xml"}, at)

    def regex(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "pattern", "without")
        try:
            regex = parse_regex(text(node, at, "pattern"), search=False)
        except RegexError as error:
            refuse(f"{at}/pattern", str(error))
        check_stops(Productions({"start": Term(regex)}), texts(node, at, "without"))
        return regular(regex)

    def grammar(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "grammar", "without")
        try:
            piece = self._embedding.grammar(text(node, at, "grammar"), texts(node, at, "without"))
        except RequestError as error:
            refuse(f"{at}/grammar", error.message)
        return piece

    def token(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "token")
        text = self.token_name(node.get("token"), f"{at}/token")
        return token(text, self.sign(text, at))

    def token_name(self, value: Any, at: str, nearest: str = 'const_string, as {"value": ...}, for text') -> str:
        """Return the text of a control token, which a client names by its text or its id.

        Args:
            nearest: the format that takes text instead, for the error about a token that is none.
        """
        if type(value) is int:
            if value not in self._names:
                refuse(at, f"{value} is the id of no control token of this model (instead: {nearest})")
            return self._names[value]
        if not isinstance(value, str) or not value:
            refuse(at, f"must be the text or the id of a control token (instead: {nearest})")
        if self._tokens is not None and value not in self._tokens:
            refuse(at, f"{shown(value)} is no control token that this model has (instead: {nearest})")
        return value

    def sign(self, text: str, at: str) -> str:
        """Return the surrogate that represents a token at the edges of pieces."""
        if text not in self._signs and len(self._signs) >= MAX_TOKENS:
            refuse(at, f"there are more than {MAX_TOKENS} different tokens")
        return self._signs.setdefault(text, chr(FIRST_SIGN + len(self._signs)))
