"""Masks, ends, forced tokens and closings of both libraries, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from radixrt.constrained.backends.choice import BackendName, Backends
from radixrt.constrained.backends.matcher import GrammarError, Matcher
from radixrt.constrained.compile.compiler import make_completions
from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.masks.mask_cache import STATE_BYTES, MaskCache
from radixrt.constrained.masks.text_grammar import SETTLE_AFTER, TextGrammar, TextTemplate
from radixrt.constrained.productions import Lit, Productions, Ref, Rep, Seq, Special, Term, alt, optional, postorder
from radixrt.constrained.regex import ANY, integer_range, json_string, parse_regex
from radixrt.constrained.vocabulary import Vocabulary, split_utf8
from radixrt.errors import InvariantError, RequestError
from tests.constrained.vocabularies import allowed, small_vocabulary, text_of

STRING = Term(json_string(ANY))
INTEGER = Term(integer_range(None, None))
WORD = Term(parse_regex("[a-z]{2,8}", search=False))

GRAMMARS: dict[str, Productions] = {
    "record": Productions(
        {
            "start": Seq(
                (
                    Lit('{"name":'), STRING, Lit(',"age":'), INTEGER,
                    Rep(Seq((Lit(',"tags":['), STRING, Rep(Seq((Lit(","), STRING)), 0, None), Lit("]"))), 0, 1),
                    Lit("}"),
                )
            )
        }
    ),
    "tree": Productions(
        {
            "start": Ref("node"),
            "node": Seq((Lit('{"v":'), INTEGER, Lit(',"c":['), optional(Ref("nodes")), Lit("]}"))),
            "nodes": Seq((Ref("node"), Rep(Seq((Lit(","), Ref("node"))), 0, None))),
        }
    ),
    "choices": Productions({"start": alt(*map(Lit, ("yes", "no", "not sure", "naïve", "日本", "日本語")))}),
    "regex": Productions({"start": Term(parse_regex(r"(\d{3}-){2}\d{4}( ?ext\. ?\d+)?", search=False))}),
    "letters": Productions({"start": Term(parse_regex("[é-ú日-本🙂-🙏]{1,6}", search=False))}),
    "counted": Productions({"start": Seq((Rep(Seq((WORD, Lit(";"))), 3, 5), Lit("end")))}),
    "ending anywhere": Productions({"start": Term(parse_regex("[a-f]+( [a-f]+)*", search=False))}),
}  # fmt: skip

Loader = Callable[..., TextTemplate]


@pytest.fixture(scope="module")
def load(backends: Backends) -> Loader:
    made: dict[tuple[str, str], TextTemplate] = {}

    def get(name: str, backend: BackendName) -> TextTemplate:
        if (name, backend) not in made:
            made[name, backend] = template(GRAMMARS[name], backends, backend)
        return made[name, backend]

    return get


def template(productions: Productions, backends: Backends, backend: BackendName = "llguidance") -> TextTemplate:
    vocabulary = backends.vocabulary
    pruned = productions.prune()
    exit = make_completions(pruned, vocabulary)
    library = backends.get(backend)
    specials = [one.text for one in postorder(pruned.rules.values()) if isinstance(one, Special)]
    return TextTemplate(
        lambda: library.load(library.write(pruned)),
        vocabulary,
        shortest=exit.closing(exit.start),
        specials=[vocabulary.control_tokens[text] for text in specials],
        make_completions=lambda: exit,
    )


def walk(grammar: TextGrammar, vocabulary: Vocabulary, generator: random.Random, budget: int) -> list[int]:
    """An output of random tokens within a budget, closed as the scheduler does it."""
    tokens: list[int] = []
    parts = mask_of_parts(vocabulary)
    while not grammar.is_terminated():
        row = grammar.mask()
        if generator.random() < 0.2 and (row & parts).any():
            row = row & parts  # parts of characters, which are rare among all tokens
        choices = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = int(choices[generator.randrange(len(choices))])
        remaining = budget - len(tokens) - 1
        if not grammar.fits(token, remaining):
            closing = grammar.closing()
            assert len(closing) <= remaining + 1
            for one in closing:
                assert grammar.accept(one)
            tokens += closing
            assert set(vocabulary.eos_ids) <= allowed(grammar, vocabulary.vocab_size)
            return tokens
        assert grammar.accept(token)
        if token in vocabulary.eos_ids:
            return tokens
        tokens.append(token)
    return tokens


@cache
def mask_of_parts(vocabulary: Vocabulary) -> Bitmask:
    """Tokens that end inside a character."""
    return vocabulary.mask_of(token for token, data in enumerate(vocabulary.table) if split_utf8(data)[1])


def is_sentence(grammar: TextTemplate, text: str) -> bool:
    recognizer = grammar.completions._recognizer
    state = recognizer.advance(recognizer.start(), text)
    return state is not None and recognizer.is_complete(state)


BACKENDS: tuple[BackendName, ...] = ("llguidance", "xgrammar")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_whatever_is_sampled_and_wherever_it_is_cut_the_output_is_a_sentence(
    name: str, backend: BackendName, load: Loader, vocabulary: Vocabulary
) -> None:
    grammar = load(name, backend)
    least = len(grammar.new().closing())
    for seed in range(40):
        generator = random.Random(seed)
        tokens = walk(grammar.new(), vocabulary, generator, least + generator.randrange(40))
        assert is_sentence(grammar, text_of(vocabulary, tokens))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_mask_bits_say_what_the_matcher_and_the_recognizer_accept(
    name: str, backend: BackendName, load: Loader, vocabulary: Vocabulary
) -> None:
    grammar = load(name, backend)
    generator = random.Random(name)
    current, place = grammar.new(), grammar.completions.start
    text_tokens = [token for token, data in enumerate(vocabulary.table) if data]
    for _ in range(6):
        mask = allowed(current, vocabulary.vocab_size)
        current._catch_up()
        matcher = current._matcher
        accepted = set()
        for token in text_tokens:
            if matcher.accept(token):
                matcher.rollback(1)
                accepted.add(token)
        recognized = {token for token in text_tokens if grammar.completions.advance(place, token) is not None}
        assert accepted == recognized
        ends = set(vocabulary.eos_ids) if matcher.may_end() else set()
        forced = current.forced_continuation()
        if backend == "llguidance" and matcher.forced():
            # llguidance allows only the canonical tokenization of forced text.
            assert mask == {matcher.forced()[0]} <= accepted
        else:
            assert mask == accepted | ends
        assert not forced or forced[0] in mask
        choices = sorted(mask - ends)
        if not choices:
            break
        token = generator.choice(choices)
        assert current.accept(token)
        after = grammar.completions.advance(place, token)
        assert after is not None
        place = after


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_refused_token_leaves_the_state_as_it_was(backend: BackendName, load: Loader, vocabulary: Vocabulary) -> None:
    grammar = load("record", backend).new()
    for token in vocabulary.encode('{"name":"A'):
        before = allowed(grammar, vocabulary.vocab_size)
        for wrong in (-1, vocabulary.vocab_size, 10**9, 1, 3, *vocabulary.eos_ids, *vocabulary.encode("\n")):
            assert not grammar.accept(wrong)
        assert allowed(grammar, vocabulary.vocab_size) == before
        assert grammar.accept(token)
        assert not grammar.is_terminated()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rollback_goes_back_to_where_it_was(backend: BackendName, load: Loader, vocabulary: Vocabulary) -> None:
    template = load("record", backend)
    tokens = vocabulary.encode('{"name":"日本 🙂","age":12}')
    masks, closings = [], []
    grammar = template.new()
    for token in tokens:
        masks.append(allowed(grammar, vocabulary.vocab_size))
        closings.append(grammar.closing())
        assert grammar.fits(token, 1000)
        assert grammar.accept(token)
    assert grammar.is_terminated()
    assert grammar.accept(vocabulary.eos_ids[0])
    assert grammar.is_terminated()
    assert not grammar.accept(vocabulary.eos_ids[0])
    grammar.rollback(1)
    generator = random.Random(0)
    at = len(tokens)
    for _ in range(30):
        to = generator.randrange(at + 1)
        grammar.rollback(at - to)
        at = to
        if at < len(tokens):
            assert allowed(grammar, vocabulary.vocab_size) == masks[at]
            assert grammar.closing() == closings[at]
        for token in tokens[at : generator.randrange(at, len(tokens) + 1)]:
            assert grammar.accept(token)
            at += 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_end_tokens_are_allowed_exactly_where_the_text_may_end(
    backend: BackendName, load: Loader, vocabulary: Vocabulary
) -> None:
    grammar = load("ending anywhere", backend).new()
    ends = set(vocabulary.eos_ids)
    assert not ends & allowed(grammar, vocabulary.vocab_size)
    for text, may_end in (("fa", True), (" ", False), ("c", True)):
        for token in vocabulary.encode(text):
            assert grammar.accept(token)
        assert ends & allowed(grammar, vocabulary.vocab_size) == (ends if may_end else set())
        assert not grammar.is_terminated()
        assert bool(grammar.closing()) != may_end
    assert grammar.accept(vocabulary.eos_ids[1])
    assert grammar.is_terminated()
    assert allowed(grammar, vocabulary.vocab_size) == ends


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_end_tokens_are_allowed_where_the_models_are(
    backend: BackendName, load: Loader, vocabulary: Vocabulary
) -> None:
    template = load("ending anywhere", backend)
    own = vocabulary.control_tokens["<file_sep>"]
    grammar, common = template.new([own, vocabulary.eos_ids[0]]), template.new()
    ends = {own, *vocabulary.eos_ids}
    for text, may_end in (("fa", True), (" ", False), ("c", True)):
        for token in vocabulary.encode(text):
            assert grammar.accept(token)
            assert common.accept(token)
        assert ends & allowed(grammar, vocabulary.vocab_size) == (ends if may_end else set())
        assert own not in allowed(common, vocabulary.vocab_size)
        assert grammar.fits(own, 0)
        if not may_end:
            assert not grammar.accept(own)
    assert not common.accept(own)
    assert grammar.accept(own)
    assert grammar.is_terminated()
    grammar.rollback(1)
    assert not grammar.is_terminated()
    assert own in allowed(grammar, vocabulary.vocab_size)
    other = template.new([own])
    for token in vocabulary.encode("fa"):
        assert other.accept(token)
    assert other.mask() is other.mask(), "it would be sent with each step"
    assert not other.mask().flags.writeable


def test_an_end_token_that_is_text_or_a_token_of_the_constraint_is_refused(
    backends: Backends, load: Loader, vocabulary: Vocabulary
) -> None:
    (brace,) = vocabulary.encode("}")
    with pytest.raises(RequestError, match=f"{brace} is text") as refused:
        load("record", "llguidance").new([brace])
    assert refused.value.param == "stop_token_ids"
    marked = template(Productions({"start": Seq((Lit("a"), Special("<file_sep>")))}), backends)
    with pytest.raises(RequestError, match="a token of the constraint"):
        marked.new([vocabulary.control_tokens["<file_sep>"]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_tokens_are_what_the_tokenizer_makes_of_the_whole_text(
    backend: BackendName, load: Loader, vocabulary: Vocabulary
) -> None:
    template = load("record", backend)
    for text in ('{"name":"a","age":7}', '{"name":"it\'s","age":-3,"tags":["x","y z"]}', '{"name":"日本","age":0}'):
        tokens = vocabulary.encode(text)
        grammar = template.new()
        saved = 0
        at = 0
        while at < len(tokens):
            forced = grammar.forced_continuation()
            if forced:
                assert forced == tokens[at : at + len(forced)]
                for token in forced:
                    assert grammar.accept(token)
                saved += len(forced)
                at += len(forced)
            else:
                assert grammar.accept(tokens[at])
                at += 1
        assert saved >= 3
        assert grammar.is_terminated()


def test_a_sampled_token_is_healed_into_the_canonical_one(load: Loader, vocabulary: Vocabulary) -> None:
    grammar = load("record", "llguidance").new()
    (quote,) = vocabulary.encode('"')
    for token in [*vocabulary.encode('{"name":"A'), quote]:
        assert grammar.accept(token)
    forced = grammar.forced_continuation()
    assert text_of(vocabulary, forced).startswith(',"age')
    healed = grammar.healed(quote, forced)
    assert healed is not None
    assert text_of(vocabulary, healed) == '"' + text_of(vocabulary, forced)
    assert healed[0] == vocabulary.encode('","')[0]
    grammar.rollback(1)
    for token in healed:
        assert grammar.accept(token)
    assert grammar.healed(healed[0], healed[1:]) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_code_point_that_is_cut_is_completed(backend: BackendName, load: Loader, vocabulary: Vocabulary) -> None:
    for name, start, char in (("record", '{"name":"', "🙂"), ("letters", "é", "日")):
        grammar = load(name, backend).new()
        for token in vocabulary.encode(start):
            assert grammar.accept(token)
        first = vocabulary.encode_greedily(char.encode()[:1])
        assert len(first) == 1
        assert grammar.accept(first[0])
        text = vocabulary.decode([*vocabulary.encode(start), *first, *grammar.closing()]).decode()
        assert is_sentence(load(name, backend), text)


def test_control_tokens_stand_only_where_the_grammar_asks_for_them(backends: Backends) -> None:
    vocabulary = backends.vocabulary
    control = vocabulary.control_tokens["<file_sep>"]
    text = Term(parse_regex(".*", search=False))
    grammar = template(Productions({"start": Seq((Lit("a"), Special("<file_sep>"), text))}), backends).new()
    assert grammar.closing() == [*vocabulary.encode("a"), control]
    assert not grammar.accept(control)
    for token in vocabulary.encode("a"):
        assert grammar.accept(token)
    assert allowed(grammar, vocabulary.vocab_size) == {control}
    assert grammar.accept(control)
    assert control not in allowed(grammar, vocabulary.vocab_size)
    for token in vocabulary.encode("<file_sep>"):
        assert grammar.accept(token)


def test_a_library_that_comes_to_its_limits_is_started_afresh(backends: Backends) -> None:
    vocabulary = backends.vocabulary
    exponential = template(Productions({"start": Term(parse_regex("(.*a.{200})", search=False))}), backends)
    walker = random.Random(0)
    grammar = exponential.new()
    count = 0
    while exponential.generation < 2:
        row = grammar.mask() & vocabulary.text_mask
        choices = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert grammar.accept(int(choices[walker.randrange(len(choices))]))
        count += 1
        assert count < 3000
    assert allowed(exponential.new(), vocabulary.vocab_size)


@pytest.mark.parametrize("family", ["byte_level", "byte_fallback", "gemma_like"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_other_tokenizers(family: str, backend: BackendName) -> None:
    backends = Backends(small_vocabulary(family))
    for name, productions in GRAMMARS.items():
        grammar = template(productions, backends, backend)
        for seed in range(8):
            tokens = walk(grammar.new(), backends.vocabulary, random.Random(seed), len(grammar.shortest) + 3 * seed)
            assert is_sentence(grammar, text_of(backends.vocabulary, tokens)), name


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_remembered_of_a_place_is_what_is_worked_out_there(name: str, backends: Backends) -> None:
    """Outputs of one grammar with common masks, each step against a matcher that shares nothing."""
    common = template(GRAMMARS[name], backends)
    vocabulary = backends.vocabulary
    remembered = 0
    for seed in range(12):
        tokens = walk(common.new(), vocabulary, random.Random(seed), 40)
        one, alone = common.new(), template(GRAMMARS[name], backends).new()
        for token in [*tokens, None]:
            if one.is_terminated():
                break
            remembered += one._path[-1].row is not None
            np.testing.assert_array_equal(one.mask(), alone.mask())
            assert one.forced_continuation() == alone.forced_continuation()
            if token is None or not one.accept(token):
                break
            assert alone.accept(token)
    assert remembered


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_a_matcher_that_lags_behind_changes_nothing(name: str, backend: BackendName, backends: Backends) -> None:
    """Only cached states, so that the matcher gets no tokens; then it catches up, or some tokens are rolled back."""
    common = template(GRAMMARS[name], backends, backend)
    vocabulary = backends.vocabulary
    lagged = 0
    for seed in range(12):
        generator = random.Random(seed)
        tokens = walk(common.new(), vocabulary, generator, 40)
        late, prompt = common.new(), template(GRAMMARS[name], backends, backend).new()
        for token in tokens:
            assert late.fits(token, 1000) == prompt.fits(token, 1000)
            taken = prompt.accept(token)
            assert late.accept(token) == taken
            if not taken:
                break
            prompt._catch_up()
            assert late.is_terminated() == prompt.is_terminated()
            np.testing.assert_array_equal(late.mask(), prompt.mask())
            lagged = max(lagged, late._behind)
            late.settle()
            if generator.random() < 0.1:
                back = generator.randrange(len(prompt._tokens) + 1)
                late.rollback(back)
                prompt.rollback(back)
                break
        assert late._behind < 2 * SETTLE_AFTER
        late._catch_up()
        assert late._matcher.may_end() == prompt._matcher.may_end()
        np.testing.assert_array_equal(late.mask(), prompt.mask())
        assert late.forced_continuation() == prompt.forced_continuation()
        assert late.closing() == prompt.closing()
    assert lagged


class Failing(Matcher):
    """Says the same to every token."""

    def __init__(self, answer: bool | GrammarError) -> None:
        self._answer = answer

    def accept(self, token: int) -> bool:
        if isinstance(self._answer, GrammarError):
            raise self._answer
        return self._answer

    def fork(self) -> Matcher:
        return self

    fill = rollback = may_end = must_end = forced = None  # type: ignore[assignment]


def behind(common: TextTemplate, vocabulary: Vocabulary) -> TextGrammar:
    """A grammar whose matcher has not been told of its tokens, of which `settle` would tell it."""
    tokens = [vocabulary.encode("a")[0]] * (2 * SETTLE_AFTER)
    before = common.new()
    before.mask()
    for token in tokens:
        assert before.accept(token)
        before.mask()
    grammar = common.new()
    assert all(map(grammar.accept, tokens))
    assert grammar._behind == len(tokens)
    return grammar


@pytest.mark.parametrize("failure", [False, GrammarError("at its limit")])
def test_a_library_that_fails_at_tokens_it_is_told_late_is_started_afresh(
    failure: bool | GrammarError, backends: Backends
) -> None:
    common = template(Productions({"start": Term(parse_regex("[a-z]{1,99}", search=False))}), backends)
    grammar = behind(common, backends.vocabulary)
    expected = grammar.mask()
    grammar._matcher = Failing(failure)
    grammar.settle()
    assert (common.generation, grammar._behind) == (1, 0)
    np.testing.assert_array_equal(grammar.mask(), expected)
    assert grammar.accept(*backends.vocabulary.encode("z"))


def test_a_library_that_goes_on_failing_at_them_is_an_error(backends: Backends) -> None:
    common = template(Productions({"start": Term(parse_regex("[a-z]{1,99}", search=False))}), backends)
    grammar = behind(common, backends.vocabulary)
    grammar._matcher = Failing(False)
    common._load = lambda: Failing(False)
    with pytest.raises(InvariantError, match="refuses a token that its mask allowed"):
        grammar.settle()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["record", "letters", "counted"])
def test_what_is_remembered_changes_nothing(name: str, backend: BackendName, backends: Backends) -> None:
    """Masks, ends and forced tokens of random texts are those of a template that remembers next to nothing."""
    warm, cold = (template(GRAMMARS[name], backends, backend) for _ in range(2))
    cold.masks = MaskCache(max_bytes=1, max_edges=3)
    at_once = 0
    for seed in range(25):
        generator = random.Random(seed)
        one, other = warm.new(), cold.new()
        for _ in range(30):
            if one.is_terminated():
                assert other.is_terminated()
                break
            row = one.mask()
            np.testing.assert_array_equal(row, other.mask())
            assert one.forced_continuation() == other.forced_continuation()
            choices = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            token = int(choices[generator.randrange(len(choices))])
            for remaining in (0, 3, 40):
                assert one.fits(token, remaining) == other.fits(token, remaining)
            remaining = generator.choice([0, 3, 40])
            fits = other.fits(token, remaining)
            assert other.accept(token)
            if one.accept_freely(token, remaining):
                at_once += 1
                assert fits
                assert not other.is_terminated()
                assert not other.forced_continuation()
            else:
                assert one.accept(token)
            if generator.random() < 0.2:
                one.rollback(1)
                other.rollback(1)
            one.settle()
    assert at_once > 25
    assert cold.masks.num_bytes < 2 * STATE_BYTES + one.mask().nbytes + len(backends.vocabulary.table)


COUNTED = {
    "at least": r"[a-z]{60,}[0-9]",
    "at most": r'"[^"\\]{0,250}"',
    "between": r"[a-z]{3,50}[a-m]{20}!?",
    "other letters": r"[é-ú日-本]{100,105}x",
    "several characters": r"([a-c][0-9]|zz){30,40}[0-9]*",
    "one string": r"(ab){80}c",
    "escapes": r'"([a-z]|\\[nrt"]){0,64}"',
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", COUNTED)
def test_counts_longer_than_a_token_share_masks(name: str, backend: BackendName, backends: Backends) -> None:
    """Each mask is that of a matcher that shares nothing; and most of them are one and the same array."""
    vocabulary = backends.vocabulary
    productions = Productions({"start": Term(parse_regex(COUNTED[name], search=False))})
    common, alone = template(productions, backends, backend), template(productions, backends, backend)
    rows: dict[int, Bitmask] = {}
    states = set()
    for seed in (1,) if backend == "xgrammar" else (0, 1):
        grammar, matcher = common.new(), alone.matcher()
        generator = random.Random(seed)
        while not grammar.is_terminated():
            row = grammar.mask()
            np.testing.assert_array_equal(row, alone.mask_of(matcher)[0])
            rows[id(row)] = row
            states.add(grammar._path[-1].state)
            choices = np.flatnonzero(np.unpackbits((row & ~vocabulary.eos_mask).view(np.uint8), bitorder="little"))
            if not len(choices):
                break
            short = [token for token in choices if len(vocabulary.table[token]) <= 3] if seed else []
            token = int(generator.choice(short or list(choices)))
            assert grammar.accept(token)
            assert matcher.accept(token)
            if len(grammar._path) > 150:
                break
    if name != "one string":
        assert len(rows) < 0.8 * len(states)


def test_tokens_within_a_string_lead_back_to_its_state(backends: Backends) -> None:
    """After the first of them, none is looked up in the recognizer any more."""
    vocabulary = backends.vocabulary
    common = template(Productions({"start": Term(parse_regex('"[^"]*"', search=False))}), backends)
    grammar = common.new()
    for token in vocabulary.encode('"ab'):
        grammar.mask()
        assert grammar.accept(token)
    grammar.mask()
    assert grammar.accept(vocabulary.encode("a")[0])
    state = grammar._path[-1]
    assert state.loops is None
    grammar.settle()  # the look-up of all such tokens delays no mask
    assert state.loops is not None
    for token, data in enumerate(vocabulary.table):
        inside = bool(data) and b'"' not in data and split_utf8(data) == (data.decode(errors="ignore"), b"")
        assert (state.follow(token) is state) == inside, data


def test_forced_tokens_are_asked_of_the_library_once(backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second request appends the same forced tokens, and heals the one before them, by what the first one left."""
    common = template(GRAMMARS["record"], backends)
    vocabulary = backends.vocabulary
    first, second = common.new(), common.new()
    for grammar in (first, second):
        forced = grammar.forced_continuation()
        assert forced
        for token in forced:
            assert grammar.fits(token, 1000)
            assert grammar.accept(token)
        if grammar is first:
            monkeypatch.setattr(type(second._matcher), "accept", None)
            monkeypatch.setattr(common.completions._recognizer, "advance", None)
    assert first._path == second._path
    monkeypatch.undo()
    grammar = common.new()
    for token in vocabulary.encode('{"name":"x"'):
        assert grammar.accept(token)
    forced, last = grammar.forced_continuation(), vocabulary.encode('{"name":"x"')[-1]
    assert forced
    healed = grammar.healed(last, forced)
    monkeypatch.setattr(vocabulary, "encode_bytes", None)
    assert grammar.healed(last, forced) == healed


