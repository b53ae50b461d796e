"""Prefixes that come from another replica: two schedulers with tiers, and a router that passes their messages on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from radixrt.errors import InvariantError
from radixrt.messages.kv_moves import KVOut, KVPull
from radixrt.messages.peers import HandedOver, HandOver, PrefixAsk, PrefixComing, PrefixPages, PrefixTaken
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers import peers as peers_module
from radixrt.parts.tiers import scheduler, tier
from radixrt.parts.tiers.records import SharedRecords
from tests.parts.tiers.fake_mover import FakeHost
from tests.parts.tiers.harness import PAGE, Sizes, TieredHarness

PREFIX = [1 + i * i % 37 for i in range(3 * PAGE)]
PROMPT = [*PREFIX, 5]
LATE_S = 60.0


class Pair:
    """Replica A with prefixes, replica B that asks for them.

    Args:
        rows: rows of a state; 0 for a model without recurrent layers.

    Attributes:
        handed_over: number of times that A has named all of its prefixes.
    """

    def __init__(
        self, seed: int = 0, *, eager: float = 0.7, host_pages: int = 20, ranks: int = 1, rows: int = 0
    ) -> None:
        self.random = Random(seed)
        sizes = Sizes(ranks, host_pages, state_rows=rows)
        hosts = [FakeHost(ranks, host_pages * PAGE, PAGE, state_rows=rows) for _ in range(2)]
        states = {"num_states": RESERVED_STATES + 12} if rows else {}
        for i, host in enumerate(hosts):
            host.arena = f"arena of {i}"
            host.others = {f"arena of {i}": hosts[i] for i in range(2)}
        self.a, self.b = (
            TieredHarness(sizes, host=host, seed=seed + i, eager=eager, **states) for i, host in enumerate(hosts)
        )
        self.count = 0
        self.handed_over = 0

    def compute(self, h: TieredHarness, prompt: list[int], **fields: Any) -> str:
        """Begin a request; return its id."""
        self.count += 1
        rid = f"r{self.count}"
        h.add(rid, prompt, **{"max_tokens": 2, "ignore_eos": True, **fields})
        return rid

    def ask(self, prompt: list[int] = PREFIX, namespace: str = "") -> str:
        """Announce a prefix to B, begin a request there, and ask A for the prefix; return the request's id."""
        rid = f"r{self.count + 1}"
        self.b.handle(PrefixComing(rid, len(prompt)))
        self.compute(self.b, [*prompt, 5], cache_salt=namespace)
        self.b.may_compute(namespace, prompt)
        self.a.handle(PrefixAsk(rid, pack_i32(prompt), namespace))
        return rid

    def pass_on(self, change: Callable[[PrefixPages], PrefixPages] = lambda message: message) -> None:
        """Let A's answers come to B."""
        messages, self.a.messages = self.a.messages, []
        for message in messages:
            if isinstance(message, PrefixPages):
                source = -1 if message.rid else 0
                self.b.handle(msgspec.structs.replace(change(message), source=source))
            else:
                assert isinstance(message, HandedOver)
                self.handed_over += 1

    def run(self, turns: int = 200) -> None:
        for _ in range(turns):
            self.a.turn()
            self.pass_on()
            self.b.turn()

    def fetched(self, rid: str) -> dict[str, int]:
        return self.b.usages[rid].fetched_tokens

    def check(self) -> None:
        self.b.now += LATE_S  # nobody waits for an answer that is lost
        for h in (self.a, self.b):
            h.drain()
            h.check_idle()
            for rid, finish in h.finishes.items():
                if finish.reason in ("stop", "length"):
                    h.assert_output(rid)


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.compute(made.a, PROMPT)
    made.a.drain()
    return made


def test_a_prefix_comes_from_the_pool_of_another_replica(pair: Pair) -> None:
    rid = pair.ask()
    pair.run()
    pair.check()
    assert pair.fetched(rid) == {"peer": 3 * PAGE}
    assert pair.a.sent_orders(KVOut)
    assert pair.b.sent_orders(KVPull)
    assert pair.b.tiers.stats(0.0)["tiers"].fetch_token_s["peer"] > 0


