"""Tokenizes choices after a prompt, with token healing at the boundary between them.

If a prompt ends in a text, its last tokens may differ from those with a choice after it: "Answer: " and "yes" are not
tokenized as "Answer: yes". Therefore the prompt's last run of texts is tokenized together with each choice. The tokens
that all results share with the prompt alone are kept; the choices are the tokens after these. A prompt that ends in
token ids is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radixrt.errors import RequestError
from radixrt.messages.parts import PromptPart
from radixrt.tokenizer.prompt_parts import PartsEncoder, Text, pieces

TAIL_CHARS = 128
"""Only the end of a long text is tokenized again for each choice: from a word that begins at least so far back."""
TAIL_TRIES = 8
MAX_TOKENIZED_CHARS = 64 * 1024 * 1024
"""Limit for the choices of one request together with the text that is tokenized again before each."""


@dataclass(frozen=True)
class ChoiceTokens:
    """Token ids of a prompt and of the choices after it.

    Attributes:
        prompt_ids: token ids of the prompt without a choice.
        kept: number of leading prompt tokens that precede every choice.
        token_ids: token ids of each choice after these; none is empty.
    """

    prompt_ids: list[int]
    kept: int
    token_ids: list[list[int]]


def encode_choices(
    encoder: PartsEncoder, prefix: Sequence[int], parts: Sequence[PromptPart], param: str, choices: Sequence[str]
) -> ChoiceTokens:
    """Tokenize the choices after a prompt.

    Args:
        prefix: token ids in front of the parts.
        param: the client's name for the parts.

    Raises:
        RequestError: a part is not valid (see `PartsEncoder.encode`), a choice adds no token, or there is too much
            text; names the part or the choice.
    """
    ids = list(prefix)
    run: tuple[Text, ...] = ()
    run_ids: list[int] = []
    for piece in pieces(parts, param):
        ids += run_ids
        run, run_ids = ((), piece) if isinstance(piece, list) else (piece, encoder.encode_run(piece))
    if not any(text for _, text, _ in run):
        run = ()
    prompt_ids = ids + run_ids
    head_len, tail = len(prompt_ids), run
    if run:
        head_len, tail = _cut(encoder, run, prompt_ids, len(ids))
    _check_size(tail, choices)
    after = prompt_ids[head_len:]
    encoded = [encoder.encode_run([*tail, (f"choices[{i}]", text, False)]) for i, text in enumerate(choices)]
    common = min(_common_len(after, each) for each in encoded)
    for i, each in enumerate(encoded):
        if len(each) == common:
            raise RequestError(f"choices[{i}] adds no token to the prompt", param=f"choices[{i}]")
    return ChoiceTokens(prompt_ids, head_len + common, [each[common:] for each in encoded])


def _cut(
    encoder: PartsEncoder, run: tuple[Text, ...], prompt_ids: list[int], start: int
) -> tuple[int, tuple[Text, ...]]:
    """Find a point near the end of the run at which it can be cut without changing its tokens.

    Args:
        start: number of prompt tokens before the run.

    Returns:
        The number of prompt tokens before that point, and the texts after it.
    """
    for at in _word_starts("".join(text for _, text, _ in run)):
        tail = _from(run, at)
        ids = encoder.encode_run(tail)
        cut = len(prompt_ids) - len(ids)
        if cut >= start and prompt_ids[cut:] == ids:
            return cut, tail
    return start, run


def _word_starts(text: str) -> Iterator[int]:
    """Yield offsets of words (with their space) at least TAIL_CHARS before the end of the text, the last ones first."""
    at, tries = len(text) - TAIL_CHARS, 0
    while at > 0 and tries < TAIL_TRIES:
        if text[at].isspace() and not text[at - 1].isspace():
            tries += 1
            yield at
        at -= 1


def _from(run: tuple[Text, ...], at: int) -> tuple[Text, ...]:
    """Return the texts from character `at` on."""
    rest = []
    for name, text, is_template in run:
        if at < len(text):
            rest.append((name, text[at:], is_template))
        at = max(at - len(text), 0)
    return tuple(rest)


def _check_size(tail: Sequence[Text], choices: Sequence[str]) -> None:
    size = sum(map(len, choices)) + len(choices) * sum(len(text) for _, text, _ in tail)
    if size > MAX_TOKENIZED_CHARS:
        raise RequestError(
            f"the choices, each with the text before it, have {size} characters; at most {MAX_TOKENIZED_CHARS} can be "
            "scored at once",
            param="choices",
        )


def _common_len(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
