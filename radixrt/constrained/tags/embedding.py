"""`Embedding`: whole grammars (of JSON schemas, of users) as rules of a larger one."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from radixrt.constrained.obligations import JSON_PREFIX, Obligation
from radixrt.constrained.productions import (
    NOTHING,
    EmptyLanguage,
    Expr,
    Lit,
    Productions,
    Ref,
    Seq,
    Term,
    alt,
    children,
    fold,
    length_of,
    postorder,
    seq,
    with_children,
)
from radixrt.constrained.productions.layout import MARKS
from radixrt.constrained.regex import (
    ANY,
    CharSet,
    Regex,
    RegexTooComplex,
    chars,
    complement,
    concat,
    intersect,
    is_subset,
    json_string,
    literal,
    literals,
    parse_regex,
    repeat,
    without_remainders,
)
from radixrt.constrained.regex.derivatives import first as first_chars
from radixrt.constrained.regex.json_text import without_following
from radixrt.constrained.regex.nodes import Concat, Repeat
from radixrt.constrained.schema.errors import EmptySchema, MalformedSchema, SchemaRefused, Unsupported
from radixrt.constrained.stop_strings import check_stops
from radixrt.constrained.tags.fields import malformed
from radixrt.constrained.tags.pieces import NO_CHARS, NO_TEXT, NUMBER_CHARS, Piece
from radixrt.constrained.tags.tagged_arguments import JSON_RULE, ArgumentsEmitter, TaggedObject
from radixrt.constraint import KeyOrder, StructuredOptions
from radixrt.errors import RequestError, shown

if TYPE_CHECKING:
    from radixrt.constrained.schema import NormalSchema

_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_.+-]+|.', re.DOTALL)
_MARKS = frozenset("{}[],: \n")
_STRING = json_string(ANY)
_NUMBER = repeat(chars(NUMBER_CHARS), 1)
_IN_STRING = repeat(parse_regex(r"[^\"\\]|\\[\s\S]", search=False))
_BEFORE_STRING = repeat(parse_regex(r"[^\"]|\"([^\"\\]|\\[\s\S])*\"", search=False))


class Embedding:
    """The grammars embedded in a structural tag. Equal schemas are embedded once.

    Args:
        options: how schemas are enforced.
        deadline_s: time on `time.thread_time` at which to give up.

    Attributes:
        rules: the rules of all embedded grammars, by unique names.
        obligations: what the rules leave to guards.
        ignored: keywords that are not enforced, as the options allow, as "pointer: keyword".
    """

    def __init__(self, options: StructuredOptions, deadline_s: float | None = None) -> None:
        self._options = options
        self._deadline_s = deadline_s
        self._schemas: dict[tuple[object, ...], Piece] = {}
        self._grammars = 0
        self._named = 0
        self._split: set[str] = set()
        self.rules: dict[str, Expr] = {}
        self.obligations: dict[Obligation, None] = {}
        self.ignored: list[str] = []

    def schema(
        self,
        schema: Any,
        *,
        origin: str,
        closed: bool | Literal["preferred"] | None,
        whitespace: int | None,
        key_order: KeyOrder | None = None,
        excludes: Sequence[str] = (),
        tagged: TaggedObject | None = None,
    ) -> Piece:
        """Embed a schema; return the piece of its JSON texts.

        Args:
            origin: "<field>/<JSON pointer>": location of the schema in the client's request.
            tagged: how the members of the object stand between tags; None for JSON.
            closed, whitespace, key_order: override the options; None to use the options. A schema that cannot be closed
                as "preferred" is left open, which `ignored` reports.
            excludes: texts that no JSON string contains, as the string is written between its quotes.

        Raises:
            RequestError: the schema is refused; the message names the JSON pointer in the field.
        """
        closed = bool(self._options.closed) if closed is None else closed
        whitespace = self._options.whitespace if whitespace is None else whitespace
        key_order = self._options.key_order if key_order is None else key_order
        key = (json.dumps(schema), closed, whitespace, key_order, tuple(excludes), tagged and tagged.key)
        piece = self._schemas.get(key)
        if piece is None:
            productions, obligations = self._normal(schema, origin, closed, whitespace, key_order, tagged)
            if excludes:
                productions = _without_in_strings(productions, excludes, origin)
                # Few keys and items may be left of infinitely many.
                obligations = tuple([msgspec.structs.replace(one, finite=True) for one in obligations])
            rule = self._adopt(productions, f"s{len(self._schemas)}", obligations, tagged)
            self._oblige(obligations, rule, origin)
            made = _json_value(rule, productions) if tagged is None else _tagged_object(rule, productions, tagged)
            piece = self._schemas[key] = made
        return piece

    def _normal(
        self,
        schema: Any,
        origin: str,
        closed: bool | Literal["preferred"],
        whitespace: int,
        key_order: KeyOrder,
        tagged: TaggedObject | None,
    ) -> tuple[Productions, tuple[Obligation, ...]]:
        """Return the texts of a schema, and what they leave to guards."""
        from radixrt.constrained.schema import Limits, normalize

        if closed == "preferred":
            try:
                return self._normal(schema, origin, True, whitespace, key_order, tagged)
            except RequestError:
                found = self._normal(schema, origin, False, whitespace, key_order, tagged)
                self.ignored.append(f"/{origin.partition('/')[2]}: closed")
                return found
        options = self._options
        param, _, pointer = origin.partition("/")
        pointer = f"/{pointer}" if pointer else ""
        read = partial(
            normalize,
            schema,
            on_unsupported=options.on_unsupported,
            closed=closed,
            formats=options.formats,
            bounded=options.bounded,
            key_order=key_order,
            max_digits=options.max_digits,
        )
        limits = Limits() if self._deadline_s is None else Limits(seconds=self._deadline_s - time.thread_time())
        try:
            normal = read(limits=limits)
            emitted: tuple[Productions, tuple[Obligation, ...]] | None = None
            with suppress(SchemaRefused):
                emitted = _emitted(normal, whitespace, tagged)
            if emitted is None or any(one.kind == "repeats" for one in emitted[1]):
                # Some keywords need guards, which do not read tags, nor arrays in place of which other text may stand.
                # The options may allow to ignore them.
                normal = read(limits=limits, guarded=False)
                emitted = _emitted(normal, whitespace, tagged)
            productions, obligations = emitted
            productions = productions.prune()
        except RequestError as error:
            raise _moved(error, pointer, param) from None
        self.ignored += normal.remarks(pointer)
        return productions, obligations

    def _oblige(self, obligations: Sequence[Obligation], rule: str, origin: str) -> None:
        """Record what the texts of an embedded schema leave to guards.

        Args:
            rule: the name under which the root of the schema is known.
        """
        param, _, pointer = origin.partition("/")
        for one in obligations:
            if one.counts:
                place = f"/{pointer}{one.pointer}" if pointer else one.pointer
                one = msgspec.structs.replace(one, rule=rule, pointer=place, param=param)
            self.obligations[msgspec.structs.replace(one, prefix=JSON_PREFIX)] = None

    def grammar(self, text: str, stops: Sequence[str]) -> Piece:
        """Embed a user's grammar. Raises RequestError, also if a text of the grammar contains a stop string."""
        from radixrt.constrained.lark_input.syntax import NotTranslated
        from radixrt.constrained.user_grammar import read_grammar

        try:
            productions = read_grammar(text).prune()
        except NotTranslated as reason:
            raise RequestError(f"the Lark grammar cannot be a part of another one: {reason}") from None
        check_stops(productions, stops)
        self._grammars += 1
        return _users_grammar(self._adopt(productions, f"g{self._grammars}"), productions)

    def _adopt(
        self,
        productions: Productions,
        prefix: str,
        obligations: Sequence[Obligation] = (),
        tagged: TaggedObject | None = None,
    ) -> str:
        """Take over the rules of a grammar; return the name of the start."""

        def begins_json(rule: str) -> bool:
            return bool(obligations) and (tagged is None or rule.startswith(JSON_RULE) or rule[-1] in MARKS)

        names = {rule: f"{JSON_PREFIX if begins_json(rule) else ''}{prefix}_{rule}" for rule in productions.rules}
        for rule, body in productions.rules.items():
            self.rules[names[rule]] = _renamed(body, names)
        return names[productions.start]

    def fresh(self, name: str) -> str:
        """Return an unused rule name."""
        self._named += 1
        return f"{name}{self._named}"

    def in_json_tokens(self, options: list[Piece]) -> Piece | None:
        """Return the alternation of pieces that may begin alike, if all pieces are JSON; else None.

        The literals are cut into the tokens of JSON. Where a token of JSON ends does not depend on the rest of the
        text, so all alternatives are cut at the same offsets, and the longest match is right for all of them.
        """
        first, more = options[0].first, options[0].more
        for option in options[1:]:
            first, more = first | option.first, more | option.more
        # Check the pieces and all rules that they call.
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