@pytest.mark.parametrize("name", [*COUNTED, "json string"])
def test_within_counts_only_the_number_of_characters_is_looked_at(name: str, backends: Backends) -> None:
    """Tokens that were never followed lead where the recognizer says, and only if the mask allows them."""
    vocabulary = backends.vocabulary
    written = parse_regex(COUNTED.get(name, ".{3,90}"), search=False)
    regex = json_string(written) if name == "json string" else written
    common = template(Productions({"start": Term(regex)}), backends)
    states = {}
    for seed in range(12):
        grammar, generator = common.new(), random.Random(seed)
        for _ in range(25):
            if grammar.is_terminated():
                break
            states[id(grammar._path[-1])] = grammar._path[-1]
            row = grammar.mask() & ~vocabulary.eos_mask
            choices = [
                token for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
                if len(vocabulary.table[token]) < 4
            ]  # fmt: skip
            if not choices:
                break
            token = int(generator.choice(choices))
            assert grammar.accept_freely(token, 1000) or grammar.accept(token)
            grammar.settle()
    found = 0
    for state in [one for one in states.values() if one.runs is not None and one.row is not None]:
        assert state.state is not None
        for token in range(vocabulary.vocab_size):
            after = state.follow(token)
            if after is None or after is state or token in state.after:
                continue
            found += 1
            assert state.allows(token)
            assert after.state == common.completions.advance(state.state, token)
    assert (found > 20) == (name not in ("one string", "other letters"))  # of other letters no set of tokens is kept


