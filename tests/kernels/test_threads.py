"""Threads of the compiled kernels: every piece once, the same bits on any number of threads, fewer beside others."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.kernels import build, threads
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import max_threads, set_threads, unbind_thread, usable_cores, without_openmp_bindings
from radixrt.layers.formats.panels import Panels
from radixrt.layers.ops import CpuOps

PROBE = r"""
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include "thread_progress.h"
#include "threads.h"

using namespace radixrt;

extern "C" {
// Adds one to counts[i] for each piece i, which takes at least `ns`; returns how many threads have run pieces.
int probe_loop(int* counts, int64_t pieces, int64_t ns) {
    std::atomic<int> threads{0};
    static std::atomic<int64_t> loops{0};
    const int64_t own = ++loops;
    parallel(pieces, [&](int64_t i) {
        static thread_local int64_t last = 0;
        if (last != own) threads++;
        last = own;
        const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
        while (std::chrono::steady_clock::now() < until) {}
        counts[i]++;
    });
    return threads;
}

// A loop of n pieces, each of which runs a loop of n pieces, which add one to counts[i * n + j].
void probe_nested(int* counts, int64_t n) {
    parallel(n, [&](int64_t i) { parallel(n, [&](int64_t j) { counts[i * n + j]++; }); });
}

void probe_ranges(int* counts, int64_t count, int64_t most) {
    parallel_ranges(count, most, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) counts[i] += end - begin <= most ? 1 : 100;
    });
}

ThreadProgress* probe_progress(int most) { return new ThreadProgress(most); }
int probe_begin(ThreadProgress* progress, int64_t now) { return progress->begin(now); }
void probe_end(ThreadProgress* progress, int64_t began, int64_t own_ended, int64_t ended, int64_t pieces) {
    progress->end(began, own_ended, ended, pieces);
}
}
"""
MS = 1_000_000


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The pool in a library of its own, with loops to watch."""
    folder = tmp_path_factory.mktemp("probe")
    source, made = folder / "probe.cpp", folder / "probe.so"
    source.write_text(PROBE)
    kernels = Path(build.__file__).parent
    command = [build._compiler(), *build.FLAGS, "-O1", "-shared", f"-I{kernels}", str(source)]
    subprocess.run([*command, str(kernels / "threads.cpp"), "-o", str(made)], check=True, capture_output=True)
    library = ctypes.CDLL(str(made))
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    library.probe_loop.argtypes, library.probe_nested.argtypes = [pointer, i64, i64], [pointer, i64]
    library.probe_ranges.argtypes = [pointer, i64, i64]
    library.probe_progress.restype = pointer
    library.probe_begin.argtypes, library.probe_end.argtypes = [pointer, i64], [pointer, i64, i64, i64, i64]
    return library