def test_what_the_host_tier_has_is_not_copied_again(pair: Pair) -> None:
    pair.ask()
    pair.run()
    copies = len(pair.a.sent_orders(KVOut))
    pair.b.scheduler.flush_cache()
    rid = pair.ask()
    pair.run()
    pair.check()
    assert pair.fetched(rid) == {"peer": 3 * PAGE}
    assert len(pair.a.sent_orders(KVOut)) == copies


def test_requests_with_the_same_prefix_share_one_pull(pair: Pair) -> None:
    first = pair.ask()
    second = pair.compute(pair.b, [*PREFIX, 7])
    pair.run()
    pair.check()
    assert pair.fetched(first) == {"peer": 3 * PAGE}
    assert pair.b.usages[second].cached_tokens == 3 * PAGE
    assert len(pair.b.sent_orders(KVPull)) == 3


def test_a_replica_without_the_prefix_says_so_and_it_is_computed(pair: Pair) -> None:
    rid = pair.ask([9] * 192)
    pair.run()
    pair.check()
    assert pair.fetched(rid) == {}


def test_an_answer_that_never_comes_is_not_waited_for(pair: Pair) -> None:
    rid = pair.ask()
    for _ in range(50):
        pair.b.turn()
    assert rid not in pair.b.finishes
    pair.b.now += LATE_S
    pair.b.drain()
    assert pair.fetched(rid) == {}
    assert pair.b.tiers.moves.counters.stats({}, {}, {}).refused == {"late": 1}
    pair.run()  # the late answer has no effect
    assert not pair.b.sent_orders(KVPull)
    pair.check()


def test_nobody_waits_once_nothing_comes(pair: Pair) -> None:
    rid = pair.ask()
    for _ in range(5):
        pair.b.turn()
    assert rid not in pair.b.finishes
    pair.b.handle(PrefixPages(rid))
    pair.b.drain()
    assert rid in pair.b.finishes
    assert pair.b.tiers.moves.counters.stats({}, {}, {}).refused == {}
    pair.check()


def test_a_pull_that_takes_too_long_is_not_waited_for(pair: Pair) -> None:
    rid = pair.ask()
    pair.a.drain()
    pair.b.eager = 0.0
    pair.pass_on()
    for _ in range(20):
        pair.b.turn()
    assert pair.b.sent_orders(KVPull)
    assert rid not in pair.b.finishes
    pair.b.now += LATE_S
    for _ in range(50):
        pair.b.turn()
    assert rid in pair.b.finishes
    pair.b.eager = 0.7
    pair.check()
    assert pair.fetched(rid) == {}


def test_an_aborted_request_leaves_nothing(pair: Pair) -> None:
    for turns in (0, 1, 3, 10):
        rid = pair.ask()
        pair.run(turns)
        pair.b.scheduler.abort(rid, pair.b.now)
        pair.b.take()
    pair.run()
    pair.check()
    assert not pair.b.tiers.peers.pulled


def test_pages_of_another_layout_are_refused(pair: Pair) -> None:
    rid = pair.ask()
    pair.a.drain()
    pair.pass_on(lambda message: msgspec.structs.replace(message, layout=b"another model"))
    pair.b.drain()
    assert pair.fetched(rid) == {}
    assert pair.b.tiers.moves.counters.stats({}, {}, {}).refused == {"layout": 1}
    pair.check()


def test_an_answer_with_other_pages_brings_no_wrong_token(pair: Pair) -> None:
    """Pages of other tokens, pages that do not exist, too few and too many pages."""
    pair.compute(pair.a, [9] * 200)
    pair.a.drain()
    bad: list[Callable[[PrefixPages], bytes]] = [
        lambda message: message.pages[4:] + message.pages[:4],
        lambda message: pack_i32([0, 0, 0]),
        lambda message: pack_i32([10**6, -5, 2**31 - 1]),
        lambda message: message.pages[:-4],
        lambda message: message.pages * 1000,
    ]
    for change in bad:
        rid = pair.ask()
        pair.a.drain()
        pair.pass_on(lambda message: msgspec.structs.replace(message, pages=change(message)))  # noqa: B023
        pair.b.drain()
        assert pair.fetched(rid) == {}
        pair.b.scheduler.flush_cache()
    pair.check()


def test_another_namespace_gets_nothing(pair: Pair) -> None:
    pair.ask()
    pair.run()
    rid = pair.ask(namespace="another tenant")
    pair.run()
    assert pair.fetched(rid) == {}
    # Not even if the answer names the pages of the first tenant.
    pair.b.scheduler.flush_cache()
    rid = pair.ask(namespace="another tenant")
    found = pair.a.tiers.host.match(np.array(PREFIX, np.int32), tier.root_name("")).slots[::PAGE] // PAGE
    pair.b.handle(
        PrefixPages(
            rid, pack_i32(PREFIX), "another tenant", pair.b.tiers.peers._layout, pair.a.host.arena,
            pair.a._table("host"), pack_i32(found),
        )
    )  # fmt: skip
    pair.b.drain()
    assert pair.fetched(rid) == {}
    pair.check()


def test_prefixes_of_a_replica_that_leaves_are_in_the_host_tier_of_another(pair: Pair) -> None:
    pair.compute(pair.a, [9] * 130)
    pair.compute(pair.a, [9] * 130, cache_salt="b")
    pair.a.drain()
    pair.b.may_compute("", [9] * 130)
    pair.b.may_compute("b", [9] * 130)
    pair.b.may_compute("", PROMPT)
    pair.a.handle(HandOver(10_000))
    pair.run()
    assert pair.handed_over == 1
    assert pair.b.messages == [PrefixTaken(0)] * 3
    assert pair.b.tiers.host.num_tokens == 192 + 2 * 128
    rid = pair.compute(pair.b, PROMPT)
    pair.run()
    pair.check()
    assert pair.fetched(rid) == {"host": 3 * PAGE}


def test_the_last_used_prefixes_are_handed_over_if_not_all_fit(pair: Pair) -> None:
    pair.compute(pair.a, [9] * 200)
    pair.a.drain()
    pair.a.handle(HandOver(250))
    pair.b.may_compute("", [9] * 200)
    pair.run()
    pair.check()
    assert pair.handed_over == 1
    assert pair.b.tiers.host.match_len(np.array([9] * 200, np.int32), tier.root_name("")) == 192
    assert pair.b.tiers.host.num_tokens == 192


def test_what_is_handed_over_evicts_nothing_and_always_has_an_end(pair: Pair) -> None:
    other = Pair(host_pages=2)
    other.compute(other.a, PROMPT)
    other.a.drain()
    other.b.may_compute("", PROMPT)
    other.compute(other.b, [8] * 140)
    other.b.rest(2)
    assert other.b.tiers.host.num_tokens == 128
    for _ in range(2):
        other.a.handle(HandOver(10_000))
        other.run()
    other.a.handle(HandOver(0))
    other.run()
    other.check()
    assert other.handed_over == 3
    assert other.b.tiers.host.match_len(np.array([8] * 140, np.int32), tier.root_name("")) == 128
    answers = other.b.messages
    assert answers == [PrefixTaken(0)] * len(answers) != []


def evicts_meanwhile(pair: Pair) -> None:
    """A evicts the pages while B copies them, and puts other tokens there, and the first tokens again."""
    rid = pair.ask()
    pair.a.drain()
    pair.b.eager = 0.0
    pair.pass_on()
    pair.b.turn()
    pair.b.send_orders()
    while pair.b.sent:
        pair.b.execute()
    for mover, move in pair.b.moves:
        mover.step(move)
        mover.step(move)  # half of a page is copied
    host = pair.a.tiers.host
    host.cache.evict(host.cache.evictable_size)
    for arena in pair.a.host.arenas:
        arena[:] = 77
    pair.b.eager = 0.7
    pair.b.drain()
    pair.check()
    assert pair.fetched(rid) == {}


