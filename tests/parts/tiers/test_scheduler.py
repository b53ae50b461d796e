"""What the part does in each situation, on a device whose moves end when the test wants."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixrt.messages.kv_moves import MAX_MOVES, MAX_RECEIVING_ON_DEVICE, KVDrop, KVIn, KVLoad, KVOpen, KVOut, KVSave
from radixrt.messages.runner import PartOrder
from radixrt.messages.wire import unpack_i32
from radixrt.parts.tiers.tier import Tier, root_name
from tests.parts.tiers.harness import SIZES, Sizes, TieredHarness
from tests.scheduler.fake_runner import Harness

PROMPT = [1 + i * i % 37 for i in range(200)]  # three whole pages and a tail
IDS = np.array(PROMPT, np.int32)


def harness(sizes: Sizes = SIZES, **options: Any) -> TieredHarness:
    """A harness whose moves end at once, unless a test sets `eager`."""
    return TieredHarness(sizes, **{"eager": 0.9, **options})


def with_copies(sizes: Sizes = SIZES, **options: Any) -> TieredHarness:
    """A harness with PROMPT in the host tier, and on disk if there is one, but not in the pool."""
    h = harness(sizes, **options)
    h.add("first", PROMPT, max_tokens=1)
    h.rest()
    h.cache.evict(h.cache.evictable_size)
    assert h.cache.total_size == 0
    assert length_in(h.tiers.host) == 192
    h.orders.clear()
    h.eager = 0.0
    return h


def length_in(tier: Tier) -> int:
    """Tokens of PROMPT in a tier."""
    return tier.match_len(IDS, root_name(""))


def done(h: TieredHarness, *rids: str) -> None:
    """Let everything end, and check that it ended well."""
    h.eager = 0.9
    h.drain()
    for rid in rids:
        h.assert_output(rid)
    h.check_idle()


def test_without_tiers_a_scheduler_sends_no_order() -> None:
    h = Harness(num_slots=256, max_context=256)
    for i in range(8):
        h.add(f"r{i}", [i, *PROMPT], max_tokens=2)
        h.drain()
    assert h.cache.evicted_tokens > 0
    assert not h.scheduler.orders
    assert not h.scheduler.parts.fetches
    assert not h.scheduler.parts.reported
    assert not h.scheduler.parts.emptying


def test_the_first_order_opens_the_memory_and_nothing_moves_before_something_is_evicted() -> None:
    h = harness(num_slots=1024)
    h.add("a", PROMPT, max_tokens=2)
    h.add("b", [7, *PROMPT], max_tokens=2)
    h.drain()
    assert [type(order) for order in h.orders] == [KVOpen]


def test_prefixes_are_copied_ahead_of_their_eviction() -> None:
    h = harness(num_slots=512, chunked_prefill_size=64)
    for i in range(6):
        h.add(f"r{i}", [i, *PROMPT], max_tokens=2)
        h.drain()
    assert h.cache.evicted_tokens > 0
    assert h.sent_orders(KVOut)
    h.add("again", [3, *PROMPT, 5], max_tokens=2)
    done(h, "again")
    assert h.usages["again"].cached_tokens >= 192


def test_a_prefix_can_be_evicted_as_soon_as_its_copies_are_ordered() -> None:
    h = harness(num_slots=512, chunked_prefill_size=64)
    h.eager = 0.0
    rids = [f"r{i}" for i in range(4)]
    for i, rid in enumerate(rids):
        h.add(rid, [i, *PROMPT], max_tokens=2)
    while not h.sent_orders(KVOut):
        h.turn()
    assert not h.tiers.moves.is_idle
    assert not h.scheduler.kv.copies.held
    done(h, *rids)


def test_a_fetch_is_waited_for_though_nothing_else_runs() -> None:
    h = with_copies()
    h.add("a", PROMPT, max_tokens=3)
    assert not h.submit()
    assert len(h.sent_orders(KVIn)) == 3, "a move for each page"
    assert not h.submit()
    assert h.scheduler.kv.copies.reserved == 192
    computed = h.runner.tokens_computed
    done(h, "a")
    assert h.usages["a"].cached_tokens == 192
    assert h.runner.tokens_computed - computed == 200 - 192 + 2


def test_a_prefix_is_one_order_for_a_pool_in_device_memory() -> None:
    """While a rank's host begins moves, it launches no step."""
    h = with_copies(Sizes(receiving=MAX_RECEIVING_ON_DEVICE))
    assert len(h.sent_orders(KVOut)) == 0
    h.add("a", [*PROMPT, 5], max_tokens=2)
    h.submit()
    (order,) = h.sent_orders(KVIn)
    assert len(unpack_i32(order.slots)) == 192
    done(h, "a")


