"""Facts about processes, from /proc where there is one, and children that the kernel ends together with their parent.

`child_command` returns the command of such a child, which runs this file as a script. The module imports nothing heavy,
so that the kernel is told as soon as possible.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
HAS_PROC = os.path.exists("/proc/self/stat")


@dataclass(frozen=True)
class ProcessStat:
    """A process as /proc/PID/stat describes it (proc_pid_stat(5)).

    Attributes:
        state: state of the main thread: "R" runnable, "S" or "D" asleep, "T" stopped by a signal, "t" by a debugger,
            "Z" dead and not reaped.
        group: its process group.
        cpu_s: seconds of processor time used by all threads.
        start_time: start of the process in clock ticks after boot, or after 1970 where there is no /proc. It
            distinguishes the process from a later one with the same pid.
    """

    state: str
    group: int
    cpu_s: float
    start_time: int


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process; None if there is none with this pid."""
    if not HAS_PROC:
        return _ask_psutil(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold spaces and parentheses
    return ProcessStat(fields[0], int(fields[2]), (int(fields[11]) + int(fields[12])) / CLOCK_TICKS, int(fields[19]))


def _ask_psutil(pid: int) -> ProcessStat | None:
    import psutil  # a package of several systems, which takes a while to import

    states = {"running": "R", "stopped": "T", "tracing-stop": "t", "zombie": "Z"}
    try:
        process = psutil.Process(pid)
        times, state = process.cpu_times(), states.get(process.status(), "S")
        return ProcessStat(state, os.getpgid(pid), times.user + times.system, int(process.create_time() * CLOCK_TICKS))
    except (psutil.Error, OSError):
        return None


def own_age_s() -> float:
    """Return the seconds since this process was started."""
    stat = read_stat(os.getpid())
    if stat is None:
        return 0.0
    now = time.clock_gettime(time.CLOCK_BOOTTIME) if HAS_PROC else time.time()
    return max(0.0, now - stat.start_time / CLOCK_TICKS)


def is_alive(pid: int, start_time: int) -> bool:
    """Return True if the process that had this pid and start time still exists."""
    stat = read_stat(pid)
    return stat is not None and stat.start_time == start_time and stat.state != "Z"


def end_group(group: int, patience_s: float) -> None:
    """End a process group: ask the processes to end, wait, and kill processes that are alive after patience_s seconds.

    The request comes first for the sake of ninja, which compiles FlashInfer's kernels. Ninja starts each compiler in a
    separate group, and ends these groups if asked to end, but not if killed. A stopped process can only be killed.
    """
    deadline = time.monotonic() + patience_s
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
        os.killpg(group, signal.SIGTERM)
        while _is_alive(group) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(group, signal.SIGKILL)


def _is_alive(group: int) -> bool:
    """Return True if a process of the group is alive. Zombies do not count."""
    if HAS_PROC:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    else:
        import psutil

        pids = psutil.pids()
    stats = map(read_stat, pids)
    return any(stat is not None and stat.group == group and stat.state != "Z" for stat in stats)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block, so that no `KeyboardInterrupt` leaves an object half-created,
    which nobody could close.

    Signals without a Python handler end the process as usual. Does nothing outside of the main thread, because Python
    runs signal handlers in the main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda signum, frame: received.append(signum))
    try:
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started the process ends, for whatever reason.

    SIGKILL also ends a stopped or stuck process, which would not notice the end of its standard input. If the parent
    ended before this call, the process finds its standard input closed. Other systems than Linux have no such request:
    there, a stopped or stuck process stays.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


OUTLIVES_THREAD = "--outlives-thread"


def child_command(module: str, *arguments: str, outlives_thread: bool = False) -> list[str]:
    """Return the command that runs a module of radixrt in a process which the kernel kills when the starting thread
    ends.

    The process imports the parent's copy of radixrt, and everything else from its interpreter's library, PYTHONPATH and
    installed packages. Python files of the current folder are never imported (`python -P`): a user's `queue.py` or
    `secrets.py` replaces no module.

    Args:
        outlives_thread: the kernel does not kill the process.
    """
    flags = [OUTLIVES_THREAD] if outlives_thread else []
    return [sys.executable, "-P", os.path.abspath(__file__), *flags, module, *arguments]


def _import_own_package() -> None:
    """Import the copy of radixrt that this file belongs to, even where Python would find another copy or none."""
    if "radixrt" in sys.modules:  # by the site's own modules
        return
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "radixrt", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    sys.modules["radixrt"] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)


if __name__ == "__main__":
    if sys.argv[1] == OUTLIVES_THREAD:
        del sys.argv[1]
    else:
        die_with_parent()
    del sys.argv[0]
    _import_own_package()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
