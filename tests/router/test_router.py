"""Rules of the router, one by one."""

from __future__ import annotations

import msgspec
import pytest

from radixrt.mem_cache.granules import GRANULE_TOKENS, prompt_hashes, seed_of
from radixrt.messages.cache_events import CacheEvents, NodeInserted, RootOpened, SnapshotHeader
from radixrt.messages.images import RowImage, image_keys
from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import AbortReq, ReleaseReq
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.router.replica_load import ReplicaInfo
from radixrt.router.routed_request import RoutedRequest
from radixrt.router.router import Router
from radixrt.sampling_params import SamplingParams
from tests.router.fake_fleet import FakeFleet

PREFIX = [1 + i % 49 for i in range(200)]
OTHER = [1 + (i * 7) % 43 for i in range(200)]


def test_a_prompt_goes_where_its_prefix_is_and_a_different_one_where_nothing_waits() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX)
    fleet.submit("b", OTHER)
    assert fleet.where("a") != fleet.where("b")
    fleet.drain()
    for rid, prompt in (("c", PREFIX), ("d", OTHER)):
        fleet.submit(rid, [*prompt, 5, 6])
        fleet.drain()
    assert fleet.where("c") == fleet.where("a")
    assert fleet.where("d") == fleet.where("b")
    fleet.check()


def test_what_was_just_sent_counts_as_cached_before_its_events_come() -> None:
    fleet = FakeFleet(1)
    fleet.submit("a", PREFIX, max_tokens=1)
    fleet.submit("b", [*PREFIX, 3], max_tokens=1)
    assert [fleet.router.open[rid].work.miss for rid in ("a", "b")] == [200, 201 - 192]


def test_requests_of_a_new_prefix_meet_on_the_replica_where_the_first_one_waits() -> None:
    fleet = FakeFleet(2)
    for i in range(8):  # all rows of both replicas
        fleet.submit(f"busy{i}", [1 + i, *OTHER], max_tokens=30, ignore_eos=True)
    before = [[*PREFIX[:64], 30 + i] * 3 for i in range(3)]
    for i, prompt in enumerate([PREFIX, *before, PREFIX]):
        fleet.submit(f"r{i}", prompt, max_tokens=1)
    queues = [load.queue for load in fleet.router.placement.loads.values()]
    (holder,) = [queue for queue in queues if any(each.rid == "r0" for each in queue)]
    assert any(each.rid == "r4" for each in holder)
    fleet.drain()
    assert fleet.where("r4") == fleet.where("r0")
    done = [rid for rid in fleet.finishes if rid.startswith("r")]
    assert done.index("r4") <= done.index("r0") + 2, "it follows as soon as the prefix is computed"
    fleet.check()


def test_a_replica_gets_no_more_than_it_soon_computes_and_the_rest_goes_on_elsewhere() -> None:
    fleet = FakeFleet(1)
    for i in range(10):
        fleet.submit(f"r{i}", [*PREFIX, i + 1], max_tokens=30, ignore_eos=True)
    assert sum(len(engine.inbox) for engine in fleet.replicas.values()) == 1 + 4, "four rows, and WatchCacheReq"
    fleet.add_replica(1)
    assert {fleet.where(rid) for rid in fleet.sent} == {0, 1}, "the new replica takes what waits"
    fleet.drain()
    for i in range(10):
        fleet.assert_answer(f"r{i}")
    fleet.check()


@pytest.mark.parametrize("has_state", [False, True])
def test_keys_and_values_without_a_state_are_no_hit_for_a_hybrid_model(has_state: bool) -> None:
    router = Router(context_length=512)
    epoch = router.add_replica(0, ReplicaInfo(1000, 4, 1024, has_states=True), 0.0)
    hashes = prompt_hashes(pack_i32(PREFIX))
    node = NodeInserted(2, 1, 200, hashes, 1, 1, has_state=has_state)
    header = SnapshotHeader(1000, 1, GRANULE_TOKENS, "lru")
    router.receive(0, epoch, CacheEvents(1, 1, True, [RootOpened(1, seed_of("")), node], header), 0.0)
    router.submit(Request.generate("a", pack_i32([*PREFIX, 3, 4]), SamplingParams()), 0.0)
    assert router.open["a"].work.miss == (2 if has_state else 202)


def test_higher_priorities_leave_the_queue_first() -> None:
    fleet = FakeFleet(1)
    for i in range(4):
        fleet.submit(f"r{i}", [*PREFIX, i + 1], max_tokens=30, ignore_eos=True)
    for rid, priority in (("low", 0), ("high", 1)):
        fleet.submit(rid, OTHER, max_tokens=1, priority=priority)
    fleet.drain()
    assert list(fleet.finishes).index("high") < list(fleet.finishes).index("low")