def test_pages_that_are_evicted_while_they_are_copied_are_computed(pair: Pair) -> None:
    evicts_meanwhile(pair)


def test_the_second_look_at_the_record_is_needed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = SharedRecords.changes, dict[tuple[int, bytes], int | None]()

    def changes(self: SharedRecords, page: int, key: bytes) -> int | None:
        return seen.setdefault((page, key), real(self, page, key))

    monkeypatch.setattr(SharedRecords, "changes", changes)
    with pytest.raises((AssertionError, InvariantError)):
        evicts_meanwhile(pair)


def test_keys_of_the_own_namespace_are_needed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (peers_module, scheduler, tier):
        monkeypatch.setattr(module, "root_name", lambda namespace: "00" * 16)
    with pytest.raises((AssertionError, InvariantError, KeyError)):
        test_another_namespace_gets_nothing(pair)


# --- states of recurrent layers ---


@pytest.mark.parametrize("rows", [1, 5, 64, 100])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_prefix_comes_with_the_state_after_its_last_token(rows: int, ranks: int) -> None:
    pair = Pair(rows=rows, ranks=ranks)
    prompt = [*PREFIX, 5, 6, 7]
    pair.compute(pair.a, [*prompt, 5])
    pair.a.drain()
    rid = pair.ask(prompt)
    pair.run()
    pair.check()
    assert pair.fetched(rid) == {"peer": len(prompt)}  # up to the state one token before the prompt's end
    assert pair.b.usages[rid].cached_tokens == len(prompt)
    again = pair.compute(pair.b, [*prompt, 5])
    pair.run()
    pair.check()
    assert pair.fetched(again) == {}
    assert pair.b.tiers.stats(0.0)["tiers"].state_tokens == rows


def test_a_prompt_that_parts_before_the_state_is_computed() -> None:
    pair = Pair(rows=5)
    pair.compute(pair.a, PROMPT)
    pair.a.drain()
    rid = pair.ask([*PREFIX[:100], 9, 9])
    other = pair.compute(pair.b, [*PREFIX[:100], 9, 8])
    pair.run()
    pair.check()
    assert pair.fetched(rid) == pair.fetched(other) == {}
    assert not pair.b.sent_orders(KVPull)


def test_all_states_of_a_replica_that_leaves_go_to_another() -> None:
    pair = Pair(rows=5, host_pages=60)
    prompts = [PROMPT, [9] * 130, [*PREFIX[:100], *[8] * 100]]
    for prompt in prompts:
        pair.compute(pair.a, prompt)
        pair.b.may_compute("", prompt)
        pair.a.drain()
    pair.a.handle(HandOver(10_000))
    pair.run(400)
    assert pair.handed_over == 1
    for prompt in prompts:
        rid = pair.compute(pair.b, prompt)
        pair.run()
        assert pair.fetched(rid).get("host", 0) >= len(prompt) - 1 - PAGE
    pair.check()


NESTED = [[9] * 80, [9] * 200, [9] * 270]
"""Prompts of which each begins with the tokens before the last one of the prompt before."""


def nested(rows: int, **options: Any) -> Pair:
    """Return replicas of which the first one has the prompts NESTED, each with a state."""
    pair = Pair(rows=rows, **options)
    for prompt in NESTED:
        pair.compute(pair.a, [*prompt, 5])
        pair.a.drain()
        pair.b.may_compute("", [*prompt, 5])
    return pair


def kept_of(h: TieredHarness) -> list[int]:
    """Number of tokens of each of NESTED that the host tier has, up to a state."""
    return [h.tiers.kept(np.array([*prompt, 5], np.int32), "")["host"] for prompt in NESTED]


@pytest.mark.parametrize("rows", [1, 5, 100])
def test_states_on_one_path_are_all_handed_over(rows: int) -> None:
    pair = nested(rows, host_pages=60)
    pair.a.handle(HandOver(10_000))
    pair.run(400)
    pair.check()
    assert pair.handed_over == 1
    assert kept_of(pair.b) == [80, 200, 270]
    assert sum(isinstance(message, PrefixTaken) for message in pair.b.messages) == 3


