"""xgrammar: an Earley parser over character-level rules with masks computed ahead. The only module that imports it.

Importing it loads torch: 2.2 s, 260 MB, and the interpreter held for up to 0.2 s at a time, so it happens when a
request first needs it. Measured here (49,152 tokens): compiling takes 2 ms to minutes and cannot be interrupted, a mask
1 to 10 us where the grammar suits it and up to half a second where not, a fork 1 us, accept 1 us. It takes control
tokens for text and knows no grammar symbol for them; the masks are cut down by `TextGrammar`.

A compiled grammar crosses processes as JSON where that is worth it: 75 KB in memory are 0.16 MB of JSON, written in
4.5 ms and read in 2.2 ms, but 17 MB are 362 MB, written in 26 s and read in 4 s. Smaller ones are compiled again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixrt.constrained.backends.borders import Borders
from radixrt.constrained.backends.ebnf_writer import to_ebnf
from radixrt.constrained.backends.matcher import GrammarBackend, GrammarError, Matcher
from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.constrained.productions import Productions
from radixrt.constrained.vocabulary import Vocabulary

MAX_SERIALIZED_BYTES = 1024 * 1024
"""A larger one takes longer to load than it is worth: 17 MB in memory are 362 MB of text, 4 s to load."""


class XgrammarBackend(GrammarBackend):
    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar: Any = xgrammar
        self._vocabulary = vocabulary
        self._borders = Borders(vocabulary)
        names = {i: text.encode() for text, i in vocabulary.control_tokens.items()}
        tokens = [data or names.get(i, b"") for i, data in enumerate(vocabulary.table)]
        self._info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=vocabulary.vocab_size, stop_token_ids=list(vocabulary.eos_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)

    def write(self, productions: Productions) -> str:
        return to_ebnf(productions)

    def load(self, source: str, serialized: str | None = None) -> Matcher:
        try:
            if serialized is not None:
                compiled = self._xgrammar.CompiledGrammar.deserialize_json(serialized, self._info)
            else:
                compiled = self._compiler.compile_grammar(source)
        except Exception as error:  # the library raises bare RuntimeError, whose text quotes the whole grammar
            raise GrammarError(f"xgrammar refuses the grammar: {_reason(error)}") from None
        return XgrammarMatcher(self._xgrammar.GrammarMatcher(compiled), self._vocabulary, self._borders, compiled)

    def serialize(self, prototype: Matcher) -> str | None:
        assert isinstance(prototype, XgrammarMatcher)
        if prototype.compiled.memory_size_bytes > MAX_SERIALIZED_BYTES // 2:
            return None
        text: str = prototype.compiled.serialize_json()
        return text if len(text) <= MAX_SERIALIZED_BYTES else None


class XgrammarMatcher(Matcher):
    """See the module's docstring."""

    __slots__ = ("_borders", "_matcher", "_vocabulary", "compiled")

    def __init__(self, matcher: Any, vocabulary: Vocabulary, borders: Borders, compiled: Any) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._borders = borders
        self.compiled = compiled

    def fill(self, row: Bitmask) -> None:
        self._matcher.fill_next_token_bitmask(row.view(np.int32)[None])

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def may_end(self) -> bool:
        return bool(self._matcher.is_completed())

    def must_end(self) -> bool:
        if not self._matcher.is_completed():
            return False
        row = np.zeros(bitmask_words(self._vocabulary.vocab_size), np.uint32)
        self.fill(row)
        return not np.bitwise_and(row, self._vocabulary.text_mask).any()

    def forced(self) -> list[int]:
        try:
            text: str = self._matcher.find_jump_forward_string()
        except UnicodeDecodeError:  # the forced bytes are the rest of a character
            return []
        if not text:
            return []
        after = self._matcher.fork()
        if not after.accept_string(text):
            raise GrammarError("xgrammar does not take the text that it forces")
        row = np.zeros(bitmask_words(self._vocabulary.vocab_size), np.uint32)
        after.fill_next_token_bitmask(row.view(np.int32)[None])
        row &= self._vocabulary.text_mask
        return self._borders.certain_tokens(text.encode(), self._borders.first_bytes(row))

    def fork(self) -> Matcher:
        return XgrammarMatcher(self._matcher.fork(), self._vocabulary, self._borders, self.compiled)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__
