"""Structural tags before three judges: our recognizer, llguidance on what we write for it, xgrammar's own reader."""

from __future__ import annotations

import json
import random
from typing import Any

import llguidance
import pytest

from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.productions import Productions
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError

OPTIONS = StructuredOptions()
Format = dict[str, Any]

ANY: Format = {"type": "any_text"}
POINT: Format = {
    "type": "json_schema",
    "json_schema": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "maxProperties": 1},
}


def const(text: str) -> Format:
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Format:
    return {"type": "regex", "pattern": pattern}


def seq(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Format) -> Format:
    return {"type": "or", "elements": list(elements)}


def tag(begin: Any, content: Format, end: Any) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def token(text: str) -> Format:
    return {"type": "token", "token": text}


def source(form: Format) -> str:
    return json.dumps(form if "structures" in form else {"type": "structural_tag", "format": form})


def read(form: Format, options: StructuredOptions = OPTIONS) -> Productions:
    productions = read_structural_tag(source(form), options)[0]
    productions.validate()
    return productions.prune()


class Judges:
    """Return True if a text is a sentence, asked three times."""

    def __init__(self, form: Format, vocabulary: Vocabulary, *, ask_xgrammar: bool) -> None:
        productions = read(form)
        self.recognizer = Recognizer(productions, vocabulary.control_tokens)
        grammar = llguidance.LLMatcher.grammar_from_lark(to_lark(productions, vocabulary.control_tokens))
        self._vocabulary = vocabulary
        self._matcher = llguidance.LLMatcher(vocabulary.ll_tokenizer, grammar, log_level=0)
        assert not self._matcher.is_error(), self._matcher.get_error()
        self._theirs = None
        if ask_xgrammar:
            import xgrammar

            self._theirs = xgrammar.Grammar.from_structural_tag(source(form))

    def accepts(self, text: str) -> bool:
        state = self.recognizer.advance(self.recognizer.start(), text)
        answer = state is not None and self.recognizer.is_complete(state)
        matcher = self._matcher.deep_copy()
        tokens = self._vocabulary.encode(text)
        assert (matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()) == answer, text
        if self._theirs is not None:
            from xgrammar.testing import _is_grammar_accept_string

            assert _is_grammar_accept_string(self._theirs, text) == answer, text
        return answer

    def sentences(self, pieces: list[str], rng: random.Random, tries: int) -> set[str]:
        """Some, found by adding pieces wherever they fit."""
        found: set[str] = set()
        for _ in range(tries):
            state, text = self.recognizer.start(), ""
            for _ in range(8):
                if self.recognizer.is_complete(state):
                    found.add(text)
                fitting = [(piece, self.recognizer.advance(state, piece)) for piece in pieces]
                fitting = [(piece, after) for piece, after in fitting if after is not None]
                if not fitting:
                    break
                piece, after = rng.choice(fitting)
                assert after is not None
                state, text = after, text + piece
        return found


