"""The queue of one replica in the router: its order, and its memory."""

from __future__ import annotations

from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.wire import pack_i32
from radixrt.router.request_queue import RequestQueue
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.queue_order import MATCH_UNIT, PATIENCE_S


def request(seq: int, *, priority: int = 0, hit: int = 0, at: float = 0.0) -> RoutedRequest:
    message = TokenizedReq(f"r{seq}", pack_i32(range(100)), SamplingParams(max_tokens=1), priority=priority)
    made = RoutedRequest(message, seq, seq, at, max_len=1000, timeout_s=60.0)
    made.work = Work(100 - hit, 100, 1.0)
    return made


def test_priority_then_patience_then_prefix_then_arrival() -> None:
    queue, now = RequestQueue(), PATIENCE_S + 1.0
    late, hit, plain, urgent = (
        request(1), request(2, hit=MATCH_UNIT, at=now), request(3, at=now), request(4, priority=1, at=now)
    )  # fmt: skip
    for each in (late, plain, hit, urgent):
        queue.add(each)
    order = []
    while (first := queue.first(now)) is not None:
        queue.remove(first)
        order.append(first)
    assert order == [urgent, late, hit, plain]
    assert (len(queue), queue.tokens, queue.slots) == (0, 0, 0.0)


def test_requests_that_end_below_the_first_are_not_kept() -> None:
    """Requests of low priority that time out, behind one of high priority that stays."""
    queue, stays = RequestQueue(), request(0, priority=9)
    queue.add(stays)
    for seq in range(1, 1000):
        low = request(seq)
        queue.add(low)
        assert queue.first(0.0) is stays
        queue.remove(low)
    assert list(queue) == [stays]
    assert queue.num_entries <= 70
