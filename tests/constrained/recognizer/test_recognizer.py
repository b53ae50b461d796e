"""The recognizer against enumerated languages, and its properties on grammars that are too large to enumerate."""

from __future__ import annotations

import json
import random
import re

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.productions import Alt, Expr, Lit, Productions, Ref, Rep, Seq, Special, Term, optional
from radixrt.constrained.productions.ebnf import parse_ebnf
from radixrt.constrained.recognizer import Recognizer, RecognizerTooComplex, State, frames
from radixrt.constrained.recognizer import recognizer as module
from radixrt.errors import InvariantError
from tests.constrained.grammars import language, random_productions, texts

STRING = Term(regular.json_string(regular.ANY))
JSON = Productions(
    {
        "start": Ref("value"),
        "value": Alt((Ref("object"), Ref("array"), STRING, Term(regular.number_range(None, None)), Lit("true"))),
        "object": Seq(
            (Lit("{"), optional(Seq((Ref("member"), Rep(Seq((Lit(","), Ref("member"))), 0, None)))), Lit("}"))
        ),
        "member": Seq((STRING, Lit(":"), Ref("value"))),
        "array": Seq((Lit("["), optional(Seq((Ref("value"), Rep(Seq((Lit(","), Ref("value"))), 0, None)))), Lit("]"))),
    }
)


def of(body: Expr, **rules: Expr) -> Recognizer:
    productions = Productions({"start": body, **rules}).prune()
    productions.validate()
    return Recognizer(productions)


def after(recognizer: Recognizer, text: str) -> State:
    state = recognizer.advance(recognizer.start(), text)
    assert state is not None, text
    return state


def closing_text(recognizer: Recognizer, text: str) -> str:
    closing = recognizer.closing(after(recognizer, text))
    assert closing.characters == sum(len(piece) if isinstance(piece, str) else 1 for piece in closing.pieces)
    assert all(isinstance(piece, str) for piece in closing.pieces)
    return "".join(str(piece) for piece in closing.pieces)


def check_against(productions: Productions, alphabet: str, longest: int) -> None:
    """Prefixes, ends, what must end and shortest completions, all compared with the sentences up to a length."""
    sentences = language(productions, alphabet, longest)
    missing: dict[str, int] = {}
    goes_on: set[str] = set()
    for sentence in sentences:
        for cut in range(len(sentence) + 1):
            prefix = sentence[:cut]
            missing[prefix] = min(len(sentence) - cut, missing.get(prefix, longest))
            if cut < len(sentence):
                goes_on.add(prefix)
    recognizer = Recognizer(productions)
    for text in texts(alphabet, longest - 2):
        state = recognizer.advance(recognizer.start(), text)
        if state is None:
            assert text not in missing, text
            continue
        assert recognizer.is_complete(state) == (text in sentences), text
        closing = recognizer.closing(state)
        assert closing.characters == recognizer.closing_length(state) == len("".join(map(str, closing.pieces)))
        if text in missing:
            assert closing.characters == missing[text], text
        else:
            assert closing.characters > longest - len(text), text
        end = recognizer.advance(state, "".join(map(str, closing.pieces)))
        assert end is not None
        assert recognizer.is_complete(end)
        if recognizer.must_end(state):
            assert text in sentences
            assert text not in goes_on
        elif text in sentences:
            assert any(recognizer.advance(state, char) for char in alphabet), text


def test_random_grammars_are_followed_exactly() -> None:
    for seed in range(1500):
        check_against(random_productions(random.Random(seed)), "ab", 7)


def test_random_grammars_of_three_letters() -> None:
    for seed in range(40):
        check_against(random_productions(random.Random(seed), "abc"), "abc", 6)


def test_states_are_values() -> None:
    recognizer = Recognizer(JSON)
    text = json.dumps({"a": [1, 2.5, {"b": "x\n" * 9}], "c": "é😀"}, ensure_ascii=False, separators=(",", ":"))
    states = [recognizer.start()]
    for char in text:
        state = recognizer.advance(states[-1], char)
        assert state is not None
        states.append(state)
    for cut in range(len(text)):
        assert recognizer.advance(states[cut], text[cut:]) is states[-1]
        assert recognizer.advance(states[cut], "\0") is None
        assert after(recognizer, text[:cut]) is states[cut]
    assert recognizer.advance(states[3], "") is states[3]


def test_an_element_of_an_array_leads_back_to_the_same_state() -> None:
    recognizer = Recognizer(JSON)
    assert after(recognizer, '[{"a":1},') is after(recognizer, '[{"a":1},{"b":[2]},')


def test_json_texts_can_be_closed_from_everywhere() -> None:
    recognizer = Recognizer(JSON)
    value = {"key": ['quo"te', -1.5e7, True, {}, [], {"nested": {"deep": [[["x"]]]}}], "b\\": "\x00\x1f"}
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for cut in range(1, len(text) + 1):
        json.loads(text[:cut] + closing_text(recognizer, text[:cut]))
    assert re.fullmatch(r":\d}]}", closing_text(recognizer, '{"a":[1,{"b"'))
    assert re.fullmatch(r'["\\bfnrt]"}', closing_text(recognizer, '{"a":"x\\'))