TAGS = [tag("<f=a>", const("1"), "</f>"), tag("<f=b>", const("2"), "</f>")]
TRIGGERED: Format = {"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS}
SEPARATED: Format = {"type": "tags_with_separator", "tags": TAGS, "separator": ","}

FORMATS: list[Format] = [
    TRIGGERED,
    {**TRIGGERED, "at_least_one": True},
    {**TRIGGERED, "stop_after_first": True},
    {**TRIGGERED, "stop_after_first": True, "at_least_one": True},
    {**TRIGGERED, "excludes": ["no"]},
    {**TRIGGERED, "triggers": ["<f=a", "<f=b"]},
    tag("[", TRIGGERED, "]"),
    seq(tag("[", TRIGGERED, ["]", "!"]), const("z")),
    SEPARATED,
    {**SEPARATED, "at_least_one": True},
    {**SEPARATED, "at_least_one": True, "stop_after_first": True},
    {**SEPARATED, "separator": ""},
    tag("<a>", ANY, "</a>"),
    tag("<a>", ANY, ["</a>", "!"]),
    tag("<a>", seq(const("k"), ANY), "</a>"),
    tag("<a>", either(const("k"), ANY), "</a>"),
    seq(tag("<a>", ANY, "</a>"), const("z"), ANY),
    {"type": "any_text", "excludes": ["ab", "ba"]},
    {"type": "any_text", "max_chars": 3},
    tag("<", {"type": "any_text", "max_chars": 3, "excludes": ["xx"]}, ">"),
    {"type": "dispatch", "rules": [["<f", const("Z")]]},
    {"type": "dispatch", "rules": [["<f", const("Z")], ["q", const("!")]], "loop": False},
    seq(const("a"), {"type": "optional", "content": const("b")}, const("c")),
    {"type": "plus", "content": either(const("a"), const("b"))},
    {"type": "repeat", "min": 1, "max": 3, "content": seq(const("a"), regex("[xy]"))},
    {"type": "repeat", "min": 2, "max": -1, "content": const("ab")},
    tag("<a>", regex("[a-z<]*"), "</a>"),
    seq(regex("a*"), const("ab"), regex("b+")),
    seq(either(const("ab"), const("abc"), const("a")), const("c")),
    seq({"type": "star", "content": const("ab")}, const("a")),
    {"type": "grammar", "grammar": 'root ::= "a" root? "b"'},
    tag("<", {"type": "grammar", "grammar": 'root ::= "a" root? "b"'}, ">"),
    tag("<a>", POINT, "</a>"),
    either(POINT, tag("<a>", POINT, "</a>")),
    {
        "structures": [{"begin": "<f=a>", "schema": POINT["json_schema"], "end": "</f>"}],
        "triggers": ["<f"],
    },
]
PIECES = [
    "<f", "=a>", "1", "2", "=b>", "</f>", "x", "<", "a", "b", "c", "z", "<a>", "</a>", "k", "!", ",", "[", "]", "Z",
    "q", ">", "/", "ab", "xx", "y", "no", '{"x":', "}",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: json.dumps(form)[:60])
def test_same_language_as_xgrammar(form: Format, vocabulary: Vocabulary) -> None:
    rng = random.Random(1)
    # xgrammar's JSON has white space and other spellings.
    judges = Judges(form, vocabulary, ask_xgrammar='"schema"' not in source(form) and "json_schema" not in source(form))
    inside = judges.sentences(PIECES, rng, 60)
    assert inside
    near = {text[:i] + rng.choice(PIECES) + text[i:] for text in sorted(inside) for i in range(0, len(text) + 1, 3)}
    far = {"".join(rng.choices(PIECES, k=rng.randint(0, 7))) for _ in range(100)}
    far |= {text + "<f=a>" for text in inside}  # a tag that is not ended
    assert all(judges.accepts(text) for text in inside)
    assert not all(judges.accepts(text) for text in near | far) or form == ANY


def random_format(rng: random.Random, depth: int) -> Format:
    def inner() -> Format:
        return random_format(rng, depth - 1)

    def some(low: int = 1) -> list[Format]:
        return [inner() for _ in range(rng.randint(low, 3))]

    def a_tag() -> Format:
        ends = rng.choice([">", "</", ["!", ">"], ""])
        return tag(rng.choice(["<", "<a", "<b", "(", "a"]), inner(), ends)

    if depth == 0 or rng.random() < 0.3:
        return rng.choice(
            [const(rng.choice(["a", "b", "ab", "<", "x>", ""])), regex(rng.choice(["[ab]*", "a+", "x|xa"])), ANY]
        )
    return rng.choice(
        [
            lambda: seq(*some()),
            lambda: either(*some()),
            a_tag,
            a_tag,
            lambda: {"type": rng.choice(["optional", "star", "plus"]), "content": inner()},
            lambda: {
                "type": "triggered_tags", "triggers": rng.choice([["<"], ["<a", "<b"], ["a", "("]]),
                "tags": [a_tag() for _ in range(rng.randint(1, 2))],
                "stop_after_first": rng.random() < 0.5, "at_least_one": rng.random() < 0.5,
            },
            lambda: {
                "type": "tags_with_separator", "tags": [a_tag() for _ in range(rng.randint(1, 2))],
                "separator": rng.choice([",", "a", ""]), "at_least_one": rng.random() < 0.5,
            },
        ]
    )()  # fmt: skip


def test_random_formats_mean_the_same_or_are_refused(vocabulary: Vocabulary) -> None:
    """Check also that the grammar written for llguidance satisfies the maximal-munch rule."""
    rng = random.Random(7)
    judged = 0
    for _ in range(250):
        form = random_format(rng, 3)
        try:
            judges = Judges(form, vocabulary, ask_xgrammar=False)
        except RequestError:
            continue
        judged += 1
        pieces = ["a", "b", "<", ">", "<a", "<b", "(", "</", "!", "x", ",", "ab", "x>"]
        inside = judges.sentences(pieces, rng, 10)
        far = {"".join(rng.choices(pieces, k=rng.randint(0, 5))) for _ in range(20)}
        for text in sorted(inside | far | {text[:-1] for text in inside}):
            judges.accepts(text)
    assert judged > 190


# --- what only ours has ---


def test_json_alternatives_that_begin_alike_are_told_apart(vocabulary: Vocabulary) -> None:
    name = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}
    kind = {
        "type": "object",
        "properties": {"name": {"const": "n"}, "k": {"type": "integer"}},
        "required": ["name", "k"],
    }
    form = either(
        {"type": "json_schema", "json_schema": name},
        {"type": "json_schema", "json_schema": kind},
        seq(const('{"name": "f", "parameters": '), POINT, const("}")),
    )
    judges = Judges(form, vocabulary, ask_xgrammar=False)
    for text in ("{}", '{"name":"x"}', '{"name":"n"}', '{"name":"n","k":5}', '{"name": "f", "parameters": {"x":1}}'):
        assert judges.accepts(text), text
    for text in (
        '{"name":"x","k":5}',
        '{"name": "x"}',
        '{"name": "f", "parameters": {}}',
        '{"name":"f", "parameters": {"x":1}}',
    ):
        assert not judges.accepts(text), text