def test_a_deadline_without_a_replica_ends_an_answer_with_its_tokens() -> None:
    fleet = FakeFleet(1)
    for rid, fields in {"begun": {}, "bound": {"regex": "a*"}}.items():
        fleet.submit(rid, PREFIX, max_tokens=40, ignore_eos=True, timeout_s=5.0, **fields)
    while len(fleet.outputs.get("begun", [])) < 5 or not fleet.outputs.get("bound"):
        fleet.step(0)
    fleet.submit("new", OTHER, timeout_s=5.0)
    fleet.kill(0)
    output = fleet.outputs["begun"][:]
    fleet.now += 6.0
    fleet.tick()
    assert (fleet.finishes["begun"].reason, fleet.outputs["begun"]) == ("timeout", output)
    for rid in ("bound", "new"):  # nobody can complete the constrained output
        error = fleet.finishes[rid].error
        assert error is not None
        assert (error.code, error.status) == ("timeout", 408)


def test_requests_of_a_dead_replica_go_on_elsewhere_from_their_tokens() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX, max_tokens=40, ignore_eos=True)
    while len(fleet.outputs.get("a", [])) < 5:
        fleet.step(0)
        fleet.step(1)
    fleet.kill(fleet.where("a"))
    (survivor,) = fleet.replicas.values()
    resent = survivor.inbox[-1][1]
    assert isinstance(resent, Request)
    assert unpack_i32(resent.resume_ids).tolist() == fleet.outputs["a"]
    fleet.drain()
    fleet.assert_answer("a")
    assert fleet.sent["a"] == [0, 1] or fleet.sent["a"] == [1, 0]
    fleet.check()


def test_a_request_that_was_open_at_two_deaths_ends_with_an_error() -> None:
    fleet = FakeFleet(3)
    fleet.submit("a", PREFIX, max_tokens=40)
    fleet.kill(fleet.where("a"))
    fleet.kill(fleet.where("a"))
    finish = fleet.finishes["a"]
    assert finish.error is not None
    assert (finish.error.code, finish.error.status) == ("replica_lost", 500)
    assert "2 replicas" in finish.error.message
    fleet.submit("b", PREFIX)
    fleet.drain()
    fleet.assert_answer("b")


def test_without_a_replica_requests_wait_for_one() -> None:
    fleet = FakeFleet(1)
    fleet.kill(0)
    fleet.submit("a", PREFIX)
    fleet.submit("b", PREFIX)
    fleet.abort("b")
    assert fleet.finishes["b"].reason == "abort"
    fleet.add_replica(1)
    fleet.drain()
    fleet.assert_answer("a")


def test_a_silent_replica_is_fenced_and_rejoins_empty() -> None:
    fleet = FakeFleet(2, stall_s=4.0)
    fleet.submit("a", PREFIX, max_tokens=40, ignore_eos=True)
    first = fleet.where("a")
    while len(fleet.outputs.get("a", [])) < 5:
        fleet.step(first)
    fleet.stopped.add(first)
    stale = fleet.replicas[first]
    while not stale.tokens:
        stale.turn()
    late = stale.tokens.pop()  # it had computed a token that nobody has read
    fleet.now += 3.9
    fleet.tick()
    assert fleet.sent["a"] == [first]
    fleet.now += 0.2
    fleet.tick()
    assert fleet.sent["a"] == [first, 1 - first]
    before = list(fleet.outputs["a"])
    stale.tokens.append(late)
    fleet.drain()
    assert fleet.outputs["a"][: len(before)] == before
    fleet.assert_answer("a")
    assert fleet.replicas[first] is not stale, "it was told to forget everything"
    assert fleet.replicas[first].epoch > stale.epoch
    fleet.submit("b", PREFIX)
    fleet.submit("c", OTHER)
    fleet.drain()
    assert {fleet.where("b"), fleet.where("c")} == {0, 1}
    fleet.check()


def test_an_abort_reaches_a_request_wherever_it_is() -> None:
    fleet = FakeFleet(1)
    for i in range(6):
        fleet.submit(f"r{i}", [*PREFIX, i + 1], max_tokens=60, ignore_eos=True)
    for rid in ("r0", "r5", "unknown"):  # running, queued here, and nowhere
        fleet.abort(rid)
    fleet.drain()
    assert {rid: fleet.finishes[rid].reason for rid in ("r0", "r5")} == {"r0": "abort", "r5": "abort"}
    assert "r5" not in fleet.sent
    fleet.check()


def test_an_aborted_request_of_a_dead_replica_does_not_go_on() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX, max_tokens=40)
    fleet.abort("a")
    fleet.kill(fleet.where("a"))
    assert fleet.finishes["a"].reason == "abort"
    assert len(fleet.sent["a"]) == 1


def test_a_request_that_would_wait_too_long_is_refused_with_the_predicted_wait() -> None:
    fleet = FakeFleet(1, max_queue_wait_s=0.5)
    for i in range(40):
        fleet.submit(f"r{i}", [i % 49 + 1] * 400, max_tokens=100, ignore_eos=True)
    refused = [finish for finish in fleet.finishes.values() if finish.error is not None]
    assert refused
    error = refused[-1].error
    assert error is not None
    assert (error.status, error.code) == (429, "queue_full")
    assert error.retry_after_s is not None
    assert error.retry_after_s > 0.5
    assert f"would wait for {error.retry_after_s:.1f} s" in error.message
    fleet.drain()
    assert len(fleet.finishes) == 40
    fleet.check()


