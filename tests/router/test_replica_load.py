"""A replica takes calls of programs that have begun first; another program begins when it is worth it."""

from __future__ import annotations

from bisect import bisect_left

from radixrt.messages.parts import ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.router.replica_load import ReplicaInfo, ReplicaLoad
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.queue_order import PATIENCE_S

TIMES = StepTimes(step=5e-3, row=2e-5, context=4e-8, extend=0.0, token=2.5e-5, pair=0.0, decode_steps=9, extend_steps=9)
WORK = Work(100, 4000, 96.0)


def request(seq: int, hint: ProgramHint | None = None, program_seq: int | None = None) -> RoutedRequest:
    made = RoutedRequest(
        Request.generate(f"r{seq}", pack_i32([1] * 4000), SamplingParams(max_tokens=96), program=hint),
        seq, seq if program_seq is None else program_seq, 0.0, max_len=100_000, timeout_s=60.0,
    )  # fmt: skip
    made.work = WORK
    return made


def loaded(rows: int, waiting: int = 0) -> ReplicaLoad:
    """A replica with so many running requests, and so many in its queue."""
    load = ReplicaLoad(ReplicaInfo(1_000_000, 256, 8192, times=TIMES), 1, 0.0)
    for i in range(rows):
        each = request(i)
        load.sent(each)
        each.has_started = True
        load.started(each)
    for i in range(waiting):
        load.queue.add(request(rows + i, ProgramHint(f"w{i}", will_continue=True)))
    return load


def mean_end(total: int, rows: int) -> float:
    """Mean time until `total` equal requests of one token end that are served `rows` at a time."""
    turns = -(-total // rows)
    step = TIMES.step + rows * (TIMES.row + TIMES.context * WORK.length)
    return sum(min(rows, total - turn * rows) * (turn + 1) * step for turn in range(turns)) / total


def test_a_replica_is_crowded_where_more_rows_make_all_of_them_late() -> None:
    for total in (100, 400, 900):
        least = min(range(1, 257), key=lambda rows, total=total: mean_end(total, rows))  # type: ignore[misc]
        first = 1 + bisect_left(
            range(1, total),
            True,
            key=lambda rows, total=total: loaded(rows, total - rows).is_crowded,  # type: ignore[misc]
        )
        assert mean_end(total, first - 1) < 1.15 * mean_end(total, least)
        assert mean_end(total, 2 * first) > mean_end(total, first)
    assert not loaded(0).is_crowded


def test_a_program_begins_later_on_a_crowded_replica_but_not_for_ever() -> None:
    crowded, calm = loaded(100), loaded(10)
    begins = request(200, ProgramHint("p", will_continue=True))
    assert begins.begins_program
    assert calm.takes(begins, 0.0)
    assert not crowded.takes(begins, PATIENCE_S - 1.0)
    assert crowded.takes(begins, PATIENCE_S + 1.0)
    goes_on = request(201, ProgramHint("p", will_continue=True), program_seq=200)
    last, alone = request(202, ProgramHint("q")), request(203)
    for other in (goes_on, last, alone):
        assert not other.begins_program
        assert crowded.takes(other, 0.0)


def test_a_program_begins_later_where_open_requests_take_half_of_the_pool() -> None:
    load, begins = loaded(10), request(200, ProgramHint("p", will_continue=True))
    begins.work = Work(2500, 4000, 96.0)
    load.reachable = 500_000 + 2500 + 96
    assert load.takes(begins, 0.0)
    load.reachable -= 1
    assert not load.takes(begins, 0.0)
    assert load.takes(request(201), 0.0)
    assert load.takes(begins, PATIENCE_S + 1.0)
    idle = loaded(0)
    idle.reachable = 0.0  # an idle replica has room for whatever it can hold at all
    assert idle.takes(begins, 0.0)


def test_calls_of_programs_that_have_begun_go_before_those_that_wait_to_begin() -> None:
    load = loaded(100, waiting=3)
    assert load.next(0.0) is None
    goes_on = request(200, ProgramHint("w0"), program_seq=100)
    load.queue.add(goes_on)
    assert load.next(0.0) is goes_on
