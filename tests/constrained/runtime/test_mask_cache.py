"""The mask cache: what it remembers equals what is computed anew, is asked for once, and stays within bounds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.matcher import BackendName
from radixrt.constrained.productions import Lit, Productions, Seq, Term
from radixrt.constrained.regex import json_string, parse_regex
from radixrt.constrained.runtime.mask_cache import STATE_BYTES, MaskCache
from radixrt.constrained.runtime.text_grammar import TextGrammar
from radixrt.constrained.vocabulary import split_utf8
from tests.constrained.runtime.templates import BACKENDS, GRAMMARS, mask_of_parts, template, walk


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
            monkeypatch.setattr(common.completions.recognizer, "advance", None)
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
    states[1].is_claimed = True
    cache.connect(states[1], 1, states[2])
    cache.connect(states[2], 1, states[1])
    cache.connect(states[1], 2, states[2])  # one more than are remembered
    assert states[1].runs is states[2].runs is None
    assert not states[1].is_claimed, "what was found ahead is forgotten as well"
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