def test_requests_that_need_no_fetch_run_meanwhile() -> None:
    h = with_copies()
    h.add("a", PROMPT, max_tokens=3)
    h.submit()
    h.add("b", [8] * 20, max_tokens=3)
    for _ in range(6):
        h.turn()
    h.assert_output("b")
    assert "a" not in h.finishes
    done(h, "a")


def test_a_fetch_that_is_late_is_not_waited_for() -> None:
    h = with_copies()
    h.add("a", [*PROMPT, 5], max_tokens=2)
    assert not h.submit()
    h.now += 0.5
    assert not h.submit()
    h.now += 1.0
    assert h.submit(), "the prefix is computed"
    done(h, "a")
    assert h.usages["a"].fetched_tokens == {}


def test_siblings_of_a_fork_wait_for_one_fetch() -> None:
    h = with_copies()
    for i in range(4):
        h.add(f"r{i}", [*PROMPT[:192], 30 + i], max_tokens=2)
    assert not h.submit()
    assert len(h.sent_orders(KVIn)) == 3
    assert h.scheduler.kv.copies.reserved == 192
    done(h, *(f"r{i}" for i in range(4)))
    assert len(h.sent_orders(KVIn)) == 3
    assert all(h.usages[f"r{i}"].cached_tokens == 192 for i in range(4))


def test_a_tail_below_a_page_is_computed() -> None:
    h = with_copies()
    h.add("a", PROMPT[:64], max_tokens=1)  # its last token is computed, so that no whole page is left
    done(h, "a")
    assert not h.sent_orders(KVIn)
    h.cache.evict(h.cache.evictable_size)
    h.add("b", PROMPT[:65], max_tokens=1)
    done(h, "b")
    assert len(h.sent_orders(KVIn)) == 1
    assert h.usages["b"].cached_tokens == 64


def test_an_aborted_request_leaves_its_fetch_to_the_tree() -> None:
    h = with_copies()
    h.add("a", PROMPT, max_tokens=3)
    h.submit()
    h.scheduler.abort("a", h.now)
    h.take()
    h.verify()
    done(h)
    assert h.cache.total_size == 192
    h.add("b", PROMPT, max_tokens=3)
    h.drain()
    assert h.usages["b"].cached_tokens == 192


def test_running_requests_take_the_slots_that_they_need_while_a_fetch_is_under_way() -> None:
    h = with_copies(num_slots=256, max_context=256, max_running_requests=4)
    h.add("long", [9] * 10, max_tokens=120, ignore_eos=True)
    h.add("longer", [8] * 10, max_tokens=120, ignore_eos=True)
    for _ in range(3):
        h.turn()
    h.add("a", PROMPT, max_tokens=1)
    for _ in range(60):
        h.turn()
    done(h, "long", "longer", "a")


def test_slots_are_missing_for_a_fetch() -> None:
    h = with_copies(num_slots=320, max_context=320)
    h.add("long", [9] * 150, max_tokens=100, ignore_eos=True)
    for _ in range(3):
        h.turn()
    h.add("a", PROMPT, max_tokens=1)
    done(h, "long", "a")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_failed_fetch_means_that_the_prefix_is_computed(rank: int) -> None:
    h = with_copies(Sizes(ranks=2))
    h.add("a", PROMPT, max_tokens=3)
    h.submit()
    while h.sent:
        h.execute()
    mover = h.runner.movers[rank]
    mover.fail(mover.moves[1])
    h.poll()
    h.take_reports()
    assert h.scheduler.kv.copies.reserved == 192, "the other rank still writes into the slots"
    h.pays, h.tiers.prices = 0.0, type(h.tiers.prices)(h.random, 0.0)
    done(h, "a")
    assert h.usages["a"].cached_tokens == 0


