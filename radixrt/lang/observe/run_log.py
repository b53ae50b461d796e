"""`RunLog`: what one run of a program did, as it happens. Reports, traces and usage are read from it.

All times are seconds of one monotonic clock (`time.monotonic`). The runtime's event loop is the only writer of calls;
branches are added by whoever forks. A reader sees a run that is still going on as it stands.
"""

from __future__ import annotations

import threading
import time
import warnings
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from radixrt.sampling_params import SamplingParams

CallKind = Literal["gen", "select"]

if TYPE_CHECKING:
    Ids = array[int]
else:
    Ids = array  # which takes no type argument at run time in Python 3.11, where traces decode it


class BranchRecord(msgspec.Struct):
    """One state of a program. The program's own is "0"; those forked from it are "0/1", "0/2", ... in order of forking.

    Attributes:
        parent: id of the branch that it was forked from; None for the program's own state.
        key: what `fork` named it by, as text; "" for the program's own.
        group: number of the fork within the parent; siblings of one `fork` have the same.
        created, ended: `ended` is when nothing more could follow (the program ended, it was joined or closed); None
            while it is open.
        after: id of the last call whose output lies in the prefix that it was forked with; None if there is none.
        error: why it failed, or None.
    """

    TIMES: ClassVar = ("created", "ended")

    id: str
    parent: str | None
    key: str
    group: int
    created: float
    after: int | None = None
    ended: float | None = None
    error: str | None = None


class CallRecord(msgspec.Struct, rename={"kind": "call"}):
    """One call of the model: a generation (one of n, if several were asked for) or a scoring of choices.

    Attributes:
        id: number within the run, in the order in which calls became ready to be sent.
        branch: id of its branch.
        name: of the value; "" for a gen or select without one.
        index: which of n.
        type: what the value is, e.g. "str", "Verdict", "regex".
        depends: ids of the calls whose outputs the prompt holds directly: the one before it in the transcript, and
            those that were joined in since.
        queued, start, admitted, first_token, end: when the program asked for it, when it was sent, when the engine
            began with it (None where the backend does not tell), when the first text came (only where it was streamed;
            otherwise as the engine's own timings tell, None if they do not), when its answer was complete. None for
            what has not happened.
        prompt_tokens, cached_tokens, completion_tokens: as counted by the backend; for a select, completion_tokens are
            the tokens of all choices.
        forced_tokens: output tokens that a grammar left no choice about.
        text: the output, or the choice taken.
        finish: "stop", "length", "abort", "choice" (a select), "error" or "cancelled"; "" while it runs.
        error: why it failed, or None.
        prompt_ids: the prompt's token ids (array of C ints); None where the backend tells none.
        output_ids: the output's token ids; for a select, the choice's.
        prompt_text: the prompt as text, template included.
        rerendered: the chat template did not go on from what was sent before, so the conversation was rendered whole.
        sampling: of a gen.
        choices, probabilities, method: of a select.
        fork_len, siblings: as they were hinted to the engine.
    """

    TIMES: ClassVar = ("queued", "start", "admitted", "first_token", "end")

    id: int
    branch: str
    name: str
    kind: CallKind
    type: str
    queued: float
    index: int = 0
    depends: tuple[int, ...] = ()
    start: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    end: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    text: str = ""
    finish: str = ""
    error: str | None = None
    prompt_ids: Ids | None = None
    output_ids: Ids | None = None
    prompt_text: str = ""
    rerendered: bool = False
    sampling: SamplingParams | None = None
    choices: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    method: str = ""
    fork_len: int = 0
    siblings: int = 1


Record = BranchRecord | CallRecord
Event = Literal["program_start", "branch_start", "call_start", "call_end", "branch_end", "program_end"]
Observer = Callable[["RunLog", Event, Record | None], None]


@dataclass
class RunLog:
    """See the module's docstring.

    Attributes:
        program: id of the run, unique.
        name: of the function.
        backend: its name.
        unix_time: when the run started, seconds since 1970; `start` is the same moment on the monotonic clock.
        end: None while it runs.
        branches, calls: in the order in which they came to be.
        error: what ended the program, or None.
        dry_run: `explain` runs it with placeholders in the place of answers.
    """

    program: str
    name: str
    backend: str
    start: float = field(default_factory=time.monotonic)
    unix_time: float = field(default_factory=time.time)
    end: float | None = None
    branches: dict[str, BranchRecord] = field(default_factory=dict)
    calls: list[CallRecord] = field(default_factory=list)
    error: str | None = None
    dry_run: bool = False

    def calls_of(self, branch: str) -> list[CallRecord]:
        """Those of a branch and of all branches forked from it."""
        below = branch + "/"
        return [call for call in self.calls if call.branch == branch or call.branch.startswith(below)]

    def emit(self, event: Event, record: Record | None = None) -> None:
        """Tell the observers. What one of them raises is shown as a warning, and disturbs nothing else."""
        for observer in tuple(_observers):
            try:
                observer(self, event, record)
            except Exception as error:
                warnings.warn(f"an observer of programs failed at {event}: {error!r}", stacklevel=2)


_observers: list[Observer] = []
_observers_lock = threading.Lock()


def observe(observer: Observer) -> Callable[[], None]:
    """Call `observer(log, event, record)` for everything that any program of this process does from now on.

    It is called from the thread in which the event happens, the runtime's event loop for calls, and must be quick.
    The record is the branch or the call concerned, and None for the program's own events.

    Returns:
        A function that ends it.
    """
    with _observers_lock:
        _observers.append(observer)

    def stop() -> None:
        with _observers_lock:
            if observer in _observers:
                _observers.remove(observer)

    return stop


@dataclass(frozen=True)
class ProgramUsage:
    """Sums over the calls of a run. Tokens are as the backend counts them.

    Attributes:
        calls: of the model, failed ones included; `errors` are those.
        cached_tokens: prompt tokens that were not computed again.
        forced_tokens: output tokens that a grammar left no choice about.
        rerendered: calls whose conversation had to be rendered whole, because the chat template rewrote what had been
            sent before.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    rerendered: int = 0
    errors: int = 0


def usage_of(log: RunLog, branch: str) -> ProgramUsage:
    """Of a branch and all that was forked from it."""
    calls = log.calls_of(branch)
    return ProgramUsage(
        calls=len(calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        forced_tokens=sum(call.forced_tokens for call in calls),
        rerendered=sum(call.rerendered for call in calls),
        errors=sum(call.error is not None for call in calls),
    )
