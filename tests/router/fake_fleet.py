"""Replicas with real schedulers and fake runners behind a real router, with links that delay messages.

Each link keeps its order, as a socket does; tokens and cache events of a replica travel on links of their own, so that
events come late. A replica may die, stop for a while, or lose a batch of events. The router may die: main ends its open
requests, and the next router learns from snapshots what the replicas cache.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from radixrt.config.roles import Role
from radixrt.mem_cache.granules import HASH_BYTES, prompt_hashes
from radixrt.messages.cache_events import CacheAck, CacheEvents, WatchCacheReq
from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError, Usage
from radixrt.messages.peers import PrefixAsk, PrefixComing, PrefixPages
from radixrt.messages.request import Request
from radixrt.messages.scheduler import AbortReq, ReleaseReq, Reset, TokenBatch
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import pack_i32, unpack_f32, unpack_i32
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.watch.scheduler import CacheStream
from radixrt.router.placement import Placement
from radixrt.router.replica_load import ReplicaInfo
from radixrt.router.router import TOKENIZER, Router
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.invariants import check_scheduler
from tests.scheduler.fake_runner import Harness, deltas_of, expected_output, expected_scores

MAX_CONTEXT = 512


class FakeReplica(Harness):
    """A scheduler with a fake runner, whose output goes to the router.

    Attributes:
        inbox: messages on their way to it, with their epochs.
        tokens, events: messages on their way back.
        prefixes: messages about prefixes of other replicas.
    """

    def __init__(self, num_slots: int, num_states: int = 0, **options: Any) -> None:
        super().__init__(
            num_slots=num_slots, max_context=MAX_CONTEXT, check=False, depth=2, num_states=num_states, min_gap=8,
            **options,
        )  # fmt: skip
        self.epoch = 0
        self.stream = CacheStream(self.scheduler.core)
        self.prefixes: list[PrefixComing | PrefixPages] = []
        self.inbox: deque[tuple[int, Any]] = deque()
        self.tokens: deque[tuple[int, TokenBatch | SchedulerStats | PrefixPages]] = deque()
        self.events: deque[tuple[int, CacheEvents]] = deque()

    def take(self) -> None:
        batch = self.scheduler.take_deltas()
        if batch is not None:
            self.tokens.append((self.epoch, batch))

    def handle(self, message: Any) -> None:
        if isinstance(message, Reset):
            assert message.keeps_cache
            self.scheduler.forget(self.now, keeps_cache=True)
            self.stream.handle(WatchCacheReq(watch=False))
        elif isinstance(message, Request):
            self.scheduler.intake.add(message, self.now)
        elif isinstance(message, AbortReq):
            self.scheduler.abort(message.rid, self.now)
        elif isinstance(message, ReleaseReq):
            self.scheduler.part(Programs).release(message.program, message.branch)
        elif isinstance(message, PrefixAsk):
            self.tokens.append((self.epoch, PrefixPages(message.rid)))
        elif isinstance(message, PrefixComing | PrefixPages):
            self.prefixes.append(message)
        else:
            assert isinstance(message, WatchCacheReq | CacheAck)
            self.stream.handle(message)

    def turn(self) -> bool:
        did = super().turn()
        self.take()
        if self.stream.is_on:
            for message in self.stream.turn(self.now):
                assert isinstance(message, CacheEvents)
                self.events.append((self.epoch, message))
        return did

    def granules(self) -> set[int]:
        """Hashes of all granules in the tree, computed from its tokens."""
        found = set()
        for node in self.cache.iter_nodes():
            path = node.path()
            namespace = path[0].namespace  # type: ignore[attr-defined]
            hashes = prompt_hashes(b"".join(each.key_bytes for each in path), namespace)
            found |= {
                int.from_bytes(hashes[at : at + HASH_BYTES], "little") for at in range(0, len(hashes), HASH_BYTES)
            }
        return found


class FakeFleet:
    """See the module's docstring; `drain` brings everything to its end.

    Attributes:
        outputs, finishes, usages, values: of each request, as the tokenizer would have got them.
        cut_off: requests that were open when a router died.
        messages: every request, by id.
    """

    def __init__(
        self,
        replicas: int,
        *,
        num_slots: int = 1500,
        seed: int = 0,
        num_states: int = 0,
        moves: bool = False,
        roles: Sequence[Role] = (),
        **options: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.options = options
        self.moves = moves
        self.roles = roles
        self.router = self._new_router()
        self.routers = 1
        self.num_slots, self.num_states = num_slots, num_states
        self.now = 0.0
        self.replicas: dict[int, FakeReplica] = {}
        self.stopped: set[int] = set()
        self.messages: dict[str, Request] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finishes: dict[str, Finish] = {}
        self.usages: dict[str, Usage | None] = {}
        self.values: dict[str, list[float]] = {}
        self.cut_off: set[str] = set()
        self.sent: dict[str, list[int]] = {}
        for replica in range(replicas):
            self.add_replica(replica)

    def _new_router(self, first_epoch: int = 1) -> Router:
        placement = Placement(moves=self.moves)
        return Router(context_length=MAX_CONTEXT, first_epoch=first_epoch, placement=placement, **self.options)

    def add_replica(self, replica: int) -> None:
        self.replicas[replica] = self.make_replica(replica)
        self.replicas[replica].epoch = self._join(replica)
        self.route()

    def make_replica(self, replica: int) -> FakeReplica:
        """Return a new replica with an empty cache."""
        return FakeReplica(self.num_slots, self.num_states)

    def _join(self, replica: int) -> int:
        role = self.roles[replica] if replica < len(self.roles) else "both"
        info = ReplicaInfo(self.num_slots, 4, 1024, has_states=self.num_states > 0, role=role)
        return self.router.add_replica(replica, info, self.now)

    def restart_router(self) -> None:
        """Let the router die; its messages arrive, and what replicas have sent it comes to the next one."""
        for rid in self.router.open:
            self.cut_off.add(rid)
            self.finishes[rid] = Finish(FINISH_ERROR, error=FinishError("the router died", code="engine_dead"))
        self.router = self._new_router((self.routers << 32) + 1)
        self.routers += 1
        for replica, engine in self.replicas.items():
            engine.inbox.append((self._join(replica), Reset(keeps_cache=True)))
        self.route()

    def kill(self, replica: int) -> None:
        del self.replicas[replica]
        self.stopped.discard(replica)
        self.router.died(replica, self.now)
        self.route()

    # --- requests ---

    def submit(self, rid: str, prompt: list[int], **fields: Any) -> None:
        names = ("priority", "cache_salt", "timeout_s", "program")
        envelope = {name: fields.pop(name) for name in names if name in fields}
        sampling = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **fields})
        self.send(Request.generate(rid, pack_i32(prompt), sampling, **envelope))

    def send(self, message: Request) -> None:
        self.messages.setdefault(message.rid, message)
        self.router.submit(message, self.now)
        self.route()

    def abort(self, rid: str) -> None:
        self.router.abort(AbortReq(rid))
        self.route()

    def where(self, rid: str) -> int:
        """Replica that a request was last sent to."""
        return self.sent[rid][-1]

    # --- messages ---

    def route(self) -> None:
        for target, epoch, message in self.router.take():
            if target == TOKENIZER:
                assert isinstance(message, TokenBatch)
                self._deliver(message)
                continue
            if isinstance(message, Request):
                self.sent.setdefault(message.rid, []).append(target)
            self.replicas[target].inbox.append((epoch, message))

    def _deliver(self, batch: TokenBatch) -> None:
        for delta in deltas_of(batch):
            assert delta.rid not in self.finishes, "a delta behind the finish"
            self.outputs.setdefault(delta.rid, []).extend(unpack_i32(delta.token_ids).tolist())
            if delta.values is not None:
                self.values[delta.rid] = unpack_f32(delta.values.logprobs[0].token_logprobs).tolist()
            if delta.finish is not None:
                self.finishes[delta.rid], self.usages[delta.rid] = delta.finish, delta.usage

    def step(self, replica: int) -> bool:
        """Let one thing happen at a replica or on one of its links; returns whether anything could."""
        engine = self.replicas[replica]
        engine.now = self.now
        ways = [way for way in (engine.tokens, engine.events) if way]
        if replica not in self.stopped:
            if engine.inbox and self.rng.random() < 0.5:
                self._arrive(replica, engine)
                return True
            if engine.turn():
                return True
            if engine.inbox:
                self._arrive(replica, engine)
                return True
        ways = [way for way in (engine.tokens, engine.events) if way]
        if not ways:
            return False
        epoch, message = self.rng.choice(ways).popleft()
        self.router.receive(replica, epoch, message, self.now)
        self.route()
        return True

    def _arrive(self, replica: int, engine: FakeReplica) -> None:
        epoch, message = engine.inbox.popleft()
        if epoch != engine.epoch and not isinstance(message, Reset):
            return
        if isinstance(message, Reset) and not message.keeps_cache:
            fresh = self.replicas[replica] = self.make_replica(replica)
            fresh.epoch, fresh.now = epoch, self.now
            fresh.inbox, fresh.tokens, fresh.events = engine.inbox, engine.tokens, engine.events
            return
        engine.epoch = epoch
        engine.handle(message)

    def play(self, steps: int) -> None:
        """Let things happen at random."""
        for _ in range(steps):
            self.now += 0.01
            if self.replicas:
                self.step(self.rng.choice(list(self.replicas)))
            if self.rng.random() < 0.1:
                self.tick()

    def tick(self) -> None:
        self.router.tick(self.now)
        self.route()

    def drain(self, limit: int = 100_000) -> None:
        """Deliver and compute everything, with nobody stopped."""
        self.stopped.clear()
        quiet = 0
        while quiet < 3:  # acknowledgements leave with a tick
            self.now += 0.01
            did = [self.step(replica) for replica in list(self.replicas)]
            self.tick()
            quiet = 0 if any(did) else quiet + 1
            limit -= 1
            assert limit, "the fleet does not come to an end"

    # --- what must be true ---

    def check(self) -> None:
        """The index equals the trees, and nothing is left of the requests."""
        assert not self.router.open
        for replica, engine in self.replicas.items():
            check_scheduler(engine.scheduler)
            assert self.router.placement.index.held(replica) == engine.granules()
            load = self.router.placement.loads[replica]
            assert not load.open
            assert not len(load.queue)
            assert (load.unstarted_rows, load.unstarted_tokens, load.context) == (0, 0, 0)
            assert abs(load.outputs) < 1e-6
            assert load.queue.tokens == 0
            assert abs(load.queue.slots) < 1e-6
        assert not self.router.placement.index.num_booked

    def assert_answer(self, rid: str) -> None:
        """The request ended on its own, with the output that one replica would have given."""
        message = self.messages[rid]
        if message.sampling is None:
            assert self.values[rid] == expected_scores(message)
            return
        max_len = min(MAX_CONTEXT, self.num_slots)
        tokens, reason = expected_output(message.tokens(0).tolist(), message.sampling, max_len)
        assert self.outputs[rid] == tokens
        assert self.finishes[rid].reason == reason
