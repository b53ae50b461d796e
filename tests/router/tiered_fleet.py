"""Replicas with host and disk tiers over fake devices behind a real router.

Every slot that a step reads is checked (`tests.parts.tiers.harness`), so a prefix that came from a tier, or from
another replica, has the keys and values of its tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from radixrt.messages.cache_events import CacheEvents
from radixrt.messages.kv_moves import KVIn, KVLoad, KVPull
from radixrt.messages.peers import HandOver, PrefixAsk, PrefixComing, PrefixPages
from radixrt.messages.scheduler import ControlReq, Reset
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.parts.tiers.namespaces import is_of
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.scheduler import Left
from tests.parts.tiers.fake_mover import FakeHost
from tests.parts.tiers.harness import Sizes, TieredHarness
from tests.router.fake_fleet import FakeFleet, FakeReplica

SIZES = Sizes(host_pages=40)


class TieredReplica(FakeReplica, TieredHarness):
    """A replica with tiers. Its events of all trees go to the router, on one link.

    Attributes:
        left: results of the commands to forget an owner's namespaces.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.left: list[Left] = []
        super().__init__(*args, **options)

    def handle(self, message: Any) -> None:
        parts = {**self.scheduler.part(Watch).handles(), **self.tiers.handles()}
        if isinstance(message, Reset):
            assert message.keeps_cache
            self.scheduler.forget(self.now, keeps_cache=True)
        elif isinstance(message, ControlReq):
            assert message.op == "forget_owner"
            self.left.append(self.scheduler.forget_namespace(message.namespace, whole_owner=True))
        elif type(message) in parts:
            self.messages += parts[type(message)](message, self.now)
        else:
            super().handle(message)

    def turn(self) -> bool:
        did = super().turn()
        self.messages += self.scheduler.part(Watch).turn(self.now)
        messages, self.messages = self.messages, []
        for message in messages:
            link = self.events if isinstance(message, CacheEvents) else self.tokens
            link.append((self.epoch, message))
        return did or bool(messages)


class TieredFleet(FakeFleet):
    """See the module's docstring.

    Attributes:
        peer_messages: messages about prefixes of other replicas that the router has sent, with their targets.
    """

    def __init__(self, replicas: int = 2, *, sizes: Sizes = SIZES, **options: Any) -> None:
        if options.get("num_states"):
            options["num_states"] += RESERVED_STATES
        self.sizes = replace(sizes, state_rows=5 if options.get("num_states") else 0)
        self.hosts: dict[str, FakeHost] = {}
        self.peer_messages: list[tuple[int, Any]] = []
        super().__init__(replicas, moves=True, **options)

    def make_replica(self, replica: int) -> TieredReplica:
        sizes = self.sizes
        host = FakeHost(
            sizes.ranks, sizes.host_pages * sizes.page, sizes.page, sizes.receiving, state_rows=sizes.state_rows
        )  # fmt: skip
        host.arena, host.others = f"arena of {replica}", self.hosts
        self.hosts[host.arena] = host
        return TieredReplica(
            self.num_slots, self.num_states, sizes=sizes, host=host, seed=replica, eager=0.9, max_running_requests=4
        )

    def route(self) -> None:
        messages = self.router.take()
        kinds = PrefixAsk | PrefixComing | PrefixPages | HandOver
        self.peer_messages += [(send.target, send.message) for send in messages if isinstance(send.message, kinds)]
        self.router._outgoing = messages
        super().route()

    def replica(self, number: int) -> TieredReplica:
        found = self.replicas[number]
        assert isinstance(found, TieredReplica)
        return found

    def ask(self, rid: str, prompt: list[int], **fields: Any) -> dict[str, int]:
        """Serve a request to its end; return the number of its tokens that were fetched, by tier."""
        self.submit(rid, prompt, **fields)
        self.drain()
        self.assert_answer(rid)
        usage = self.usages[rid]
        assert usage is not None
        return usage.fetched_tokens

    def idle(self, seconds: float = 3.0) -> None:
        """Let time pass without requests, until tiers have what they keep."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.drain()

    def arrive(self, replica: int) -> None:
        """Let all messages to a replica arrive."""
        engine = self.replica(replica)
        while engine.inbox:
            self._arrive(replica, engine)

    def evict(self, replica: int, *tiers: str) -> None:
        """Evict the pool of a replica, or these tiers of the replica."""
        engine = self.replica(replica)
        for cache in [getattr(engine.tiers, tier).cache for tier in tiers] or [engine.cache]:
            cache.evict(cache.evictable_size)
            assert not cache.total_size
        self.drain()

    def forget(self, owner: str) -> None:
        """Drop all namespaces of an owner, as the loop of the router does."""
        for engine in self.replicas.values():
            engine.inbox.append((engine.epoch, ControlReq("forget", "forget_owner", owner)))
        self.router.placement.transfers.clear()

    def cached_of(self, owner: str) -> int:
        """Number of tokens of an owner's namespaces in all pools and tiers."""
        count = 0
        for number in self.replicas:
            engine = self.replica(number)
            roots = [root for root in engine.cache.roots() if root.namespace.startswith(owner)]
            for tier in (engine.tiers.host, engine.tiers.disk):
                roots += [] if tier is None else [
                    root for root in tier.cache.roots()
                    if root.namespace and is_of(bytes.fromhex(root.namespace), owner, whole_owner=True)
                ]  # fmt: skip
            count += sum(node.num_tokens for root in roots for node in root.descendants())
        return count

    def in_tier(self, replica: int, tier: str, tokens: list[int], namespace: str = "") -> int:
        return self.replica(replica).tiers.kept(np.array(tokens, np.int32), namespace)[tier]

    def moved(self, replica: int, kind: type[KVIn | KVLoad | KVPull]) -> int:
        """Number of orders of a kind that a replica has given."""
        return len(self.replica(replica).sent_orders(kind))

    def close(self) -> None:
        for number in self.replicas:
            self.replica(number).close()
