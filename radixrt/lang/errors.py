"""What goes wrong in programs, and where."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from radixrt.errors import RadixRTError


class ProgramError(RadixRTError):
    """A program uses the language wrongly; says where and what to write.

    Attributes:
        state: of the run that the error ended; see `hand_over`.
    """

    state: Any = None


class NotReadyError(ProgramError):
    """An async program reads what is not there yet without awaiting it."""


class CallError(RadixRTError):
    """A call of a program failed; so does all that comes after it in its branch, and nothing else.

    `__cause__` is the error itself: RequestError (the call was refused), EngineError (the engine is gone), ValueError
    (the answer is not of its type), ...

    Attributes:
        program: name of the function.
        branch: id of the branch, e.g. "0/2"; `key` is what `fork` named it by.
        name: of the gen, select or other step.
        state: of the run that the error ended, for its report and for what else it has done; see `hand_over`.
    """

    state: Any = None

    def __init__(self, program: str, branch: str, key: str, name: str, cause: BaseException) -> None:
        where = f"branch {branch} ({key})" if key else f"branch {branch}"
        super().__init__(f"{program}, {where}, {name}: {describe(cause)}")
        self.program = program
        self.branch = branch
        self.key = key
        self.name = name
        self.__cause__ = cause

    def again(self) -> CallError:
        """The same error for another reader, without the traceback of this one."""
        cause = self.__cause__
        assert cause is not None
        return CallError(self.program, self.branch, self.key, self.name, cause)


class ProgramCancelled(asyncio.CancelledError):
    """The program was cancelled while it was still at work. Not an Exception, so that programs do not catch it by
    accident; raised where the program next reads or appends."""


def hand_over(error: BaseException, state: Any) -> None:
    """Let the exception that ends a run carry the run's state as `error.state`, whatever its class.

    An attribute of that name that an exception has for itself stays as it is.
    """
    held: Any = getattr(error, "state", None)
    if held is None or hasattr(held, "save_report"):
        with contextlib.suppress(AttributeError, TypeError):  # a class of the program's own that takes none
            error.state = state  # type: ignore[attr-defined]


def describe(error: BaseException) -> str:
    """An error in one line; its type too, where it is not one of ours."""
    text = str(error)
    return text if isinstance(error, RadixRTError) and text else f"{type(error).__name__}: {text}".rstrip(": ")