def _emitted(
    normal: NormalSchema, whitespace: int, tagged: TaggedObject | None
) -> tuple[Productions, tuple[Obligation, ...]]:
    """Return the texts of a schema, and what they leave to guards."""
    if tagged is None:
        return normal.productions(whitespace=whitespace), normal.obligations
    return _between_tags(normal, tagged)


def _between_tags(normal: NormalSchema, tagged: TaggedObject) -> tuple[Productions, tuple[Obligation, ...]]:
    """Return the texts of arguments between tags, and what they leave to guards."""
    productions, obligations = normal.emitted_by(partial(ArgumentsEmitter, tagged=tagged))
    if obligations:
        # Guards have to tell the JSON from strings and tags. Other arguments do without the additional rules.
        return normal.emitted_by(partial(ArgumentsEmitter, tagged=tagged, names_json=True))
    return productions, obligations


def _moved(error: RequestError, pointer: str, param: str) -> RequestError:
    """Return the error with its JSON pointer relative to the client's request."""
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
    """Return the expression with each constant split into tokens of JSON."""

    def visit(expr: Expr, below: list[Expr]) -> Expr:
        text = _text_of(expr)
        if text is not None:
            return seq(*map(Lit, _TOKENS.findall(text)))
        name = without_following(expr.regex, ":") if isinstance(expr, Term) else None
        return with_children(expr, below) if name is None else seq(Term(name), Lit(":"))

    return fold([body], visit)[id(body)]


def _is_json_text(text: str, *, whole: bool) -> bool:
    """Return True if a literal consists of tokens of JSON.

    Args:
        whole: also that no neighbour can be part of its first or last token.
    """
    tokens = _TOKENS.findall(text)
    if whole and tokens and any(_WORD.fullmatch(token) for token in (tokens[0], tokens[-1])):
        return False
    return all(len(token) > 1 or token in _MARKS or _WORD.fullmatch(token) for token in tokens)


def _is_json_token(regex: Regex) -> bool:
    """Return True if the strings of `regex` are all JSON strings, all names with a colon, or all JSON numbers."""
    name = without_following(regex, ":")
    try:
        if name is not None:
            return is_subset(_uncounted(name), _STRING) or is_subset(name, _STRING)
        wide = without_remainders(regex)
        return any(is_subset(_uncounted(wide), kind) or is_subset(wide, kind) for kind in (_STRING, _NUMBER))
    except RegexTooComplex:
        return False


def _uncounted(regex: Regex) -> Regex:
    """Return a language that contains `regex`, without the counts of its repetitions, which are many states."""
    if not isinstance(regex, Concat):
        return regex
    return concat(*[repeat(part.item) if isinstance(part, Repeat) else part for part in regex.chain()])


def _without_in_strings(productions: Productions, excludes: Sequence[str], origin: str) -> Productions:
    """Return the productions of JSON without the texts in which a string contains one of `excludes`."""
    held = intersect(_IN_STRING, concat(ANY, literals(excludes), ANY))
    allowed = complement(concat(_BEFORE_STRING, literal('"'), held, literal('"'), ANY))

    def visit(expr: Expr) -> Expr:
        text = _text_of(expr)
        if text is not None:
            strings = [token[1:-1] for token in _TOKENS.findall(text) if len(token) > 1 and token[0] == '"']
            return NOTHING if any(one in string for string in strings for one in excludes) else expr
        return Term(intersect(expr.regex, allowed)) if isinstance(expr, Term) else expr

    try:
        return productions.rewrite(visit).prune()
    except EmptyLanguage:
        raise malformed(
            "/" + origin.partition("/")[2],
            f"each of its texts has a string with one of excludes, {shown(list(excludes))}",
        ) from None


# --- embedded grammars as pieces ---


def _json_value(rule: str, productions: Productions) -> Piece:
    """The rule, which derives JSON texts: only a number can continue after a point where it may end.

    Args:
        rule: the name under which the root of the productions will be known.
    """
    numbers = any(first_chars(regex) & NUMBER_CHARS for regex in _border(productions, last=True))
    more = NUMBER_CHARS if numbers else NO_CHARS
    return Piece(Ref(rule), _first(productions), productions.shortest[productions.start] == 0, more)


def _tagged_object(rule: str, productions: Productions, tagged: TaggedObject) -> Piece:
    """Return the rule of an object between tags: after each member another may follow, which begins with its tag."""
    if productions.rules[productions.start] == NO_TEXT.expr:
        return NO_TEXT
    nullable = productions.shortest[productions.start] == 0
    return Piece(Ref(rule), CharSet.of(tagged.begins[0][0]), nullable, starts=tagged.begins, again=tagged.begins)


def _users_grammar(rule: str, productions: Productions) -> Piece:
    """Return the rule of a user's grammar, whose texts may continue with any character of the grammar."""
    every = NO_CHARS
    for expr in postorder(productions.rules.values()):
        if isinstance(expr, Lit | Term):
            every = every | _regex_of(expr).alphabet()
    return Piece(Ref(rule), _first(productions), productions.shortest[productions.start] == 0, every)


def _regex_of(leaf: Lit | Term) -> Regex:
    return literal(leaf.text) if isinstance(leaf, Lit) else leaf.regex


def _first(productions: Productions) -> CharSet:
    found = NO_CHARS
    for regex in _border(productions, last=False):
        found = found | first_chars(regex)
    return found


def _border(productions: Productions, *, last: bool) -> set[Regex]:
    """The terminals that can stand first, or last, in a text."""
    shortest = productions.shortest
    found: set[Regex] = set()
    seen = {productions.start}
    pending = [productions.rules[productions.start]]
    while pending:
        expr = pending.pop()
        if isinstance(expr, Lit | Term):
            found.add(_regex_of(expr))
        elif isinstance(expr, Ref):
            if expr.rule not in seen:
                seen.add(expr.rule)
                pending.append(productions.rules[expr.rule])
        elif isinstance(expr, Seq):
            for part in reversed(expr.parts) if last else expr.parts:
                pending.append(part)
                if length_of(part, shortest) != 0:
                    break
        else:
            pending.extend(children(expr))
    return found
