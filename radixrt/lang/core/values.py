"""`Slot`: a value that a program has asked for and will have. Filled once by the event loop, read by anyone."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from radixrt.lang.errors import CallError, ProgramCancelled
from radixrt.messages.client import TokenLogprob
from radixrt.messages.parts import ConstraintInfo, Timings, Usage


@dataclass(frozen=True)
class Meta:
    """What is known of an answer beside its value.

    Attributes:
        text: as the model wrote it, or the choice.
        call: id of the call in the run's log.
        token_ids: of the output; of a select, those of the choice; None where the backend knows none.
        finish_reason: "stop", "length", "abort" or "choice" (a select).
        matched_stop: the stop string or token id that ended it.
        logprobs: one entry for each token, when asked for.
        forced_close: a constrained output was brought to its end because the end of its tokens was near.
        tool_calls: as in the OpenAI API.
        choices, probabilities, scores, choice_logprobs: of a select, one for each choice; see `backend.Decision`.
    """

    text: str
    call: int
    token_ids: list[int] | None
    finish_reason: str
    usage: Usage
    timings: Timings = field(default_factory=Timings)
    matched_stop: int | str | None = None
    logprobs: list[TokenLogprob] | None = None
    forced_close: bool = False
    constraint: ConstraintInfo | None = None
    tool_calls: Sequence[dict[str, Any]] = ()
    choices: Sequence[str] = ()
    probabilities: Sequence[float] = ()
    scores: Sequence[float] = ()
    choice_logprobs: Sequence[float] = ()


class Slot:
    """See the module's docstring.

    Attributes:
        name: of the value; None for a step that has none.
        label: the step for errors, e.g. 'gen "note"'.
        branch: id of the branch that asked for it.
        done: set when the value or the error is there; never cancelled.
        error: why there is no value.
        metas: one for each of n.
    """

    __slots__ = ("_value", "branch", "done", "error", "label", "metas", "name")

    def __init__(self, name: str | None, label: str, branch: str) -> None:
        self.name = name
        self.label = label
        self.branch = branch
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # a reader that gives up does not take the value from the others
        self.error: CallError | ProgramCancelled | None = None
        self.metas: Sequence[Meta] = ()
        self._value: Any = None

    def fill(self, value: Any, metas: Sequence[Meta]) -> None:
        if not self.done.done():
            self._value, self.metas = value, metas
            self.done.set_result(None)

    def fail(self, error: CallError | ProgramCancelled) -> None:
        if not self.done.done():
            self.error = error
            self.done.set_result(None)

    @property
    def value(self) -> Any:
        """The value, once it is there; raises the error if there is one."""
        self.raise_error()
        return self._value

    @property
    def meta(self) -> Any:
        """The `Meta`, or a list of n."""
        self.raise_error()
        return self.metas[0] if len(self.metas) == 1 else list(self.metas)

    @property
    def text(self) -> str:
        """The text that stands in the transcript."""
        self.raise_error()
        return self.metas[0].text

    def raise_error(self) -> None:
        """Raise a fresh copy of the error, if there is one."""
        assert self.done.done()
        if isinstance(self.error, CallError):
            raise self.error.again()
        if self.error is not None:
            raise ProgramCancelled(*self.error.args)

    @property
    def cancelled(self) -> bool:
        return isinstance(self.error, ProgramCancelled)


class Names:
    """A state's own names, and those that it inherited when it was forked; those no longer change."""

    __slots__ = ("_above", "_own")

    def __init__(self, above: Names | None = None) -> None:
        self._above = above
        self._own: dict[str, Slot] = {}

    def __setitem__(self, name: str, slot: Slot) -> None:
        self._own[name] = slot

    def find(self, name: str) -> Slot | None:
        names: Names | None = self
        while names is not None:
            if name in names._own:
                return names._own[name]
            names = names._above
        return None

    def all(self) -> dict[str, Slot]:
        """Every name with its slot, the oldest first."""
        layers: list[dict[str, Slot]] = []
        names: Names | None = self
        while names is not None:
            layers.append(names._own)
            names = names._above
        return {name: slot for own in reversed(layers) for name, slot in own.items()}
