"""Prompts that are encoded in a thread: outputs and requests of token ids overtake them, and nothing else does."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from radixrt.errors import RequestError
from radixrt.messages.client import TextInput
from radixrt.messages.parts import Finish, ProgramHint
from radixrt.messages.request import Request
from radixrt.messages.scheduler import AbortReq, ControlReq, ReleaseReq
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.prompt_queue import ENCODED_CHARS_PER_S, TASK_S, PromptQueue
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import detokenizing, generating, pooling, scoring, tokenizing
from tests.requests import prompt_of
from tests.tokenizer.worker_bench import Bench

LIMIT_S = 60
OK = SamplingParams()


class ThreadedBench(Bench):
    """A worker whose thread stops at prompts that begin with "long", until `go_on`."""

    def __init__(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoding, self.go_on = threading.Event(), threading.Event()
        encode = tokenizer.encode

        def stopping(text: str, *args: Any, **options: Any) -> list[int]:
            if text.startswith("long"):
                self.encoding.set()
                assert self.go_on.wait(LIMIT_S)
            return encode(text, *args, **options)

        monkeypatch.setattr(tokenizer, "encode", stopping)
        self.now = 100.0
        super().__init__(tokenizer, queue=PromptQueue(threaded=True, clock=lambda: self.now), context_length=10**6)

    def begin_long(self, rid: str = "long", chars: int = 4) -> None:
        self.handle(generating(rid, OK, prompt="long".ljust(chars)))
        assert self.encoding.wait(LIMIT_S)

    def sent(self, count: int) -> list[Any]:
        """The next messages to the scheduler."""
        return self._wait(self.scheduler.recv, count)

    def answers(self, count: int) -> list[Any]:
        """The next outputs."""
        found: list[Any] = []

        def next_output() -> Any:
            found.extend(self.deltas())
            return found.pop(0) if found else None

        return self._wait(next_output, count)

    def _wait(self, take: Callable[[], Any], count: int) -> list[Any]:
        taken: list[Any] = []
        deadline = time.monotonic() + LIMIT_S
        fd = self.worker.queue.fileno()
        assert fd is not None
        while len(taken) < count:
            self.worker.poll()
            message = take()
            if message is not None:
                taken.append(message)
                continue
            assert select.select([fd], [], [], max(deadline - time.monotonic(), 0))[0], taken
        return taken


@pytest.fixture
def bench(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedBench]:
    made = ThreadedBench(tokenizer, monkeypatch)
    yield made
    made.go_on.set()
    made.worker.queue.close()


def test_outputs_overtake_prompts(bench: ThreadedBench) -> None:
    bench.handle(generating("r", OK, prompt="hi", stream=True))
    assert [message.rid for message in bench.sent(1)] == ["r"]
    bench.begin_long()
    assert bench.tokens("a")[0].text == "a"
    assert bench.tokens("b", finish=Finish("length"))[0].finish == Finish("length")
    assert bench.scheduler.recv() is None
    bench.go_on.set()
    (message,) = bench.sent(1)
    assert isinstance(message, Request)
    assert message.rid == "long"


def test_requests_keep_their_order(bench: ThreadedBench) -> None:
    bench.begin_long()
    bench.handle(generating("b", OK, prompt="hi"))
    bench.handle(scoring("c", ["yes", "no"], prompt="hi "))
    bench.handle(ReleaseReq("program"))
    bench.handle(generating("d", OK, prompt="ho"))
    bench.handle(ControlReq("1", "drain"))
    assert bench.scheduler.recv() is None
    bench.go_on.set()
    *requests, drain = bench.sent(6)
    assert [type(message) for message in requests] == [
        Request, Request, Request, ReleaseReq, Request
    ]  # fmt: skip
    assert [message.rid for message in requests if not isinstance(message, ReleaseReq)] == ["long", "b", "c", "d"]
    assert drain == ControlReq("1", "drain")


def test_clients_take_turns(bench: ThreadedBench) -> None:
    bench.handle(generating("a0", OK, prompt="long", client="a"))
    assert bench.encoding.wait(LIMIT_S)
    for i in range(1, 4):
        bench.handle(generating(f"a{i}", OK, prompt="hi", client="a"))
    bench.handle(generating("b0", OK, prompt="hi", client="b"))
    bench.handle(generating("b1", OK, prompt="hi", client="b"))
    bench.handle(generating("c0", OK, prompt="hi", client="c"))
    bench.go_on.set()
    assert [message.rid for message in bench.sent(7)] == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


def test_the_rows_of_a_request_are_turns(bench: ThreadedBench) -> None:
    bench.handle(pooling("many", [TextInput("long"), *[TextInput("hi")] * 20], client="a"))
    assert bench.encoding.wait(LIMIT_S)
    bench.handle(generating("one", OK, prompt="hi", client="b"))
    bench.go_on.set()
    one, many = bench.sent(2)
    assert (one.rid, many.rid) == ("one", "many")
    assert len(many.rows) == 21


def test_an_abort_ends_a_request_between_two_rows(bench: ThreadedBench) -> None:
    bench.handle(pooling("many", [TextInput("long"), TextInput("hi"), TextInput("long")], client="a"))
    assert bench.encoding.wait(LIMIT_S)
    bench.handle(AbortReq("many"))
    bench.handle(generating("one", OK, prompt="hi", client="a"))
    bench.go_on.set()
    assert [message.rid for message in bench.sent(1)] == ["one"]
    assert bench.worker.num_live == 1


def test_actions_of_all_programs_are_at_their_place_among_all_clients(bench: ThreadedBench) -> None:
    bench.begin_long()
    bench.handle(generating("a", OK, prompt="hi", client="a"))
    bench.handle(ControlReq("1", "flush_cache"))
    bench.handle(generating("late", OK, prompt="hi", client="b"))
    bench.handle(generating("later", OK, prompt="hi", client="a"))
    bench.go_on.set()
    long, a, flush, late, later = bench.sent(5)
    assert flush == ControlReq("1", "flush_cache")
    assert [message.rid for message in (long, a, late, later)] == ["long", "a", "late", "later"]


def test_the_requests_of_a_program_keep_their_order_whoever_sends_them(bench: ThreadedBench) -> None:
    bench.begin_long()
    for rid, client in (("p0", "a"), ("p1", "b"), ("p2", "a")):
        bench.handle(generating(rid, OK, prompt="hi", client=client, program=ProgramHint("p")))
    bench.handle(ReleaseReq("p"))
    bench.go_on.set()
    *requests, release = bench.sent(5)
    assert [message.rid for message in requests] == ["long", "p0", "p1", "p2"]
    assert release == ReleaseReq("p")


IDS = {"input_ids": pack_i32([5])}


@pytest.mark.parametrize("prompt", [IDS, {"parts": [[5], [6]]}], ids=["input_ids", "parts"])
def test_token_ids_overtake_texts(bench: ThreadedBench, prompt: dict[str, Any]) -> None:
    bench.begin_long()
    bench.handle(generating("a", OK, **prompt))
    assert [message.rid for message in bench.sent(1)] == ["a"]
    bench.handle(generating("b", OK, parts=[[5], "text"]))
    bench.handle(scoring("c", ["yes", "no"], **prompt))
    assert bench.scheduler.recv() is None
    bench.handle(generating("a", OK, **prompt))
    assert bench.scheduler.recv() is None, "an id of a live request"
    bench.handle(generating("d", OK, input_ids=pack_i32([10**6])))
    (refused,) = bench.deltas()
    assert (refused.rid, refused.finish.error.param) == ("d", "input_ids")
    bench.go_on.set()
    assert [message.rid for message in bench.sent(3)] == ["long", "b", "c"]


def test_token_ids_do_not_overtake_actions_that_concern_them(bench: ThreadedBench) -> None:
    bench.begin_long()
    bench.handle(ReleaseReq("p"))
    bench.handle(generating("same", OK, **IDS, program=ProgramHint("p")))
    bench.handle(generating("other", OK, **IDS, program=ProgramHint("q")))
    bench.handle(generating("none", OK, **IDS))
    assert [message.rid for message in bench.sent(2)] == ["other", "none"]
    bench.handle(ControlReq("1", "flush_cache"))
    bench.handle(generating("late", OK, **IDS))
    assert bench.scheduler.recv() is None
    bench.go_on.set()
    long, release, same, flush, late = bench.sent(5)
    assert (release, flush) == (ReleaseReq("p"), ControlReq("1", "flush_cache"))
    assert [long.rid, same.rid, late.rid] == ["long", "same", "late"]
    bench.go_on.clear()
    bench.encoding.clear()
    bench.begin_long("long again")
    bench.handle(generating("again", OK, **IDS, program=ProgramHint("p")))
    assert [message.rid for message in bench.sent(1)] == ["again"], "the actions are over"


@pytest.mark.parametrize("chars", [4, 500_000])
def test_encoding_is_overdue_after_a_time_in_proportion_to_the_text(bench: ThreadedBench, chars: int) -> None:
    assert not bench.worker.queue.is_overdue()
    bench.begin_long(chars=chars)
    bench.now += TASK_S + chars / ENCODED_CHARS_PER_S
    assert not bench.worker.queue.is_overdue()
    bench.now += 0.1
    assert bench.worker.queue.is_overdue()
    bench.go_on.set()
    bench.sent(1)
    assert not bench.worker.queue.is_overdue()


def test_questions_are_answered_in_order(bench: ThreadedBench) -> None:
    bench.begin_long()
    bench.handle(tokenizing("t", prompt="hi"))
    bench.handle(detokenizing("d", pack_i32(bench.tokenizer.encode("ho"))))
    assert bench.deltas() == []
    bench.go_on.set()
    tokenized, detokenized = bench.answers(2)
    assert (tokenized.rid, detokenized.text) == ("t", "ho")


@pytest.mark.parametrize("rid", ["long", "next"])
def test_an_abort_ends_a_request_whose_prompt_is_not_encoded(bench: ThreadedBench, rid: str) -> None:
    bench.begin_long()
    bench.handle(generating("next", OK, prompt="hi"))
    bench.handle(AbortReq(rid))
    (aborted,) = bench.deltas()
    assert (aborted.rid, aborted.finish) == (rid, Finish("abort"))
    bench.handle(AbortReq(rid))  # not here any more: the scheduler's to answer
    assert bench.scheduler.recv() == AbortReq(rid)
    bench.handle(generating("last", OK, prompt="ho"))
    bench.go_on.set()
    assert [message.rid for message in bench.sent(2)] == [{"long": "next", "next": "long"}[rid], "last"]
    assert bench.deltas() == []
    assert bench.worker.num_live == 2


def test_an_aborted_rid_is_free(bench: ThreadedBench) -> None:
    bench.begin_long("r")
    bench.handle(AbortReq("r"))
    bench.handle(generating("r", OK, prompt="hi"))
    bench.go_on.set()
    (message,) = bench.sent(1)
    assert prompt_of(message) == pack_i32(bench.tokenizer.encode("hi"))
    assert [output.finish for output in bench.deltas()] == [Finish("abort")]
    bench.worker.queue.submit_action(lambda: bench.scheduler.send(ReleaseReq("last")))
    assert bench.sent(1) == [ReleaseReq("last")]


def test_a_rid_in_the_queue_is_not_disturbed_by_a_second_request(bench: ThreadedBench) -> None:
    bench.begin_long("r")
    bench.handle(generating("r", OK, prompt="hi"))
    bench.handle(generating("s", OK, prompt="hi"))
    bench.go_on.set()
    assert [message.rid for message in bench.sent(2)] == ["r", "s"]
    assert bench.deltas() == []


def test_errors_end_their_requests(bench: ThreadedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.handle(generating("a", OK, prompt=""))
    bench.handle(tokenizing("b", input_ids=pack_i32([10**6])))
    refused = bench.answers(2)
    assert [output.rid for output in refused] == ["a", "b"]
    assert [output.finish.error.param for output in refused] == ["prompt", "input_ids"]
    monkeypatch.setattr(bench.tokenizer, "encode", lambda *_: 1 / 0)
    bench.handle(generating("c", OK, prompt="hi"))
    (failed,) = bench.answers(1)
    assert failed.finish.error.status == 500
    assert bench.worker.num_live == 0


def test_without_a_thread_an_exception_is_a_result() -> None:
    queue = PromptQueue(threaded=False)

    def refuse() -> Callable[[], None]:
        raise RequestError("no")

    queue.submit("a", refuse)
    ((rid, error),) = queue.take()
    assert (rid, str(error)) == ("a", "no")
    assert (queue.fileno(), queue.is_overdue(), queue.take()) == (None, False, [])