def test_a_price_that_does_not_pay_means_that_the_prefix_is_computed() -> None:
    h = with_copies()
    h.tiers.prices = type(h.tiers.prices)(h.random, 0.0)
    h.add("a", PROMPT, max_tokens=3)
    done(h, "a")
    assert not h.sent_orders(KVIn)
    assert h.usages["a"].cached_tokens == 0


def with_a_fetch_beside_a_step() -> TieredHarness:
    """A harness with a step of request "b" in flight, while request "a" waits for the fetch of PROMPT."""
    h = with_copies()
    h.add("b", [8] * 20, max_tokens=30, ignore_eos=True)
    h.submit()
    h.add("a", PROMPT, max_tokens=3)
    h.commit()
    h.submit()
    return h


def test_a_failed_step_drops_the_moves_and_the_prefix_is_fetched_again() -> None:
    h = with_a_fetch_beside_a_step()
    assert h.scheduler.kv.copies.reserved == 192
    while h.sent and h.sent[0] is not h.inflight[0].step:
        h.execute()
    h.fail()
    h.send_orders()
    assert h.sent_orders(KVDrop)
    assert h.scheduler.kv.copies.reserved == 0
    while h.sent:
        h.execute()
    assert not h.moves
    done(h, "a")
    assert h.usages["a"].cached_tokens == 192


def test_a_dropped_fetch_writes_no_slot_that_has_another_owner() -> None:
    h = with_a_fetch_beside_a_step()
    (fetched,) = [np.concatenate([unpack_i32(order.slots) for order in h.sent_orders(KVIn)])]
    while h.sent and h.sent[0] is not h.inflight[0].step:
        h.execute()
    h.fail()
    h.scheduler.abort("a", h.now)
    h.add("c", [9] * 200, max_tokens=3, ignore_eos=True)
    h.submit()
    assert np.isin(fetched, unpack_i32(h.inflight[0].step.out_cache_loc)).any()
    while h.sent:
        h.execute()
    h.finish_moves()
    done(h, "c")


def test_a_leaf_is_kept_until_its_last_piece_is_gathered() -> None:
    h = harness(num_slots=1024, max_context=1024)
    long = [1 + i * i % 41 for i in range(64 * (MAX_MOVES + 2))]
    h.add("long", long, max_tokens=1)
    h.drain()
    h.eager = 0.0
    for _ in range(3):
        h.now += 1.0
        h.turn()
    assert len(h.sent_orders(KVOut)) == MAX_MOVES, "two pieces wait"
    h.add("next", [9] * 600, max_tokens=2, ignore_eos=True)
    h.submit()
    while h.sent:
        h.execute()
    for _ in range(3):
        h.finish_moves()
        h.take_reports()
        h.send_orders()
        while h.sent and isinstance(h.sent[0], PartOrder):
            h.execute()
    assert len(h.sent_orders(KVOut)) == MAX_MOVES + 2
    done(h, "next")
    assert h.tiers.host.num_tokens >= len(long)


def test_a_failed_step_spoils_no_copy() -> None:
    """Slots that a step was to write are copied behind the step, and the copy is reported before the tree is emptied,
    because a later step is in flight."""
    h = harness(num_slots=512, depth=2)
    for i in range(4):
        h.add(f"r{i}", [i, *PROMPT], max_tokens=1)
        h.drain()
    assert h.cache.evicted_tokens
    h.eager = 0.0
    h.add("long", [8] * 20, max_tokens=30, ignore_eos=True)
    h.submit()
    h.submit()
    h.commit()
    h.add("aborted", PROMPT, max_tokens=3)
    h.submit()
    h.scheduler.abort("aborted", h.now)
    h.orders.clear()
    h.commit()
    h.submit()
    copied = np.concatenate([unpack_i32(order.slots) for order in h.sent_orders(KVOut)])
    assert np.isin(copied, unpack_i32(h.inflight[0].step.out_cache_loc)).any()
    assert h.may_fail
    h.fail()
    while h.sent[0] is not h.inflight[0].step:
        h.execute()
    h.finish_moves()
    assert h.take_reports()
    h.check_tiers()
    done(h)


