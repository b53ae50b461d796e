"""`NodeAgent`: the actor that starts radixrt's processes on a node of a Ray cluster, and reports how they ended.

It is all that runs inside of Ray: its processes are none of Ray's, and nobody's data passes through it. Ray imports it
by name, so every node needs radixrt, and its methods take and return numbers and JSON text alone. This module imports
nothing heavy, and Ray only in a node's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from radixrt._version import __version__

MODULES = {"rank": "radixrt.engine.cluster.rank_process"}
"""Modules that an agent runs, by kind of process."""

TAIL_BYTES = 8192
"""Last output of a process that is kept for the report about its end."""
TAIL_WAIT_S = 0.1
FIRST_INHERITED = 64
"""Descriptors from here on are those that a process inherits on purpose."""
SHELL = 'exec 8>&2 9<&0 2>/dev/null; "$@" <&9 2>&8 8>&- 9<&- & exec 8>&- 9<&-; echo $!; wait $!; exit $?'
"""Runs a command as a child of the shell, and writes its pid first. When an agent ends, Ray kills its children: that is
the shell. The command goes on while its engine does; see `rank_process`."""


class NodeAgent:
    """Owner of the processes on one node that share the devices which Ray gave it.

    A process has its settings from its standard input, which stays open for as long as the agent lives.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):  # Ray adds 15 to the niceness of its workers, which ranks would inherit
            os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._tails: dict[int, bytes] = {}
        self._readers: dict[int, threading.Thread] = {}
        self._store: socket.socket | None = None

    async def describe(self) -> str:
        """Return the version of radixrt and the node's address, as JSON."""
        return json.dumps({"version": __version__, "address": node_address()})

    async def open_store(self) -> str:
        """Open the port for the store of the ranks' rendezvous, which the first rank will serve; return it and the
        number of the descriptor that the rank inherits, as JSON."""
        self._store = socket.create_server((node_address(), 0))
        descriptor = fcntl.fcntl(self._store, fcntl.F_DUPFD, FIRST_INHERITED)
        return json.dumps({"port": self._store.getsockname()[1], "descriptor": descriptor})

    async def spawn(self, kind: str, settings_json: str) -> int:
        """Start a process and return its pid.

        Args:
            kind: of `MODULES`.
            settings_json: one line, which the process reads; a descriptor named `store_descriptor` is inherited.
        """
        inherited = json.loads(settings_json).get("store_descriptor")
        shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", sys.executable, "-m", MODULES[kind]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=process_environment(os.environ, visible_devices()),
            start_new_session=True,
            pass_fds=() if inherited is None else (inherited,),
        )
        assert shell.stdin is not None
        assert shell.stdout is not None
        if inherited is not None:
            os.close(inherited)
        pid = int(shell.stdout.readline())
        self._processes[pid] = shell
        self._readers[pid] = threading.Thread(target=self._pass_stderr, args=(pid,), daemon=True)
        self._readers[pid].start()
        with contextlib.suppress(BrokenPipeError):  # a process that has ended
            shell.stdin.write(settings_json.encode() + b"\n")
            shell.stdin.flush()
        return pid

    async def wait(self, pid: int) -> str:
        """Wait until a process has ended; return its exit code (minus the signal that killed it), the error that it
        reported on its standard output, and its last output, as JSON."""
        shell = self._processes[pid]
        assert shell.stdout is not None
        code = await _exit_code(shell)
        said = shell.stdout.readline()
        self._readers[pid].join(TAIL_WAIT_S)  # children of the process may hold the pipe
        return json.dumps(
            {
                "code": 128 - code if code > 128 else code,
                "error": json.loads(said) if said else "",
                "tail": self._tails.get(pid, b"").decode(errors="replace"),
            }
        )

    async def stop(self) -> None:
        """Kill what still runs, and what it started."""
        for shell in self._processes.values():
            if shell.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
        for shell in self._processes.values():
            await _exit_code(shell)

    def _pass_stderr(self, pid: int) -> None:
        """Copy a process's output to the agent's, which Ray keeps in its logs, and remember the end of it."""
        stderr = self._processes[pid].stderr
        assert stderr is not None
        while piece := os.read(stderr.fileno(), TAIL_BYTES):
            self._tails[pid] = (self._tails.get(pid, b"") + piece)[-TAIL_BYTES:]
            with contextlib.suppress(OSError):
                os.write(2, piece)


async def _exit_code(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process without a thread."""
    if process.poll() is None:
        descriptor, ended = os.pidfd_open(process.pid), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return process.wait()


def node_address() -> str:
    """Return this node's address in the cluster, not what its host name resolves to."""
    import ray

    return str(ray.util.get_node_ip_address())


def visible_devices() -> list[str]:
    """Return the GPUs of this node that Ray gave to this actor."""
    import ray

    return [str(name) for name in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


def process_environment(own: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment of a process: that of the node, with all GPUs of this agent.

    Ray hides GPUs from each actor, or from none if it was told so. Ranks of a stage map each other's memory, so each of
    them sees all GPUs of the stage, and takes the one with its local rank. Ray also sets OMP_NUM_THREADS, to 1 for an
    actor without CPUs.
    """
    environment = {name: value for name, value in own.items() if name != "OMP_NUM_THREADS"}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment
