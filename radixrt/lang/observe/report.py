"""Report of computed and reused tokens of a run, as text for the terminal; `report_page` makes the HTML page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from radixrt.lang.observe.run_log import TEXT_KINDS, BranchRecord, CallRecord, RunLog, fetched_tokens

FULL_FORK = 8
"""Forks with more branches are summarized."""

TIERS = {"host": "from host memory", "disk": "from disk", "peer": "from another replica"}
OUTPUT_CHARS = 44
NAME_CHARS = 30


@dataclass(frozen=True)
class Totals:
    """Sums over calls.

    Attributes:
        computed_tokens: prompt tokens that were not in the cache.
        hit_rate: share of prompt tokens that were in the cache, 0 to 1.
        fetched_tokens: the cached tokens that were fetched from a tier, by tier.
        call_s: sum of the seconds from sending to the end of each call.
        wall_s: seconds from the first queued call to the last answer.
    """

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    call_s: float = 0.0
    wall_s: float = 0.0
    fetched_tokens: dict[str, int] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def at_once(self) -> float:
        """Mean number of open calls over the run."""
        return self.call_s / self.wall_s if self.wall_s else 0.0


def totals(calls: Sequence[CallRecord]) -> Totals:
    """Totals of some calls of one run."""
    ends = [call.end for call in calls if call.end is not None]
    return Totals(
        calls=len(calls),
        failed=sum(call.error is not None for call in calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        forced_tokens=sum(call.forced_tokens for call in calls),
        call_s=sum(seconds(call) or 0.0 for call in calls),
        wall_s=max(ends) - min(call.queued for call in calls) if ends else 0.0,
        fetched_tokens=fetched_tokens(calls),
    )


def seconds(call: CallRecord) -> float | None:
    """Seconds from sending the call to its end; None while it runs."""
    return None if call.end is None or call.start is None else call.end - call.start


def report(log: RunLog) -> str:
    """The run as a text: totals, then its calls as a tree with the tokens and the time of each."""
    total = totals(log.calls)
    wall = total.wall_s if log.end is None else log.end - log.start
    state = "still running" if log.end is None else f"{wall:.2f} s"
    lines = [f"{log.name} on {log.backend}: {_count(total.calls, 'call')}, {state}"]
    if log.error is not None:
        lines.append(f"failed: {log.error}")
    fetched = "".join(f", {count:,} of them {TIERS.get(tier, tier)}" for tier, count in total.fetched_tokens.items())
    lines.append(
        f"prompts    {total.prompt_tokens:,} tokens: {total.cached_tokens:,} reused ({total.hit_rate:.1%}{fetched}), "
        f"{total.computed_tokens:,} computed"
    )
    forced = f", {total.forced_tokens:,} of them forced by a grammar" if total.forced_tokens else ""
    lines.append(f"output     {total.completion_tokens:,} tokens{forced}")
    at_once = total.call_s / wall if wall else 0.0
    lines.append(f"time       {wall:.2f} s for {total.call_s:.2f} s of calls: {at_once:.1f} at once on average")
    if log.calls:
        header = f"{'':{NAME_CHARS}}  {'prompt':>7} {'reused':>7} {'computed':>8} {'output':>6} {'time':>8}"
        roots = [branch.id for branch in log.branches.values() if branch.parent is None]
        lines += ["", header, *(line for root in roots for line in _Tree(log).lines(root, 0))]
    return "\n".join(lines)


class _Tree:
    """The calls and forks of each branch."""

    def __init__(self, log: RunLog) -> None:
        self.calls: dict[str, list[CallRecord]] = {}
        self.forks: dict[str, dict[int, list[BranchRecord]]] = {}
        for call in log.calls:
            self.calls.setdefault(call.branch, []).append(call)
        for branch in log.branches.values():
            if branch.parent is not None:
                self.forks.setdefault(branch.parent, {}).setdefault(branch.group, []).append(branch)

    def under(self, branch: str) -> list[CallRecord]:
        """The calls of a branch and of all that are forked from it."""
        found = list(self.calls.get(branch, ()))
        for group in self.forks.get(branch, {}).values():
            for child in group:
                found += self.under(child.id)
        return found

    def lines(self, branch: str, depth: int) -> Iterator[str]:
        """A branch's calls and the forks from it, in order of time."""
        events: list[tuple[float, int, CallRecord | list[BranchRecord]]] = []
        events += [(call.queued, 1, call) for call in self.calls.get(branch, ())]
        events += [(group[0].created, 0, group) for group in self.forks.get(branch, {}).values()]
        for _, _, event in sorted(events, key=lambda item: item[:2]):
            if isinstance(event, CallRecord):
                yield _call_line(event, depth)
            elif len(event) > FULL_FORK:
                yield from self._summary(event, depth)
            else:
                for child in event:
                    yield from self._branch(child, depth)

    def _branch(self, branch: BranchRecord, depth: int) -> Iterator[str]:
        calls, key = self.under(branch.id), branch.key or branch.id
        if len(calls) == 1 and branch.error is None:
            yield _call_line(calls[0], depth, f"{key} / ")
        elif calls or branch.error is not None:
            error = "" if branch.error is None else f" failed: {_one_line(branch.error, 100)}"
            yield f"{'  ' * depth}{_one_line(key, NAME_CHARS)}:{error}"
            yield from self.lines(branch.id, depth + 1)

    def _summary(self, group: Sequence[BranchRecord], depth: int) -> Iterator[str]:
        """One line for all calls of one name in the branches of a large fork."""
        failed = sum(branch.error is not None for branch in group)
        errors = f", {failed} failed" if failed else ""
        yield f"{'  ' * depth}fork into {len(group)} branches{errors}:"
        named: dict[str, list[CallRecord]] = {}
        for branch in group:
            for call in self.under(branch.id):
                named.setdefault(_label(call), []).append(call)
        for label, some in named.items():
            total = totals(some)
            times = sorted(s for s in map(seconds, some) if s is not None)
            spread = f"median {statistics.median(times):.2f} s, longest {times[-1]:.2f} s" if times else ""
            yield _row(f"{len(some)} x {label}", depth + 1, total, total.call_s, spread)


def _call_line(call: CallRecord, depth: int, branch: str = "") -> str:
    end = f"error: {call.error}" if call.error is not None else call.text
    if call.probabilities:
        chosen = max(call.probabilities)
        end = f"{end}  ({chosen:.0%})"
    shared = "" if call.same_as is None else "(shared) "
    return _row(branch + _label(call), depth, totals([call]), seconds(call), shared + _one_line(end, OUTPUT_CHARS))


def _row(label: str, depth: int, total: Totals, time_s: float | None, end: str) -> str:
    name = _one_line("  " * depth + label, NAME_CHARS)
    time = "running" if time_s is None else f"{time_s:.3f} s"
    return (
        f"{name:{NAME_CHARS}}  {total.prompt_tokens:>7,} {total.cached_tokens:>7,} {total.computed_tokens:>8,} "
        f"{total.completion_tokens:>6,} {time:>8}  {end}"
    ).rstrip()


def _label(call: CallRecord) -> str:
    name = call.name or call.kind
    return name if call.type in ("", "str") or call.kind in ("select", *TEXT_KINDS) else f"{name}: {call.type}"


def _one_line(text: str, most: int) -> str:
    """The text on one line, of printable characters alone, so that a model's output cannot move the cursor."""
    shown = "".join(c if c.isprintable() else " " for c in text.replace("\n", "⏎"))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
