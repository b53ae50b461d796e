"""`RunLog`: log of one run of a program, from which reports, traces and usage are computed.

All times are seconds of one monotonic clock (`time.monotonic`). The runtime's event loop is the only writer of calls;
the thread that forks adds branches. The log of a running program is incomplete.
"""

from __future__ import annotations

import threading
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec

from radixrt.lang.pictures import Picture
from radixrt.sampling_params import SamplingParams

CallKind = Literal["gen", "select", "embed", "rerank"]
TEXT_KINDS: tuple[CallKind, ...] = ("embed", "rerank")
"""Kinds of calls that send texts and have no prompt."""

if TYPE_CHECKING:
    Ids = array[int]
else:
    Ids = array  # Python 3.11 has no array[int] at run time, when msgspec reads the annotation


class BranchRecord(msgspec.Struct):
    """Record of a program's state. The program's own state is "0"; states forked from it are "0/1", "0/2", ... in order
    of forking.

    Attributes:
        parent: id of the parent branch; None for the program's own state.
        key: key of the branch in `fork`, as text; "" for the program's own state.
        group: number of the fork within the parent, the same for all branches of a `fork`.
        created: time at which the state was created.
        ended: time after which no step could follow (the program ended, or the branch was joined or closed); None while
            the branch is open.
        after: id of the last call whose output is in the prefix at the fork; None without such a call.
        error: message of the error that ended the branch, or None.
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


class TextOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Options of an embed or a rerank, as the program gave them; see `radixrt.embed` and `radixrt.rerank`."""

    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    top_n: int | None = None
    instruction: str | None = None
    activation: bool = True


class PictureRecord(msgspec.Struct, frozen=True):
    """A picture of a prompt: its size in pixels, and its digest; see `radixrt.lang.pictures.Picture`."""

    width: int
    height: int
    digest: str


class CallRecord(msgspec.Struct, rename={"kind": "call"}):
    """One call of the model: a generation (one of n, if several were asked for), a scoring of choices, an embedding
    of texts, or a ranking of documents.

    Attributes:
        id: number within the run, in the order in which calls became ready to be sent.
        branch: id of its branch.
        name: name of the value; "" for a gen or select without one.
        index: index of the sample among n.
        type: name of the value's type, e.g. "str", "Verdict", "regex".
        depends: ids of the calls whose outputs the prompt contains directly: the previous call of the transcript, and
            those joined in since.
        queued, start, admitted, first_token, end: times at which the program appended the call, it was sent, the
            engine admitted it (None if the backend does not report it), its first text came (from the stream, or from
            the engine's timings), and its answer was complete. None for a time that has not come.
        prompt_tokens, cached_tokens, completion_tokens: counts of the backend; for a select, completion_tokens are
            the tokens of all choices.
        fetched_tokens: see `radixrt.messages.parts.Usage`.
        forced_tokens: output tokens that a grammar forced.
        text: the output, the selected choice, the number and size of vectors, or the number of
            documents with the first one's index and score.
        finish: "stop", "length", "timeout", "abort", "choice" (a select), "vectors" (an embed), "ranking" (a rerank),
            "error" or "cancelled"; "" while it runs.
        error: message of the error, or None.
        prompt_ids: token ids of the prompt (array of C ints), with the keys of its pictures, which are below -1; None
            if the backend reports none.
        output_ids: token ids of the output, or of the selected choice.
        prompt_text: text of the prompt, template included; a picture is its label.
        rerendered: the chat template rewrote earlier text, so that the whole conversation was tokenized again.
        sampling: parameters of a gen.
        choices, probabilities, method: choices, their probabilities and the method of a select.
        texts: texts of an embed, or the query and the documents of a rerank, which have no prompt.
        options: options of an embed or a rerank; None for other calls, and in traces that were written without them.
        fork_len, siblings: values of the hint to the engine.
        same_as: id of the equal call, sent at the same time, whose answer this is; None for one of its own.
        pictures: pictures of the prompt, in order.
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
    fetched_tokens: dict[str, int] = {}
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
    texts: tuple[str, ...] = ()
    options: TextOptions | None = None
    fork_len: int = 0
    siblings: int = 1
    same_as: int | None = None
    pictures: tuple[PictureRecord, ...] = ()


Record = BranchRecord | CallRecord
Event = Literal["program_start", "branch_start", "call_start", "call_end", "branch_end", "program_end"]
Observer = Callable[["RunLog", Event, Record | None], None]


@dataclass
class RunLog:
    """See the module's docstring.

    Attributes:
        program: unique id of the run.
        name: name of the function.
        backend: name of the backend.
        unix_time: start of the run in seconds since 1970; `start` is the same moment on the monotonic clock.
        end: end of the run; None while it runs.
        branches, calls: records in the order of their creation.
        pictures: pictures of all prompts by their labels; traces keep none.
        error: message of the error that ended the program, or None.
        dry_run: the answers are placeholders, because `explain` runs the program.
    """

    program: str
    name: str
    backend: str
    start: float = field(default_factory=time.monotonic)
    unix_time: float = field(default_factory=time.time)
    end: float | None = None
    branches: dict[str, BranchRecord] = field(default_factory=dict)
    calls: list[CallRecord] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    error: str | None = None
    dry_run: bool = False

    def calls_of(self, branch: str) -> list[CallRecord]:
        """Calls of a branch and of all branches forked from it."""
        below = branch + "/"
        return [call for call in self.calls if call.branch == branch or call.branch.startswith(below)]

    def emit(self, event: Event, record: Record | None = None) -> None:
        """Call the observers. An exception of an observer is only shown as a warning."""
        for observer in tuple(_observers):
            try:
                observer(self, event, record)
            except Exception as error:
                warnings.warn(f"an observer of programs failed at {event}: {error!r}", stacklevel=2)


_observers: list[Observer] = []
_observers_lock = threading.Lock()


def observe(observer: Observer) -> Callable[[], None]:
    """Call `observer(log, event, record)` for everything that any program of this process does from now on.

    The observer is called in the thread of the event, which is the runtime's event loop for calls, and must be fast.
    The record is the branch or the call of the event, and None for events of the program.

    Returns:
        A function that removes the observer.
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
        calls: number of calls, failed ones included.
        cached_tokens: prompt tokens that were found in the cache.
        fetched_tokens: the cached tokens that were fetched from a tier, by tier: "host", "disk" or "peer"
            (another replica).
        forced_tokens: output tokens that a grammar forced.
        rerendered: calls whose whole conversation was tokenized again, because the chat template rewrote earlier text.
        errors: number of failed calls.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    rerendered: int = 0
    errors: int = 0
    fetched_tokens: dict[str, int] = field(default_factory=dict)


def usage_of(log: RunLog, branch: str) -> ProgramUsage:
    """Usage of a branch and of all branches forked from it."""
    calls = log.calls_of(branch)
    return ProgramUsage(
        calls=len(calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        forced_tokens=sum(call.forced_tokens for call in calls),
        rerendered=sum(call.rerendered for call in calls),
        errors=sum(call.error is not None for call in calls),
        fetched_tokens=fetched_tokens(calls),
    )


def fetched_tokens(calls: Iterable[CallRecord]) -> dict[str, int]:
    """Return the prompt tokens of calls that were fetched from a tier, by tier."""
    found: Counter[str] = Counter()
    for call in calls:
        found.update(call.fetched_tokens)
    return dict(found)
