"""States of processes, and children that end with their parent."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from radixrt import os_process
from radixrt.os_process import child_command, end_group, interrupts_deferred, is_alive, own_age_s, read_stat
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


@pytest.fixture(params=["/proc", "psutil"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(os_process, "HAS_PROC", request.param == "/proc")
    return str(request.param)


def test_this_process(source: str) -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert stat.state == "R"
    assert stat.cpu_s > 0
    assert stat.group == os.getpgid(0)
    assert 0 < own_age_s() < 7 * 24 * 3600
    assert is_alive(os.getpid(), stat.start_time)
    assert not is_alive(os.getpid(), stat.start_time + 1)


def test_a_stopped_process_and_its_end(source: str) -> None:
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
def test_a_group_ends_with_what_it_ends_itself(stopped: bool, source: str) -> None:
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


def test_interrupts_wait_for_the_end_of_a_block() -> None:
    handler = signal.getsignal(signal.SIGINT)
    done: list[str] = []

    @interrupts_deferred()
    def interrupted(then: Callable[[], object]) -> None:
        signal.raise_signal(signal.SIGINT)
        then()

    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: done.append("all"))
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt):
        interrupted(lambda: os.stat("/nowhere"))
    with interrupts_deferred():
        done.append("without a signal")
    assert done == ["all", "without a signal"]


def test_interrupts_are_deferred_in_the_main_thread_alone() -> None:
    handler = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def other() -> None:
        with interrupts_deferred():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [handler]


@pytest.mark.parametrize("outlives_thread", [False, True])
def test_a_child_imports_the_copy_of_its_parent_and_nothing_of_the_current_folder(
    outlives_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder = tmp_path / "checkout" / "radixrt", tmp_path / "folder"
    for made in (package, folder / "radixrt"):
        made.mkdir(parents=True)
        (made / "__init__.py").touch()
    (package / "probe.py").write_text("import queue, radixrt, sys\nprint(queue.__file__, radixrt.__file__, sys.argv)\n")
    (folder / "queue.py").touch()
    monkeypatch.setattr(os_process, "__file__", shutil.copy(os_process.__file__, package))
    command = child_command("radixrt.probe", "an argument", outlives_thread=outlives_thread)
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout
    import queue

    argv = [str(package / "probe.py"), "an argument"]
    assert said == f"{queue.__file__} {package / '__init__.py'} {argv}\n"
