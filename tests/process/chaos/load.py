"""`Load`: threads that send requests of all kinds, one after the other, and record how each ended."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass
from typing import Any

import httpx

from tests.process.chaos.requests import KINDS, BrokenAnswer, Kind, RequestEnded, make_client

PAUSE_S = 0.02
"""Delay after a failed request, so that a server that is restarting is not flooded."""


@dataclass(frozen=True)
class Record:
    """One request; times are those of time.monotonic.

    Attributes:
        error: message of the server's error; None where it answered.
        broken: what no failure of another process excuses; None where there is nothing.
    """

    kind: str
    started: float
    ended: float
    answer: Any = None
    error: str | None = None
    broken: str | None = None


class Load:
    """See the module's docstring.

    Attributes:
        records: requests that have ended, in the order of their ends.
    """

    def __init__(self, url: str, *, clients: int, seed: int) -> None:
        self._url = url
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: dict[int, float] = {}
        self._stop = threading.Event()
        self._ended = threading.Condition(self._lock)
        self.records: list[Record] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 1000 + i),), name=f"client-{i}")
            for i in range(clients)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def open_requests(self) -> frozenset[int]:
        """Numbers of the requests that are waiting for their answers."""
        with self._lock:
            return frozenset(self._open)

    def wait_ended(self, numbers: frozenset[int], timeout_s: float) -> bool:
        """Wait until all of these requests have ended; return False if the time is up before."""
        with self._ended:
            return self._ended.wait_for(lambda: not numbers & self._open.keys(), timeout_s)

    def _run(self, choose: random.Random) -> None:
        with make_client(self._url) as client:
            while not self._stop.is_set():
                record = self._send(client, choose.choice(KINDS))
                if record.error is not None:
                    self._stop.wait(PAUSE_S)

    def _send(self, client: httpx.Client, kind: Kind) -> Record:
        with self._lock:
            number = next(self._numbers)
            self._open[number] = started = time.monotonic()
        answer = error = broken = None
        try:
            answer = kind.send(client, number)
        except RequestEnded as ended:
            error = str(ended)
        except (BrokenAnswer, httpx.HTTPError) as failure:
            broken = f"{type(failure).__name__}: {failure}"
        except Exception as failure:
            broken = f"not understood: {failure!r}"
        record = Record(kind.name, started, time.monotonic(), answer, error, broken)
        with self._ended:
            del self._open[number]
            self.records.append(record)
            self._ended.notify_all()
        return record


def reference(url: str) -> dict[str, Any]:
    """Return the answer of each kind while nothing else runs."""
    with make_client(url) as client:
        return {kind.name: kind.send(client, 1_000_000 + i) for i, kind in enumerate(KINDS)}
