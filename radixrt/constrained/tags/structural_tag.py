"""Structural tags: free text, constant texts, schemas, patterns and grammars put together, as JSON.

The format is xgrammar's ({"type": "structural_tag", "format": {...}}, and the older {"structures": [...],
"triggers": [...]}) as far as it is about text. Differences:

- Free text ends exactly at the first occurrence of an ending text: the end of its tag, a trigger, or a constant, token
  or tag that follows. Before any other format the free text ends wherever that format begins.
- Where the text does not show where a part ends, or which alternative it is, terminals are inferred
  (`unclear_borders`).
- `token` names a control token of the vocabulary by its text or its id. The text of a trigger is kept out of free text.
- With "any_order" each declared key comes once at most and each required one is there, as the schema says.
- `json_schema` takes "closed" (objects that declare properties allow no others; "preferred": unless no value satisfies
  the closed schema) and "origin" (where the schema came from, "<field>/<JSON pointer>", which errors name instead of
  its own pointer).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import Productions, Ref
from radixrt.constrained.regex import RegexTooComplex
from radixrt.constrained.regex.charset import EVERY
from radixrt.constrained.stop_strings import check_stops
from radixrt.constrained.tags.embedding import Embedding
from radixrt.constrained.tags.fields import (
    PARAM,
    Node,
    check_keys,
    checked_text,
    flag,
    from_legacy,
    get,
    malformed,
    refuse,
    text,
    texts,
)
from radixrt.constrained.tags.leaves import Leaves
from radixrt.constrained.tags.pieces import (
    NO_CHARS,
    NO_TEXT,
    Body,
    Piece,
    choose,
    constant,
    follow,
    free_text,
    repeated,
)
from radixrt.constrained.tags.unclear_borders import NotWritten, with_inferred_terminals
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError, shown

MAX_DEPTH = 40
MAX_FORMATS = 50_000
MAX_REPEAT = 2**31 - 1
_NEAREST = {
    "exclude_token": "regex for a character, or any_tokens with exclude_tokens for text without control tokens",
}
"""The nearest formats that are taken, by formats that are not."""

Ends = Sequence[Piece] | None
"""The end of a part: one of these pieces, the end of the output where there are none, or, if None, the next part."""

Begun = tuple[Piece, Node, str]
"""The rest of a tag's begin after its trigger, the tag, and its JSON pointer."""


class StructuralTag(NamedTuple):
    """A structural tag as a grammar.

    Attributes:
        ignored: the keywords that the options allow to ignore, as "pointer: keyword".
        obligations: what the grammar leaves to guards.
    """

    productions: Productions
    ignored: list[str]
    obligations: tuple[Obligation, ...]


def read_structural_tag(
    source: str,
    options: StructuredOptions,
    deadline_s: float | None = None,
    tokens: Mapping[str, int] | None = None,
    stops: Sequence[str] = (),
) -> StructuralTag:
    """The grammar of a structural tag.

    Args:
        source: JSON text.
        deadline_s: time on `time.thread_time` at which to give up.
        tokens: id of each control token of the model by its text; None if the model is unknown.
        stops: stop strings, which end free text.

    Raises:
        RequestError: malformed, or not enforceable; names the JSON pointer. `param` is "structural_tag", or
            the field that the "origin" of a schema names.
    """
    try:
        value = json.loads(source)
    except RecursionError:
        raise RequestError("structural_tag is nested too deeply", param=PARAM, code="too_complex") from None
    except ValueError as error:
        raise RequestError(f"structural_tag is not JSON: {error}", param=PARAM, code="invalid_json") from None
    reader = _Reader(Embedding(options, deadline_s), tokens)
    root = reader.read_whole(value)
    productions = Productions({"start": root.expr, **reader.embedding.rules})
    obligations = tuple(reader.embedding.obligations)
    if stops:
        check_stops(productions.prune(), stops)  # inferred terminals do not say which of them are free text
    if root.unclear:
        productions, obligations = _told_apart(productions, obligations, root.unclear)
    return StructuralTag(productions, reader.embedding.ignored, obligations)


def _told_apart(
    productions: Productions, obligations: tuple[Obligation, ...], unclear: str
) -> tuple[Productions, tuple[Obligation, ...]]:
    """Return the productions with terminals that tell the parts apart, and what they leave to guards.

    Guards follow one reading of a text, and here a text may have several. So keys may repeat, which leaves an object
    valid, and what only guards make valid is refused.
    """
    problem = f"the text does not show {unclear}; put texts between them that do"
    if any(one.kind != "keys" or one.counts for one in obligations):
        refuse("/format", f"{problem}, because different items and counted keys need to know")
    try:
        return with_inferred_terminals(productions), ()
    except NotWritten:
        refuse("/format", problem)


class _Reader:
    """Reads formats into pieces; `at` is always the JSON pointer of the one that is read."""

    def __init__(self, embedding: Embedding, tokens: Mapping[str, int] | None) -> None:
        self.embedding = embedding
        self._depth = 0
        self._formats = 0
        self._leaves = Leaves(embedding, tokens)
        self._kinds: dict[str, Callable[[Node, str, Ends], Piece]] = {
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "tags_with_separator": self._tags_with_separator,
            "optional": self._optional,
            "star": self._star,
            "plus": self._plus,
            "repeat": self._repeat,
            "any_text": self._any_text,
            "any_tokens": self._any_tokens,
            "triggered_tags": self._triggered_tags,
            "token_triggered_tags": self._token_triggered_tags,
            "dispatch": self._dispatch,
            "token_dispatch": self._token_dispatch,
        }

    def read_whole(self, value: Any) -> Piece:
        if not isinstance(value, dict):
            refuse("", "must be an object with a format")
        if "structures" in value or "triggers" in value:
            return self.read(from_legacy(value), "", ())
        check_keys(value, "", "format")
        if value.get("type", "structural_tag") != "structural_tag":
            refuse("/type", 'must be "structural_tag"')
        return self.read(get(value, "", "format", dict), "/format", ())

    def read(self, node: Any, at: str, ends: Ends) -> Piece:
        """Return the piece of a format, including the text that ends the format."""
        if not isinstance(node, dict):
            refuse(at, f"must be a format, an object with a type, not {shown(node)}")
        kind = node.get("type")
        if not isinstance(kind, str) or (kind not in self._kinds and kind not in self._leaves.kinds):
            known = ", ".join([*self._leaves.kinds, *self._kinds])
            nearest = f" (instead: {_NEAREST[kind]})" if kind in _NEAREST else ""
            refuse(at, f"the format type {shown(kind)} is not supported{nearest}; there are {known}")
        self._formats += 1
        if self._formats > MAX_FORMATS:
            refuse(at, f"there are more than {MAX_FORMATS} formats")
        if self._depth >= MAX_DEPTH:
            refuse(at, f"formats are nested more than {MAX_DEPTH} deep")
        self._depth += 1
        try:
            if kind in self._kinds:
                return self._kinds[kind](node, at, ends)
            return self._ended(self._leaves.kinds[kind](node, at), ends)
        except RegexTooComplex:
            refuse(at, "its patterns are too complex together")
        finally:
            self._depth -= 1

    def _ended(self, piece: Piece, ends: Ends) -> Piece:
        return follow(piece, choose(ends, at_end=False)) if ends else piece

    # --- combinations ---

    def _sequence(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "elements")
        elements = get(node, at, "elements", list)
        if not elements:
            return self._ended(NO_TEXT, ends)
        pieces: list[Piece] = []
        begun = False  # free text before the element has read its first text
        for i, one in enumerate(elements):
            where = f"{at}/elements/{i}"
            last = i == len(elements) - 1
            following = NO_TEXT if last else self._opening(elements[i + 1], f"{at}/elements/{i + 1}")
            ends_at_next = not last and following is not NO_TEXT and _is_free(one)
            ours = ends if last else [following] if ends_at_next else None
            pieces.append(self._rest(one, where, ours) if begun else self.read(one, where, ours))
            begun = ends_at_next
        return _joined(pieces)

    def _opening(self, node: Any, at: str) -> Piece:
        """Return the text or token with which a format begins; NO_TEXT if it begins otherwise."""
        kind = node.get("type") if isinstance(node, dict) else None
        if kind == "const_string":
            return self._leaves.const_string(node, at)
        if kind == "token":
            return self._leaves.token(node, at)
        return self._edge(node.get("begin"), f"{at}/begin") if kind == "tag" else NO_TEXT

    def _rest(self, node: Node, at: str, ends: Ends) -> Piece:
        """Return the piece of a format without its `_opening`."""
        return self._rest_of_tag(node, at, ends) if node["type"] == "tag" else self._ended(NO_TEXT, ends)

    def _or(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "elements")
        elements = get(node, at, "elements", list)
        if not elements:
            refuse(f"{at}/elements", "must hold at least one format")
        options = [self.read(one, f"{at}/elements/{i}", ends) for i, one in enumerate(elements)]
        found = choose(options, at_end=_is_end(ends))
        if found.unclear and not any(option.unclear for option in options):
            return self.embedding.in_json_tokens(options) or found
        return found

    def _tag(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "begin", "content", "end")
        return follow(self._edge(node.get("begin"), f"{at}/begin"), self._rest_of_tag(node, at, ends))

    def _rest_of_tag(self, node: Node, at: str, ends: Ends) -> Piece:
        """The content and the end of a tag."""
        own = self._ends_of_tag(node, at)
        content = self.read(get(node, at, "content", dict), f"{at}/content", own if own else ends)
        return self._ended(content, ends) if own else content

    def _ends_of_tag(self, node: Node, at: str) -> list[Piece]:
        """Empty where the tag ends with its content."""
        end = node.get("end")
        given = end if isinstance(end, list) else [end]
        if not given:
            refuse(f"{at}/end", "must hold at least one end")
        pieces = [self._edge(one, f"{at}/end") for one in given]
        empty = [piece is NO_TEXT for piece in pieces]
        if any(empty) and len(pieces) > 1:
            refuse(f"{at}/end", "one of several ends must not be empty")
        return [] if any(empty) else pieces

    def _edge(self, value: Any, at: str) -> Piece:
        """A text or a token."""
        if isinstance(value, str):
            return constant(value)
        if isinstance(value, dict) and value.get("type") == "token":
            return self._leaves.token(value, at)
        raise malformed(at, "must be a text or a token format")

    def _tags_with_separator(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "tags", "separator", "at_least_one", "stop_after_first")
        tags = self._tags(node, at)
        tag = choose([self._tag(one, where, None) for one, where in tags], at_end=False)
        whole = tag
        if not flag(node, at, "stop_after_first"):
            separator = constant(text(node, at, "separator"))
            whole = follow(tag, repeated(follow(separator, tag), 0, None))
        if not flag(node, at, "at_least_one"):
            whole = repeated(whole, 0, 1)
        return self._ended(whole, ends)

    def _tags(self, node: Node, at: str) -> list[tuple[Node, str]]:
        tags = get(node, at, "tags", list)
        if not tags:
            refuse(f"{at}/tags", "must hold at least one tag")
        found = []
        for i, tag in enumerate(tags):
            where = f"{at}/tags/{i}"
            if not isinstance(tag, dict) or tag.get("type", "tag") != "tag":
                refuse(where, "must be a format of type tag")
            check_keys(tag, where, "begin", "content", "end")
            found.append((tag, where))
        return found

    def _optional(self, node: Node, at: str, ends: Ends) -> Piece:
        return self._repeated(node, at, ends, 0, 1)

    def _star(self, node: Node, at: str, ends: Ends) -> Piece:
        return self._repeated(node, at, ends, 0, None)

    def _plus(self, node: Node, at: str, ends: Ends) -> Piece:
        return self._repeated(node, at, ends, 1, None)

    def _repeat(self, node: Node, at: str, ends: Ends) -> Piece:
        low, high = node.get("min"), node.get("max")
        if type(low) is not int or not 0 <= low <= MAX_REPEAT:
            refuse(f"{at}/min", "must be an integer from 0 on")
        if type(high) is not int or not (high == -1 or low <= high <= MAX_REPEAT):
            refuse(f"{at}/max", "must be an integer, at least min, or -1")
        return self._repeated(node, at, ends, low, None if high == -1 else high)

    def _repeated(self, node: Node, at: str, ends: Ends, low: int, high: int | None) -> Piece:
        check_keys(node, at, "content", "min", "max")
        item = self.read(get(node, at, "content", dict), f"{at}/content", None)
        return self._ended(repeated(item, low, high), ends)

    # --- free text ---

    def _any_text(self, node: Node, at: str, ends: Ends) -> Piece:
        if node.get("max_tokens") is not None:
            refuse(f"{at}/max_tokens", "tokens of free text are not counted; max_chars counts characters")
        check_keys(node, at, "excludes", "max_chars", "max_tokens")
        limit = node.get("max_chars")
        if limit is not None and (type(limit) is not int or limit < 0):
            refuse(f"{at}/max_chars", "must be an integer from 0 on")
        return free_text([], ends, texts(node, at, "excludes"), limit, at=at)

    def _any_tokens(self, node: Node, at: str, ends: Ends) -> Piece:
        if node.get("max_tokens") is not None:
            refuse(f"{at}/max_tokens", "tokens are not counted; any_text with max_chars counts characters")
        check_keys(node, at, "exclude_tokens", "max_tokens")
        self._check_excluded(node, at)
        return free_text([], ends, [], at=at)

    def _check_excluded(self, node: Node, at: str) -> None:
        """Control tokens are never part of free text, so excluding them changes nothing."""
        for i, one in enumerate(get(node, at, "exclude_tokens", list) if node.get("exclude_tokens") else ()):
            self._leaves.token_name(one, f"{at}/exclude_tokens/{i}", "any_text with excludes, for text")

    def _triggered_tags(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "triggers", "tags", "at_least_one", "stop_after_first", "excludes")
        triggers = {trigger: constant(trigger) for trigger in texts(node, at, "triggers")}
        groups: dict[str, list[Begun]] = {trigger: [] for trigger in triggers}
        for tag, where in self._tags(node, at):
            begin = tag.get("begin")
            matching = [trigger for trigger in triggers if isinstance(begin, str) and begin.startswith(trigger)]
            if not isinstance(begin, str) or len(matching) != 1:
                refuse(f"{where}/begin", f"must begin with one of the triggers, not with {len(matching)} of them")
            groups[matching[0]].append((constant(begin.removeprefix(matching[0])), tag, where))
        return self._triggered(node, at, ends, self._bodies([(triggers[name], tags) for name, tags in groups.items()]))

    def _token_triggered_tags(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "trigger_tokens", "tags", "at_least_one", "stop_after_first", "exclude_tokens", "lead")
        self._check_excluded(node, at)
        triggers = enumerate(get(node, at, "trigger_tokens", list))
        names = [self._leaves.token_name(trigger, f"{at}/trigger_tokens/{i}") for i, trigger in triggers]
        groups: dict[str, list[Begun]] = {name: [] for name in names}
        for tag, where in self._tags(node, at):
            begin = tag.get("begin")
            if not isinstance(begin, dict) or begin.get("type") != "token":
                refuse(f"{where}/begin", "must be a token format with one of the trigger tokens")
            name = self._leaves.token_name(begin.get("token"), f"{where}/begin/token")
            if name not in groups:
                refuse(f"{where}/begin", "must be a token format with one of the trigger tokens")
            groups[name].append((NO_TEXT, tag, where))
        begins = {name: self._edge({"type": "token", "token": name}, f"{at}/trigger_tokens") for name in groups}
        return self._triggered(node, at, ends, self._bodies([(begins[name], tags) for name, tags in groups.items()]))

    def _bodies(self, groups: list[tuple[Piece, list[Begun]]]) -> Callable[[Ends], list[Body]]:
        """Return, for each trigger, the pieces that may follow: the rests of the tags that begin with the trigger."""

        def bodies(after: Ends) -> list[Body]:
            found = []
            for trigger, tags in groups:
                rest = [follow(begun, self._rest_of_tag(tag, where, after)) for begun, tag, where in tags]
                if rest:
                    found.append((trigger, choose(rest, at_end=_is_end(after))))
            return found

        return bodies

    def _dispatch(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "rules", "loop", "excludes")
        rules = _pairs(node, at)

        def bodies(after: Ends) -> list[Body]:
            return [
                (constant(checked_text(rule[0], f"{at}/rules/{i}/0")), self.read(rule[1], f"{at}/rules/{i}/1", after))
                for i, rule in enumerate(rules)
            ]

        once = {"stop_after_first": not flag(node, at, "loop", default=True), "excludes": node.get("excludes", [])}
        return self._triggered(once, at, ends, bodies)

    def _token_dispatch(self, node: Node, at: str, ends: Ends) -> Piece:
        check_keys(node, at, "rules", "loop", "exclude_tokens")
        self._check_excluded(node, at)
        rules = _pairs(node, at)

        def bodies(after: Ends) -> list[Body]:
            found = []
            for i, (name, content) in enumerate(rules):
                begin = self._edge({"type": "token", "token": name}, f"{at}/rules/{i}/0")
                found.append((begin, self.read(content, f"{at}/rules/{i}/1", after)))
            return found

        return self._triggered({"stop_after_first": not flag(node, at, "loop", default=True)}, at, ends, bodies)

    def _triggered(self, node: Node, at: str, ends: Ends, bodies: Callable[[Ends], list[Body]]) -> Piece:
        """Free text with tags in it; with at_least_one, a tag comes first (as xgrammar has it).

        Args:
            bodies: returns (trigger, piece after the trigger) of each tag, given the ends of the whole.
        """
        excludes = texts(node, at, "excludes")
        lead = text(node, at, "lead") if "lead" in node else ""
        if flag(node, at, "stop_after_first"):
            given = bodies(ends)
            rest = free_text(given, ends, excludes, at=at, lead=lead)
        else:
            # After a body there is free text again, which begins with any character and ends as the whole text does.
            rule = self.embedding.fresh("loop")
            again = Piece(Ref(rule), EVERY, nullable=not ends, more=NO_CHARS if ends else EVERY)
            given = [(begin, follow(body, again)) for begin, body in bodies(None)]
            whole = free_text(given, ends, excludes, at=at, lead=lead)
            self.embedding.rules[rule] = whole.expr
            rest = Piece(Ref(rule), whole.first, whole.nullable, whole.more, lacks=whole.lacks, unclear=whole.unclear)
        if flag(node, at, "at_least_one"):
            return choose([follow(begin, body) for begin, body in given], at_end=_is_end(ends))
        return rest


def _pairs(node: Node, at: str) -> list[Any]:
    rules: list[Any] = get(node, at, "rules", list)
    for i, rule in enumerate(rules):
        if not isinstance(rule, list | tuple) or len(rule) != 2:
            refuse(f"{at}/rules/{i}", "must be a pair of a text or token and a format")
    return rules


def _is_free(node: Any) -> bool:
    """Return whether a format is free text, which the text of the next format ends."""
    return isinstance(node, dict) and node.get("type") in _FREE and not node.get("stop_after_first")


_FREE = frozenset(("any_text", "any_tokens", "triggered_tags", "token_triggered_tags", "dispatch", "token_dispatch"))


def _joined(pieces: list[Piece]) -> Piece:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = follow(whole, piece)
    return whole


def _is_end(ends: Ends) -> bool:
    return ends is not None and not ends
