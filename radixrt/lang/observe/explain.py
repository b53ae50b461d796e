"""`explain`: the calls of a program and the prefixes that their prompts share, before anything is generated.

The function runs twice on a backend that answers with placeholders, with different ones each time. Calls that differ
depend on the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.errors import RadixRTError
from radixrt.lang.backends.default import as_backend
from radixrt.lang.errors import ProgramError
from radixrt.lang.observe.call_plan import PlannedCall, SharedPrefix, planned_calls, shared_prefixes
from radixrt.lang.observe.dry_run import DryRun, TooManyCalls
from radixrt.lang.observe.run_log import BranchRecord, Event, Record, RunLog, observe

FULL_FORK = 8
"""Maximum number of branches of a fork that are listed; of a larger fork only the first is."""

MAX_LINES = 24
"""Maximum number of calls and forks of one branch that are listed."""

MAX_PREFIXES = 8


@dataclass(frozen=True)
class Explanation:
    """See the module's docstring; `str()` is the text for the terminal.

    Attributes:
        unit: unit of lengths: "tokens", or "characters" if the backend does not work on tokens.
        calls: planned calls, in the order in which they become ready.
        prefixes: shared prefixes, the largest saving first.
        notes: reasons why the plan depends on answers; empty if the calls are certain.
    """

    name: str
    backend: str
    unit: str
    calls: list[PlannedCall]
    prefixes: list[SharedPrefix]
    notes: list[str]
    log: RunLog

    @property
    def length(self) -> int:
        """Length of all prompts, without outputs of calls."""
        return sum(call.length for call in self.calls)

    @property
    def shared(self) -> int:
        return sum(call.shared for call in self.calls)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain(
    name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: Any = None
) -> Explanation:
    """Plan a run with these arguments.

    Args:
        name: name of the function.
        run: its `Function.run`.
        kwargs: arguments of the function, and `sampling` as `Function.run` takes it.
        backend: backend whose chat template and tokenizer are used; it gets no calls.

    Raises:
        ProgramError: the program cannot be run even with placeholders, because it uses the language wrongly.
        TypeError: the arguments are not the function's.
    """
    inner = as_backend(backend)
    tries = [_rehearse(run, args, kwargs, DryRun(inner, variant)) for variant in (0, 1)]
    first, second = tries
    shown = max(tries, key=lambda one: (one.problem is None, len(one.log.calls)))
    notes = _differences(first.log, second.log)
    notes += [one.problem for one in tries if one.problem is not None][:1]
    return Explanation(
        name=name,
        backend=inner.name,
        unit=shown.unit,
        calls=planned_calls(shown.log),
        prefixes=shared_prefixes(shown.log),
        notes=notes,
        log=shown.log,
    )


# --- running it ---


@dataclass(frozen=True)
class _Try:
    log: RunLog
    unit: str
    problem: str | None


def _rehearse(run: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], backend: DryRun) -> _Try:
    logs: list[RunLog] = []

    def note(log: RunLog, event: Event, record: Record | None) -> None:
        if event == "program_start" and log.backend == backend.name:
            logs.append(log)

    problem: str | None = None
    stop = observe(note)
    try:
        run(*args, backend=backend, **kwargs)
    except ProgramError:
        raise
    except Exception as error:
        if not logs:
            raise
        problem = _problem(error, logs[0])
    finally:
        stop()
    return _Try(logs[0], backend.unit, problem)


def _problem(error: Exception, log: RunLog) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, TooManyCalls):
            return f"with one placeholder it still went on after {len(log.calls):,} calls: a loop in it ends on a value"
        cause = cause.__cause__
    after = f"after {count(len(log.calls), 'call')}" if log.calls else "before its first call"
    what = str(error) if isinstance(error, RadixRTError) else f"{type(error).__name__}: {error}"
    return f"with a placeholder it stops {after}, on {what}; what would follow depends on the model's answer"


def _differences(first: RunLog, second: RunLog) -> list[str]:
    """Notes on the calls that differ between two runs."""
    counts = [Counter((call.branch, call.name or call.kind) for call in log.calls) for log in (first, second)]
    only = [counts[i] - counts[1 - i] for i in (0, 1)]
    if not only[0] and not only[1]:
        return []
    numbers = sorted((len(first.calls), len(second.calls)))
    how_many = f"{numbers[0]} or {numbers[1]}" if numbers[0] != numbers[1] else f"{numbers[0]}"
    names = sorted({name for counter in only for _, name in counter})
    listed = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return [
        f"the calls depend on what the model answers: with two different answers there were {how_many} of them; those "
        f"that came with only one of the answers are named {listed}"
    ]


# --- the text ---


def _lines(made: Explanation) -> Iterator[str]:
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
        """Lines of a branch; a fork follows the call after which it was made."""
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
        pictures = _pictures(call, unit)
        return f"{call.label}  {count(call.length, unit[:-1])}{inside}{shared}{pictures}{most}"

    def _outputs(self, numbers: Sequence[int]) -> str:
        named = Counter(self._names.get(number, str(number)).partition(":")[0] for number in numbers)
        return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in named.items())


def _pictures(call: PlannedCall, unit: str) -> str:
    """Sizes of the pictures in a prompt, and the tokens that they take if the backend has counted them."""
    if not call.pictures:
        return ""
    sizes = ", ".join(f"{each.width} x {each.height}" for each in call.pictures[:FULL_FORK])
    more = "" if len(call.pictures) <= FULL_FORK else ", ..."
    tokens = f", {call.picture_tokens:,} tokens" if unit == "tokens" else ""
    return f", with {count(len(call.pictures), 'image')} ({sizes}{more}{tokens})"


def _paths(branch: str) -> Iterator[str]:
    """Ids of the branch and its ancestors."""
    while branch:
        yield branch
        branch = branch.rpartition("/")[0]


def count(number: int, noun: str) -> str:
    """The number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _preview(text: str) -> str:
    """The text on one line, of printable characters."""
    return "".join(c if c.isprintable() else "⏎" if c == "\n" else " " for c in text)
