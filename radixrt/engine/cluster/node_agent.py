"""`NodeAgent`: the actor that starts radixrt's processes on a node of a Ray cluster, and reports how they ended.

Only the agent runs inside of Ray. The processes that the agent starts are unknown to Ray, and no request data passes
through the agent. Ray imports the class by name, so every node needs radixrt installed. The methods take and return
numbers and JSON text only. This module imports nothing heavy, and Ray only in a node's process.
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
import threading
from collections.abc import Mapping, Sequence

from radixrt._version import __version__
from radixrt.kernels.threads import without_openmp_bindings
from radixrt.os_process import child_command

MODULES = {"rank": "radixrt.engine.cluster.rank_process"}
"""Modules that an agent runs, by kind of process."""

TAIL_BYTES = 8192
"""Last bytes of a process's output that are kept for the report about its end."""
TAIL_WAIT_S = 0.1
FIRST_INHERITED = 64
"""Descriptors from here on are inherited by a process on purpose."""
SHELL = 'exec 8>&2 9<&0 2>/dev/null; "$@" <&9 2>&8 8>&- 9<&- & exec 8>&- 9<&-; echo $!; wait $!; exit $?'
"""Runs a command as a child of the shell, and writes the pid of the command first. When an agent ends, Ray kills the
agent's children, which is only the shell. The command continues while its engine runs; see `rank_process`."""


class NodeAgent:
    """Owner of processes on a node, which share the devices that Ray assigned to this actor.

    A process reads its settings from standard input, which stays open for as long as the agent lives.
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
        """Open the port of the store for the ranks' rendezvous, which the first rank serves later. Return the port, and
        the descriptor that the rank inherits, as JSON."""
        self._store = socket.create_server((node_address(), 0))
        descriptor = fcntl.fcntl(self._store, fcntl.F_DUPFD, FIRST_INHERITED)
        return json.dumps({"port": self._store.getsockname()[1], "descriptor": descriptor})

    async def spawn(self, kind: str, settings_json: str, folder: str) -> int:
        """Start a process and return its pid.

        Args:
            kind: a key of `MODULES`.
            settings_json: one line for the process's stdin. The process inherits the descriptor that the field
                `store_descriptor` names.
            folder: current folder of the engine, to which relative paths refer. Where the node has no such folder, the
                process starts in the agent's.
        """
        inherited = json.loads(settings_json).get("store_descriptor")
        shell = subprocess.Popen(
            ["/bin/sh", "-c", SHELL, "sh", *child_command(MODULES[kind], outlives_thread=True)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=process_environment(os.environ, visible_devices()),
            cwd=folder if os.path.isdir(folder) else None,
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
        """Wait until a process has ended. Return JSON with `code`, the exit code or the negated number of the fatal
        signal; `error`, the error reported on standard output, or ""; and `tail`, the end of the process's output."""
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
        """Kill all processes that still run, and their children."""
        for shell in self._processes.values():
            if shell.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
        for shell in self._processes.values():
            await _exit_code(shell)

    def _pass_stderr(self, pid: int) -> None:
        """Copy a process's output to the agent's output, which Ray keeps in its logs, and remember the last bytes."""
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
    """Return this node's address in the cluster, which may differ from the address of its host name."""
    import ray

    return str(ray.util.get_node_ip_address())


def visible_devices() -> list[str]:
    """Return the GPUs of this node that Ray gave to this actor."""
    import ray

    return [str(name) for name in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]


def process_environment(own: Mapping[str, str], gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment for a process: the node's environment, with all GPUs of this agent visible.

    Ray hides GPUs from each actor, or, if configured so, from none. Ranks of a stage map each other's memory, so each
    rank sees all GPUs of the stage and uses the GPU with the number of its local rank. OMP_NUM_THREADS is removed,
    because Ray sets it to 1 for an actor without CPUs.
    """
    environment = without_openmp_bindings(own)
    environment.pop("OMP_NUM_THREADS", None)
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment
