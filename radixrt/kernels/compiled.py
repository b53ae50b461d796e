"""`Kernel`: a function of the compiled library. `Recording`: a list of its calls that runs without the interpreter."""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Argument = int | float | bool | None
"""An address, a number, or None for a null pointer."""

_FLOAT, _INT = struct.Struct("<f"), struct.Struct("<i")


class Kernel:
    """A function of the compiled library that returns nothing.

    Attributes:
        call: the function. While a recording is active, it also records its calls: do not keep it.
    """

    def __init__(self, library: ctypes.CDLL, name: str, arguments: list[type]) -> None:
        """Bind a function.

        Args:
            arguments: ctypes of its arguments.
        """
        self.name = name
        self._entry = library[name]
        self._entry.restype = None
        self._entry.argtypes = arguments
        entry = getattr(library, f"{name}_replay", None)  # radixrt/kernels/replay.h
        self.replay = None if entry is None else ctypes.cast(entry, ctypes.c_void_p).value
        self.call: Callable[..., None] = self._entry
        _kernels.add(self)

    def record(self, recording: Recording | None) -> None:
        """Add each later call to a recording; None to record no more."""
        if recording is None:
            self.call = self._entry
            return

        def call(*args: Argument) -> None:
            self._entry(*args)
            recording.add(self, args)

        self.call = call


_kernels: weakref.WeakSet[Kernel] = weakref.WeakSet()
_one_recording = threading.Lock()


class CannotRecord(Exception):
    """A call cannot be replayed; says which."""


class Recording:
    """The calls of kernels of one thread, in order. A context manager: calls inside are executed and recorded.

    Attributes:
        args: int64 [calls, arguments], after the context has ended; assign to change the arguments of the next replay.
        names: of the kernels, in order.

    Raises:
        CannotRecord: a kernel was called that cannot be replayed.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run = library.radixrt_replay
        self._run.restype, self._run.argtypes = None, [ctypes.c_void_p, ctypes.c_int64]
        self._width = 1 + library.radixrt_replay_max_args()
        self._thread = threading.get_ident()
        self._calls: npt.NDArray[np.int64] = np.zeros((0, self._width), np.int64)
        self._rows: list[list[int]] = []
        self.names: list[str] = []

    @property
    def args(self) -> npt.NDArray[np.int64]:
        return self._calls[:, 1:]

    def __enter__(self) -> Recording:
        if not _one_recording.acquire(blocking=False):
            raise CannotRecord("another recording is active")
        for kernel in list(_kernels):
            kernel.record(self)
        return self

    def __exit__(self, *_: object) -> None:
        for kernel in list(_kernels):
            kernel.record(None)
        _one_recording.release()
        self._calls = np.zeros((len(self._rows), self._width), np.int64)
        for i, row in enumerate(self._rows):
            self._calls[i, : len(row)] = row

    def add(self, kernel: Kernel, args: tuple[Any, ...]) -> None:
        """Record a call of the recording's thread."""
        if threading.get_ident() != self._thread:
            return
        if kernel.replay is None or len(args) >= self._width:
            raise CannotRecord(f"{kernel.name} cannot be replayed")
        self._rows.append([kernel.replay, *map(_bits, args)])
        self.names.append(kernel.name)

    def replay(self) -> None:
        """Make the recorded calls again, with `args`. The memory of all arguments must still exist."""
        self._run(self._calls.ctypes.data, len(self._calls))


def _bits(value: Argument) -> int:
    if value is None:
        return 0
    return _INT.unpack(_FLOAT.pack(value))[0] if isinstance(value, float) else int(value)
