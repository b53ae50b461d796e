"""Effects of programs' hints: forks are computed once and kept, done branches are evicted first, all within bounds."""

from __future__ import annotations

import msgspec

from radixrt.messages.parts import ProgramHint
from radixrt.messages.scheduler import ReleaseReq
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.programs.scheduler import (
    GRACE_S,
    GROWTH_SHARE,
    KEEP_S,
    MAX_PROGRAMS,
    PROGRAM_SHARE,
    PROTECT_STEPS,
    TOTAL_SHARE,
    Programs,
)
from radixrt.scheduler.admission import KIN_DEFER_TOKENS
from radixrt.scheduler.queue_order import WINDOW
from radixrt.scheduler.stats import scheduler_stats
from tests.scheduler.fake_runner import Harness, deltas_of

FORK = list(range(1, 33))
DEAR = StepTimes(step=1.0, row=0.0, context=0.0, extend=0.0, token=1.0, pair=0.0)
"""A device on which a prompt token takes as long as a step, so that every program is worth waiting for."""


def harness(**options: object) -> Harness:
    return Harness(**{"num_slots": 256, "max_context": 128, "max_running_requests": 4, **options})  # type: ignore[arg-type]


def fill(h: Harness, tag: int, tokens: int = 60) -> None:
    """Another client's work, without hints."""
    h.add(f"fill{tag}", [40 + tag % 9, *[(tag * 7 + i) % 49 + 1 for i in range(tokens - 1)]], max_tokens=1)
    h.drain()


def cached(h: Harness, ids: list[int]) -> int:
    import numpy as np

    return h.cache.match_len(np.array(ids, np.int32))


def test_a_forks_prefix_outlives_work_that_would_have_evicted_it() -> None:
    def run(hinted: bool) -> int:
        h = harness()
        for i in range(2):
            hint = ProgramHint("p", f"0/{i}", fork_len=len(FORK), siblings=8 - i) if hinted else None
            h.add(f"branch{i}", [*FORK, 40 + i], program=hint)
        h.drain()
        for tag in range(6):
            fill(h, tag)
        return cached(h, FORK)

    assert run(hinted=True) == len(FORK)
    assert run(hinted=False) == 0


def test_a_forks_prefix_is_computed_once() -> None:
    h = harness()
    for i in range(8):
        h.add(f"b{i}", [*FORK, 40 + i], max_tokens=1, program=ProgramHint("p", f"0/{i}", len(FORK), 8 - i))
    h.drain()
    assert h.runner.tokens_computed == len(FORK) + 8
    assert h.scheduler.part(Programs).stats(0.0)["programs"].leases == 1
    assert h.scheduler.part(Programs).stats(0.0)["programs"].held_tokens == len(FORK)


def test_a_short_prefix_is_computed_once_for_a_program_and_by_each_of_others() -> None:
    def computed(*, hinted: bool, shared: int) -> int:
        h = harness()
        for i in range(3):
            hint = ProgramHint("p", f"0/{i}", shared, 3 - i) if hinted else None
            h.add(f"b{i}", [*FORK[:shared], 40 + i, 7, 8, 9], max_tokens=1, program=hint)
        h.drain()
        return h.runner.tokens_computed

    assert computed(hinted=True, shared=KIN_DEFER_TOKENS) == KIN_DEFER_TOKENS + 3 * 4
    assert computed(hinted=False, shared=KIN_DEFER_TOKENS) == 3 * (KIN_DEFER_TOKENS + 4)
    assert computed(hinted=True, shared=KIN_DEFER_TOKENS - 1) == 3 * (KIN_DEFER_TOKENS + 3)


def test_what_will_be_extended_goes_after_what_will_not() -> None:
    def run(will_continue: bool) -> bool:
        h = harness()
        h.add("turn", list(range(1, 50)), max_tokens=1, program=ProgramHint("p", "0", will_continue=will_continue))
        h.drain()
        for tag in range(5):
            fill(h, tag)
        return cached(h, list(range(1, 50))) >= 48

    assert run(will_continue=True)
    assert not run(will_continue=False)