def random_schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "enum", "const", "object", "object", "array"]
    kind = rng.choice(kinds if depth else kinds[:6])
    if kind == "enum":
        return {"enum": rng.sample(["a", "ab", 1, 12, 1.5, True, None, "n"], 3)}
    if kind == "const":
        return {"const": rng.choice(["a", 1, {"name": "a"}, [1, "a"], {}])}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth - 1), "maxItems": rng.randint(0, 2)}
    if kind == "object":
        names = rng.sample(["name", "na", "x"], rng.randint(0, 2))
        properties = {name: random_schema(rng, depth - 1) for name in names}
        return {
            "type": "object", "properties": properties, "required": [name for name in names if rng.random() < 0.7],
            "additionalProperties": rng.random() < 0.4,
        }  # fmt: skip
    return {"type": kind}


def test_random_alternatives_of_json(vocabulary: Vocabulary) -> None:
    rng = random.Random(3)
    pieces = [
        '{"name": "f", "parameters": ',
        *[
            '"name":',
            '"na":',
            '"x":',
            '"name"',
            '"a"',
            '"ab"',
            '""',
            '"n"',
            '"f"',
            "1",
            "12",
            "1.5",
            "-",
            "e5",
            "true",
            "null",
        ],
    ]
    pieces += list("{}:,[] ")
    judged = 0
    for _ in range(80):
        schemas = [random_schema(rng, 2) for _ in range(rng.randint(2, 3))]
        options = [{"type": "json_schema", "json_schema": schema} for schema in schemas]
        options.append(seq(const('{"name": "f", "parameters": '), POINT, const("}")))
        judges = Judges(either(*options), vocabulary, ask_xgrammar=False)
        inside = judges.sentences(pieces, rng, 25)
        for text in sorted(inside | {text[:-1] for text in inside} | {text + "1" for text in inside}):
            judged += judges.accepts(text)
    assert judged > 500


def test_alternatives_that_are_not_quite_json(vocabulary: Vocabulary) -> None:
    number = {"type": "json_schema", "json_schema": {"type": "integer"}}
    for text in ("12", "1, 2", '"a', "a", "<1>2"):
        form = either(number, seq(const("1"), const(text)), seq(const(text), const("2")), const("1"))
        judges = Judges(form, vocabulary, ask_xgrammar=False)
        for taken in ("1" + text, text + "2", "1", "-40"):
            assert judges.accepts(taken), taken
        for refused in (text + "1", "1" + text + "2", "-", ""):
            assert judges.accepts(refused) is (text == "12" and refused.isdecimal()), refused


