"""The tokenizer process's loop reports progress for both of its threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from radixrt.heartbeat import Heartbeat
from radixrt.messages.client import ClientRequest, ToTokenizer
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.loop import serve
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import generating
from tests.tokenizer.test_prompt_queue import ThreadedBench


class Stop(Exception):
    pass


class ScriptedInbox:
    """An inbox that never lets the loop sleep. Each step is called before a `recv`, which gives what it returns."""

    def __init__(self, *steps: Callable[[], ToTokenizer | None]) -> None:
        self._steps = iter(steps)
        self.socket = os.eventfd(1)

    def recv(self) -> ToTokenizer | None:
        step = next(self._steps, None)
        if step is None:
            raise Stop
        return step()


class CountingHeartbeat(Heartbeat):
    count = 0

    def beat(self) -> None:
        self.count += 1


def test_the_heartbeat_stops_while_an_encoding_is_stuck(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = ThreadedBench(tokenizer, monkeypatch)
    heartbeat = CountingHeartbeat()
    seen: list[int] = []

    def note() -> None:
        seen.append(heartbeat.count)

    def long_prompt() -> ClientRequest:
        return generating("long", SamplingParams(), prompt="long")

    def encode_for(seconds: float) -> None:
        assert bench.encoding.wait(60)
        bench.now += seconds
        note()

    def end() -> None:
        note()
        bench.go_on.set()
        bench.sent(1)

    inbox: Any = ScriptedInbox(long_prompt, lambda: encode_for(0.5), lambda: encode_for(60), note, end, note, note)
    with pytest.raises(Stop):
        serve(bench.worker, inbox, heartbeat)
    begun, stuck, still, at_end, after, last = seen
    assert begun == 1
    assert stuck == 2, "within the time of the text"
    assert still == at_end == 2
    assert (after, last) == (3, 4)
    bench.worker.queue.close()
    os.close(inbox.socket)
