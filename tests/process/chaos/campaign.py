"""`Campaign`: starts a server, kills its processes one after the other under load, and judges what clients saw."""

from __future__ import annotations

import math
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.process.chaos.faults import RUNNER, SCHEDULER, STOPS, STOPS_BEHIND_ROUTER, Fault, choose, processes
from tests.process.chaos.load import Load, Record, reference
from tests.process.chaos.requests import KINDS, MODEL
from tests.server_process import LIMIT_S, ServerProcess, metrics, wait_for, wait_idle

SLOTS = 8192
POLL_S = 0.02
PROBE = {"prompt": "still there?", "max_tokens": 1, "temperature": 0}
SECOND_FAULT = 0.15
"""Probability that a second process is hit while the server recovers from a fault."""
NAMES_PROCESS = re.compile(r"the (tokenizer|router|scheduler|ModelRunner( \d+)?) process")
LOST_REPLICAS = "was open on 2 replicas that died"
"""Error of a request that was open at two deaths of replicas. A replica dies with its scheduler, and counts as dead
while it is silent because its ModelRunner is replaced."""


def start_server(folder: Path, *arguments: str) -> ServerProcess:
    """Start a server whose restarts are not limited and whose scheduler checks its invariants after every step."""
    return ServerProcess(
        "--model", str(folder), "--served-model-name", MODEL, "--dtype", "float32", "--num-threads", "1",
        "--kv-cache-tokens", str(SLOTS), "--max-running-requests", "16", "--check-invariants",
        "--max-restarts", "1000000", "--compile-timeout-s", "60", *arguments,
    ).wait_ready()  # fmt: skip


@dataclass
class Result:
    """Findings of a campaign.

    Attributes:
        lost: requests that no fault of theirs excuses; with the reason.
        changed: requests whose answer was another than without faults.
        ended: requests that ended with an error because the tokenizer, the scheduler or the router was hit.
        suspects: requests that ended with an error because two ModelRunners, or two replicas, died while they ran.
        leftovers: what remains after the server's end.
    """

    faults: list[Fault] = field(default_factory=list)
    requests: int = 0
    answered: int = 0
    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    ended: list[Record] = field(default_factory=list)
    suspects: list[Record] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.lost, *self.changed, *self.leftovers]


class Campaign:
    """Faults on one server.

    Args:
        clients: requests that are sent at a time.
        replicas: the server has several, behind a router.
    """

    def __init__(
        self, server: ServerProcess, *, seed: int, clients: int = 6, second_faults: bool = True, replicas: bool = False
    ) -> None:  # fmt: skip
        self._server = server
        self._stops = STOPS_BEHIND_ROUTER if replicas else STOPS
        self._rng = random.Random(seed)
        self._seed = seed
        self._clients = clients
        self._second_faults = second_faults
        self._seen: dict[int, psutil.Process] = {}

    def run(
        self,
        kills: int,
        *,
        limit_s: float = math.inf,
        on_fault: Callable[[int, Fault], None] = lambda number, fault: None,
    ) -> Result:
        """Cause so many faults, or those that fit into the time; stop the server, and judge all requests.

        Args:
            on_fault: called with the number of each fault, once the server has recovered.
        """
        result = Result()
        ends = time.monotonic() + limit_s
        expected = reference(self._server.url)
        with Load(self._server.url, clients=self._clients, seed=self._seed) as load:
            while len(result.faults) < kills and time.monotonic() < ends:
                try:
                    hit = self._hit(load)
                except AssertionError as error:
                    result.leftovers.append(f"stopped after {len(result.faults)} faults: {error}")
                    break
                for fault in hit:
                    result.faults.append(fault)
                    on_fault(len(result.faults), fault)
            self._remember()
        judge(result, load.records, expected, self._stops)
        self._check_idle(result)
        self._stop(result)
        return result

    def _hit(self, load: Load) -> list[Fault]:
        """Cause a fault at a random moment, perhaps a second one, and wait until the server has recovered."""
        answered = len(load.records)
        assert wait_for(lambda: len(load.records) > answered + self._clients), "no request is answered"
        time.sleep(self._rng.uniform(0.0, 0.5))
        faults = [self._strike(load)]
        if self._second_faults and self._rng.random() < SECOND_FAULT:
            time.sleep(self._rng.uniform(0.0, 3.0))
            faults.append(self._strike(load))
        recovered = self._wait_recovered(load)
        for fault in faults:
            fault.recovered, fault.double = recovered, len(faults) > 1
        open_then = frozenset().union(*(fault.open_requests for fault in faults))
        assert load.wait_ended(open_then, LIMIT_S), f"requests did not end after {faults}\n{self._log()}"
        return faults

    def _strike(self, load: Load) -> Fault:
        while True:
            self._remember()
            kind, process, how = choose(self._rng, processes(self._server.process.pid))
            open_requests = load.open_requests
            at = time.monotonic()
            with suppress(psutil.NoSuchProcess):
                process.send_signal(how)
                return Fault(kind, how, process.pid, at, open_requests)

    def _wait_recovered(self, load: Load) -> float:
        """Wait until a request that is sent now is answered; return the time of its answer."""
        with httpx.Client(base_url=self._server.url, timeout=LIMIT_S) as client:
            deadline = time.monotonic() + LIMIT_S
            while client.post("/v1/completions", json=PROBE).status_code != 200:
                assert time.monotonic() < deadline, f"the server does not recover\n{self._log()}"
                assert self._server.process.poll() is None, f"the server has ended\n{self._log()}"
                time.sleep(POLL_S)
        return time.monotonic()

    def _remember(self) -> None:
        for found in processes(self._server.process.pid).values():
            self._seen |= {process.pid: process for process in found}

    def _log(self) -> str:
        return "".join(self._server.lines[-30:])

    # --- after the load ---

    def _check_idle(self, result: Result) -> None:
        url = self._server.url
        wait_idle(url)
        if not wait_for(lambda: _slots_in_use(url) == 0):
            result.leftovers.append(f"{_slots_in_use(url)} slots are in use")
        hit = {fault.pid for fault in result.faults}
        for i, line in enumerate(self._server.lines):
            failed = re.search(r"process \(pid (\d+)\)", line)
            if failed and " ERROR " in line and int(failed.group(1)) not in hit:
                result.leftovers.append(f"a process failed that nobody hit: {line.strip()}")
            if "Traceback" in line:
                result.leftovers.append(
                    "a traceback in the log:\n" + "".join(self._server.lines[max(i - 2, 0) : i + 40])
                )

    def _stop(self, result: Result) -> None:
        code = self._server.stop()
        if code != 0:
            result.leftovers.append(f"exit code {code}: {self._log()}")
        if not wait_for(lambda: not any(_lives(process) for process in self._seen.values())):
            result.leftovers += [f"process {process}" for process in self._seen.values() if _lives(process)]


