"""Threads of the compiled kernels (`threads.cpp`): how many there are, and the cores that this process may use.

Importing this module imports no torch: the main process, which starts runners, has no tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
BINDINGS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that make OpenMP bind threads to cores: the main thread to a single one, which later threads inherit."""


def usable_cores() -> int:
    """Return the number of cores that this process may use: those that it may be scheduled on, or fewer if a control
    group limits its processor time (a container with a CPU limit). Part of a core does not count, unless it is all."""
    cores = float(len(os.sched_getaffinity(0)))
    return max(1, int(min([cores, *_group_limits()])))


def _group_limits() -> Iterator[float]:
    """Yield the processor time, in cores, that each control group of this process allows."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    limits: tuple[str, ...]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):  # version 1
            base = next((CGROUPS / name for name in (controllers, "cpu") if (CGROUPS / name).is_dir()), CGROUPS)
            limits = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        elif not controllers:  # version 2
            base, limits = CGROUPS, ("cpu.max",)
        else:
            continue
        folder = base / path.lstrip("/")
        for each in [folder, *folder.parents]:
            # A container sees its own group as the root.
            if not each.is_relative_to(base):
                break
            with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = " ".join((each / name).read_text() for name in limits).split()
                if int(quota) > 0:  # "max" and -1 are no limit
                    yield int(quota) / int(period)


def without_openmp_bindings(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that computes: torch's threads sleep while they wait, and no thread is bound
    to a core. They would take the cores from the threads of the kernels, and from other programs."""
    kept = {name: value for name, value in own.items() if name not in BINDINGS and name != "GOMP_SPINCOUNT"}
    return kept | {"OMP_WAIT_POLICY": "passive"}


def unbind_thread(environment: Mapping[str, str]) -> None:
    """Let this thread, and threads that it starts, run on all cores of the parent process, if OpenMP has bound it to
    one: in a program that runs the model itself, OpenMP was loaded with the program's environment."""
    if any(name in environment for name in BINDINGS):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))


def set_threads(library: ctypes.CDLL, count: int) -> None:
    """Set the most threads of a kernel, which are this process's for all kernels of the library."""
    library.radixrt_set_threads(count)


def max_threads(library: ctypes.CDLL) -> int:
    """Return what `set_threads` has set; 1 before."""
    return int(library.radixrt_threads())
