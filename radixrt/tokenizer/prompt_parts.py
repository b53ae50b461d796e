"""Tokenizes prompts in parts: users' texts, texts of the chat template, and token ids.

A run of adjacent texts is tokenized as one text, so that its ids equal those of a chat that is rendered and tokenized
at once. A control token is recognized only in a template's text: if a user's text contains or completes the text of
one, the run is cut after the first character of that text, and the pieces are tokenized one by one. Everything else
keeps the ids that it has without the cut.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, groupby

from radixrt.errors import RequestError
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.tokenizer.fill_in import fill_in_texts
from radixrt.tokenizer.tokenizer import Tokenizer

Text = tuple[str, str, bool]
"""Text of a run: the client's name for the part, the text, and whether the chat template wrote it."""

INPUT_PARTS = "input_parts"
"""Client's name for a prompt in parts; errors about such a prompt name the part by its index."""


class PartsEncoder:
    """Encoder of prompts in parts for one tokenizer.

    Args:
        control_tokens: texts of the added tokens that a user's text cannot write; default: the special tokens, and
            those for filling in the middle.
        announce: called before a text is encoded, with its number of characters.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        control_tokens: Collection[str] | None = None,
        announce: Callable[[int], None] = lambda chars: None,
    ) -> None:
        self._tokenizer = tokenizer
        self._announce = announce
        texts = control_tokens
        if texts is None:
            texts = {*tokenizer.special_texts.values(), *fill_in_texts(tokenizer.control_tokens)}
        ordered = sorted(texts, key=len, reverse=True)  # the longest first, as the library
        self._control = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._never = {tokenizer.token_to_id(text) for text in ordered} - tokenizer.unknown_ids

    def encode(self, parts: Sequence[PromptPart], param: str) -> list[int]:
        """Encode a prompt, without bos.

        Args:
            param: the client's name for the prompt.

        Raises:
            RequestError: a text is not valid Unicode, or this tokenizer cannot encode it without control tokens.
        """
        ids: list[int] = []
        for piece in pieces(parts, param):
            ids += piece if isinstance(piece, list) else self.encode_run(piece)
        return ids

    def encode_run(self, run: Sequence[Text]) -> list[int]:
        """Encode adjacent texts, without bos; raises as `encode` does."""
        for name, text, _ in run:
            _check_unicode(text, name)
        ids: list[int] = []
        for piece, num_control in self._cut(run):
            encoded = self._encode(piece)
            if sum(token in self._never for token in encoded) > num_control:
                self._check_users_texts(run)
            ids += encoded
        return ids

    def has_control_token(self, text: str) -> bool:
        """Return whether the text contains the text of a control token."""
        return self._control is not None and self._control.search(text) is not None

    def _cut(self, run: Sequence[Text]) -> Iterator[tuple[str, int]]:
        """Yield the pieces of the run's text, each with the number of control tokens that the template wrote in it."""
        joined = "".join(text for _, text, _ in run)
        ends = list(accumulate(len(text) for _, text, _ in run))
        users = [
            (end - len(text), end)
            for (_, text, is_template), end in zip(run, ends, strict=True)
            if text and not is_template
        ]
        user_ends = [end for _, end in users]
        start = at = count = 0
        while self._control is not None and (match := self._control.search(joined, at)) is not None:
            first = bisect_right(user_ends, match.start())  # the first user's text that ends behind the match's start
            if first < len(users) and users[first][0] < match.end():
                at = match.start() + 1
                yield joined[start:at], count
                start, count = at, 0
            else:
                count += 1
                at = match.end()
        yield joined[start:], count

    def _encode(self, piece: str) -> list[int]:
        self._announce(len(piece))
        return self._tokenizer.encode(piece, add_special_tokens=False)

    def _check_users_texts(self, run: Sequence[Text]) -> None:
        """Refuse users' texts that the tokenizer reads as control tokens although they are spelled differently."""
        for name, text, is_template in run:
            if is_template:
                continue
            for piece, _ in self._cut([(name, text, is_template)]):
                ids = self._encode(piece)
                found = next((token for token in ids if token in self._never), None)
                if found is not None:
                    raise RequestError(
                        f"{name}: this model's tokenizer cannot write {self._tokenizer.token_text(found)!r} as plain "
                        "text; it is a control token, which only the chat template may write",
                        param=name,
                    )


def pieces(parts: Sequence[PromptPart], param: str) -> Iterator[list[int] | tuple[Text, ...]]:
    """Yield the prompt's token ids and runs of adjacent texts, in order."""
    for is_ids, group in groupby(enumerate(parts), key=lambda item: isinstance(item[1], list)):
        if is_ids:
            yield [token for _, part in group if isinstance(part, list) for token in part]
        else:
            yield tuple(_text(part, _name(param, i)) for i, part in group if not isinstance(part, list))


def _name(param: str, index: int) -> str:
    return f"{param}[{index}]" if param == INPUT_PARTS else param


def _text(part: str | TemplateText, name: str) -> Text:
    return (name, part, False) if isinstance(part, str) else (name, part.template, True)


def _check_unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} holds half of a surrogate pair, which is not text", param=param) from error
