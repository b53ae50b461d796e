"""Errors of programs, which name the place in the program."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

from radixrt.errors import RadixRTError


class ProgramError(RadixRTError):
    """A program uses the language wrongly; the message names the place and the correct form.

    Attributes:
        state: `State` of the run that the error ended; see `hand_over`.
    """

    state: Any = None


class NotReadyError(ProgramError):
    """An async program reads a value that is not there yet without awaiting it."""


class CallError(RadixRTError):
    """A call of a program failed, and with it all later steps of its branch, but nothing else.

    `__cause__` is the error itself: RequestError (the call was refused), EngineError (the engine is gone), ValueError
    (the answer is not of its type), ...

    Attributes:
        program: name of the function.
        branch: id of the branch, e.g. "0/2"; `key` is its key in `fork`.
        name: name of the gen, select or other step.
        state: `State` of the run that the error ended, for its report and its other values; see `hand_over`.
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
        """A copy for another reader, without the traceback of this one."""
        cause = self.__cause__
        assert cause is not None
        return CallError(self.program, self.branch, self.key, self.name, cause)


class ProgramCancelled(asyncio.CancelledError):
    """The program was cancelled while it was running. Raised where it next reads or appends. It is not an Exception, so
    that programs do not catch it by accident."""


def hand_over(error: BaseException, state: Any) -> None:
    """Set `error.state` of the exception that ends a run to the run's state, whatever the class of the exception.

    An exception that has another attribute of that name keeps it.
    """
    held: Any = getattr(error, "state", None)
    if held is None or hasattr(held, "save_report"):
        with contextlib.suppress(AttributeError, TypeError):  # its class may not allow it
            error.state = state  # type: ignore[attr-defined]


def describe(error: BaseException) -> str:
    """An error in one line, with its type if it is not a RadixRTError."""
    text = str(error)
    return text if isinstance(error, RadixRTError) and text else f"{type(error).__name__}: {text}".rstrip(": ")


def place() -> str:
    """The line of the user's code that called into radixrt, as "file.py, line 3: "; empty if there is none."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] == "radixrt":
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}: "