def test_a_done_branch_goes_before_what_is_older() -> None:
    h = harness()
    fill(h, 0)
    old = [40, *[i % 49 + 1 for i in range(59)]]
    assert cached(h, old) == 60
    h.add("done", list(range(1, 100)), max_tokens=1, program=ProgramHint("p", "0"))
    h.drain()
    h.add("new", [5] * 110, max_tokens=1)
    h.drain()
    assert cached(h, old) == 60
    assert cached(h, list(range(1, 100))) < 99


def test_a_branch_gives_up_only_what_is_its_own() -> None:
    h = harness()
    fork = ProgramHint("p", "0/1", fork_len=len(FORK), siblings=2, will_continue=True)
    h.add("first", [*FORK, 40, 41, 42], max_tokens=1, program=fork)
    h.drain()
    h.scheduler.part(Programs).release("p", "0/1")
    done = {tuple(n.key.tolist()) for n in h.cache.iter_nodes() if n.retention == 0}
    assert done == {(40, 41, 42)}
    h.scheduler.part(Programs).release("p", None)
    assert {n.retention for n in h.cache.iter_nodes()} == {0, 1}


def test_a_release_reports_the_state_behind_it_although_nothing_runs() -> None:
    h = harness()
    h.add("first", FORK, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    before = scheduler_stats(h.scheduler, h.now).programs
    (sent,) = h.scheduler.part(Programs).handles()[ReleaseReq](ReleaseReq("p", None), h.now)
    assert sent.programs == scheduler_stats(h.scheduler, h.now).programs != before


def test_a_hit_on_what_is_done_makes_it_as_any_other() -> None:
    h = harness()
    h.add("done", FORK, max_tokens=1, program=ProgramHint("p", "0"))
    h.drain()
    assert [n.retention for n in h.cache.iter_nodes()] == [0]
    h.add("again", [*FORK, 7], max_tokens=1)
    h.drain()
    assert all(n.retention == 1 for n in h.cache.iter_nodes())


def test_what_others_had_computed_is_not_given_up() -> None:
    h = harness()
    h.add("other", FORK, max_tokens=1)
    h.drain()
    h.add("mine", [*FORK, 44, 45], max_tokens=1, program=ProgramHint("p", "0"))
    h.drain()
    assert {tuple(n.key.tolist()): n.retention for n in h.cache.iter_nodes()} == {tuple(FORK): 1, (44, 45): 0}


def test_holds_expire_by_themselves_and_calls_renew_them() -> None:
    h = harness()
    h.add("a", FORK, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    h.now = KEEP_S - 1
    h.add("b", [*FORK, 9], max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    h.now = KEEP_S + 1
    h.turn()
    assert h.scheduler.part(Programs).stats(0.0)["programs"].holds == 1
    h.now = 2 * KEEP_S
    h.turn()
    assert h.scheduler.part(Programs).stats(0.0)["programs"].holds == 0
    assert h.scheduler.part(Programs).stats(0.0)["programs"].expired == 1
    assert all(n.retention == 1 for n in h.cache.iter_nodes())


def test_a_program_whose_calls_take_long_is_not_forgotten() -> None:
    h = harness(request_timeout_s=10_000.0)
    hint = ProgramHint("p", "0", fork_len=32, siblings=2, will_continue=True)
    h.add("a", [*FORK, 9], max_tokens=50, ignore_eos=True, program=hint)
    for _ in range(40):
        h.now += KEEP_S / 2
        h.turn()
    assert h.scheduler.part(Programs).stats(0.0)["programs"].holds == 1


def test_one_program_cannot_hold_the_pool() -> None:
    h = harness()
    for i in range(12):
        ids = [i + 1] * 3 + [(i * 11 + j) % 49 + 1 for j in range(57)]
        h.add(f"r{i}", ids, max_tokens=1, program=ProgramHint("greedy", str(i), 60, 10**9, will_continue=True))
        h.drain()
        assert h.scheduler.part(Programs).stats(0.0)["programs"].held_tokens <= PROGRAM_SHARE * 256
    assert h.scheduler.part(Programs).stats(0.0)["programs"].refused_holds > 0


def test_all_programs_together_cannot_hold_the_pool_and_nobody_waits_for_them() -> None:
    h = harness()
    for i in range(12):
        ids = [i + 1] * 3 + [(i * 11 + j) % 49 + 1 for j in range(57)]
        h.add(f"r{i}", ids, max_tokens=1, program=ProgramHint(f"p{i}", "0", will_continue=True))
        h.drain()
    assert 0 < h.scheduler.part(Programs).stats(0.0)["programs"].held_tokens <= TOTAL_SHARE * 256
    h.add("big", [7] * 120, max_tokens=8)
    h.add("bigger", [8] * 120, max_tokens=8)
    h.drain()
    h.assert_output("big")
    h.assert_output("bigger")


def test_the_number_of_programs_is_bounded() -> None:
    h = harness(check=False, max_queued_requests=10**6)
    for i in range(MAX_PROGRAMS + 10):
        h.scheduler.part(Programs).begin_call(ProgramHint(f"p{i}"), 0.0)
    assert h.scheduler.part(Programs).stats(0.0)["programs"].programs == MAX_PROGRAMS


def test_a_scoring_request_keeps_its_prompt_for_the_next_call() -> None:
    h = harness()
    prompt = tuple(FORK)
    h.add_score("s", {prompt: [[40], [41, 42]]}, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    h.assert_scores("s")
    for tag in range(6):
        fill(h, tag)
    assert cached(h, FORK) == len(FORK)


def test_what_an_older_program_goes_on_from_is_evicted_later() -> None:
    """Whoever was used last: in turns, the least recently used nodes are those that are needed next."""
    h = harness(num_slots=160)
    prompts = {name: [start] * 4 + FORK for name, start in (("old", 40), ("young", 41))}
    for turn in range(2):
        for name, ids in prompts.items():
            hint = ProgramHint(name, "0", will_continue=True)
            h.add(f"{name}{turn}", ids[: 18 * (turn + 1)], max_tokens=1, program=hint)
            h.drain()
    fill(h, 1, 110)
    assert cached(h, prompts["old"]) == len(prompts["old"])
    assert cached(h, prompts["young"]) < len(prompts["young"])


def test_priority_and_patience_come_before_programs() -> None:
    h = harness(max_running_requests=1, schedule_policy="lpm", request_timeout_s=1000.0)
    h.add("first", [1], max_tokens=1, program=ProgramHint("a", "0"))
    h.add("old", [2], max_tokens=1)
    h.now = 11.0
    h.add("sibling", [3], max_tokens=1, program=ProgramHint("a", "1"))
    h.add("urgent", [4], max_tokens=1, priority=1)
    order: list[str] = []
    while h.turn():
        order += [rid for rid in h.finishes if rid not in order]
    assert order == ["urgent", "first", "old", "sibling"]


def test_wrong_hints_change_no_output() -> None:
    h = harness(num_slots=96, max_context=64)
    for i in range(30):
        hint = ProgramHint(f"p{i % 3}", "x" * (i % 4), [0, 5, 10**9, -7][i % 4], [-1, 0, 3][i % 3], bool(i % 2))
        h.add(f"r{i}", [1, 2, 3, *range(i % 20 + 1, i % 20 + 15)], program=hint)
        h.turn()
        if i % 5 == 0:
            h.scheduler.part(Programs).release(f"p{i % 4}", [None, "", "xx"][i % 3])
    h.drain()
    for rid in h.requests:
        h.assert_output(rid)


def test_hints_without_a_cache_do_nothing() -> None:
    h = harness(cache=False)
    h.add("a", FORK, program=ProgramHint("p", "0", 32, 9, will_continue=True))
    h.drain()
    h.assert_output("a")
    assert h.scheduler.part(Programs).stats(0.0)["programs"].programs == 0


def test_a_failed_step_forgets_all_holds() -> None:
    h = harness()
    h.add("a", FORK, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    h.add("b", [9, 9], program=ProgramHint("q", "0"))
    h.submit()
    h.fail()
    h.drain()
    assert h.scheduler.part(Programs).stats(0.0)["programs"].holds == 0
    deltas = deltas_of(h.scheduler.take_deltas())
    assert not deltas


def test_nobody_is_admitted_into_what_the_next_call_wants() -> None:
    def computed(hinted: bool, token_s: float = 1.0, *, pause_s: float = 0.0) -> int:
        h = harness(num_slots=160, max_running_requests=4)
        h.scheduler.step_time._times = msgspec.structs.replace(DEAR, token=token_s)
        hint = ProgramHint("p", "0", will_continue=True) if hinted else None
        prompt = list(range(1, 49)) + list(range(1, 33))
        h.add("other", [9, 9, 9], max_tokens=40, ignore_eos=True)
        h.add("turn", prompt, max_tokens=1, program=hint)
        while "turn" not in h.finishes:
            h.turn()
        h.add("big", [7] * 90, max_tokens=1)
        h.now += pause_s
        for _ in range(3):
            h.turn()
        h.add("next", [*prompt, 5], max_tokens=1, program=hint)
        h.drain()
        for rid in h.requests:
            h.assert_output(rid)
        return h.usages["next"].cached_tokens

    assert computed(hinted=True) == 80
    assert computed(hinted=False) < 80
    assert computed(hinted=True, token_s=PROTECT_STEPS / 80) < 80  # computed again sooner than it is worth to wait
    assert computed(hinted=True, pause_s=GRACE_S + 0.01) < 80  # who knows when the next call comes


def test_a_program_whose_prompts_have_become_long_reserves() -> None:
    """A conversation begins with a short prompt; what it would lose is its context of now."""
    h = harness(num_slots=200, max_running_requests=4)
    prompt = list(range(1, 21))
    times = msgspec.structs.replace(DEAR, token=PROTECT_STEPS / 40)
    for rid, length in (("first", 20), ("second", 41)):
        prompt = [*prompt, *range(1, length - 19)]
        h.add(rid, prompt, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
        h.drain()
        tokens = h.scheduler.part(Programs).reserved(times, h.now, 0).sums[-1]
        assert (tokens > 40) if rid == "second" else (tokens == 0)


def test_a_program_begins_where_those_that_have_begun_can_grow() -> None:
    """Two more programs would fit, but not what the first ones are still to append."""

    def begun(slots: int, *, goes_on: bool = True) -> set[str]:
        h = harness(num_slots=slots, max_running_requests=4)
        h.scheduler.step_time._times = DEAR
        for i in range(3):
            hint = ProgramHint(f"p{i}", will_continue=goes_on)
            h.add(f"p{i}", [i + 1] * 40, max_tokens=10, ignore_eos=True, program=hint)
        for _ in range(2):
            h.turn()
        active = {req.rid for req in h.scheduler.active}
        h.drain()
        assert len(h.finishes) == 3
        return active

    assert begun(3 * 50 + 2 * int(GROWTH_SHARE * 40)) == {"p0", "p1", "p2"}
    assert begun(3 * 50) == {"p0", "p1"}
    assert begun(3 * 50, goes_on=False) == {"p0", "p1", "p2"}  # their calls end in room for their next ones


def test_calls_of_the_oldest_program_wait_for_no_younger_one() -> None:
    h = harness(num_slots=120, max_running_requests=4)
    h.scheduler.step_time._times = DEAR
    for i in range(2):
        h.add(f"p{i}", [i + 1] * 20, max_tokens=1, program=ProgramHint(f"p{i}", "0", will_continue=True))
    h.drain()
    h.add("other", [9, 9, 9], max_tokens=20, ignore_eos=True)
    h.turn()
    h.add("young", [2] * 20 + [7] * 60, max_tokens=10, program=ProgramHint("p1", "1"))
    h.turn()
    assert "young" not in {req.rid for req in h.scheduler.active}
    h.add("old", [1] * 20 + [7] * 60, max_tokens=10, program=ProgramHint("p0", "1"))
    h.turn()
    assert "old" in {req.rid for req in h.scheduler.active}
    h.drain()
    for program in ("p0", "p1"):
        h.scheduler.part(Programs).release(program, None)
    assert h.scheduler.part(Programs).reserved(DEAR, h.now, 0).sums == [0]


def test_programs_that_have_ended_keep_no_room_to_grow() -> None:
    """Their clients release nothing. Short programs pass through a pool that their growth would have filled."""

    def begun_at_once(goes_on: bool) -> bool:
        h = harness(num_slots=120, max_running_requests=4)
        h.scheduler.step_time._times = DEAR
        h.add("other", [9, 9, 9], max_tokens=60, ignore_eos=True)
        for i in range(12):
            h.add(f"p{i}", [i + 1] * 20, max_tokens=1, program=ProgramHint(f"p{i}", will_continue=goes_on))
            for _ in range(3):
                h.turn()
        begun = len(h.finishes) == 12
        h.drain()
        return begun

    assert begun_at_once(goes_on=False)
    assert not begun_at_once(goes_on=True)


def test_a_program_that_has_begun_goes_on_behind_any_number_that_have_not() -> None:
    """All others wait for it, so it must not wait until they are fewer than a policy looks at."""
    h = harness(num_slots=160, schedule_policy="lpm", request_timeout_s=1000.0)
    h.scheduler.step_time._times = DEAR
    prompt = list(range(1, 49)) + list(range(1, 33))
    h.add("turn", prompt, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    h.drain()
    h.add("other", [9, 9, 9], max_tokens=40, ignore_eos=True)
    h.turn()
    for i in range(WINDOW):
        h.add(f"new{i}", [7 + i % 40] * 75, max_tokens=1, program=ProgramHint(f"new{i}", will_continue=True))
    h.add("next", [*prompt, 5], max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
    while "next" not in h.finishes and "other" not in h.finishes:
        h.turn()
    assert set(h.finishes) == {"turn", "next"}


def test_an_urgent_request_waits_for_no_program_of_less_priority() -> None:
    def is_admitted(priority: int) -> bool:
        h = harness(num_slots=160, request_timeout_s=1000.0)
        h.scheduler.step_time._times = DEAR
        h.add("turn", list(range(1, 33)) * 2, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
        h.drain()
        h.add("other", [9, 9, 9], max_tokens=40, ignore_eos=True)
        h.turn()
        h.add("big", [7] * 90, max_tokens=1, priority=priority)
        h.turn()
        return "big" in {req.rid for req in h.scheduler.active} | set(h.finishes)

    assert is_admitted(priority=1)
    assert not is_admitted(priority=0)


def test_who_has_waited_long_is_admitted_all_the_same() -> None:
    h = harness(num_slots=160, request_timeout_s=1000.0)
    h.add("other", [9, 9, 9], max_tokens=60, ignore_eos=True)
    h.add("big", [7] * 90, max_tokens=1)
    h.now = 11.0
    for i in range(6):
        h.add(f"turn{i}", [i + 1] * 70, max_tokens=1, program=ProgramHint("p", "0", will_continue=True))
        h.turn()
        h.turn()
    assert "big" in h.finishes
    h.drain()
