"""Threads of the compiled kernels (`threads.cpp`): how many there are, and the cores that this process may use.

Importing this module imports no torch: the main process, which starts runners, has no tensors.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from radixrt.portable import num_cores

logger = logging.getLogger(__name__)

CGROUPS = Path("/sys/fs/cgroup")
BINDINGS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables that make OpenMP bind threads to cores: the main thread to a single one, which later threads inherit."""
OPENMP_LIBRARIES = ("libgomp", "libomp", "libiomp5")


def usable_cores() -> int:
    """Return the number of cores that this process may use: those that it may be scheduled on, or fewer if a control
    group limits its processor time (a container with a CPU limit). Part of a core does not count, unless it is all."""
    cores = float(num_cores())
    return max(1, int(min([cores, *_group_limits()])))


def pick_threads(wanted: int | None, ranks: int = 1) -> int:
    """Return the number of threads of one CPU runner: the configured number, else OMP_NUM_THREADS, at most the cores
    that this process may use, else an equal share of these cores for each of `ranks`."""
    if wanted is not None:
        return wanted
    cores, said = usable_cores(), os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(int(said), cores) if said.isdecimal() and int(said) else max(1, cores // ranks)


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
    """Undo OpenMP's binding of this thread to some cores, for the thread and for threads that it starts.

    In a program that runs the model itself, OpenMP was loaded with the program's environment. The thread gets all cores
    that OpenMP found when OpenMP was loaded, which are never more than the process was started with (`taskset`,
    `numactl`).
    """
    if not any(name in environment for name in BINDINGS) or not hasattr(os, "sched_setaffinity"):
        return
    own = os.sched_getaffinity(0)
    for places in map(_openmp_places, _loaded_openmp()):
        if own in places:  # else something other than OpenMP has chosen the cores
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, set().union(*places))
            return


def _loaded_openmp() -> list[str]:
    """Return the paths of the OpenMP libraries that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line}
    return sorted(path for path in paths if Path(path).name.startswith(OPENMP_LIBRARIES))


def _openmp_places(path: str) -> list[set[int]]:
    """Return the cores of each place to which an OpenMP library binds threads; nothing where it binds none."""
    places = []
    # The file of a library that this process has loaded may be gone, and an old OpenMP has no such functions.
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(path)
        for place in range(library.omp_get_num_places()):
            cores = (ctypes.c_int * library.omp_get_place_num_procs(place))()
            library.omp_get_place_proc_ids(place, cores)
            places.append(set(cores))
    return places


def set_threads(library: ctypes.CDLL, count: int) -> None:
    """Set the most threads of a kernel, which are this process's for all kernels of the library. Where the system
    refuses to start as many, for example because of a limit of processes, there are fewer."""
    library.radixrt_set_threads(count)
    if (found := max_threads(library)) < count:
        logger.warning("the system started %d of %d threads: compiled kernels compute on %d", found, count, found)


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute on a number of threads. Elsewhere torch may have one, because the compiled kernels have the
    others (`radixrt.runner.runner_config.divide_threads`)."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def max_threads(library: ctypes.CDLL) -> int:
    """Return what `set_threads` has set; 1 before."""
    return int(library.radixrt_threads())
