"""Masks, ends, forced tokens and closings of both libraries, token by token."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.matcher import BackendName
from radixrt.constrained.productions import Lit, Productions, Seq, Special, Term
from radixrt.constrained.regex import parse_regex
from radixrt.constrained.runtime.text_grammar import TextTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.errors import RequestError
from tests.constrained.runtime.templates import BACKENDS, GRAMMARS, template, walk
from tests.constrained.vocabularies import allowed, small_vocabulary, text_of

Loader = Callable[..., TextTemplate]


@pytest.fixture(scope="module")
def load(backends: Backends) -> Loader:
    made: dict[tuple[str, str], TextTemplate] = {}

    def get(name: str, backend: BackendName) -> TextTemplate:
        if (name, backend) not in made:
            made[name, backend] = template(GRAMMARS[name], backends, backend)
        return made[name, backend]

    return get


def is_sentence(grammar: TextTemplate, text: str) -> bool:
    recognizer = grammar.completions.recognizer
    state = recognizer.advance(recognizer.start(), text)
    return state is not None and recognizer.is_complete(state)


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
