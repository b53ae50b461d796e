"""Replicas that compute prompts for replicas that answer: which prompts, what goes where, and what happens if one of
them fails."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from radixrt.config.roles import Role
from radixrt.messages.parts import FINISH_ABORT, FINISH_ERROR, Finish, FinishError, ProgramHint, Timings, Usage
from radixrt.messages.peers import PrefixAsk, PrefixComing, PrefixPages
from radixrt.messages.reads import LogprobRead
from radixrt.messages.request import Envelope, Request, Row
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.wire import pack_i32
from radixrt.parts.tiers.policy import PEER
from radixrt.router.routed_request import Prefill, RoutedRequest, Work
from radixrt.router.router import TOKENIZER
from radixrt.sampling_params import SamplingParams
from tests.router.fake_fleet import FakeFleet

PREFILL, DECODE = 0, 1
LONG = [1 + i * i % 37 for i in range(400)]
SHORT = [1 + i * i % 31 for i in range(100)]


class Fleet(FakeFleet):
    """A prefill replica and a decode replica, on which requests run already.

    Attributes:
        messages_to: messages of the router about requests, by replica.
    """

    def __init__(self, roles: tuple[Role, ...] = ("prefill", "decode"), busy: int = 2, **options: Any) -> None:
        self.messages_to: dict[int, list[Any]] = {replica: [] for replica in range(len(roles))}
        super().__init__(len(roles), moves=True, roles=roles, **options)
        for number in range(busy):
            self.submit(f"busy {number}", [*SHORT, number], max_tokens=40)
        self.play_until(lambda: all(self.outputs.get(f"busy {number}") for number in range(busy)))

    def play_until(self, happened: Any) -> None:
        for _ in range(1000):
            if happened():
                return
            self.play(1)
        raise AssertionError("it does not happen")

    def route(self) -> None:
        messages = self.router.take()
        for target, _, message in messages:
            if target != TOKENIZER and isinstance(message, Request | PrefixAsk | PrefixComing | PrefixPages):
                self.messages_to[target].append(message)
        self.router._outgoing = messages
        super().route()

    def finish(self, *rids: str) -> None:
        self.drain()
        for rid in rids:
            self.assert_answer(rid)
        self.check()

    @property
    def prefills(self) -> int:
        return self.router.placement.loads[PREFILL].prefills


def test_a_long_prompt_is_computed_by_the_prefill_replica_and_answered_by_the_decode_replica() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG, program=ProgramHint("p"))
    fleet.finish("long", "busy 0", "busy 1")
    assert fleet.sent["long"] == [PREFILL, DECODE]
    assert fleet.prefills == 1
    alone = fleet.messages_to[PREFILL][0]
    assert (alone.tokens(0).tolist(), alone.sampling.max_tokens, alone.envelope.program) == (LONG, 1, None)
    ask = fleet.messages_to[PREFILL][1]
    assert ask == PrefixAsk("long", pack_i32(LONG[:384]))
    coming, answered = fleet.messages_to[DECODE][-3:-1]
    assert coming == PrefixComing("long", 384)
    assert answered.sampling.max_tokens == 4
    assert answered.envelope.program == ProgramHint("p")


@pytest.mark.parametrize("prompt", [SHORT, LONG[:250]], ids=["short", "too short for a move"])
def test_a_short_prompt_goes_to_the_decode_replica(prompt: list[int]) -> None:
    fleet = Fleet()
    fleet.submit("a", prompt)
    fleet.finish("a")
    assert fleet.sent["a"] == [DECODE]


def test_a_prefix_that_the_decode_replica_has_is_not_computed_elsewhere() -> None:
    fleet = Fleet()
    fleet.submit("first", LONG)
    fleet.finish("first")
    fleet.submit("again", [*LONG, 3])
    fleet.finish("again")
    assert fleet.sent["again"] == [DECODE]


def test_an_idle_decode_replica_computes_its_prompt_if_the_move_takes_time() -> None:
    fleet = Fleet(busy=0)
    load = fleet.router.placement.loads[DECODE]
    load.fetch_token_s = {PEER: load.times.token / 2}
    fleet.submit("long", LONG)
    fleet.finish("long")
    assert fleet.sent["long"] == [DECODE]


def test_a_move_that_takes_longer_than_the_computation_pays_beside_other_requests() -> None:
    fleet = Fleet()
    load = fleet.router.placement.loads[DECODE]
    load.fetch_token_s = {PEER: 1.5 * load.times.token}
    fleet.submit("long", LONG)
    fleet.finish("long")
    assert fleet.sent["long"] == [PREFILL, DECODE]
    assert PrefixComing("long", 384) in fleet.messages_to[DECODE]


def test_a_replica_of_both_roles_computes_what_it_answers() -> None:
    fleet = Fleet(("prefill", "decode", "both"), busy=3)
    for number in range(12):
        fleet.submit(f"long {number}", [number + 1, *LONG])
    fleet.finish(*(f"long {number}" for number in range(12)))
    ways = {tuple(fleet.sent[f"long {number}"]) for number in range(12)}
    assert ways <= {(PREFILL, DECODE), (PREFILL, 2), (2,), (DECODE,)}
    assert (2,) in ways
    assert fleet.prefills


def test_requests_without_output_go_to_the_prefill_replica() -> None:
    fleet = Fleet()
    read = LogprobRead(pack_i32([98]), pack_i32([5]))
    fleet.send(Request(Envelope("score"), [Row(pack_i32(SHORT), logprobs=read)]))
    fleet.finish("score")
    assert fleet.sent["score"] == [PREFILL]


def test_the_first_output_brings_what_is_read_of_the_prompt() -> None:
    fleet = Fleet()
    fleet.submit("read", LONG, prompt_logprobs=0)
    fleet.drain()
    assert len(fleet.values["read"]) == len(LONG) - 1
    assert fleet.sent["read"] == [DECODE]  # all of the prompt has to be computed where it is read


# --- forks ---


def fork(fleet: Fleet, branches: int = 12, *, gap: int = 0) -> list[str]:
    """Submit the branches of a fork behind a long prefix.

    Args:
        gap: number of things that happen between two branches.
    """
    rids = [f"branch {number}" for number in range(branches)]
    for number, rid in enumerate(rids):
        hint = ProgramHint("p", f"{number}", 384, branches)
        fleet.submit(rid, [*LONG[:384], number + 1, 5, 6], max_tokens=40, program=hint)
        fleet.play(gap)
    return rids


def test_the_branches_of_a_fork_are_divided_among_decode_replicas() -> None:
    fleet = Fleet(("prefill", "decode", "decode"), busy=4)
    rids = fork(fleet)
    places = [fleet.router.open[rid].place for rid in rids]
    assert (places.count(1), places.count(2)) == (6, 6)
    fleet.finish(*rids)
    assert {fleet.where(rid) for rid in rids} == {1, 2}
    assert fleet.prefills


def test_a_fork_is_divided_before_one_decode_replica_has_its_prefix() -> None:
    fleet = Fleet(("prefill", "decode", "decode"), busy=2)
    for load in fleet.router.placement.loads.values():
        load.fetch_token_s = {PEER: 0.3 * load.times.token}
    rids = fork(fleet, 3, gap=15)  # the first answers already when the last arrives
    fleet.finish(*rids)
    assert {fleet.where(rid) for rid in rids} == {1, 2}
    assert fleet.prefills == 1


@pytest.mark.parametrize("shared", [64, 192])
def test_the_branches_of_a_fork_of_a_short_prompt_are_divided_among_decode_replicas(shared: int) -> None:
    fleet = Fleet(("prefill", "decode", "decode"), busy=0)
    for number in range(4):
        hint = ProgramHint("p", f"{number}", shared, 4)
        fleet.submit(f"branch {number}", [*LONG[:shared], number + 1, *SHORT[:35]], max_tokens=40, program=hint)
    assert [fleet.router.open[f"branch {number}"].place for number in range(4)].count(DECODE) == 2
    fleet.finish(*(f"branch {number}" for number in range(4)))
    assert {tuple(fleet.sent[f"branch {number}"]) for number in range(4)} == {(DECODE,), (2,)}


def test_a_branch_keeps_its_replica_while_that_takes_requests() -> None:
    fleet = Fleet(("prefill", "decode", "decode"), busy=4)
    rids = fork(fleet)
    places = {rid: fleet.router.open[rid].place for rid in rids}
    fleet.router.drain(PREFILL, fleet.now)  # binds the branches that wait for the prefill replica again
    assert {rid: fleet.router.open[rid].place for rid in rids} == places
    waiting = [rid for rid in rids if not fleet.router.open[rid].is_sent]
    assert {places[rid] for rid in waiting} == {DECODE, 2}
    fleet.router.drain(2, fleet.now)
    fleet.finish(*rids)
    assert {fleet.where(rid) for rid in waiting} == {DECODE}


# --- usage and times ---


def test_tokens_that_another_replica_has_computed_are_no_cached_tokens() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG)
    request = fleet.router.open["long"]
    fleet.play_until(lambda: request.prefilled is not None)
    assert request.prefilled is not None
    request.prefilled = Prefill(PREFILL, 1, Usage(400, 1, cached_tokens=100), Timings(prefill_s=0.5))
    request.arrived_at, request.sent_at = 0.0, 2.0
    usage = Usage(400, 4, 390, 390, {"peer": 320, "host": 50})
    delta = request.whole(TokenDelta("long", b"", usage=usage, timings=Timings(0.1, 0.2)))
    assert delta.usage == Usage(400, 4, 90, 90, {"host": 50, "peer": 20})
    assert delta.timings == Timings(pytest.approx(1.6), pytest.approx(0.7))
    # The decode replica has computed all of the prompt too.
    delta = request.whole(TokenDelta("long", b"", usage=Usage(400, 4)))
    assert delta.usage == Usage(400, 4)


# --- when something ends, fails or is missing ---


@pytest.mark.parametrize("event", ["abort while it waits", "abort", "abort when it has just ended"])
def test_a_prompt_that_is_aborted_has_one_finish(event: str) -> None:
    fleet = Fleet(busy=3)
    if event == "abort while it waits":
        fleet.submit("first", [1, *LONG[:270]])
        load = fleet.router.placement.loads[PREFILL]
        load.info = dataclasses.replace(load.info, max_running_requests=1)
    fleet.submit("long", LONG)
    if event == "abort while it waits":
        assert "long" not in fleet.sent
        assert fleet.router.open["long"].replica == PREFILL
    elif event == "abort when it has just ended":
        fleet.play_until(
            lambda: any(batch.deltas for _, batch in fleet.replicas[PREFILL].tokens if isinstance(batch, TokenBatch))
        )
    fleet.abort("long")
    fleet.finish()
    assert fleet.finishes["long"].reason == FINISH_ABORT
    assert DECODE not in fleet.sent.get("long", [])


def test_the_decode_replica_computes_the_prompt_if_the_prefill_replica_dies() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG)
    assert fleet.where("long") == PREFILL
    fleet.kill(PREFILL)
    fleet.finish("long")
    assert fleet.sent["long"] == [PREFILL, DECODE]
    fleet.submit("next", LONG[::-1])
    fleet.finish("next")


def test_the_decode_replica_waits_for_no_answer_of_a_dead_replica() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG)
    fleet.play_until(lambda: fleet.where("long") == DECODE)
    assert PrefixComing("long", 384) in fleet.messages_to[DECODE]
    fleet.kill(PREFILL)
    assert fleet.messages_to[DECODE][-1] == PrefixPages("long")
    fleet.finish("long")


@pytest.mark.parametrize("other", ["", "prefill"], ids=["no other", "another prefill replica"])
@pytest.mark.parametrize("ends", ["dies", "is fenced"])
def test_a_prompt_is_computed_again_if_its_replica_dies_before_a_row_is_free(ends: str, other: Role) -> None:
    roles: tuple[Role, ...] = ("prefill", "decode", "prefill") if other else ("prefill", "decode")
    fleet = Fleet(roles, busy=4)  # no row is free for the answer
    fleet.submit("long", LONG)
    first = fleet.where("long")
    request = fleet.router.open["long"]
    fleet.play_until(lambda: request.prefilled is not None and request.replica == DECODE)
    assert not request.is_sent
    if ends == "dies":
        fleet.kill(first)
        fleet.add_replica(first)  # in another life, without the prefix
    else:
        fleet.router.fence(first, fleet.now)
        fleet.router.heard(first, 0, fleet.now)
        fleet.route()
    assert request.prefilled is None
    before = len(fleet.messages_to[first])
    fleet.finish("long")
    assert fleet.sent["long"][-1] == DECODE
    assert set(fleet.sent["long"][1:-1]) <= {PREFILL, 2}
    asked = [each for each in fleet.messages_to[first][before:] if isinstance(each, PrefixAsk)]
    assert not asked or first in fleet.sent["long"][1:]


def test_all_prompts_of_a_dead_replica_are_computed_again_where_rows_have_become_free() -> None:
    fleet = Fleet(busy=4)
    rids = [f"long {number}" for number in range(3)]
    for number, rid in enumerate(rids):
        fleet.submit(rid, [number + 1, *LONG])
    waiting = [fleet.router.open[rid] for rid in rids]
    fleet.play_until(lambda: all(each.prefilled is not None and each.replica == DECODE for each in waiting))
    assert not any(each.is_sent for each in waiting)
    load = fleet.router.placement.loads[DECODE]
    load.info = dataclasses.replace(load.info, max_running_requests=100)  # binding one of them sends the others
    fleet.kill(PREFILL)
    assert all(each.prefilled is None and each.is_sent for each in waiting)
    fleet.finish(*rids)
    assert {tuple(fleet.sent[rid]) for rid in rids} == {(PREFILL, DECODE)}


def test_a_replica_whose_computation_ended_with_an_error_is_not_asked_for_the_prompt() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG)
    delta = TokenDelta("long", b"", finish=Finish(FINISH_ERROR, error=FinishError("no memory")), usage=Usage(400))
    load = fleet.router.placement.loads[PREFILL]
    fleet.replicas[PREFILL].scheduler.abort("long", fleet.now)
    fleet.router.receive(PREFILL, load.epoch, TokenBatch([delta]), fleet.now)
    fleet.route()
    assert fleet.sent["long"] == [PREFILL, DECODE]
    assert not any(isinstance(each, PrefixAsk) for each in fleet.messages_to[PREFILL])
    assert PrefixComing("long", 384) not in fleet.messages_to[DECODE]
    fleet.replicas[PREFILL].inbox.clear()
    fleet.replicas[PREFILL].turn()
    fleet.replicas[PREFILL].tokens.clear()
    fleet.finish("long")


def test_a_prompt_is_refused_if_it_would_wait_too_long_for_a_decode_replica() -> None:
    fleet = Fleet(busy=4, max_queue_wait_s=1.0)
    fleet.submit("admitted", LONG)
    assert fleet.where("admitted") == PREFILL
    load = fleet.router.placement.loads[DECODE]
    load.outputs += 100_000.0  # the requests that run there are expected to take long
    for number in range(2):
        fleet.submit(f"long {number}", LONG[number + 1 :])
    assert {fleet.finishes[f"long {number}"].error.code for number in range(2)} == {"queue_full"}  # type: ignore[union-attr]
    error = fleet.finishes["long 0"].error
    assert error is not None
    assert error.retry_after_s is not None
    assert error.retry_after_s > 1.0
    load.outputs -= 100_000.0
    fleet.finish("admitted")


def test_prompts_that_are_being_computed_take_rows_of_the_decode_replica_before_a_new_prompt() -> None:
    fleet = Fleet(busy=2)
    for number in range(2):
        fleet.submit(f"ahead {number}", [number + 1, *LONG[:300]])
    request = RoutedRequest(fleet.router.open["ahead 0"].message, 99, 99, fleet.now, max_len=512, timeout_s=60.0)
    placement = fleet.router.placement
    request.output, request.work = 4.0, Work(301, 301, 1.0)
    assert placement.has_queue(request, PREFILL)
    waits = placement.predicted_wait_s(request, PREFILL)
    placement.loads[DECODE].info = dataclasses.replace(placement.loads[DECODE].info, max_running_requests=100)
    assert not placement.loads[DECODE].queue.size
    assert placement.predicted_wait_s(request, PREFILL) < waits
    fleet.drain()


def test_the_prefill_replica_answers_if_the_last_decode_replica_dies() -> None:
    fleet = Fleet()
    fleet.submit("before", LONG)
    fleet.submit("after", LONG[::-1])
    fleet.play_until(lambda: fleet.where("before") == DECODE)
    fleet.kill(DECODE)
    fleet.finish("before", "after", "busy 0")
    assert fleet.where("before") == PREFILL
    assert fleet.where("after") == PREFILL


def test_another_decode_replica_gets_the_prefix_too() -> None:
    fleet = Fleet(("prefill", "decode", "decode"), busy=4)
    fleet.submit("long", LONG)
    fleet.play_until(lambda: fleet.where("long") != PREFILL)
    first = fleet.where("long")
    fleet.kill(first)
    fleet.finish("long")
    assert fleet.sent["long"] == [PREFILL, first, 3 - first]
    assert PrefixComing("long", 384) in fleet.messages_to[3 - first]


@pytest.mark.parametrize("replica", [PREFILL, DECODE])
def test_a_replica_that_is_drained_has_no_role(replica: int) -> None:
    fleet = Fleet()
    fleet.submit("before", LONG)
    fleet.router.drain(replica, fleet.now)
    fleet.submit("long", LONG[::-1])
    fleet.finish("before", "long")
    assert fleet.sent["long"] == [1 - replica]
    fleet.router.resume(replica, fleet.now)
    for number in range(2):
        fleet.submit(f"more {number}", [*SHORT, 1, number], max_tokens=40)
    fleet.submit("last", LONG[7:])
    assert fleet.sent["last"] == [PREFILL]
    fleet.finish("last")


def test_an_error_of_the_prefill_replica_is_not_the_answer() -> None:
    fleet = Fleet()
    fleet.submit("long", LONG, timeout_s=1e-6)
    fleet.replicas[PREFILL].now = fleet.now = fleet.now + 1.0
    fleet.drain()
    assert fleet.finishes["long"].reason == FINISH_ERROR
    assert fleet.finishes["long"].error.code == "timeout"  # type: ignore[union-attr]
    assert fleet.sent["long"] == [PREFILL, DECODE]
    assert not fleet.prefills


def test_an_idle_decode_replica_takes_a_prompt_that_waits_for_the_prefill_replica() -> None:
    fleet = Fleet(busy=2)
    for number in range(8):
        fleet.submit(f"long {number}", [number + 1, *LONG])
    fleet.finish(*(f"long {number}" for number in range(8)))
    ways = {tuple(fleet.sent[f"long {number}"]) for number in range(8)}
    assert (PREFILL, DECODE) in ways
    assert ways <= {(PREFILL, DECODE), (DECODE,)}


def test_a_prompt_of_a_hybrid_model_moves_up_to_the_state_before_its_last_token() -> None:
    fleet = Fleet(num_states=24)
    fleet.submit("long", LONG)
    fleet.finish("long")
    assert fleet.sent["long"] == [PREFILL, DECODE]
    assert PrefixComing("long", len(LONG) - 1) in fleet.messages_to[DECODE]
    assert PrefixAsk("long", pack_i32(LONG[:-1])) in fleet.messages_to[PREFILL]


@pytest.mark.parametrize(("num_states", "ways"), [(0, [PREFILL, DECODE]), (24, [DECODE])])
def test_a_read_prompt_of_a_hybrid_model_is_computed_where_the_state_is_needed(
    num_states: int, ways: list[int]
) -> None:
    fleet = Fleet(num_states=num_states)
    read = LogprobRead(pack_i32([330]), pack_i32([LONG[331]]))
    row = Row(pack_i32(LONG), logprobs=read)
    fleet.send(Request(Envelope("read"), [row], sampling=SamplingParams(max_tokens=4, temperature=0.0)))
    fleet.finish("read")
    assert len(fleet.values["read"]) == 1
    assert fleet.sent["read"] == ways


@pytest.mark.parametrize("num_states", [0, 24])
@pytest.mark.parametrize("seed", range(20))
def test_random_requests_on_replicas_with_roles_and_deaths(seed: int, num_states: int) -> None:
    layouts: list[tuple[Role, ...]] = [
        ("prefill", "decode"),
        ("prefill", "decode", "both"),
        ("prefill", "prefill", "decode"),
        ("decode", "prefill", "decode"),
    ]
    rng = random.Random(seed)
    fleet = Fleet(layouts[seed % 4], busy=1, seed=seed, num_states=num_states)
    count = len(fleet.replicas)
    aborted: set[str] = set()
    for number in range(60):
        kind = rng.random()
        if kind < 0.7:
            length = rng.choice([40, 300, 400])
            fleet.submit(f"r{number}", [rng.randrange(1, 4), *LONG[: length - 1]], max_tokens=rng.randrange(1, 30))
        elif kind < 0.8 and fleet.router.open:
            rid = rng.choice(sorted(fleet.router.open))
            aborted.add(rid)
            fleet.abort(rid)
        elif kind < 0.84 and len(fleet.replicas) > 1:
            fleet.kill(rng.choice(sorted(fleet.replicas)))
        elif kind < 0.88:
            fleet.restart_router()
        elif len(fleet.replicas) < count:
            fleet.add_replica(next(each for each in range(count) if each not in fleet.replicas))
        fleet.play(rng.randrange(30))
    fleet.drain()
    for rid in fleet.messages:
        finish = fleet.finishes[rid]
        is_lost = finish.error is not None and finish.error.code in ("replica_lost", "engine_dead")
        if rid not in aborted and rid not in fleet.cut_off and not is_lost:
            fleet.assert_answer(rid)
    fleet.check()