def test_a_full_queue_refuses_and_a_deadline_ends_what_waits() -> None:
    fleet = FakeFleet(1, max_queued_requests=2)
    for i in range(4):
        fleet.submit(f"r{i}", [*PREFIX, i + 1], max_tokens=60, ignore_eos=True)
    fleet.submit("late", OTHER, timeout_s=5.0)
    fleet.submit("patient", OTHER)
    fleet.submit("refused", OTHER)
    error = fleet.finishes["refused"].error
    assert error is not None
    assert (error.status, error.message) == (429, "the queue is full (2 requests wait); try again later")
    fleet.now += 6.0
    fleet.router.placement.loads[0].heard_at = fleet.now
    fleet.tick()
    error = fleet.finishes["late"].error
    assert error is not None
    assert (error.status, error.code) == (408, "timeout")
    fleet.drain()
    fleet.assert_answer("patient")


def test_a_used_id_is_refused() -> None:
    router = Router(context_length=100)
    for _ in range(2):
        router.submit(Request.generate("a", pack_i32([1, 2]), SamplingParams()), 0.0)
    (sent,) = router.take()
    assert sent.message.deltas[0].finish.error.param == "rid"  # type: ignore[union-attr]


def test_a_sampled_request_without_seed_gets_one_for_all_its_lives() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX, temperature=1.0, max_tokens=40)
    first = next(m for _, m in fleet.replicas[fleet.where("a")].inbox if isinstance(m, Request))
    fleet.kill(fleet.where("a"))
    second = next(m for _, m in fleet.replicas[fleet.where("a")].inbox if isinstance(m, Request))
    assert first.sampling.seed == second.sampling.seed is not None


def test_what_the_first_output_brought_of_the_prompt_is_not_asked_for_again() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX, max_tokens=60, ignore_eos=True, prompt_logprobs=0)
    while not fleet.outputs.get("a"):
        fleet.play(1)
    fleet.kill(fleet.where("a"))
    resumed = next(m for _, m in fleet.replicas[fleet.where("a")].inbox if isinstance(m, Request))
    assert resumed.resume_ids
    assert resumed.rows[0].logprobs is None
    fleet.drain()
    fleet.assert_answer("a")


def test_a_request_that_goes_on_elsewhere_has_its_pictures() -> None:
    image = RowImage(1, 4, 2, 2, 32, 32, b"d" * 32, "/nowhere")
    ids = pack_i32([5, *image_keys(image.digest, image.count), 6])
    made = Request.continue_prompt(Envelope("a"), ids, SamplingParams(prompt_logprobs=0))
    made = msgspec.structs.replace(made, rows=[msgspec.structs.replace(made.rows[0], images=[image])])
    request = RoutedRequest(made, 0, 0, 0.0, max_len=100, timeout_s=9.0)
    request.resumed_ids = pack_i32([7])
    (row,) = request.resumed(1.0).rows
    assert (row.ids, row.images, row.logprobs) == (ids, [image], None)


def test_a_draining_replica_gets_nothing_new_and_is_idle_in_the_end() -> None:
    fleet = FakeFleet(2)
    fleet.submit("a", PREFIX, max_tokens=30, ignore_eos=True)
    drained = fleet.where("a")
    fleet.router.drain(drained, fleet.now)
    fleet.submit("b", [*PREFIX, 3])
    assert fleet.where("b") != drained
    load = fleet.router.placement.loads[drained]
    assert load.open
    fleet.drain()
    assert not load.open
    fleet.assert_answer("a")


def test_the_end_of_a_program_is_told_to_those_that_served_it() -> None:
    fleet = FakeFleet(3)
    fleet.submit("a", PREFIX, program=ProgramHint("p"))
    fleet.drain()
    fleet.router.release(ReleaseReq("p"))
    fleet.route()
    told = [r for r, engine in fleet.replicas.items() if any(isinstance(m, ReleaseReq) for _, m in engine.inbox)]
    assert told == [fleet.where("a")]


def test_a_stop_string_ends_a_request_by_an_abort() -> None:
    fleet = FakeFleet(1)
    fleet.submit("a", PREFIX, max_tokens=40)
    fleet.router.abort(AbortReq("a", "stop"))
    fleet.route()
    fleet.drain()
    assert fleet.finishes["a"].reason == "abort"


def test_the_branches_of_a_large_fork_are_divided() -> None:
    fleet, branches = FakeFleet(3), 12
    for i in range(branches):
        hint = ProgramHint("p", f"{i}", len(PREFIX), branches)
        fleet.submit(f"r{i}", [*PREFIX, i + 1], max_tokens=4, program=hint)
    fleet.drain()
    used = [fleet.where(f"r{i}") for i in range(branches)]
    assert len(set(used)) == 3
    for i in range(branches):
        fleet.assert_answer(f"r{i}")
    fleet.check()
