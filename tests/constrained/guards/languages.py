"""Small languages of JSON texts: all of their texts, and the texts that guards must leave."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.productions import Productions
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.schema import normalize
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from tests.constrained.vocabularies import allowed, bits, text_of


class Repeated(ValueError):
    """An object has a key twice."""


def strict(text: str) -> Any:
    """The value of a JSON text, read by a reader that refuses repeated keys."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in members]
        if len(names) != len(set(names)):
            raise Repeated(text)
        return dict(members)

    return json.loads(text, object_pairs_hook=pairs)


LONGEST = 48


def texts(productions: Productions, longest: int = LONGEST) -> Iterator[str]:
    """All texts of at most `longest` characters."""
    recognizer = Recognizer(productions)
    todo: list[tuple[State, str]] = [(recognizer.start(), "")]
    while todo:
        state, text = todo.pop()
        if recognizer.is_complete(state):
            yield text
        if len(text) < longest:
            todo.extend((after, text + char) for chars, after in recognizer.moves(state) for char in chars)


def guarded(schema: Any, backends: Backends, **options: Any) -> GuardedTemplate:
    """The template of a schema that has obligations."""
    constraint = Constraint(
        kind="json_schema", source=json.dumps(schema), options=StructuredOptions(bounded=False, **options)
    )
    template = load(compile_constraint(constraint, backends), backends)
    assert isinstance(template, GuardedTemplate)
    return template


def good_texts(schema: Any, whitespace: int = 0) -> set[str]:
    """The texts of a schema with a finite language in which no object repeats a key."""
    found = set()
    for text in texts(normalize(schema).productions(whitespace).prune()):
        try:
            strict(text)
        except Repeated:
            continue
        found.add(text)
    return found


def without(schema: Any) -> Any:
    """The schema without `uniqueItems`."""
    if isinstance(schema, dict):
        return {name: without(value) for name, value in schema.items() if name != "uniqueItems"}
    return [without(one) for one in schema] if isinstance(schema, list) else schema


def continuations(vocabulary: Vocabulary, texts: set[str], before: bytes) -> set[int]:
    """The text tokens behind which some text can still follow, by trying every token."""
    rests = [data[len(before) :] for text in texts if (data := text.encode()).startswith(before)]
    found = {data[:size] for data in rests for size in range(1, len(data) + 1)}
    return {token for token, data in enumerate(vocabulary.table) if data in found}


def walk(
    template: GuardedTemplate, vocabulary: Vocabulary, texts: set[str], seed: str, walks: int
) -> tuple[set[str], int]:
    """Compare the masks along random texts with all good texts of a language: a mask has exactly the tokens behind
    which some good text can still follow.

    Returns:
        The texts, and the number of masks from which the guard takes tokens.
    """
    ends, reached, banned = set(vocabulary.eos_ids), set(), 0
    generator = random.Random(seed)
    for _ in range(walks):
        grammar, tokens = template.new(), list[int]()
        while not grammar.is_terminated():
            before = vocabulary.decode(tokens)
            possible = continuations(vocabulary, texts, before)
            mask = allowed(grammar, vocabulary.vocab_size)
            unguarded = bits(grammar._inner.mask())
            assert mask, before
            assert (ends <= mask) == (before.decode(errors="replace") in texts)
            # Where text is forced, llguidance allows only the canonical tokenization.
            assert mask - ends == possible & unguarded, before
            assert possible <= unguarded or len(unguarded) == 1, before
            banned += len(unguarded) > len(mask)
            for token in random.Random(len(tokens)).sample(sorted(possible), min(4, len(possible))):
                copied = grammar.copy()
                assert copied.accept(token), (before, token)
                copied.rollback(1)
                assert allowed(copied, vocabulary.vocab_size) == mask
            assert not any(grammar.accept(token) for token in unguarded - mask)
            token = generator.choice(sorted(mask))
            assert grammar.accept(token)
            if token in ends:
                break
            tokens.append(token)
        reached.add(text_of(vocabulary, tokens))
    assert reached <= texts
    return reached, banned


def check_written(schema: Any, backends: Backends, texts: set[str]) -> None:
    """Check that each of these texts, or of the first 300, can be written and ended."""
    template = guarded(schema, backends)
    for text in sorted(texts)[:300]:
        grammar = template.new()
        for token in backends.vocabulary.encode(text):
            assert grammar.accept(token), text
        assert set(backends.vocabulary.eos_ids) <= allowed(grammar, backends.vocabulary.vocab_size)


def check_cut_anywhere(schema: Any, backends: Backends, texts: set[str]) -> None:
    """Check that texts that are cut after any token are completed to one of these texts."""
    vocabulary, template = backends.vocabulary, guarded(schema, backends)
    for text in random.Random(1).sample(sorted(texts), min(30, len(texts))):
        grammar, tokens = template.new(), list[int]()
        for token in vocabulary.encode_greedily(text.encode()):
            assert grammar.accept(token)
            tokens.append(token)
            closing = grammar.closing()
            assert text_of(vocabulary, tokens + closing) in texts
            copied = grammar.copy()
            assert all(map(copied.accept, closing))
