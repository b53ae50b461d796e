"""The queue of one replica in the router: its order, and its memory."""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.messages.images import RowImage
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.router.request_queue import RequestQueue
from radixrt.router.routed_request import RoutedRequest, Work
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.queue_order import MATCH_UNIT, PATIENCE_S


def request(
    seq: int, *, priority: int = 0, hit: int = 0, at: float = 0.0, prompt: Sequence[int] = range(100)
) -> RoutedRequest:
    message = Request.generate(f"r{seq}", pack_i32(prompt), SamplingParams(max_tokens=1), priority=priority)
    made = RoutedRequest(message, seq, seq, at, max_len=1000, timeout_s=60.0)
    made.work = Work(len(prompt) - hit, len(prompt), 1.0)
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


def test_the_first_requests_are_listed_in_the_order_in_which_they_are_sent() -> None:
    queue, now = RequestQueue(), PATIENCE_S + 1.0
    for seq in range(300):
        at = 0.0 if seq < 20 else now
        queue.add(request(seq, priority=int(seq >= 290), hit=MATCH_UNIT * (seq % 2), at=at))
    for each in [each for each in queue if each.seq % 7 == 0]:
        queue.remove(each)
    listed, order = queue.ahead(200, now), []
    while (first := queue.first(now)) is not None:
        queue.remove(first)
        order.append(first)
    assert [each.seq for each in listed] == [each.seq for each in order][:200]
    assert [each.seq for each in listed[:10]] == [291, 293, 295, 297, 299, 290, 292, 296, 298, 1]
    assert queue.ahead(5, now) == []


def test_a_hit_that_comes_back_leaves_one_entry() -> None:
    """As where a replica's cache is emptied behind the prefix that another request has booked."""
    queue, one, other = RequestQueue(), request(1, hit=0), request(2, hit=0)
    for each in (one, other):
        queue.add(each)
    first = one.work
    for _ in range(3):
        queue.changed(one, Work(first.miss - MATCH_UNIT, first.length, first.output))
        assert [each.seq for each in queue.ahead(5, 0.0)] == [1, 2]
        queue.changed(one, first)
    assert sorted(each.seq for each in queue) == [1, 2]
    assert [each.seq for each in queue.ahead(5, 0.0)] == [1, 2]
    for each in list(queue):
        queue.remove(each)
    assert (list(queue), queue.size, queue.first(0.0)) == ([], 0, None)


def test_what_requests_share_counts_once_and_they_move_up_when_it_is_there() -> None:
    queue, prefix = RequestQueue(), list(range(200))  # three granules, and 8 tokens
    other, first, second = (
        request(1, prompt=range(500, 630)), request(2, prompt=[*prefix, 7]), request(3, prompt=[*prefix, 8, 9])
    )  # fmt: skip
    for each in (other, first, second):
        queue.add(each)
    assert queue.tokens == 130 + 192 + 9 + 10
    assert queue.slots == queue.tokens + 3
    assert queue.shared(request(4, prompt=[*prefix[:150], *range(900, 950)]).prefix, 0) == 128
    assert queue.shared(first.prefix, 128) == 64
    assert queue.first(0.0) is other
    queue.remove(first)
    assert queue.waiting_for(first.prefix.hashes) == [second]
    queue.changed(second, second.work._replace(miss=10))
    assert queue.tokens == 130 + 10
    assert queue.first(0.0) is second, "it has the longest prefix"
    assert list(queue) == [second, other]
    assert not queue.waiting_for(first.prefix.hashes)


def test_what_requests_share_counts_for_each_where_it_is_no_hit_without_a_state() -> None:
    queue = RequestQueue(has_states=True)
    for seq in (1, 2):
        queue.add(request(seq))
    assert queue.tokens == 200
    assert not queue.shared(request(3).prefix, 0)


def test_an_image_of_several_requests_counts_once() -> None:
    queue = RequestQueue()
    shown, other = RowImage(0, 50, 5, 10, 160, 320, b"a", ""), RowImage(50, 20, 4, 5, 128, 160, b"b", "")
    requests = [request(1), request(2), request(3, hit=60)]
    for each in requests:
        each.work = each.work._replace(images=(shown, other))
    requests[0].work = requests[0].work._replace(images=(shown,))
    counts = []
    for each in requests:
        queue.add(each)
        counts.append(queue.encode)
    for each in requests:
        queue.remove(each)
        counts.append(queue.encode)
    assert counts == [50, 70, 70, 70, 20, 0]
