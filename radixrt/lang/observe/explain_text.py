"""An `Explanation` as a text for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from radixrt.lang.observe.run_log import BranchRecord

if TYPE_CHECKING:
    from radixrt.lang.observe.explain import Explanation, PlannedCall

FULL_FORK = 8
"""Branches of a fork that the text lists; of a larger one it lists the first."""

MAX_LINES = 24
"""Calls and forks of one branch that the text lists."""

MAX_PREFIXES = 8


def lines_of(made: Explanation) -> Iterator[str]:
    """The text's lines."""
    share = made.shared / made.length if made.length else 0.0
    certain = " with these placeholders" if made.notes else ""
    yield f"{made.name} on {made.backend}: {count(len(made.calls), 'call')}{certain}"
    yield (
        f"prompts of {made.length:,} {made.unit}, of which {made.shared:,} are shared ({share:.0%}) and "
        f"{made.length - made.shared:,} computed; and what calls generate"
    )
    yield ""
    yield from _Tree(made).lines(made.calls[0].branch.partition("/")[0] if made.calls else "0", 0)
    if made.prefixes:
        yield ""
        yield "shared prefixes"
        for prefix in made.prefixes[:MAX_PREFIXES]:
            yield f"  {prefix.length:>7,} {made.unit} by {len(prefix.calls):,} calls, up to {_preview(prefix.end)}"
        if len(made.prefixes) > MAX_PREFIXES:
            yield f"  and {len(made.prefixes) - MAX_PREFIXES:,} that save less"
    for note in made.notes:
        yield ""
        yield f"not certain: {note}"


class _Tree:
    def __init__(self, made: Explanation) -> None:
        self._made = made
        self._names = {call.id: call.label for call in made.calls}
        self._calls: dict[str, list[PlannedCall]] = {}
        self._forks: dict[str, dict[int, list[BranchRecord]]] = {}
        for call in made.calls:
            self._calls.setdefault(call.branch, []).append(call)
        busy = {path for call in made.calls for path in _paths(call.branch)}
        for branch in made.log.branches.values():
            if branch.parent is not None and branch.id in busy:
                self._forks.setdefault(branch.parent, {}).setdefault(branch.group, []).append(branch)

    def lines(self, branch: str, depth: int) -> Iterator[str]:
        """Forks stand where they branch off: behind the call whose output they begin with."""
        indent = "  " * depth
        forks = list(self._forks.get(branch, {}).values())
        queued = {call.id: call.queued for call in self._made.log.calls}
        events: list[tuple[float, PlannedCall | list[BranchRecord]]] = [(group[0].created, group) for group in forks]
        events += [(queued[call.id], call) for call in self._calls.get(branch, ())]
        events.sort(key=lambda item: item[0])
        for _, event in events[:MAX_LINES]:
            if not isinstance(event, list):
                yield f"{indent}{self._call(event)}"
                continue
            if len(event) == 1:
                yield f"{indent}a copy:"
                yield from self.lines(event[0].id, depth + 1)
                continue
            yield f"{indent}fork into {len(event):,}:"
            for child in event[: FULL_FORK if len(event) <= FULL_FORK else 1]:
                yield f"{indent}  {child.key or child.id}:"
                yield from self.lines(child.id, depth + 2)
            if len(event) > FULL_FORK:
                yield f"{indent}  and {len(event) - 1:,} more"
        if len(events) > MAX_LINES:
            yield f"{indent}and so on: {len(events) - MAX_LINES:,} more"

    def _call(self, call: PlannedCall) -> str:
        unit = self._made.unit
        inside = f" + {self._outputs(call.outputs)}" if call.outputs else ""
        shared = f", {call.shared:,} shared" if call.shared else ", all new"
        most = "" if call.max_tokens is None else f" -> at most {call.max_tokens:,} tokens"
        return f"{call.label}  {count(call.length, unit[:-1])}{inside}{shared}{most}"

    def _outputs(self, numbers: Sequence[int]) -> str:
        named = Counter(self._names.get(number, str(number)).partition(":")[0] for number in numbers)
        return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in named.items())


def _paths(branch: str) -> Iterator[str]:
    """The branch and those that it was forked from."""
    while branch:
        yield branch
        branch = branch.rpartition("/")[0]


def count(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _preview(text: str) -> str:
    """Its end on one line, of printable characters."""
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else " " for c in text)
