"""Cost of the router process: the real process between a tokenizer and fake replicas, over real sockets; docs/scale.md.

    python -m benchmarks.fleet.router_cost
    python -m benchmarks.fleet.router_cost --rate 1000 --tokens 100 --seconds 20

Calls of 1,024 tokens arrive at random (Poisson); each replica answers one token a step for each call that it has. A
call's latency is the time from the tokenizer's send to its arrival at a replica; a step's, from the replica's send of
its tokens to their arrival at the tokenizer. First the two processes of the benchmark talk without a router, then
through it: the difference is what the router adds. A third run, of calls with two tokens, tells the router's processor
time for a call from that for a token. Processor times are those of the processes, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import select
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psutil
import zmq

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt.bench.result import percentile
from radixrt.channel import Tag, TaggedInbox, TaggedOutbox, ZmqInbox, ZmqOutbox
from radixrt.messages.cache_events import CacheEvents, NodeInserted, RootOpened, SnapshotHeader
from radixrt.messages.client import ToTokenizer
from radixrt.messages.fleet import FromReplica, ReplicaNotice, ToRouter
from radixrt.messages.parts import FINISH_LENGTH, Finish, Timings, Usage
from radixrt.messages.request import Request
from radixrt.messages.scheduler import Reset, SchedulerReady, TokenBatch, TokenDelta, ToScheduler
from radixrt.messages.scheduler_stats import LoadStats, SchedulerStats, StepTimes
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.router.loop import RouterLoop
from radixrt.router.replica_index import ReplicaIndex
from radixrt.router.router import Router
from radixrt.sampling_params import SamplingParams

PROMPT = 1024
PREFIXES = 256
"""Prompts share one of so many prefixes of three quarters of their length."""
STEP_S = 0.02
WARM_S = 2.0
READY = SchedulerReady(4_000_000, 2048, "cpu", "float32")
TIMES = StepTimes(0.002, 5e-6, 1e-9, 0.0, 1e-6, 0.0, decode_steps=1000, extend_steps=1000)
"""Step times that the replicas report: fast enough for the rate, so that no call waits in the router for a replica."""
STATS_S = 0.25
NOW: Callable[[], int] = lambda: time.monotonic_ns() // 1000 % 2**31  # noqa: E731  (a stamp that fits a token id)


def run_router(folder: str) -> None:
    context: zmq.Context[Any] = zmq.Context()
    inbox: ZmqInbox[ToRouter] = ZmqInbox(context, f"{folder}/router", ToRouter)
    replies: TaggedInbox[FromReplica] = TaggedInbox(context, f"{folder}/replies", FromReplica)
    tokenizer: ZmqOutbox[ToTokenizer] = ZmqOutbox(context, f"{folder}/tokenizer")
    loop = RouterLoop(
        Router(context_length=65536), inbox, replies, tokenizer, lambda endpoint: TaggedOutbox(context, endpoint),
        epoch=0, chunked_prefill_size=8192,
    )  # fmt: skip
    loop.serve(lambda: None)


def wait(inboxes: Sequence[ZmqInbox[Any]], until: float) -> None:
    """Wait for any of these inboxes, all of which have been read to their end, or until a time. ZMQ's own poll rounds
    to milliseconds, which would have the benchmark spin, or be late."""
    select.select([inbox.socket.FD for inbox in inboxes], [], [], max(until - time.monotonic(), 0.0))


class FakeReplica:
    """Answers each call with one token a step, each of which is the time of its step."""

    def __init__(self, number: int, tokens: int, context: zmq.Context[Any], folder: str) -> None:
        self.inbox: TaggedInbox[ToScheduler] = TaggedInbox(context, f"{folder}/replica{number}", ToScheduler)
        self.outbox: TaggedOutbox[FromReplica] = TaggedOutbox(context, f"{folder}/replies")
        self.tag = Tag(number, 0)
        self.left: dict[str, int] = {}
        self.tokens = tokens
        self.told_at = 0.0

    def read(self, latencies: list[int]) -> None:
        while (found := self.inbox.recv_tagged()) is not None:
            tag, message = found
            if isinstance(message, Reset):
                self.tag = tag
            elif isinstance(message, Request):
                latencies.append((NOW() - int(message.rid.partition(".")[0])) % 2**31)
                self.left[message.rid] = self.tokens

    def step(self) -> int:
        """Send a token of each call, and now and then the load; returns the number of tokens."""
        if time.monotonic() - self.told_at > STATS_S and self.tag.epoch:
            self.told_at = time.monotonic()
            free = READY.num_slots - len(self.left) * (PROMPT + self.tokens)
            counts = (0, len(self.left), READY.num_slots, free, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            stats = SchedulerStats(*counts, 0.0, 0.0, 0.0, load=LoadStats(step_times=TIMES))
            self.outbox.send_tagged(self.tag, stats)
        rids, deltas, stamp = [], [], NOW()
        for rid, left in list(self.left.items()):
            if left > 1:
                self.left[rid] = left - 1
                rids.append(rid)
            else:
                del self.left[rid]
                usage = Usage(PROMPT, self.tokens)
                deltas.append(TokenDelta(rid, pack_i32([stamp]), Finish(FINISH_LENGTH), usage, Timings()))
        if rids or deltas:
            self.outbox.send_tagged(self.tag, TokenBatch(deltas, rids, pack_i32([stamp] * len(rids))))
        return len(rids) + len(deltas)


class Load(NamedTuple):
    """Load of one run: calls per second, output tokens of each, replicas, and seconds."""

    rate: float
    tokens: int
    replicas: int
    seconds: float
    direct: bool = False


def run_replicas(folder: str, count: int, tokens: int, seconds: float, results: Any) -> None:
    context: zmq.Context[Any] = zmq.Context()
    replicas = [FakeReplica(number, tokens, context, folder) for number in range(count)]
    latencies: list[int] = []
    sent = 0
    due = [time.monotonic() + STEP_S * i / count for i in range(count)]
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        wait([replica.inbox for replica in replicas], min(due))
        for i, replica in enumerate(replicas):
            replica.read(latencies)
            if time.monotonic() >= due[i]:
                due[i] = max(due[i] + STEP_S, time.monotonic())
                sent += replica.step()
    results.put((latencies, sent, time.process_time()))


class Seen(NamedTuple):
    """Result of one run. Latencies are in microseconds, processor times in seconds.

    Attributes:
        calls, seconds: calls that were sent while it was measured, and for how long.
        tokens_s: output tokens per second.
        call, step: latencies.
        router_s, own_s: processor times of the router and of the benchmark's two processes.
    """

    calls: int
    seconds: float
    tokens_s: float
    call: Sequence[float]
    step: Sequence[float]
    router_s: float
    own_s: float


def drive(folder: str, options: Load, router_cpu_s: Callable[[], float]) -> Seen:
    """Be the tokenizer; returns what it has seen, without what the replicas have."""
    context: zmq.Context[Any] = zmq.Context()
    inbox: ZmqInbox[ToTokenizer] = ZmqInbox(context, f"{folder}/tokenizer", ToTokenizer)
    if options.direct:
        outboxes: list[Any] = [TaggedOutbox(context, f"{folder}/replica{i}") for i in range(options.replicas)]
        direct: TaggedInbox[FromReplica] = TaggedInbox(context, f"{folder}/replies", FromReplica)
    else:
        outboxes = [ZmqOutbox(context, f"{folder}/router")]
        for number in range(options.replicas):
            endpoint = f"{folder}/replica{number}"
            outboxes[0].send(ReplicaNotice(number, 1 + number, True, endpoint=endpoint, ready=READY))
    source: ZmqInbox[Any] = direct if options.direct else inbox
    receive: Callable[[], Any] = direct.recv_tagged if options.direct else inbox.recv
    rng, sampling = random.Random(1), SamplingParams(max_tokens=options.tokens, temperature=0.0)
    prefixes = [rng.randbytes(3 * PROMPT) for _ in range(PREFIXES)]
    started = time.monotonic()
    due, calls, cpu, own, measured_at = started + 1.0, 0, 0.0, 0.0, 0.0
    stamps: list[int] = []
    while (now := time.monotonic()) < started + WARM_S + options.seconds:
        if not measured_at and now > started + WARM_S:
            measured_at, cpu, own, calls, stamps = now, router_cpu_s(), time.process_time(), 0, []
        if now >= due:
            due += rng.expovariate(options.rate)
            calls += 1
            ids = rng.choice(prefixes) + rng.randbytes(PROMPT)
            outboxes[calls % len(outboxes)].send(Request.generate(f"{NOW()}.{rng.getrandbits(90):x}", ids, sampling))
        found = receive()
        if found is None:
            wait([source], due)
            continue
        message = found[1] if isinstance(found, tuple) else found
        if isinstance(message, TokenBatch) and message.token_ids:
            stamps.append((NOW() - int(unpack_i32(message.token_ids)[0])) % 2**31)
    seconds = time.monotonic() - measured_at
    return Seen(calls, seconds, 0.0, [], stamps, router_cpu_s() - cpu, time.process_time() - own)


def index_of(granules: int) -> tuple[float, float]:
    """Return bytes and microseconds of each granule of an index that gets so many by events."""
    before, index = psutil.Process().memory_info().rss, ReplicaIndex()
    index.add(0)
    rng, node, per_node = random.Random(2), 2, 16
    header = SnapshotHeader(64 * granules, 1, 64, "lru")
    batches = []
    for seq in range(granules // per_node // 100):
        events: list[Any] = [RootOpened(1, bytes(8))] if seq == 0 else []
        for _ in range(100):
            events.append(NodeInserted(node, 1, 64 * per_node, rng.randbytes(8 * per_node), 0, 0))
            node += 1
        batches.append(CacheEvents(seq, 0, True, events, header if seq == 0 else None))
    made = psutil.Process().memory_info().rss
    began = time.process_time()
    for batch in batches:
        index.apply(0, batch)
    took = time.process_time() - began
    held = psutil.Process().memory_info().rss - made
    del batches, before
    return held / len(index), took * 1e6 / len(index)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet.router_cost", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rate", type=float, default=2000.0, help="calls per second; default: 2000")
    parser.add_argument("--tokens", type=int, default=50, help="output tokens of each call; default: 50")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument(
        "--granules", type=int, default=1_000_000, help="granules of the index whose memory is measured"
    )
    return parser.parse_args(argv)


def measure(load: Load) -> Seen:
    """Run the processes under a load."""
    spawn = multiprocessing.get_context("spawn")
    results: Any = spawn.Queue()
    with tempfile.TemporaryDirectory() as path:
        folder = f"ipc://{path}"
        router = spawn.Process(target=run_router, args=(folder,), daemon=True)
        cpu_s: Callable[[], float] = lambda: 0.0  # noqa: E731
        if not load.direct:
            router.start()
            process = psutil.Process(router.pid)
            cpu_s = lambda: sum(process.cpu_times()[:2])  # noqa: E731
        lasts = WARM_S + load.seconds
        replicas = spawn.Process(
            target=run_replicas, args=(folder, load.replicas, load.tokens, lasts, results), daemon=True
        )
        replicas.start()
        seen = drive(folder, load, cpu_s)
        latencies, sent, replicas_s = results.get(timeout=60)
        replicas.join()
        if not load.direct:
            router.terminate()
            router.join()
    late = latencies[len(latencies) // 5 :] or [0]
    own_s = seen.own_s + replicas_s * seen.seconds / lasts
    return seen._replace(tokens_s=sent / lasts, call=late, own_s=own_s)


def main(argv: Sequence[str] | None = None) -> None:
    options = arguments(argv)
    load = Load(options.rate, options.tokens, options.replicas, options.seconds)
    for name, value in facts().items():
        print(f"{name}: {value}")
    direct, routed = measure(load._replace(direct=True)), measure(load)
    print(f"\n{load.replicas} replicas, {routed.seconds:.1f} s, {load.rate:.0f} calls per second asked\n")
    print(report(direct, routed))
    few = measure(load._replace(tokens=2))
    call_us, token_us = shares(routed, few)
    print(f"\nrouter's processor time: {call_us:.0f} us a call and {token_us:.2f} us a token")
    held, took = index_of(options.granules)
    print(f"index of {options.granules} granules: {held:.0f} bytes and {took:.2f} us of each")


def report(direct: Seen, routed: Seen) -> str:
    """A table of both runs, and of what the router adds."""
    rows = [
        ["calls per second", *(f"{each.calls / each.seconds:.0f}" for each in (direct, routed)), ""],
        ["output tokens per second", *(f"{each.tokens_s:.0f}" for each in (direct, routed)), ""],
    ]
    for name, latencies in (("call", (direct.call, routed.call)), ("step's tokens", (direct.step, routed.step))):
        for q in (50, 99):
            without, through = (percentile(each, q) / 1000 for each in latencies)
            rows.append([f"{name}, p{q}", f"{without:.2f} ms", f"{through:.2f} ms", f"{through - without:+.2f} ms"])
    own, both = direct.own_s / direct.seconds, routed.own_s / routed.seconds
    rows.append(["benchmark's processor time", f"{own:.0%}", f"{both:.0%}", ""])
    rows.append(["router's processor time", "", f"{routed.router_s / routed.seconds:.0%}", ""])
    return table(["", "without a router", "through the router", "the router adds"], rows)


def shares(routed: Seen, few: Seen) -> tuple[float, float]:
    """Microseconds of the router for a call and for a token, from two runs with different numbers of tokens a call."""
    many, less = (each.tokens_s * each.seconds for each in (routed, few))
    token_s = (routed.router_s - few.router_s * routed.calls / few.calls) / (many - less * routed.calls / few.calls)
    return (few.router_s - token_s * less) / few.calls * 1e6, token_s * 1e6


if __name__ == "__main__":
    main()