def test_the_closing_spells_what_is_required() -> None:
    recognizer = of(
        Seq((Lit('{"name":'), STRING, Lit(',"items":['), Rep(Ref("item"), 3, 9), Lit("]}"))),
        item=Seq((Lit("<"), Rep(Term(regular.integer_range(10, 99)), 2, 2), Lit(">"))),
    )
    assert closing_text(recognizer, '{"na').startswith('me":"","items":[<')
    assert recognizer.closing_length(recognizer.start()) == 8 + 2 + 10 + 3 * 6 + 2
    assert len(closing_text(recognizer, '{"name":"x","items":[<1234><12')) == 2 + 1 + 6 + 2


def test_closing_is_the_same_in_every_process_and_after_every_history() -> None:
    productions = Productions(
        {"start": Rep(Alt((Ref("a"), Ref("b"), Ref("c"))), 2, 5), "a": Lit("x1"), "b": Lit("y2"), "c": Lit("z3")}
    )
    expected = Recognizer(productions)
    fresh = expected.closing(expected.start()).pieces
    for warm_up in ("y2z3", "z3x1y2", "x1"):
        recognizer = Recognizer(productions)
        after(recognizer, warm_up)
        assert recognizer.closing(recognizer.start()).pieces == fresh


def test_closing_does_not_depend_on_the_order_of_alternatives_in_memory() -> None:
    generator = random.Random(5)
    ties = 0
    for _ in range(150):
        recognizer = Recognizer(random_productions(generator, "ab"))
        for text in texts("ab", 4):
            state = recognizer.advance(recognizer.start(), text)
            if state is None:
                continue
            other = State(frozenset(state.items), state.complete)
            other.items = state.items[::-1]
            assert recognizer.closing(other) == recognizer.closing(state)
            ranks = [recognizer._rank(item) for item in state.items]
            ties += ranks.count(min(ranks, default=0)) > 1
            for _, _, frame in state.items:
                assert frames.Frame(frame.returns[::-1]).path() == frame.path()
    assert ties


def test_control_tokens_are_no_text() -> None:
    call, end = Special("<call>"), Special("</call>")
    recognizer = of(Rep(Seq((call, Ref("json"), end)), 1, None), json=Seq((Lit("["), STRING, Lit("]"))))
    assert recognizer.advance(recognizer.start(), "<") is None
    assert recognizer.advance_special(recognizer.start(), "</call>") is None
    state = recognizer.advance_special(recognizer.start(), "<call>")
    assert state is not None
    assert recognizer.closing(state).pieces == ('[""]', end)
    assert recognizer.closing(recognizer.start()).pieces == (call, '[""]', end)
    assert recognizer.closing_length(recognizer.start()) == 6
    state = recognizer.advance(state, '["<call>"]')
    assert state is not None
    assert recognizer.advance_special(state, "<call>") is None
    state = recognizer.advance_special(state, "</call>")
    assert state is not None
    assert recognizer.is_complete(state)
    assert not recognizer.must_end(state)
    assert recognizer.advance_special(state, "<call>") is not None


def test_a_control_token_that_the_vocabulary_lacks() -> None:
    productions = Productions({"start": Special("<call>")})
    Recognizer(productions, {"<call>": 7})
    with pytest.raises(InvariantError, match="no control token"):
        Recognizer(productions, {"<other>": 7})


def test_must_end_sees_through_languages_that_only_look_open() -> None:
    never = regular.intersect(
        regular.repeat(regular.literal("ab"), 1, None), regular.repeat(regular.literal("ba"), 1, None)
    )
    recognizer = of(Alt((Lit("x"), Seq((Lit("x"), optional(Term(never)))))))
    assert recognizer.must_end(after(recognizer, "x"))


def test_first_char_keeps_to_the_range_and_the_shortest_way() -> None:
    recognizer = of(
        Alt((Seq((Term(regular.chars(regular.CharSet.span(0x4E00, 0x9FFF))), Lit("end"))), Lit("漢!"), Lit("é")))
    )
    start = recognizer.start()
    assert recognizer.first_char(start, 0x4000, 0x6FFF) == "漢"
    assert recognizer.first_char(start, 0x4E00, 0x4EFF) == "一"
    assert recognizer.first_char(start, 0xC0, 0xFF) == "é"
    assert recognizer.first_char(start, 0x20, 0x7F) is None
    strings = Recognizer(Productions({"start": STRING}))
    assert strings.first_char(after(strings, '"'), 0x10000, 0x10FFFF) == "\U00010000"


