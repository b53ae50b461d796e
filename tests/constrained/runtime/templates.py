"""Grammars of several kinds, their templates, and random outputs of them."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import make_completions
from radixrt.constrained.grammar import Bitmask
from radixrt.constrained.matcher import BackendName
from radixrt.constrained.productions import Lit, Productions, Ref, Rep, Seq, Special, Term, alt, optional, postorder
from radixrt.constrained.regex import ANY, integer_range, json_string, parse_regex
from radixrt.constrained.runtime.text_grammar import TextGrammar, TextTemplate
from radixrt.constrained.vocabulary import Vocabulary, split_utf8
from tests.constrained.vocabularies import allowed

BACKENDS: tuple[BackendName, ...] = ("llguidance", "xgrammar")

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
