"""`Slot`: a value that a program waits for, set once by the event loop and read from any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from radixrt.lang.errors import CallError, ProgramCancelled, ProgramError
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Timings, Usage
from radixrt.messages.wire import unpack_i32


class Meta(RequestOutput, frozen=True, kw_only=True):
    """The output of a call, beside the value that was read from it.

    Attributes:
        text: output of the model, or the choice.
        token_ids: ids of the output, or of the choice; None where the backend reports none.
        finish_reason: "stop", "length", "timeout", "abort" or "choice" (a select).
        call: id of the call in the run's log.
        tool_calls: as in the OpenAI API.
        choices, probabilities, scores, choice_logprobs: an entry for each choice of a select; see `Decision`.
        others: see `RequestOutput`.
    """

    usage: Usage
    timings: Timings
    call: int
    tool_calls: Sequence[dict[str, Any]] = ()
    choices: Sequence[str] = ()
    probabilities: Sequence[float] = ()
    scores: Sequence[float] = ()
    choice_logprobs: Sequence[float] = ()

    @property
    def token_ids(self) -> list[int] | None:  # type: ignore[override]
        return None if self.prompt_ids is None else unpack_i32(self.output_ids).tolist()

    @property
    def finish_reason(self) -> str:
        return "choice" if self.finish is None else self.finish.reason


class Slot:
    """See the module's docstring.

    Attributes:
        name: name of the value; None for a step without a name.
        label: description of the step for errors, e.g. 'gen "note"'.
        branch: id of the branch that computes the value.
        done: completed when the value or the error is set; never cancelled.
        error: reason why the slot has no value.
        metas: a `Meta` for each of the n samples.
        tools: Python functions that the call may call, by name.
        python_type: type of the value, where the program gave one.
    """

    __slots__ = ("_value", "branch", "done", "error", "label", "metas", "name", "python_type", "tools")

    def __init__(
        self,
        name: str | None,
        label: str,
        branch: str,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        python_type: Any = None,
    ) -> None:
        self.name = name
        self.label = label
        self.branch = branch
        self.tools = tools or {}
        self.python_type = python_type
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # a reader's cancellation must not cancel the future for all readers
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
        """Value of a slot that is done. Raises the slot's error if the call failed."""
        self.raise_error()
        return self._value

    @property
    def meta(self) -> Any:
        """`Meta` of the only sample, or a list of the n samples' `Meta`s."""
        self.raise_error()
        return self.metas[0] if len(self.metas) == 1 else list(self.metas)

    @property
    def text(self) -> str:
        """The text of the value in the transcript."""
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


class TextlessSlot(Slot):
    """Slot of a value that has no text. `content`: description of the values, e.g. "vectors"."""

    __slots__ = ("_content",)

    def __init__(self, name: str, label: str, branch: str, content: str) -> None:
        super().__init__(name, label, branch)
        self._content = content

    @property
    def text(self) -> str:
        """Raises ProgramError."""
        raise ProgramError(
            f"branch {self.branch}, {self.label}: its value is {self._content}, which have no text to join"
        )


class Names:
    """Slots by name: a state's own slots, and the slots inherited at its fork, which do not change any more."""

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
