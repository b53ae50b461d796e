"""Lark grammars through the compiler: translated ones as any grammar, others as they are, with what that costs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiled import CompiledConstraint
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.runtime.opaque_grammar import MAX_KEPT, OpaqueGrammar, OpaqueTemplate
from radixrt.constrained.runtime.text_grammar import TextGrammar
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.errors import RequestError
from radixrt.executor.mask_table import MaskTable
from radixrt.messages.wire import unpack_i32

TRANSLATED = 'start: "<" WORD ("," WORD)* ">"\nWORD: /[a-z]{3,5}/'
LOOPING = "start: word*\nword[lazy]: /[a-z]+;/"
AS_IT_IS = 'start: "<" word ">"\nword[lazy]: /[a-z]+;/'


def compiled(backends: Backends, source: str, **options: Any) -> CompiledConstraint:
    stop = options.pop("stop", ())
    return compile_constraint(
        Constraint(kind="ebnf", source=source, stop=stop, options=StructuredOptions(**options)), backends
    )


def accept(backends: Backends, grammar: Any, text: str) -> bool:
    return all(grammar.accept(token) for token in backends.vocabulary.encode_bytes(text.encode()))


def test_a_translated_grammar_is_closed(backends: Backends) -> None:
    made = compiled(backends, TRANSLATED)
    assert made.ignored == []
    grammar = load(made, backends).new()
    assert isinstance(grammar, TextGrammar)
    assert grammar.closes
    assert accept(backends, grammar, "<abc,de")
    closing = backends.vocabulary.decode(grammar.closing()).decode()
    assert len(closing) == 2
    assert closing.endswith(">")
    assert compiled(backends, TRANSLATED, backend="xgrammar").backend == "xgrammar"
    assert compiled(backends, TRANSLATED, stop=("\n",)).min_tokens == made.min_tokens


def test_a_grammar_as_it_is_has_llguidances_masks_and_no_closing(backends: Backends) -> None:
    made = compiled(backends, AS_IT_IS)
    (told,) = made.ignored
    assert "not guaranteed: a complete output when max_tokens is reached" in told
    assert "cannot be translated (line 2: expected a definition" in told
    grammar = load(made, backends).new()
    assert isinstance(grammar, OpaqueGrammar)
    assert not grammar.closes
    vocabulary = backends.vocabulary
    theirs = backends.get("llguidance").load(AS_IT_IS)
    for token in vocabulary.encode_bytes(b"<abc;>"):
        row = grammar.mask().copy()
        theirs.fill(row)
        assert not ((grammar.mask() ^ row) & vocabulary.text_mask).any()
        assert grammar.fits(token, 0)
        assert not grammar.is_terminated()
        assert grammar.accept(token)
        assert theirs.accept(token)
    assert grammar.is_terminated()
    assert grammar.closing() == []
    grammar.rollback(1)
    assert not grammar.is_terminated()
    assert not accept(backends, grammar, "x")
    assert accept(backends, grammar, ">")
    assert grammar.accept(vocabulary.eos_ids[0])
    assert not (grammar.mask() & ~vocabulary.eos_mask).any()
    grammar.rollback(1)
    assert grammar.is_terminated()


@pytest.mark.parametrize("has_own_end", [False, True])
def test_equal_masks_are_sent_once(backends: Backends, has_own_end: bool) -> None:
    vocabulary = backends.vocabulary
    own = set(vocabulary.control_tokens.values()) - set(vocabulary.eos_ids)
    template = load(compiled(backends, LOOPING), backends)
    grammar, other = (template.new([min(own)] if has_own_end else ()) for _ in range(2))
    table = MaskTable(256, len(vocabulary.eos_mask))
    sent = []
    for token in vocabulary.encode_bytes(b"a;b;c;") * 3:
        masks = [grammar.mask(), other.mask()]
        assert masks[0] is masks[1]
        before = masks[0].copy()
        sent.append(len(unpack_i32(table.message(1, [0, 1], [0, 0], masks[:1]).new)))
        assert grammar.accept(token)
        assert other.accept(token)
        assert (masks[0] == before).all()
    assert sum(sent) == 2  # at the beginning and behind a semicolon, and behind a letter


def test_masks_are_kept_within_a_bound(backends: Backends) -> None:
    template = load(compiled(backends, AS_IT_IS), backends)
    assert isinstance(template, OpaqueTemplate)
    first = template.kept(backends.vocabulary.mask_of([1]))
    for i in range(2, MAX_KEPT + 1):
        template.kept(backends.vocabulary.mask_of([i]))
    assert template.kept(backends.vocabulary.mask_of([1])) is first
    for i in range(MAX_KEPT + 1, 2 * MAX_KEPT + 1):
        template.kept(backends.vocabulary.mask_of([i]))
    assert template.kept(backends.vocabulary.mask_of([1])) is not first


@pytest.mark.parametrize(
    ("source", "options", "param", "text"),
    [
        (AS_IT_IS, {"stop": ("\n",)}, "stop", "may produce a stop string"),
        (AS_IT_IS, {"backend": "xgrammar"}, "backend", "as it is"),
        ('start: "a" missing', {}, "ebnf", "'missing' is not defined"),
        ("no grammar at all", {}, "ebnf", "llguidance refuses the grammar"),
        ("start: a\na: a", {}, "ebnf", "no text satisfies"),
        ("start: <|missing|>", {}, "ebnf", "does not have"),
    ],
)
def test_what_is_refused(backends: Backends, source: str, options: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(RequestError, match=re.escape(text)) as refused:
        compiled(backends, source, **options)
    assert refused.value.param == param