def test_token_sets_of_runs_are_counted_once(backends: Backends) -> None:
    grammar = template(GRAMMARS["letters"], backends).new()
    start, size = grammar.template.completions.start[0], len(backends.vocabulary.table)
    cache = MaskCache(max_bytes=3 * STATE_BYTES + size, max_edges=5)
    tokens, num_chars = bytes([1]) * size, bytes([2]) * size
    states = [cache.at((start, bytes([i]))) for i in range(3)]
    for state in states:
        cache.connect_run(state, 7, tokens, num_chars, states[0])
        assert state.runs is not None
        assert state.follow(9) is None  # no mask allows it
    assert cache.num_bytes == 3 * STATE_BYTES + size
    cache.at((start, b"more"))
    assert states[0].runs is None
    assert cache.num_bytes == 3 * STATE_BYTES + size
    cache.connect(states[1], 1, states[2])
    cache.connect(states[2], 1, states[1])
    cache.connect(states[1], 2, states[2])  # one more than are remembered
    assert states[1].runs is states[2].runs is None
    assert cache.num_bytes == 3 * STATE_BYTES


def test_masks_are_remembered_within_bounds(backends: Backends) -> None:
    grammar = template(GRAMMARS["letters"], backends).new()
    row = np.zeros_like(mask_of_parts(backends.vocabulary))
    cache = MaskCache(max_bytes=3 * (row.nbytes + STATE_BYTES))
    places = [(grammar.template.completions.start[0], bytes([i])) for i in range(5)]
    for i, place in enumerate(places):
        cache.put(place, np.full_like(row, i))
        cache.at(places[0])  # stays, being used
    assert cache.num_bytes == 3 * (row.nbytes + STATE_BYTES)
    assert [place for place in places if place in cache._known] == [places[0], *places[3:]]
    known = cache.at(places[4])
    assert known.row is not None
    assert known.row[0] == 4
    with pytest.raises(ValueError, match="read-only"):
        known.row[0] = 5
    cache.put(places[4], np.full_like(row, 6))
    assert cache.num_bytes == 3 * (row.nbytes + STATE_BYTES)


def test_where_a_text_is_incomplete_the_library_is_not_asked_whether_it_must_end(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = template(Productions({"start": Lit("abcdefgh")}), backends).new()
    asked: list[str] = []
    monkeypatch.setattr(TextGrammar, "_asking", lambda self, question: asked.append(text) or True)
    for text in "abcdefgh":
        grammar._path[-1].row = grammar.template.vocabulary.text_mask
        assert grammar.accept(backends.vocabulary.encode(text)[0])
        assert grammar.is_terminated() == (text == "h")
    assert asked == ["h"]


def test_a_completion_is_tokenized_only_where_its_bytes_do_not_tell(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    productions = Productions({"start": Seq((Term(parse_regex("[0-9]+", search=False)), Lit("x" * 40)))})
    made = template(productions, backends)
    tokenized: list[bytes] = []
    encode = backends.vocabulary.encode_bytes
    monkeypatch.setattr(backends.vocabulary, "encode_bytes", lambda data: tokenized.append(data) or encode(data))
    made.start.after.clear()
    grammar = made.new()
    (token,) = backends.vocabulary.encode("7")
    assert grammar.fits(token, 40)
    assert not tokenized
    assert grammar.fits(token, 39)
    assert len(tokenized) == 1
