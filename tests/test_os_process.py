"""States of processes, and children that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from radixrt.os_process import end_group, is_alive, read_stat
from tests.server_process import wait_for

CHILD = "import time, radixrt.os_process as p; p.die_with_parent(); print('up', flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
time.sleep(600)
"""

BUILD_TOOL = """
trap 'kill -TERM -- -$!; exit 1' TERM
setsid bash -c 'echo $$; exec sleep 600' &
wait
"""
"""As ninja does it, with a compiler in a process group of its own."""


def test_this_process() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.state == "R"
    assert stat.cpu_s > 0
    assert is_alive(os.getpid(), stat.start_time)
    assert not is_alive(os.getpid(), stat.start_time + 1)


def test_a_stopped_process_and_its_end() -> None:
    child = subprocess.Popen(["sleep", "600"])
    started = read_stat(child.pid)
    assert started is not None
    child.send_signal(signal.SIGSTOP)
    assert wait_for(lambda: (stat := read_stat(child.pid)) is not None and stat.state == "T")
    child.kill()
    assert wait_for(lambda: not is_alive(child.pid, started.start_time)), "dead, though not reaped"
    child.wait()
    assert read_stat(child.pid) is None


def test_a_stopped_child_dies_with_its_killed_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    started = read_stat(child)
    assert started is not None
    parent.kill()
    parent.communicate()
    assert wait_for(lambda: not is_alive(child, started.start_time))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_group_ends_with_what_it_ends_itself(stopped: bool) -> None:
    tool = subprocess.Popen(["bash", "-c", BUILD_TOOL], stdout=subprocess.PIPE, text=True, process_group=0)
    assert tool.stdout is not None
    compiler = int(tool.stdout.readline())
    started = read_stat(compiler)
    assert started is not None
    if stopped:
        tool.send_signal(signal.SIGSTOP)
    end_group(tool.pid, 0.2 if stopped else 60)
    assert tool.wait(60) == (-signal.SIGKILL if stopped else 1)
    if stopped:
        os.kill(compiler, signal.SIGKILL)
    assert wait_for(lambda: not is_alive(compiler, started.start_time))
    end_group(tool.pid, 60)  # there is none any more