def test_a_new_runner_gets_the_memory_first_and_prefixes_come_back_from_the_arena() -> None:
    h = with_copies()
    h.add("a", PROMPT, max_tokens=3)
    h.submit()
    assert h.scheduler.kv.copies.reserved == 192
    h.kill()
    assert h.scheduler.kv.copies.reserved == 0
    h.orders.clear()
    h.restart()
    h.submit()
    first = [type(order) for order in h.orders]
    assert first.index(KVOpen) < first.index(KVIn)
    done(h, "a")
    assert h.usages["a"].cached_tokens == 192


def test_requests_of_a_dead_runner_go_on_from_what_was_copied() -> None:
    h = with_copies()
    h.add("a", PROMPT, max_tokens=30, ignore_eos=True)
    h.eager = 0.9
    while not h.outputs.get("a"):
        h.turn()
    h.submit()
    h.kill()
    h.restart()
    done(h, "a")
    assert h.runner.tokens_computed < 60


def test_a_report_that_was_under_way_when_its_move_was_dropped_has_no_effect() -> None:
    h = with_copies()
    h.add("b", [8] * 20, max_tokens=30, ignore_eos=True)
    h.submit()
    h.commit()
    h.add("a", PROMPT, max_tokens=3)
    h.submit()
    while h.sent and h.sent[0] is not h.inflight[0].step:
        h.execute()
    h.finish_moves()
    late, h.answers[0] = h.answers[0].copy(), type(h.answers[0])()
    assert late
    h.fail()
    h.submit()
    assert h.scheduler.kv.copies.reserved == 192, "the prefix is fetched again"
    h.answers[0].extend(late)
    h.take_reports()
    assert h.scheduler.kv.copies.reserved == 192
    done(h, "a")


def test_a_new_scheduler_finds_what_the_arena_holds() -> None:
    h = with_copies()
    h.restart_scheduler()
    assert h.tiers.host.num_tokens == 192
    h.add("a", PROMPT, max_tokens=3)
    done(h, "a")
    assert h.usages["a"].cached_tokens == 192


def test_a_scheduler_that_dies_amid_moves_leaves_nothing_half_written() -> None:
    for units in range(0, 40, 3):
        h = harness(num_slots=1024)
        h.add("a", PROMPT, max_tokens=2)
        h.add("b", [7, *PROMPT], max_tokens=2)
        h.drain()
        h.eager = 0.0
        h.now += 60.0
        h.turn()
        h.now += 60.0
        h.turn()
        for _ in range(units):
            h.work()
        h.take_reports()
        h.restart_scheduler()
        h.check_tiers()
        h.add("c", PROMPT, max_tokens=3)
        done(h, "c")


def test_a_start_finds_what_the_files_hold() -> None:
    h = with_copies(Sizes(file_pages=8))
    assert h.tiers.disk is not None
    assert h.tiers.disk.num_tokens == 192
    h.restart_engine()
    assert (h.tiers.host.num_tokens, h.tiers.disk.num_tokens) == (0, 192)
    h.orders.clear()
    h.add("a", PROMPT, max_tokens=3)
    assert not h.submit()
    assert h.sent_orders(KVLoad)
    assert not h.sent_orders(KVIn), "the pages are not in the arena"
    done(h, "a")
    assert h.usages["a"].cached_tokens == 192


def test_records_know_when_their_files_were_read() -> None:
    h = with_copies(Sizes(file_pages=8))
    h.restart_engine()
    assert h.tiers.disk is not None
    used = h.tiers.disk._records._records["used"]
    used[:] = 0
    h.add("a", PROMPT, max_tokens=1)
    done(h, "a")
    assert (used > 0).sum() == 3


