"""The languages that the two mask libraries make of a grammar, by walking all texts over a small alphabet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

SPECIALS = ("<|end|>", "<call>", "</call>")


@cache
def _llguidance_tokenizer() -> Any:
    """One token for each byte, by its value in the order of `tokenizers`' byte alphabet, then the control tokens."""
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return LLTokenizer(tokenizer.to_str(), eos_token=len(alphabet))


def special_ids() -> dict[str, int]:
    return {name: 256 + i for i, name in enumerate(SPECIALS)}


def byte_ids(data: bytes) -> list[int]:
    tokenizer = _llguidance_tokenizer()
    return [tokenizer.tokenize_bytes(bytes([byte]))[0] for byte in data]


def llguidance_matcher(lark: str) -> Any:
    from llguidance import LLMatcher

    matcher = LLMatcher(_llguidance_tokenizer(), LLMatcher.grammar_from_lark(lark), log_level=0)
    assert not matcher.is_error(), f"{matcher.get_error()}\n{lark}"
    return matcher


def llguidance_accepts(lark: str, *pieces: str | bytes | int) -> bool:
    """Return True if the whole of the pieces, texts and token ids, is a sentence."""
    matcher = llguidance_matcher(lark)
    tokens: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            tokens += byte_ids(piece.encode() if isinstance(piece, str) else piece)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def llguidance_language(lark: str, alphabet: str, longest: int) -> set[str]:
    matcher = llguidance_matcher(lark)
    tokens = {char: byte_ids(char.encode())[0] for char in alphabet}

    def accept(char: str) -> bool:
        return bool(matcher.try_consume_tokens([tokens[char]]) == 1)

    return _walk(alphabet, longest, matcher.is_accepting, accept, lambda: matcher.rollback(1), matcher.is_stopped)


@cache
def _xgrammar_compiler() -> Any:
    import xgrammar

    info = xgrammar.TokenizerInfo(
        [bytes([i]) for i in range(256)] + [b"<eos>"], xgrammar.VocabType.RAW, vocab_size=257, stop_token_ids=[256]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def xgrammar_matcher(ebnf: str) -> Any:
    import xgrammar

    return xgrammar.GrammarMatcher(_xgrammar_compiler().compile_grammar(ebnf))


def xgrammar_accepts(ebnf: str, text: str) -> bool:
    matcher = xgrammar_matcher(ebnf)
    return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.is_completed()


def xgrammar_language(ebnf: str, alphabet: str, longest: int) -> set[str]:
    matcher = xgrammar_matcher(ebnf)

    def accept(char: str) -> bool:
        return bool(matcher.accept_token(ord(char)))

    return _walk(alphabet, longest, matcher.is_completed, accept, lambda: matcher.rollback(1), lambda: False)


def _walk(
    alphabet: str,
    longest: int,
    is_complete: Callable[[], bool],
    accept: Callable[[str], bool],
    undo: Callable[[], object],
    must_end: Callable[[], bool],
) -> set[str]:
    found: set[str] = set()

    def go(text: str) -> None:
        if is_complete():
            found.add(text)
        if len(text) == longest or must_end():
            return
        for char in alphabet:
            if accept(char):
                go(text + char)
                undo()

    go("")
    return found