def test_tokens(vocabulary: Vocabulary) -> None:
    names = sorted(vocabulary.control_tokens)[:2]
    first, second = names
    form: Format = {
        "type": "token_triggered_tags",
        "trigger_tokens": [first],
        "tags": [tag(token(first), const("x"), token(second))],
        "stop_after_first": True,
    }
    recognizer = Recognizer(read(form), vocabulary.control_tokens)
    assert recognizer.is_complete(recognizer.start())
    text = recognizer.advance(recognizer.start(), "some < text")
    assert text is not None
    assert recognizer.is_complete(text)
    called = recognizer.advance_special(text, first)
    assert called is not None
    assert recognizer.advance(called, "y") is None
    inside = recognizer.advance(called, "x")
    assert inside is not None
    ended = recognizer.advance_special(inside, second)
    assert ended is not None
    assert recognizer.must_end(ended)
    assert recognizer.advance(recognizer.start(), f"text with {first}") is None  # the token's text is no text


def test_schema_takes_options_of_its_own() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    open_, closed, spaced = (
        Recognizer(read({"type": "json_schema", "json_schema": schema, **extra}), {})
        for extra in ({}, {"closed": True}, {"max_whitespace_cnt": 2})
    )
    for recognizer, text, accepted in (
        (open_, '{"a":1,"b":2}', True),
        (closed, '{"a":1,"b":2}', False),
        (closed, '{"a":1}', True),
        (open_, '{ "a": 1}', False),
        (spaced, '{ "a":  1}', True),
        (spaced, '{   "a":  1}', False),
    ):
        state = recognizer.advance(recognizer.start(), text)
        assert (state is not None and recognizer.is_complete(state)) == accepted, text


def test_what_is_ignored_is_told_by_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(.+)-\\1$"}}}
    form = {"type": "json_schema", "json_schema": schema, "origin": "tools/3/function/parameters"}
    with pytest.raises(RequestError) as caught:
        read(form)
    assert caught.value.param == "tools"
    assert "'/3/function/parameters/properties/a'" in caught.value.message
    assert "'pattern'" in caught.value.message
    _, ignored, _ = read_structural_tag(source(form), StructuredOptions(on_unsupported="ignore"))
    assert ignored == ["/3/function/parameters/properties/a: pattern"]


@pytest.mark.parametrize(
    ("form", "place"),
    [
        ({"type": "token"}, "/format/token"),
        ({"type": "xml"}, "/format"),
        ({}, "/format"),
        ({"type": "const_string"}, "/format/value"),
        ({"type": "const_string", "value": "a", "more": 1}, "/format"),
        (regex("(a"), "/format/pattern"),
        (regex(r"(a+)\1"), "/format/pattern"),
        ({"type": "grammar", "grammar": "root ::= x"}, "/format/grammar"),
        ({"type": "json_schema"}, "/format"),
        ({"type": "json_schema", "json_schema": {"type": "x"}}, "/format/json_schema/type"),
        ({"type": "json_schema", "json_schema": {}, "style": "xml"}, "/format/style"),
        ({"type": "json_schema", "json_schema": {}, "any_order": 1}, "/format/any_order"),
        ({**TRIGGERED, "triggers": ["<g"]}, "/format/tags/0/begin"),
        ({**TRIGGERED, "triggers": ["<f", "<f="]}, "/format/tags/0/begin"),
        ({**TRIGGERED, "triggers": 5}, "/format/triggers"),
        ({**TRIGGERED, "tags": []}, "/format/tags"),
        ({**TRIGGERED, "stop_after_first": 1}, "/format/stop_after_first"),
        ({"type": "any_text", "max_tokens": 5}, "/format/max_tokens"),
        ({"type": "any_text", "excludes": [""]}, "/format/excludes/0"),
        (tag("a", {"type": "triggered_tags", "triggers": ["xyz"], "tags": [tag("xyz", POINT, "")]}, "xy"),
         "/format/content"),
        ({"type": "json_schema", "json_schema": {}, "excludes": "a"}, "/format/excludes"),
        ({"type": "token", "token": 5}, "/format/token"),
        ({"type": "exclude_token", "exclude_tokens": ["<a>"]}, "/format"),
        ({"type": "any_tokens", "exclude_tokens": ["<a>"], "max_tokens": 5}, "/format/max_tokens"),
        ({"type": "token_dispatch", "rules": [["<a>"]]}, "/format/rules/0"),
        ({"type": "repeat", "min": 2, "max": 1, "content": const("a")}, "/format/max"),
        (either(), "/format/elements"),
        (seq({"type": "json_schema", "json_schema": {"anyOf": [
            {"type": "integer"}, {"type": "array", "uniqueItems": True}]}}, const("5")), "/format"),
        (seq({"type": "json_schema", "any_order": True, "json_schema": {"properties": {"a": {}, "b": {}}}}, const("5")),
         "/format"),
    ],
    ids=lambda value: json.dumps(value)[:50],
)  # fmt: skip
def test_refusals_name_the_place(form: Format, place: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(form)
    assert caught.value.param == "structural_tag"
    assert (
        f"at {place}:" in caught.value.message
        or f"at '{place.removeprefix('/format')}'" in caught.value.message
        or (f"at '{place}'" in caught.value.message)
    ), caught.value.message


@pytest.mark.parametrize(
    ("form", "nearest"),
    [
        ({"type": "exclude_token", "exclude_tokens": ["<a>"]}, "any_tokens with exclude_tokens"),
        ({"type": "any_text", "max_tokens": 5}, "max_chars"),
        ({"type": "any_tokens", "max_tokens": 5}, "any_text with max_chars"),
        ({"type": "token", "token": 5}, "const_string"),
    ],
)
def test_refusals_name_the_nearest_format(form: Format, nearest: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(form)
    assert nearest in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "null",
        '{"type": "structural_tag"}',
        '{"format": 5}',
        "[" * 10**5,
        '{"type": "x", "format": {"type": "any_text"}}',
        '{"structures": {}, "triggers": []}',
    ],
)
def test_what_is_no_structural_tag_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_structural_tag(text, OPTIONS)[0]
    assert caught.value.param == "structural_tag"


def test_size_is_bounded() -> None:
    form = const("a")
    for _ in range(100):
        form = seq(form, form) if len(json.dumps(form)) < 1000 else seq(form)
    with pytest.raises(RequestError, match="deep"):
        read(form)
    with pytest.raises(RequestError, match="more than"):
        read(seq(*[const("a")] * 60_000))


def test_long_bounded_text_ends_at_its_tag(vocabulary: Vocabulary) -> None:
    bounded = tag("[", {"type": "any_text", "max_chars": 3000, "excludes": ["no"]}, "</x>")
    judges = Judges(seq(bounded, const("end")), vocabulary, ask_xgrammar=False)
    assert judges.accepts("[some text</x>end")
    assert judges.accepts("[" + "é" * 3000 + "</x>end")
    assert not judges.accepts("[" + "é" * 3001 + "</x>end")
    assert not judges.accepts("[a no</x>end")


def test_free_text_ends_at_the_constant_that_follows(vocabulary: Vocabulary) -> None:
    dispatch = {"type": "token_dispatch", "rules": [["<|im_start|>", POINT]], "loop": False}
    for form, good, bad in (
        (seq(ANY, const("END"), const("!")), ["END!", "a ENEND!"], ["ENDEND!", "a"]),
        (seq(ANY, tag("<f>", POINT, "</f>")), ['<f>{"x":1}</f>', 'a<f>{"x":1}</f>'], ["a<f>", "<f>a</f>"]),
        (seq({"type": "any_tokens", "exclude_tokens": ["<|im_start|>"]}, const("END")), ["END", "aEND"], ["a"]),
        (tag("", {"type": "any_text", "excludes": ["</t>", "<t>"]}, "</t>"), ["</t>", "a</t>"], ["<t></t>", "a"]),
        (dispatch, ["", "free text"], []),
    ):
        judges = Judges(form, vocabulary, ask_xgrammar=False)
        for text in good:
            assert judges.accepts(text), (form, text)
        for text in bad:
            assert not judges.accepts(text), (form, text)
