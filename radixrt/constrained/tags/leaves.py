"""The parts of a structural tag that hold no other parts: constants, tokens, schemas, patterns, grammars."""

from __future__ import annotations

from collections.abc import Callable

from radixrt.constrained.regex import RegexError, parse_regex
from radixrt.constrained.tags.embedding import Embedding
from radixrt.constrained.tags.fields import PARAM, Node, check_keys, refuse, text
from radixrt.constrained.tags.pieces import Piece, constant, regular, token
from radixrt.constraint import MAX_WHITESPACE
from radixrt.errors import RequestError

MAX_TOKENS = 64


class Leaves:
    """Reads them; `at` is always the JSON pointer of the format.

    Attributes:
        kinds: the reader of each format type.
    """

    def __init__(self, embedding: Embedding) -> None:
        self._embedding = embedding
        self._token_numbers: dict[str, int] = {}
        self.kinds: dict[str, Callable[[Node, str], Piece]] = {
            "const_string": self.const_string,
            "json_schema": self.json_schema,
            "regex": self.regex,
            "grammar": self.grammar,
            "token": self.token,
        }

    def const_string(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "value")
        return constant(text(node, at, "value"))

    def json_schema(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "json_schema", "style", "any_order", "max_whitespace_cnt", "excludes", "closed", "origin")
        if node.get("style", "json") != "json":
            refuse(f"{at}/style", "only the style json is supported")
        for name in ("any_order", "excludes"):
            if node.get(name):
                refuse(f"{at}/{name}", f"{name} is not supported")
        if "json_schema" not in node:
            refuse(at, "json_schema is missing")
        whitespace = node.get("max_whitespace_cnt")
        if whitespace is not None and (type(whitespace) is not int or not 0 <= whitespace <= MAX_WHITESPACE):
            refuse(f"{at}/max_whitespace_cnt", f"must be an integer between 0 and {MAX_WHITESPACE}")
        origin = node.get("origin") or f"{PARAM}{at}/json_schema"
        return self._embedding.schema(
            node["json_schema"], origin=str(origin), closed=bool(node.get("closed")), whitespace=whitespace
        )

    def regex(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "pattern")
        try:
            regex = parse_regex(text(node, at, "pattern"), search=False)
        except RegexError as error:
            refuse(f"{at}/pattern", str(error))
        return regular(regex)

    def grammar(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "grammar")
        try:
            piece = self._embedding.grammar(text(node, at, "grammar"))
        except RequestError as error:
            refuse(f"{at}/grammar", error.message)
        return piece

    def token(self, node: Node, at: str) -> Piece:
        check_keys(node, at, "token")
        text = node.get("token")
        if not isinstance(text, str) or not text:
            refuse(f"{at}/token", "must be the text of a control token (ids are not supported)")
        if text not in self._token_numbers and len(self._token_numbers) >= MAX_TOKENS:
            refuse(at, f"there are more than {MAX_TOKENS} different tokens")
        number = self._token_numbers.setdefault(text, len(self._token_numbers))
        return token(text, number)
