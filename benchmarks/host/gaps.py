"""Pauses of running streams while long prompts arrive: the tokenizer process alone, over real sockets.

A scheduler without a model sends one token to each stream every TICK_S. Once the streams run, all long prompts are sent
at once. The gap is the time between two outputs of a stream, as main receives them, until the last prompt has reached
the scheduler.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

from radixrt.bench.words import WORDS
from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.heartbeat import Heartbeat
from radixrt.messages.client import ClientRequest, InputRow, TextInput, ToMain, ToTokenizer
from radixrt.messages.parts import ChatPrompt, Finish
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import SchedulerReady, TokenBatch, TokenDelta, ToScheduler
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.loop import serve
from radixrt.tokenizer.prompt_queue import PromptQueue
from radixrt.tokenizer.tokenizer import Tokenizer
from radixrt.tokenizer.worker import TokenizerWorker

STREAMS = 16
TICK_S = 0.02
CONTEXT = 1 << 20
TURN_WORDS = 40


@dataclass(frozen=True)
class Gaps:
    """Result of one measurement, in seconds: the gaps of all streams, and the time until all prompts were encoded."""

    gaps: list[float]
    encoded_s: float


def measure_gaps(folder: Path, prompts: int, words: int, *, chat: bool, threaded: bool) -> Gaps:
    """Measure the gaps while `prompts` prompts of `words` words arrive, as texts or as conversations of short turns."""
    with tempfile.TemporaryDirectory(prefix="radixrt-gaps-") as scratch:
        ends = [f"ipc://{scratch}/{name}" for name in ("tokenizer", "scheduler", "main")]
        context: zmq.Context[Any] = zmq.Context()
        scheduler: ZmqInbox[ToScheduler] = ZmqInbox(context, ends[1], ToScheduler)
        main: ZmqInbox[ToMain] = ZmqInbox(context, ends[2], ToMain)
        tokenizer: ZmqOutbox[ToTokenizer] = ZmqOutbox(context, ends[0])
        command = [sys.executable, "-m", "benchmarks.host.gaps", str(folder), *ends, str(int(threaded))]
        process = subprocess.Popen(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"})
        try:
            return _measure(scheduler, main, tokenizer, _prompts(prompts, words, chat=chat))
        finally:
            process.kill()
            process.wait()
            context.destroy(linger=0)


def _prompts(count: int, words: int, *, chat: bool) -> list[ClientRequest]:
    rng = random.Random(0)
    sampling = SamplingParams(max_tokens=1)
    requests = []
    for i in range(count):
        chosen = rng.choices(WORDS, k=words)
        if not chat:
            requests.append(ClientRequest(Envelope(f"long-{i}"), [InputRow(TextInput(" ".join(chosen)))], sampling))
            continue
        turns = [" ".join(chosen[at : at + TURN_WORDS]) for at in range(0, words, TURN_WORDS)]
        messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)]
        row = InputRow(ChatPrompt(msgspec.json.encode(messages)))
        requests.append(ClientRequest(Envelope(f"long-{i}"), [row], sampling))
    return requests


def _measure(
    scheduler: ZmqInbox[ToScheduler],
    main: ZmqInbox[ToMain],
    tokenizer: ZmqOutbox[ToTokenizer],
    long: list[ClientRequest],
) -> Gaps:
    tokenizer.send(SchedulerReady(CONTEXT, 512, "cpu", "float32"))
    for i in range(STREAMS):
        row = InputRow(TextInput("Once"))
        tokenizer.send(ClientRequest(Envelope(f"stream-{i}"), [row], SamplingParams(max_tokens=100_000), stream=True))
    streams = [_tokenized(scheduler).rid for _ in range(STREAMS)]
    last = dict.fromkeys(streams, 0.0)
    gaps: list[float] = []

    def receive() -> None:
        finished = False
        while not finished and (message := main.recv(60.0)) is not None:
            now = time.perf_counter()
            for output in getattr(message, "outputs", ()):
                finished |= output.finish is not None
                if output.rid in last:
                    gaps.append(now - last[output.rid] if last[output.rid] else 0.0)
                    last[output.rid] = now

    receiver = threading.Thread(target=receive)
    receiver.start()
    batch = TokenBatch([], streams, pack_i32([100] * len(streams)))
    for _ in range(10):
        tokenizer.send(batch)
        time.sleep(TICK_S)
    gaps.clear()
    begun = time.perf_counter()
    encoded, unsent = 0, list(reversed(long))
    next_tick = begun
    while encoded < len(long):
        if unsent:
            tokenizer.send(unsent.pop())
        if scheduler.recv(0.0 if unsent else max(next_tick - time.perf_counter(), 0.0)) is not None:
            encoded += 1
        if time.perf_counter() >= next_tick:
            tokenizer.send(batch)
            next_tick += TICK_S
    took = time.perf_counter() - begun
    tokenizer.send(TokenBatch([TokenDelta(streams[0], b"", Finish("length"))]))
    receiver.join()
    return Gaps(gaps, took)


def _tokenized(scheduler: ZmqInbox[ToScheduler]) -> Request:
    message = scheduler.recv(60.0)
    assert isinstance(message, Request), message
    return message


def _serve(folder: str, inbox: str, scheduler: str, main: str, threaded: str) -> None:
    """Main function of the tokenizer process."""
    context: zmq.Context[Any] = zmq.Context()
    tokenizer = Tokenizer.from_folder(folder)
    messages: ZmqInbox[ToTokenizer] = ZmqInbox(context, inbox, ToTokenizer)
    worker = TokenizerWorker(
        tokenizer, model="m", vocab_size=tokenizer.vocab_size, context_length=CONTEXT,
        to_scheduler=ZmqOutbox(context, scheduler), to_main=ZmqOutbox(context, main),
        queue=PromptQueue(threaded=threaded == "1"),
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    serve(worker, messages, Heartbeat())


if __name__ == "__main__":
    _serve(*sys.argv[1:])
