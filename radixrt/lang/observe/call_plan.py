"""Plan of a program from its dry run: the calls, the length of each prompt, and the prefixes that prompts share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.lang.observe.planned_sharing import shared_lengths
from radixrt.lang.observe.run_log import TEXT_KINDS, CallRecord, PictureRecord, RunLog
from radixrt.lang.observe.shared_prefix import common_prefix, ids_of
from radixrt.messages.images import MAX_KEY

LEAST_SAVED = 0.005
"""Prefixes that save less than this share of all saved tokens are excluded from the list."""

PREVIEW_CHARS = 60


@dataclass(frozen=True)
class PlannedCall:
    """A call that the program will make.

    Attributes:
        id: number within the explanation, by which `depends` refers to calls.
        branch: id of the call's branch.
        branch_key: key of the branch in `fork`.
        max_tokens: limit of the output; None for the context's end, a select, an embed or a rerank.
        length: length of the prompt, without outputs of calls.
        shared: part of the length that is cached when the call comes; see `shared_lengths`.
        outputs: ids of the calls whose outputs are in the prompt.
        pictures: pictures in the prompt.
        picture_tokens: part of the length that they take.
    """

    id: int
    name: str
    kind: str
    type: str
    branch: str
    branch_key: str
    depends: tuple[int, ...]
    max_tokens: int | None
    length: int
    shared: int
    outputs: tuple[int, ...]
    pictures: tuple[PictureRecord, ...] = ()
    picture_tokens: int = 0

    @property
    def label(self) -> str:
        name = self.name or self.kind
        return name if self.type in ("", "str") or self.kind in ("select", *TEXT_KINDS) else f"{name}: {self.type}"


@dataclass(frozen=True)
class SharedPrefix:
    """A prefix that several prompts share.

    Attributes:
        length: length with placeholders for outputs.
        saved: length saved by sharing the prefix, beyond the savings of shorter prefixes.
        end: end of the prefix's text.
    """

    length: int
    saved: int
    calls: tuple[int, ...]
    end: str


def planned_calls(log: RunLog) -> list[PlannedCall]:
    records = {call.id: call for call in log.calls if call.prompt_ids is not None or call.kind in TEXT_KINDS}
    outputs = {number: () if call.kind in TEXT_KINDS else _outputs(call, records) for number, call in records.items()}
    shared = shared_lengths(records, outputs)
    planned: list[PlannedCall] = []
    for call in records.values():
        generated = sum(len(records[other].output_ids or ()) for other in outputs[call.id])
        most = None if call.sampling is None else call.sampling.max_tokens
        planned.append(
            PlannedCall(
                id=call.id,
                name=call.name,
                kind=call.kind,
                type=call.type,
                branch=call.branch,
                branch_key=log.branches[call.branch].key,
                depends=call.depends,
                max_tokens=most,
                length=max(call.prompt_tokens - generated, 0),
                shared=shared.get(call.id, 0),
                outputs=outputs[call.id],
                pictures=call.pictures,
                picture_tokens=sum(token <= MAX_KEY for token in ids_of(call)) if call.pictures else 0,
            )
        )
    return planned


def _outputs(call: CallRecord, records: Mapping[int, CallRecord]) -> tuple[int, ...]:
    """Return the ids of the calls whose outputs are in the prompt: joined calls, and calls of the same transcript."""
    found: dict[int, None] = {}
    at: CallRecord | None = call
    while at is not None:
        before = None
        for number in at.depends:
            other = records.get(number)
            if other is None:
                continue
            found[number] = None
            if at.prompt_text.startswith(other.prompt_text + other.text):
                before = other
        at = before
    return tuple(sorted(found))


def shared_prefixes(log: RunLog) -> list[SharedPrefix]:
    """Longest prefixes that at least two prompts share, except small ones, such as the first digit of numbers."""
    calls = sorted((call for call in log.calls if call.prompt_ids), key=lambda call: list(ids_of(call)))
    lengths = [common_prefix(ids_of(a), ids_of(b)) for a, b in itertools.pairwise(calls)]
    found: list[SharedPrefix] = []
    opened: list[tuple[int, int]] = []  # (length, index of its first call), longer ones later
    for i, length in enumerate([*lengths, 0]):
        first = i
        while opened and opened[-1][0] > length:
            of, first = opened.pop()
            within = max(length, opened[-1][0] if opened else 0)
            group = calls[first : i + 1]
            chars = min(common_prefix(group[0].prompt_text, other.prompt_text) for other in group[1:])
            end = group[0].prompt_text[max(chars - PREVIEW_CHARS, 0) : chars]
            saved = (of - within) * (len(group) - 1)
            found.append(SharedPrefix(of, saved, tuple(sorted(call.id for call in group)), end))
        if length and (not opened or opened[-1][0] < length):
            opened.append((length, first))
    least = sum(prefix.saved for prefix in found) * LEAST_SAVED
    worth = [prefix for prefix in found if prefix.saved > least]
    return sorted(worth, key=lambda prefix: (-prefix.saved, -prefix.length))