@pytest.mark.parametrize("fault", ["bytes", "missing", "another"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_file_page_is_computed_and_forgotten(fault: str, rank: int) -> None:
    h = with_copies(Sizes(ranks=2, file_pages=8))
    h.restart_engine()
    assert h.tiers.disk is not None
    files = h.host.files[rank]
    first, second, _ = h.tiers.disk.cache.path_slots(h.tiers.disk.match(IDS, root_name("")).node)[::64] // 64
    if fault == "bytes":
        files[second].cells[5, 0] ^= 4
    elif fault == "missing":
        del files[second]
    else:
        files[second] = files[first]
    h.add("a", PROMPT, max_tokens=3)
    done(h, "a")
    assert h.usages["a"].cached_tokens <= 64
    assert length_in(h.tiers.disk) <= 64
    h.rest()
    assert length_in(h.tiers.disk) == 192, "it was saved again"
    h.restart_engine()
    h.add("b", PROMPT, max_tokens=3)
    done(h, "b")
    assert h.usages["b"].cached_tokens == 192


def test_a_full_arena_keeps_what_was_used_last() -> None:
    h = harness(Sizes(host_pages=4), num_slots=1024)
    for i in range(6):
        h.add(f"r{i}", [i, *PROMPT], max_tokens=2)
        h.rest()
    done(h)
    assert h.tiers.host.num_tokens <= 4 * 64


def test_full_files_keep_what_was_used_last() -> None:
    h = harness(Sizes(file_pages=4), num_slots=1024)
    for i in range(6):
        h.add(f"r{i}", [i, *PROMPT], max_tokens=2)
        h.rest()
    done(h)
    assert h.tiers.disk is not None
    assert 0 < h.tiers.disk.num_tokens <= 4 * 64


def test_a_copy_that_fails_is_not_made_again_at_once() -> None:
    """An arena that cannot be opened fails every copy, and an idle scheduler must not try for ever."""
    h = harness()
    h.add("a", PROMPT, max_tokens=2)
    h.drain()
    h.eager = 0.0
    for _ in range(50):
        h.now += 1.0
        h.turn()
        while h.sent:
            h.execute()
        for mover, move in h.moves:
            mover.fail(move)
        h.poll()
        h.take_reports()
    assert len(h.sent_orders(KVOut)) == 3
    assert h.tiers.host.num_tokens == 0
    done(h)


def test_copies_that_were_dropped_for_another_namespace_are_made_again() -> None:
    h = harness(Sizes(file_pages=8))
    h.add("a", PROMPT, max_tokens=2)
    h.drain()
    h.eager = 0.0
    while not h.moves:
        h.now += 1.0
        h.turn()
        while h.sent:
            h.execute()
    h.scheduler.forget_namespace("another", whole_owner=False)
    assert h.tiers.moves.is_idle
    h.eager = 0.9
    h.rest()
    assert h.tiers.disk is not None
    assert (length_in(h.tiers.host), length_in(h.tiers.disk)) == (192, 192)
    done(h)


def test_a_failed_save_leaves_no_record() -> None:
    h = harness(Sizes(file_pages=8))
    h.add("a", PROMPT, max_tokens=2)
    h.drain()
    h.eager = 0.0
    for _ in range(200):
        h.now += 1.0
        h.turn()
        while h.sent:
            h.execute()
        for mover, move in h.moves:
            if move.link == "save":
                mover.fail(move)
            else:
                mover.step(move)
        h.poll()
        h.take_reports()
        h.check_tiers()
    assert h.sent_orders(KVSave)
    assert h.tiers.disk is not None
    assert h.tiers.disk.num_tokens == 0


def test_tenants_find_nothing_of_each_other() -> None:
    h = with_copies(Sizes(file_pages=8))
    h.add("theirs", PROMPT, max_tokens=2, cache_salt="other")
    done(h, "theirs")
    assert not h.sent_orders(KVIn)
    assert h.usages["theirs"].cached_tokens == 0


def test_an_idle_scheduler_lists_leaves_only_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    h = harness(Sizes(1, 20, 20))
    h.add("a", PROMPT)
    h.rest()
    listed: list[str] = []
    for name, cache in (("pool", h.cache), ("host", h.tiers.host.cache)):
        real = cache.coldest
        monkeypatch.setattr(cache, "coldest", lambda name=name, real=real: listed.append(name) or real())
    h.rest()
    assert not listed
    h.add("b", [7] * len(PROMPT))
    h.rest()
    assert set(listed) == {"pool", "host"}
    assert h.tiers.disk is not None
    assert h.tiers.disk.match_len(np.array([7] * len(PROMPT), np.int32), root_name("")) == len(PROMPT) // 64 * 64
    listed.clear()
    h.tiers.flushing()  # the host tier is empty, so the pool is copied again
    h.rest()
    assert "pool" in listed
    assert h.tiers.host.match_len(np.array(PROMPT, np.int32), root_name("")) == len(PROMPT) // 64 * 64
