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
    """An async program reads a value without `await` before the value is known."""


class CallError(RadixRTError):
    """A call of a program failed, and with it all later steps of its branch, but nothing else.

    `__cause__` is the error itself: RequestError (the call was refused), EngineError (the engine is gone), ValueError
    (the answer is not of its type), ...

    Attributes:
        program: name of the function.
        branch: id of the branch, e.g. "0/2"; `key` is its key in `fork`.
        name: name of the gen, select or other step.
        state: `State` of the run that the error ended, to read the run's report and values; see `hand_over`.
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
    """The program was cancelled while running. The next read or append of the program raises this error, which is not
    an `Exception`, so that programs do not catch the error by accident."""


def hand_over(error: BaseException, state: Any) -> None:
    """Set `error.state` of the exception that ends a run to the run's state, whatever the class of the exception.

    If the exception has an attribute `state` of another kind already, the attribute is not changed.
    """
    held: Any = getattr(error, "state", None)
    if held is None or hasattr(held, "save_report"):
        with contextlib.suppress(AttributeError, TypeError):  # its class may not allow it
            error.state = state  # type: ignore[attr-defined]


def describe(error: BaseException) -> str:
    """Return an error as a line of text, with the error's type unless it is a RadixRTError."""
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
