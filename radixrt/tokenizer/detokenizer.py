"""Incremental detokenization: converts token ids to text and emits text as soon as it is final.

For any split into chunks, the concatenated results of `push` and `flush` are the text of the whole sequence. That text
equals the decoding of the `tokenizers` library, with one exception: a run of byte-fallback tokens that is only partly
invalid UTF-8. The library also replaces the valid characters of such a run, which is unknown before the run ends; here
they have been emitted already, and only the invalid bytes become U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

MAX_WINDOW_TOKENS = 64
"""Largest number of tokens that `WindowDetokenizer` holds back while the text ends in U+FFFD."""


class Detokenizer(Protocol):
    """Detokenizer of one sequence of tokens. The cost of a token does not depend on the sequence's length."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return the text that these tokens complete; never half a code point. Unknown ids add no text."""

    def flush(self) -> str:
        """Return the text that is held back at the end: U+FFFD for incomplete characters."""


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: one U+FFFD for each invalid byte, as the ByteFallback decoder does."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("radixrt_each_byte", _replace_each_byte)


class ByteDetokenizer:
    """Detokenizer for decoders that map each token to a fixed byte string (see `token_bytes`).

    Args:
        table: bytes of each token id; b"" for excluded tokens.
        errors: codec error handler for bytes that are not UTF-8.
        first_bytes: function from a text's first token to its bytes, or to None for an excluded token; None if the
            first token is converted like any other.
        strip_char, strip_left: character to strip from the start of the text, and the largest number to strip.
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
        """Number of bytes of an incomplete character that are held back: at most 3."""
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
    """Detokenizer of requests with detokenize=False: emits no text."""

    __slots__ = ()

    def push(self, token_ids: Sequence[int]) -> str:
        return ""

    def flush(self) -> str:
        return ""


class WindowDetokenizer:
    """Detokenizer for any other decoder: decodes a short window of tokens with and without the new ones.

    The window holds the tokens of the last emitted chunk, as context, and the tokens after it; the difference of the
    two texts is emitted. This is the method of text-generation-inference and vLLM (prefix_offset and read_offset).

    Args:
        decode: converts a list of tokens to text.
        keeps: whether a token is part of the text.
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
