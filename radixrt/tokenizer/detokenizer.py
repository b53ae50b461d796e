"""Incremental detokenization: token ids in, text out, as early as it is certain.

Whatever the chunks, the concatenation of all that `push` returned and of `flush` is the text of the whole sequence. It
equals `tokenizers`' own decoding with one exception: a run of byte-fallback tokens that is invalid UTF-8 only in
part. The library replaces the valid characters of such a run too, which cannot be known before the run ends; here they
have been emitted, and only the invalid bytes become U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_WINDOW_TOKENS = 64
"""Tokens that `WindowDetokenizer` holds back at most while the text ends in U+FFFD."""


class Detokenizer(Protocol):
    """The text of one sequence of tokens. Cost per token does not depend on the sequence's length."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete; never half a code point. Ids that no token has add nothing."""

    def flush(self) -> str:
        """What is still held back, at the end: U+FFFD for bytes that were never completed."""


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: one U+FFFD for each invalid byte, as the ByteFallback decoder does."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("radixrt_each_byte", _replace_each_byte)


class ByteDetokenizer:
    """For decoders under which a token is a fixed string of bytes (see `token_bytes`).

    Args:
        table: bytes of each token id; b"" for tokens to leave out.
        errors: codec error handler for bytes that are not UTF-8.
        first_bytes: bytes of a token that stands first, or None for one that is left out; None where the first token
            is like any other.
        strip_char, strip_left: stripped off the text's start.
    """

    __slots__ = ("_errors", "_first_bytes", "_pending", "_strip_char", "_strip_left", "_table")

    def __init__(
        self,
        table: list[bytes],
        *,
        errors: str = "replace",
        first_bytes: Callable[[int], bytes | None] | None = None,
        strip_char: str = " ",
        strip_left: int = 0,
    ) -> None:
        self._table = table
        self._errors = errors
        self._first_bytes = first_bytes
        self._strip_char = strip_char
        self._strip_left = strip_left
        self._pending = b""

    @property
    def bytes_held(self) -> int:
        """Bytes that wait for the rest of their character: 3 at most."""
        return len(self._pending)

    def push(self, token_ids: Sequence[int]) -> str:
        if self._first_bytes is not None:
            data = self._pending + self._join_with_first(token_ids, self._first_bytes)
        elif len(token_ids) == 1:
            data = self._pending + self._bytes_of(token_ids[0])
        else:
            data = self._pending + b"".join(map(self._bytes_of, token_ids))
        text, used = codecs.utf_8_decode(data, self._errors, False)
        self._pending = data[used:]
        return self._stripped(text) if self._strip_left else text

    def flush(self) -> str:
        text, _ = codecs.utf_8_decode(self._pending, self._errors, True)
        self._pending = b""
        return self._stripped(text) if self._strip_left else text

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"{token_id} is not a token id")
        # Models pad their vocabulary beyond the tokenizer's; such ids have no text.
        return self._table[token_id] if token_id < len(self._table) else b""

    def _join_with_first(self, token_ids: Sequence[int], first_bytes: Callable[[int], bytes | None]) -> bytes:
        for i, token_id in enumerate(token_ids):
            first = first_bytes(token_id)
            if first is not None:
                self._first_bytes = None
                return first + b"".join(map(self._bytes_of, token_ids[i + 1 :]))
        return b""

    def _stripped(self, text: str) -> str:
        for char in text:
            if char != self._strip_char:
                self._strip_left = 0
            if not self._strip_left:
                break
            self._strip_left -= 1
            text = text[1:]
        return text


class IdsOnly:
    """For an output whose text nobody wants."""

    __slots__ = ()

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class WindowDetokenizer:
    """For any other decoder: decodes a short window of tokens twice and emits what the second has more.

    The window is the last chunk that was emitted, as context, and the tokens since. (The method of
    text-generation-inference and vLLM, there called prefix_offset and read_offset.)

    Args:
        decode: text of a list of tokens.
        keeps: whether a token is part of the text at all.
    """

    __slots__ = ("_context", "_decode", "_keeps", "_window", "tokens_decoded")

    def __init__(self, decode: Callable[[list[int]], str], keeps: Callable[[int], bool]) -> None:
        self._decode = decode
        self._keeps = keeps
        self._window: list[int] = []
        self._context = 0  # the first so many tokens of the window have been emitted
        self.tokens_decoded = 0  # work done, for tests

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join([self._push_one(token_id) for token_id in token_ids if self._keeps(token_id)])

    def flush(self) -> str:
        return self._emit(final=True)

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        return self._emit(final=len(self._window) - self._context >= MAX_WINDOW_TOKENS)

    def _emit(self, *, final: bool) -> str:
        if len(self._window) == self._context:
            return ""
        before = self._decode(self._window[: self._context]) if self._context else ""
        after = self._decode(self._window)
        self.tokens_decoded += self._context + len(self._window)
        if not final and (after.endswith("\ufffd") or len(after) <= len(before)):
            return ""
        del self._window[: self._context]
        self._context = len(self._window)
        return after[len(before) :]
