"""Tokenizes prompts in parts: users' texts, texts of the chat template, and token ids.

A run of adjacent texts is tokenized as one text, so that its ids equal those of a chat that is rendered and tokenized
at once. A control token (a special token of the tokenizer) is recognized only in a template's text: if a user's text
contains or completes one, each text of that run is tokenized separately, the user's as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby

from radixrt.errors import RequestError
from radixrt.messages.parts import PromptPart, TemplateText
from radixrt.tokenizer.tokenizer import Tokenizer

Text = tuple[str, str, bool]
"""Text of a run: the client's name for the part, the text, and whether the chat template wrote it."""


class PartsEncoder:
    """Encoder of prompts in parts for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        texts = sorted(tokenizer.special_texts.values(), key=len, reverse=True)  # the longest first, as the library
        self._special = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._never = tokenizer.special_ids - tokenizer.unknown_ids

    def encode(self, parts: Sequence[PromptPart], param: str) -> list[int]:
        """Encode a prompt. If its first part is a user's text, the tokens that begin a text (bos) come first.

        Args:
            param: the client's name for the list of parts; errors name it with an index.

        Raises:
            RequestError: a text is not valid Unicode, or this tokenizer cannot encode it without control tokens.
        """
        ids = list(self._tokenizer.prefix_ids) if parts and isinstance(parts[0], str) else []
        for piece in pieces(parts, param):
            ids += piece if isinstance(piece, list) else self.encode_run(piece)
        return ids

    def encode_run(self, run: Sequence[Text]) -> list[int]:
        """Encode adjacent texts, without bos; raises as `encode` does."""
        for name, text, _ in run:
            _check_unicode(text, name)
        joined = "".join(text for _, text, _ in run)
        num_special = self._count_special(run, joined)
        if num_special is not None:
            ids = self._tokenizer.encode(joined, add_special_tokens=False)
            if sum(token in self._never for token in ids) == num_special:
                return ids
        return [token for part in run for token in self._encode_alone(part)]

    def _count_special(self, run: Sequence[Text], joined: str) -> int | None:
        """Count the control tokens in the run's template texts; None if one extends into a user's text."""
        if self._special is None:
            return 0
        ends = list(accumulate(len(text) for _, text, _ in run))
        users = [
            (end - len(text), end) for (_, text, is_template), end in zip(run, ends, strict=True) if not is_template
        ]
        count = 0
        for match in self._special.finditer(joined):
            if any(start < match.end() and match.start() < end for start, end in users):
                return None
            count += 1
        return count

    def _encode_alone(self, part: Text) -> list[int]:
        name, text, is_template = part
        if is_template:
            return self._tokenizer.encode(text, add_special_tokens=False)
        ids = self._tokenizer.encode_plain(text)
        found = next((token for token in ids if token in self._never), None)
        if found is not None:
            raise RequestError(
                f"{name}: this model's tokenizer cannot write {self._tokenizer.token_text(found)!r} as plain "
                'text; it is a control token, which only a {"template": ...} part may hold',
                param=name,
            )
        return ids


def pieces(parts: Sequence[PromptPart], param: str) -> Iterator[list[int] | tuple[Text, ...]]:
    """Yield the prompt's token ids and runs of adjacent texts, in order."""
    for is_ids, group in groupby(enumerate(parts), key=lambda item: isinstance(item[1], list)):
        if is_ids:
            yield [token for _, part in group if isinstance(part, list) for token in part]
        else:
            yield tuple(_text(part, f"{param}[{i}]") for i, part in group if not isinstance(part, list))


def _text(part: str | TemplateText, name: str) -> Text:
    return (name, part, False) if isinstance(part, str) else (name, part.template, True)


def _check_unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} holds half of a surrogate pair, which is not text", param=param) from error