def test_prefixes_with_a_common_begin_are_pulled_once() -> None:
    pair = nested(5, host_pages=60)
    pair.a.handle(HandOver(10_000))
    pair.run(400)
    pair.check()
    pulled = sum(len(order.pages) // 4 for order in pair.b.sent_orders(KVPull))
    assert pulled == 5 + 1 + 1, "270 tokens and a state, and for the others the last page with the state"


def test_what_a_state_takes_counts_when_a_replica_hands_over() -> None:
    for room, expected in (
        ((6 + 2 + 2) * PAGE, [80, 200, 270]),  # pages of 270 tokens and a state; of the others the pages of the state
        ((6 + 2 + 2) * PAGE - 1, [0, 200, 270]),
        (6 * PAGE, [0, 0, 270]),
        (6 * PAGE - 1, [0, 200, 200]),
        (3 * PAGE - 1, [0, 0, 0]),
    ):
        pair = nested(100, host_pages=60)
        pair.a.handle(HandOver(room))
        pair.run(400)
        pair.check()
        assert pair.handed_over == 1
        assert kept_of(pair.b) == expected, room


def test_a_prefix_whose_copy_overlaps_another_one_is_answered_once_it_is_copied() -> None:
    pair = nested(5, host_pages=60)
    pair.b.handle(PrefixComing("r4", 200))
    pair.b.handle(PrefixComing("r5", 80))
    long, short = (pair.compute(pair.b, [*prompt, 5]) for prompt in NESTED[1::-1])
    assert (long, short) == ("r4", "r5")
    for rid, prompt in ((long, NESTED[1]), (short, NESTED[0])):
        pair.a.handle(PrefixAsk(rid, pack_i32(prompt)))
    pair.run()
    pair.check()
    assert (pair.b.usages[long].cached_tokens, pair.b.usages[short].cached_tokens) == (200, 80)
    assert set(pair.fetched(long)) == set(pair.fetched(short)) == {"peer"}


@pytest.mark.parametrize("rows", [0, 5])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(12))
def test_random_events(seed: int, ranks: int, rows: int) -> None:
    """Requests on both replicas, answers that are late or lost, deaths of runners and schedulers, and evictions."""
    pair = Pair(seed, host_pages=16 if rows else 8, ranks=ranks, rows=rows)
    random = pair.random
    prefixes = [PREFIX, PREFIX[:130], PREFIX[:64] + [7] * 90, [9] * 128]
    asked = 0
    for _ in range(150):
        kind = random.random()
        if kind < 0.25:
            pair.compute(pair.a, [*random.choice(prefixes), 3], cache_salt=random.choice(["", "a"]))
        elif kind < 0.5:
            pair.ask(random.choice(prefixes), random.choice(["", "a"]))
            asked += 1
        elif kind < 0.55:
            pair.a.host.arenas[0][: pair.a.host.page] = 1  # page 0 is nobody's
            pair.a.tiers.host.cache.evict(2 * PAGE)
        elif kind < 0.6:
            random.choice([pair.a, pair.b]).cache.evict(2 * PAGE)
        elif kind < 0.65:
            pair.a.messages.clear()  # the answers are lost
        elif kind < 0.68:
            h = random.choice([pair.a, pair.b])
            h.kill()
            h.restart()
        elif kind < 0.7:
            pair.b.now += LATE_S
        elif kind < 0.72:
            pair.a.restart_scheduler()
        elif kind < 0.75:
            pair.a.handle(HandOver(random.choice([200, 400, 10_000])))
            for namespace, sequences in pair.a.sequences.items():
                for tokens in sequences:
                    pair.b.may_compute(namespace, tokens.tolist())
        else:
            for _ in range(random.randrange(12)):
                pair.a.turn()
                pair.b.turn()
                if random.random() < 0.5:
                    pair.pass_on()
    pair.run()
    pair.check()
    assert asked


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
