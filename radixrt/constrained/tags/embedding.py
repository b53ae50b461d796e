"""`Embedding`: whole grammars (of JSON schemas, of users) as rules of a larger one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from radixrt.constrained.productions import (
    Expr,
    Lit,
    Productions,
    Ref,
    Term,
    alt,
    fold,
    postorder,
    seq,
    with_children,
)
from radixrt.constrained.regex import ANY, Regex, RegexTooComplex, chars, json_string, repeat
from radixrt.constrained.schema.errors import EmptySchema, MalformedSchema, SchemaRefused, Unsupported
from radixrt.constrained.tags.pieces import NUMBER_CHARS, Piece, json_value, users_grammar
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError

_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+-]+|.', re.DOTALL)
_MARKS = frozenset("{}[],: \n")
_STRING = json_string(ANY)
_NUMBER = repeat(chars(NUMBER_CHARS), 1)


class Embedding:
    """Grammars embedded so far; equal schemas are embedded once.

    Args:
        options: how schemas are enforced.
        deadline_s: `time.monotonic()` by which to give up.

    Attributes:
        rules: of all of them, by names that do not clash.
        ignored: what is not enforced because the options say so, "pointer: keyword" each.
    """

    def __init__(self, options: StructuredOptions, deadline_s: float | None = None) -> None:
        self._options = options
        self._deadline_s = deadline_s
        self._schemas: dict[tuple[str, bool, int], Piece] = {}
        self._grammars = 0
        self._named = 0
        self._split: set[str] = set()
        self.rules: dict[str, Expr] = {}
        self.ignored: list[str] = []

    def schema(self, schema: Any, *, origin: str, closed: bool, whitespace: int | None) -> Piece:
        """The JSON texts of a schema.

        Args:
            origin: "<field>/<JSON pointer>": where the schema stands in what the client sent.
            closed, whitespace: in place of, or on top of, what the options say.

        Raises:
            RequestError: naming the place in the field.
        """
        closed = closed or self._options.closed
        whitespace = self._options.whitespace if whitespace is None else whitespace
        key = (json.dumps(schema), closed, whitespace)
        piece = self._schemas.get(key)
        if piece is None:
            productions = self._normal(schema, origin, closed, whitespace)
            rule = self._adopt(productions, f"s{len(self._schemas)}")
            piece = self._schemas[key] = json_value(rule, productions)
        return piece

    def _normal(self, schema: Any, origin: str, closed: bool, whitespace: int) -> Productions:
        from radixrt.constrained.schema import Limits, normalize

        options = self._options
        param, _, pointer = origin.partition("/")
        pointer = f"/{pointer}" if pointer else ""
        try:
            normal = normalize(
                schema,
                on_unsupported=options.on_unsupported,
                closed=closed,
                formats=options.formats,
                limits=None if self._deadline_s is None else Limits(seconds=self._deadline_s - time.monotonic()),
            )
            productions = normal.productions(whitespace=whitespace).prune()
        except RequestError as error:
            raise _moved(error, pointer, param) from None
        self.ignored += [f"{pointer}{one.pointer}: {one.keyword}" for one in normal.ignored]
        return productions

    def grammar(self, text: str) -> Piece:
        """The texts of a user's EBNF; raises RequestError."""
        from radixrt.constrained.productions.ebnf import parse_ebnf

        productions = parse_ebnf(text).prune()
        self._grammars += 1
        return users_grammar(self._adopt(productions, f"g{self._grammars}"), productions)

    def _adopt(self, productions: Productions, prefix: str) -> str:
        names = {rule: f"{prefix}_{rule}" for rule in productions.rules}
        for rule, body in productions.rules.items():
            self.rules[names[rule]] = _renamed(body, names)
        return names[productions.start]

    def fresh(self, name: str) -> str:
        """A rule name that no embedded grammar has."""
        self._named += 1
        return f"{name}{self._named}"

    def in_json_tokens(self, options: list[Piece]) -> Piece | None:
        """One of several pieces that may begin alike, if all are JSON; None if they are not.

        Their literals are cut into the tokens of JSON. As those end where JSON says, whatever follows, alternatives of
        them are always cut in the same places, and the longest match is right for all of them.
        """
        first, more = options[0].first, options[0].more
        for option in options[1:]:
            first, more = first | option.first, more | option.more
        reached: set[str] = set()
        pending = [(option.expr, True) for option in options]
        while pending:
            body, is_ours = pending.pop()
            for expr in postorder([body]):
                text = _text_of(expr)
                if text is not None and not _is_json_text(text, whole=is_ours):
                    return None
                if text is None and isinstance(expr, Term) and not _is_json_token(expr.regex):
                    return None
                if isinstance(expr, Ref) and expr.rule not in reached:
                    reached.add(expr.rule)
                    pending.append((self.rules[expr.rule], False))
        for rule in reached - self._split:
            self.rules[rule] = _cut(self.rules[rule])
        self._split |= reached
        return Piece(
            alt(*(_cut(option.expr) for option in options)), first, any(option.nullable for option in options), more
        )


def _moved(error: RequestError, pointer: str, param: str) -> RequestError:
    """The same error at its place in the client's request."""
    made: RequestError
    if isinstance(error, MalformedSchema):
        made = MalformedSchema(pointer + error.pointer, error.problem)
    elif isinstance(error, SchemaRefused):
        made = SchemaRefused([_moved_keyword(one, pointer) for one in error.errors])
    elif isinstance(error, Unsupported):
        made = _moved_keyword(error, pointer)
    elif isinstance(error, EmptySchema):
        made = EmptySchema(pointer + error.pointer, error.reason)
    else:
        made = RequestError(f"the schema at {pointer or '/'}: {error.message}", code=error.code, status=error.status)
    made.param = param
    return made


def _moved_keyword(error: Unsupported, pointer: str) -> Unsupported:
    return Unsupported(pointer + error.pointer, error.keyword, error.reason, error.fix, droppable=error.droppable)


def _renamed(body: Expr, names: Mapping[str, str]) -> Expr:
    def visit(expr: Expr, below: list[Expr]) -> Expr:
        return Ref(names[expr.rule]) if isinstance(expr, Ref) else with_children(expr, below)

    return fold([body], visit)[id(body)]


def _text_of(expr: Expr) -> str | None:
    if isinstance(expr, Lit):
        return expr.text
    return expr.regex.text if isinstance(expr, Term) else None


def _cut(body: Expr) -> Expr:
    """The same with each constant as the tokens of JSON that it consists of."""

    def visit(expr: Expr, below: list[Expr]) -> Expr:
        text = _text_of(expr)
        return with_children(expr, below) if text is None else seq(*map(Lit, _TOKENS.findall(text)))

    return fold([body], visit)[id(body)]


def _is_json_text(text: str, *, whole: bool) -> bool:
    """Whether a literal consists of tokens of JSON.

    Args:
        whole: also that no neighbour can be part of its first or last token.
    """
    tokens = _TOKENS.findall(text)
    if whole and tokens and any(_WORD.fullmatch(token) for token in (tokens[0], tokens[-1])):
        return False
    return all(len(token) > 1 or token in _MARKS or _WORD.fullmatch(token) for token in tokens)


def _is_json_token(regex: Regex) -> bool:
    """Whether its strings are single strings or numbers of JSON."""
    try:
        return regex.is_subset(_STRING) or regex.is_subset(_NUMBER)
    except RegexTooComplex:
        return False