def counts(size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.zeros(size, np.int32)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_each_piece_is_computed_once(probe: ctypes.CDLL, number: int) -> None:
    set_threads(probe, number)
    assert max_threads(probe) == number
    for pieces in (0, 1, 2, 3, 17, 1000):
        found = counts(pieces)
        for _ in range(50):
            probe.probe_loop(found.ctypes.data, pieces, 0)
        assert (found == 50).all()
    found = counts(49)
    probe.probe_nested(found.ctypes.data, 7)
    assert (found == 1).all()
    for most in (1, 3, 1000):
        found = counts(77)
        probe.probe_ranges(found.ctypes.data, 77, most)
        assert (found == 1).all()


def test_other_threads_take_pieces(probe: ctypes.CDLL) -> None:
    set_threads(probe, 3)
    found = counts(300)
    # On a busy machine the other threads may come late to a loop, but not to all of them.
    assert max(probe.probe_loop(found.ctypes.data, 300, 100_000) for _ in range(20)) > 1


def test_loops_of_several_callers(probe: ctypes.CDLL) -> None:
    set_threads(probe, 2)
    results = [counts(100) for _ in range(4)]

    def run(found: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> None:
        for _ in range(200):
            probe.probe_loop(found.ctypes.data, 100, 0)

    callers = [threading.Thread(target=run, args=(found,)) for found in results]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((found == 200).all() for found in results)


def test_a_forked_process_computes_alone(probe: ctypes.CDLL) -> None:
    set_threads(probe, 2)
    found = counts(64)
    probe.probe_loop(found.ctypes.data, 64, 0)
    pid = os.fork()
    if pid == 0:
        probe.probe_loop(found.ctypes.data, 64, 0)
        os._exit(0 if (found == 2).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_process_forked_during_a_loop_has_threads_of_its_own(probe: ctypes.CDLL) -> None:
    set_threads(probe, 2)
    during, found = counts(50), counts(300)
    loop = threading.Thread(target=probe.probe_loop, args=(during.ctypes.data, 50, 10_000_000))
    loop.start()
    while not during.any():
        time.sleep(0.001)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # a child that waits for the parent's threads waits forever
        alone = max_threads(probe) == 1 and probe.probe_loop(found.ctypes.data, 300, 0) == 1
        set_threads(probe, 2)
        shared = max(probe.probe_loop(found.ctypes.data, 300, 100_000) for _ in range(20)) == 2
        os._exit(0 if alone and shared and (found == 21).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    loop.join()
    assert (during == 1).all()
    assert max_threads(probe) == 2


def test_threads_that_cannot_be_started_are_done_without(probe: ctypes.CDLL) -> None:
    """A process with room for a few stacks computes on as many threads, and says so."""
    code = (
        "import ctypes, logging, resource, sys; from radixrt.kernels.threads import max_threads, set_threads\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
        "library, counts = ctypes.CDLL(sys.argv[1]), (ctypes.c_int * 500)()\n"
        "library.probe_loop.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "_, most = resource.getrlimit(resource.RLIMIT_AS)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), most))\n"
        "set_threads(library, 64)\n"
        "library.probe_loop(ctypes.addressof(counts), 500, 1000)\n"
        "print(max_threads(library), set(counts))"
    )
    command = [sys.executable, "-c", code, probe._name]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    number = int(said[1].split()[0])
    assert 1 <= number < 64
    assert said[0] == f"the system started {number} of 64 threads: compiled kernels compute on {number}"
    assert said[1] == f"{number} {{1}}"


class Clock:
    """Loops of a `ThreadProgress` of a simulated machine."""

    def __init__(self, probe: ctypes.CDLL, most: int) -> None:
        self._probe, self._progress, self.now = probe, probe.probe_progress(most), 0

    def loop(self, late_ns: Callable[[int], int]) -> int:
        """Run a loop of 1 ms, in ten pieces of the caller, whose end is late; returns its threads."""
        number = self._probe.probe_begin(self._progress, self.now)
        ended = self.now + MS + (late_ns(number) if number > 1 else 0)
        if number > 1:
            self._probe.probe_end(self._progress, self.now, self.now + MS, ended, 10)
        self.now = ended
        return int(number)

    def threads(self, seconds: float, late_ns: Callable[[int], int]) -> list[int]:
        """Threads of the loops of so many seconds."""
        until, found = self.now + int(seconds * 1e9), []
        while self.now < until:
            found.append(self.loop(late_ns))
        return found


def test_threads_stay_while_nobody_is_late(probe: ctypes.CDLL) -> None:
    clock = Clock(probe, 4)
    assert set(clock.threads(3, lambda _: 0)) == {4}
    assert set(clock.threads(3, lambda _: 200_000)) == {4}  # two pieces of 100 µs


def test_late_threads_are_not_waited_for(probe: ctypes.CDLL) -> None:
    clock = Clock(probe, 8)
    found = clock.threads(4, lambda number: 3 * MS if number > 5 else 0)
    assert found[:3] == [8, 7, 6]
    assert found[3] == 5
    assert min(found) == 5
    # More are tried again a few times a second, for one loop each.
    tries = sum(number > 5 for number in found[3:])
    assert 3 <= tries <= 16
    # The neighbour ends: all threads come back within the longest pause.
    assert clock.threads(1.5, lambda _: 0)[-1] == 8


def test_one_more_thread_is_tried_at_a_time(probe: ctypes.CDLL) -> None:
    """Lateness that takes several loops to be judged does not let other threads be tried meanwhile."""
    clock = Clock(probe, 16)
    clock.threads(1, lambda number: 900_000 if number > 5 else 0)
    found = clock.threads(4, lambda number: 900_000 if number > 5 else 0)
    assert set(found) == {5, 6}


def test_one_thread_is_the_least(probe: ctypes.CDLL) -> None:
    clock = Clock(probe, 2)
    assert set(clock.threads(1, lambda _: 5 * MS)) == {1, 2}


@pytest.fixture
def kernels(cache_folder: Path) -> Iterator[ctypes.CDLL]:
    library = load_kernels(cache_folder / "kernels")
    before = max_threads(library)
    yield library
    set_threads(library, before)


@pytest.mark.parametrize("rows", [1, 5, 16, 40, 300])
def test_products_have_the_same_bits_on_any_number_of_threads(kernels: ctypes.CDLL, rows: int) -> None:
    ops, generator = CpuOps(kernels), torch.Generator().manual_seed(rows)
    panels, found = Panels(ops), []
    weight = torch.randn(448, 192, generator=generator).bfloat16()
    x, norm = torch.randn(rows, 192, generator=generator), torch.ones(192)
    for number in (1, 2, 3):
        set_threads(kernels, number)
        prepared = panels.prepare({"weight": weight})
        mixed = ops.add_rms_norm(x.clone(), None, norm, 1e-5, torch.float32)
        found.append(panels.linear(prepared, mixed, None))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


CPU_MAX = {"max 100000": 8, "250000 100000": 2, "100000 100000": 1, "50000 100000": 1, "unreadable": 8}


@pytest.mark.parametrize("text", CPU_MAX)
def test_limits_of_control_groups_are_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = [line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    if not own:
        pytest.skip("this system has no control groups of version 2")
    folder = tmp_path / own[0][3:].lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(text)
    monkeypatch.setattr(threads, "CGROUPS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == CPU_MAX[text]


def test_processes_that_compute_are_not_bound() -> None:
    own = {"PATH": "/bin", "OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "OMP_WAIT_POLICY": "active",
           "GOMP_SPINCOUNT": "infinity", "OMP_NUM_THREADS": "3"}  # fmt: skip
    kept = {"PATH": "/bin", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "3"}
    assert without_openmp_bindings(own) == kept


UNBIND = (
    "import os, sys\n"
    "started = os.sched_getaffinity(0) if len(sys.argv) == 1 else {int(sys.argv[1])}\n"
    "os.sched_setaffinity(0, started)\n"
    "import torch; torch.ones(1); bound = os.sched_getaffinity(0)\n"
    "from radixrt.kernels.threads import unbind_thread; unbind_thread(os.environ)\n"
    "print(len(bound), os.sched_getaffinity(0) == started)"
)


@pytest.mark.parametrize("variables", [{"OMP_PROC_BIND": "true"}, {"OMP_PLACES": "threads"}])
def test_a_bound_program_gets_its_cores_back(variables: dict[str, str]) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("this machine has one core")
    run = [sys.executable, "-c", UNBIND]
    said = subprocess.run(run, env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "True"]


def test_a_bound_program_stays_on_the_cores_that_it_was_started_with() -> None:
    """As with `taskset`: the parent process may use more cores."""
    core = str(max(os.sched_getaffinity(0)))
    run = [sys.executable, "-c", UNBIND, core]
    environment = {**os.environ, "OMP_PROC_BIND": "true"}
    said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "True"]


def test_an_unbound_program_keeps_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_setaffinity", lambda *_: pytest.fail("the cores were changed"))
    unbind_thread({"OMP_NUM_THREADS": "2"})