def judge(result: Result, records: list[Record], expected: dict[str, Any], stops: Set[str] = STOPS) -> None:
    """Add the requests of a load to the result.

    A request whose time overlaps a fault of a process in `stops` may end with an error that names a process. One that
    was running at two deaths of ModelRunners, or on two replicas that died, may end with an error that says so
    (`is_suspect`).
    """
    fixed = {kind.name for kind in KINDS if kind.fixed}
    for record in records:
        result.requests += 1
        overlapping = [f for f in result.faults if f.at <= record.ended and record.started <= f.recovered]
        if record.broken is not None:
            result.lost.append(f"{record.kind}: {record.broken}; faults: {overlapping}")
        elif record.error is None and record.kind in fixed and record.answer != expected[record.kind]:
            wanted = expected[record.kind]
            result.changed.append(f"{record.kind}: {record.answer!r} instead of {wanted!r}; faults: {overlapping}")
        elif record.error is None:
            result.answered += 1
        elif any(fault.process in stops for fault in overlapping) and NAMES_PROCESS.search(record.error):
            result.ended.append(record)
        elif is_suspect(record.error, overlapping):
            result.suspects.append(record)
        else:
            result.lost.append(f"{record.kind}: {record.error}; faults: {overlapping}")


def is_suspect(error: str, faults: list[Fault]) -> bool:
    """Return whether a request may be the cause of two deaths among the faults of its time, and its error says so."""
    runners = sum(fault.process == RUNNER for fault in faults)
    schedulers = sum(fault.process == SCHEDULER for fault in faults)
    return (runners > 1 and "ModelRunner" in error) or (runners + schedulers > 1 and LOST_REPLICAS in error)


def _slots_in_use(url: str) -> float:
    values = dict(line.rsplit(" ", 1) for line in metrics(url) if not line.startswith("#"))
    free = sum(float(values[f'radixrt_kv_slots{{state="{state}"}}']) for state in ("free", "evictable"))
    return float(values["radixrt_kv_slots_capacity"]) - free


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def watched_folders(result: Result) -> Iterator[None]:
    """Add files of the engine that the block leaves in the temporary folder or in shared memory to the result."""
    places = (Path(tempfile.gettempdir()), Path("/dev/shm"))
    before = {path for place in places for path in place.glob("*radixrt*")}
    yield
    left = {path for place in places for path in place.glob("*radixrt*")} - before
    result.leftovers += [f"left behind: {path}" for path in sorted(left)]