def test_counts_that_nobody_could_write_out() -> None:
    item = Alt((Lit("ab"), Seq((Lit("c"), optional(Lit("d"))))))
    recognizer = of(Seq((Rep(item, 1_000_000, 10**9), Lit("."))))
    state = after(recognizer, "abcdc" * 50)
    assert recognizer.closing_length(state) == 1_000_000 - 150 + 1
    assert recognizer.closing(state).characters == recognizer.closing_length(state)
    assert recognizer.advance(state, ".") is None
    far = of(Rep(item, 10**12, None))
    assert far.closing_length(far.start()) == 10**12
    with pytest.raises(RecognizerTooComplex, match="1000000000000 characters"):
        far.closing(far.start())


def test_a_bound_is_kept_exactly() -> None:
    recognizer = of(
        Seq((Lit("["), Rep(Seq((Ref("item"), Lit(";"))), 2, 40), Lit("]"))), item=Alt((Lit("a"), Lit("aa")))
    )
    for count in range(45):
        state = recognizer.advance(recognizer.start(), "[" + "aa;" * count + "]")
        assert (state is not None) == (2 <= count <= 40), count


def test_ambiguity_costs_no_exponential() -> None:
    recognizer = Recognizer(parse_ebnf('root ::= s\ns ::= s s | "a" | "a" s "b" | "b" s s'))
    state = after(recognizer, "aab" * 25)
    assert recognizer.closing_length(state) == 0
    nested = of(
        Rep(Alt((Ref("a"), Ref("b"))), 0, None), a=Seq((Lit("x"), optional(Ref("start")))), b=Seq((Lit("x"), Ref("a")))
    )
    assert nested.is_complete(after(nested, "x" * 60))


def test_too_many_parses_are_an_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    recognizer = of(Rep(Alt((Lit("a"), Lit("aa"))), 1000, 2000))
    assert recognizer.closing_length(after(recognizer, "a" * 200)) == 800
    monkeypatch.setattr(frames, "MAX_CONFIGURATIONS", 100)
    with pytest.raises(RecognizerTooComplex, match="more than 100 parses"):
        recognizer.advance(recognizer.start(), "a" * 400)


def test_depth_is_no_danger() -> None:
    recognizer = Recognizer(JSON)
    state = after(recognizer, "[" * 20_000)
    assert recognizer.closing_length(state) == 20_000
    assert closing_text(recognizer, "[" * 20_000) == "]" * 20_000
    body: Expr = Lit("a")
    for _ in range(3000):
        body = Seq((Lit("("), Alt((body, Lit("b"))), Lit(")")))
    assert closing_text(of(body), "(" * 1000) == "b" + ")" * 1000
    chain: dict[str, Expr] = {f"r{i}": Seq((Lit("a"), Ref(f"r{i + 1}"), Lit("b"))) for i in range(5000)}
    long = Recognizer(Productions({"start": Ref("r0"), **chain, "r5000": Lit("-")}))
    assert closing_text(long, "a") == "a" * 4999 + "-" + "b" * 5000


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_REMEMBERED", 50)
    text = json.dumps({f"k{i}": [i, str(i), {"x": i / 7}] for i in range(60)}, separators=(",", ":"))
    small = Recognizer(JSON)
    kept = after(small, text[:100])
    for cut in range(0, len(text), 17):
        after(small, text[:cut])
    assert len(small._states) <= 60
    assert len(small._frames) <= 60
    state = small.advance(kept, text[100:])
    assert state is not None
    assert small.is_complete(state)
    for seed in range(150):
        check_against(random_productions(random.Random(seed)), "ab", 6)


def test_long_strings_are_skipped_over() -> None:
    recognizer = Recognizer(Productions({"start": Seq((STRING, Lit("!")))}))
    text = '"' + "äb c😀" * 200_000 + '\\n"!'
    state = after(recognizer, text)
    assert recognizer.must_end(state)
    assert sum(len(known.edges) for known in recognizer._states.values()) < 100


@pytest.mark.parametrize("options", [20, 40])
def test_characters_of_one_class_lead_to_one_state(options: int) -> None:
    """As many of them lead where the first ones do; where there are many items, none are known."""
    words = [f"k{chr(97 + i % 26)}{i}" for i in range(options)]
    end, run = Term(regular.parse_regex("[A-Z]", search=False)), Term(regular.parse_regex("[0-9a]{9,}", search=False))
    recognizer = of(Alt((*(Seq((Lit(word), end)) for word in words), run)))
    start = recognizer.start()
    known = recognizer.uniform_chars(start, "1a2")
    assert bool(known) == (options < 32)
    for text in ("aaa", "999") if known else ():
        assert all(char in known for char in text)
        assert recognizer.advance(start, text) is recognizer.advance(start, "1a2")
    for word in words:
        assert len(recognizer.uniform_chars(start, word).pairs()) <= 1
        assert recognizer.is_complete(after(recognizer, word + "B"))
    for wrong in ("x", "kb0", "k0", "1x"):
        assert recognizer.advance(start, wrong) is None
