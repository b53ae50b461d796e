"""`EngineClient` in front of a scripted engine: each request ends exactly once, whatever happens to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from radixrt.client.answers import raise_for_error
from radixrt.client.engine_client import EngineClient, EngineStatus
from radixrt.errors import EngineError, RequestError
from radixrt.messages.client import ClientRequest, EngineReady, OutputBatch, RequestOutput, ToTokenizer
from radixrt.messages.parts import Finish, FinishError
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.generate import expand_n
from radixrt.tasks.prompts import new_rid
from tests.client_requests import generating

WAIT_S = 30.0
"""Timeout for events that are certain to occur, in seconds."""
STOP = Finish("stop")

Script = Callable[[ToTokenizer], object]


class ScriptedOutbox:
    """Records the sent messages, and acts as the test's script says."""

    def __init__(self) -> None:
        self.sent: list[ToTokenizer] = []
        self.script: Script | None = None

    def send(self, message: ToTokenizer) -> None:
        self.sent.append(message)
        if self.script is not None:
            self.script(message)

    def close(self) -> None: ...

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    @property
    def aborted(self) -> list[str]:
        return [message.rid for message in self.of(AbortReq)]


@pytest.fixture
def outbox() -> ScriptedOutbox:
    return ScriptedOutbox()


@pytest.fixture
def client(outbox: ScriptedOutbox) -> EngineClient:
    return EngineClient(outbox)


def request(rid: str = "a", **fields: Any) -> ClientRequest:
    return generating(rid, SamplingParams(), prompt="hello", **fields)


def deliver(client: EngineClient, *deltas: RequestOutput) -> None:
    client.dispatch(OutputBatch(list(deltas)))


def text_of(deltas: list[RequestOutput]) -> str:
    return "".join(delta.text for delta in deltas)


def refusal(client: EngineClient, req: ClientRequest) -> RequestError:
    with pytest.raises(RequestError) as raised:
        client.stream(req)
    return raised.value


async def collected(deltas: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
    return [delta async for delta in deltas]


# --- one finish ---


def test_a_request_is_sent_at_once_and_ends_with_its_finish(client: EngineClient, outbox: ScriptedOutbox) -> None:
    stream = client.stream(request())
    assert outbox.sent == [request()]
    assert client.open_requests == 1
    deliver(client, RequestOutput("a", "x"), RequestOutput("a", "y", finish=STOP))
    got = list(stream)
    assert text_of(got) == "xy"
    assert [delta.finish for delta in got] == [None, STOP]
    assert client.open_requests == 0
    assert outbox.aborted == []


def test_what_comes_after_the_finish_reaches_nobody(client: EngineClient) -> None:
    stream = client.stream(request())
    end = RequestOutput("a", "x", finish=STOP)
    deliver(client, end, RequestOutput("a", "late"), end)
    client.fail("it died")
    assert list(stream) == [end]


def test_deltas_of_unknown_requests_are_dropped(client: EngineClient) -> None:
    stream = client.stream(request())
    deliver(client, RequestOutput("b", "no"), RequestOutput("b", finish=STOP), RequestOutput("a", "x", finish=STOP))
    assert text_of(list(stream)) == "x"


def test_deltas_of_many_requests_find_their_streams(client: EngineClient) -> None:
    streams = {rid: client.stream(request(rid)) for rid in "abc"}
    deliver(client, *[RequestOutput(rid, rid * 2) for rid in "cab"])
    deliver(client, *[RequestOutput(rid, rid, finish=STOP) for rid in "bca"])
    assert {rid: text_of(list(stream)) for rid, stream in streams.items()} == {rid: rid * 3 for rid in "abc"}


async def test_deltas_find_their_streams_in_an_event_loop_and_in_threads(client: EngineClient) -> None:
    waiting = [asyncio.ensure_future(collected(client.astream(request(f"async {i}")))) for i in range(3)]
    sync = client.stream(request("sync"))
    rids = [f"async {i}" for i in range(3)] + ["sync"]

    def answer() -> None:  # as the receiver thread does
        deliver(client, *[RequestOutput(rid, rid) for rid in rids])
        deliver(client, *[RequestOutput(rid, "!", finish=STOP) for rid in rids])

    await asyncio.to_thread(answer)
    got = await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert [text_of(deltas) for deltas in got] == [f"async {i}!" for i in range(3)]
    assert text_of(list(sync)) == "sync!"
    assert client.open_requests == 0


def test_a_loop_that_is_gone_costs_the_others_nothing(client: EngineClient) -> None:
    async def send_and_leave() -> AsyncGenerator[RequestOutput, None]:
        return client.astream(request("gone"))

    abandoned = asyncio.run(send_and_leave())
    stream = client.stream(request())
    deliver(client, RequestOutput("gone", "x", finish=STOP), RequestOutput("a", "y", finish=STOP))
    assert text_of(list(stream)) == "y"
    assert client.open_requests == 0
    del abandoned


def test_a_stream_waits_for_deltas(client: EngineClient) -> None:
    stream = client.stream(request())
    timer = threading.Timer(0.1, lambda: deliver(client, RequestOutput("a", "x", finish=STOP)))
    timer.start()
    assert text_of(list(stream)) == "x"
    timer.join()


def test_threads_may_submit_at_the_same_time(client: EngineClient, outbox: ScriptedOutbox) -> None:
    ends: dict[str, list[RequestOutput]] = {}

    def one(rid: str) -> None:
        ends[rid] = list(client.stream(request(rid)))

    threads = [threading.Thread(target=one, args=(str(i),), daemon=True) for i in range(20)]
    for thread in threads:
        thread.start()
    answered: set[str] = set()
    while len(answered) < 20:
        for message in list(outbox.sent):
            assert isinstance(message, ClientRequest)
            if message.rid not in answered:
                answered.add(message.rid)
                deliver(client, RequestOutput(message.rid, message.rid, finish=STOP))
    for thread in threads:
        thread.join(WAIT_S)
    assert {rid: text_of(deltas) for rid, deltas in ends.items()} == {str(i): str(i) for i in range(20)}


# --- leaving early ---


def test_leaving_a_stream_early_aborts_it_once(client: EngineClient, outbox: ScriptedOutbox) -> None:
    stream = client.stream(request())
    deliver(client, RequestOutput("a", "x"))
    for _ in stream:
        break
    del stream
    assert outbox.aborted == ["a"]
    assert client.open_requests == 1  # until the engine has said that it is over
    deliver(client, RequestOutput("a", finish=Finish("abort")))
    assert client.open_requests == 0


def test_an_exception_in_the_readers_loop_aborts(client: EngineClient, outbox: ScriptedOutbox) -> None:
    stream = client.stream(request())
    deliver(client, RequestOutput("a", "x"), RequestOutput("a", "y"))
    with pytest.raises(ZeroDivisionError):
        _read_and_fail(stream)
    del stream
    assert outbox.aborted == ["a"]


def _read_and_fail(stream: Iterator[RequestOutput]) -> None:
    for _ in stream:
        raise ZeroDivisionError


async def test_closing_an_async_stream_early_aborts_it_once(client: EngineClient, outbox: ScriptedOutbox) -> None:
    async with aclosing(client.astream(request())) as stream:
        deliver(client, RequestOutput("a", "x"))
        async for _ in stream:
            break
    assert outbox.aborted == ["a"]


async def test_cancelling_the_reader_of_an_async_stream_aborts_it(client: EngineClient, outbox: ScriptedOutbox) -> None:
    task = asyncio.ensure_future(collected(client.astream(request())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert outbox.aborted == ["a"]


async def test_a_stream_read_to_its_end_is_not_aborted(client: EngineClient, outbox: ScriptedOutbox) -> None:
    deltas = client.astream(request())
    deliver(client, RequestOutput("a", "x", finish=STOP))
    async with aclosing(deltas):
        assert text_of([delta async for delta in deltas]) == "x"
    assert outbox.aborted == []


def test_aborting_what_is_not_there_only_says_so_to_the_engine(client: EngineClient, outbox: ScriptedOutbox) -> None:
    client.abort("nobody")
    assert outbox.sent == [AbortReq("nobody")]
    assert client.open_requests == 0


def test_an_abandoned_stream_may_be_collected_while_another_request_is_sent(
    client: EngineClient, outbox: ScriptedOutbox
) -> None:
    """The garbage collector runs where it likes, even while the sending thread holds the client's lock."""
    abandoned = [client.stream(request("left"))]
    deliver(client, RequestOutput("left", "x"))
    next(abandoned[0])
    outbox.script = lambda message: isinstance(message, ClientRequest) and abandoned.clear()
    sender = threading.Thread(target=client.stream, args=(request("next"),), daemon=True)
    sender.start()
    sender.join(WAIT_S)
    assert not sender.is_alive()
    assert outbox.aborted == ["left"]


# --- refusals ---


def test_a_rid_in_use_is_refused_and_free_again_after_the_end(client: EngineClient, outbox: ScriptedOutbox) -> None:
    first = client.stream(request())
    error = refusal(client, request())
    assert (error.param, error.status) == ("rid", 400)
    assert len(outbox.sent) == 1
    deliver(client, RequestOutput("a", "first", finish=STOP))
    assert text_of(list(first)) == "first"
    second = client.stream(request())
    deliver(client, RequestOutput("a", "second", finish=STOP))
    assert text_of(list(second)) == "second"


def test_draining_refuses_what_is_new_and_lets_the_rest_end(client: EngineClient, outbox: ScriptedOutbox) -> None:
    stream = client.stream(request())
    client.draining = True
    error = refusal(client, request("b"))
    assert (error.code, error.status) == ("shutting_down", 503)
    assert len(outbox.of(ClientRequest)) == 1
    client.abort("b")
    assert outbox.aborted == ["b"]
    deliver(client, RequestOutput("a", "x", finish=STOP))
    assert text_of(list(stream)) == "x"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("priority", ["high", None, True, 1.0]),
        ("cache_salt", [None, 3, b"salt"]),
        ("timeout_s", ["1", True, [1.0]]),
    ],
)
def test_a_type_that_the_engine_would_drop_is_refused(
    client: EngineClient, outbox: ScriptedOutbox, field: str, values: list[Any]
) -> None:
    for value in values:
        assert refusal(client, request(**{field: value})).param == field
    assert outbox.sent == []
    assert client.open_requests == 0


def test_bad_sampling_params_are_refused_before_they_are_sent(client: EngineClient, outbox: ScriptedOutbox) -> None:
    bad = msgspec.structs.replace(request(), sampling=SamplingParams(top_p=2.0))
    assert refusal(client, bad).param == "top_p"
    assert outbox.sent == []


@pytest.mark.parametrize(
    "fields", [{"priority": 2**70}, {"cache_salt": "\ud800"}], ids=lambda fields: next(iter(fields))
)
def test_what_cannot_be_encoded_is_refused_and_leaves_nothing_open(
    client: EngineClient, outbox: ScriptedOutbox, fields: dict[str, Any]
) -> None:
    outbox.script = msgspec.msgpack.encode
    assert "cannot be sent" in str(refusal(client, request(**fields)))
    assert client.open_requests == 0
    client.stream(request())  # the id is free
    assert client.open_requests == 1


# --- the engine's death ---


def test_fail_ends_every_request_once_with_the_reason(client: EngineClient, outbox: ScriptedOutbox) -> None:
    streams = [client.stream(request(rid)) for rid in "abc"]
    deliver(client, RequestOutput("a", "x"), RequestOutput("c", "whole", finish=STOP))
    client.fail("the runner was killed")
    client.fail("the scheduler too")
    a, b, c = (list(stream) for stream in streams)
    error = FinishError("the runner was killed", code="engine_dead", status=503)
    assert [d.finish for d in a] == [None, Finish("error", error=error)]
    assert [d.finish for d in b] == [Finish("error", error=error)]
    assert [d.finish for d in c] == [STOP]
    assert client.open_requests == 0
    assert client.failure == "the runner was killed"
    assert outbox.aborted == []


async def test_fail_ends_async_streams(client: EngineClient) -> None:
    waiting = [asyncio.ensure_future(collected(client.astream(request(rid)))) for rid in "ab"]
    await asyncio.sleep(0)
    await asyncio.to_thread(client.fail, "it died")
    for deltas in await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S):
        assert len(deltas) == 1
        assert deltas[0].finish is not None
        with pytest.raises(RequestError, match="it died") as raised:
            raise_for_error(deltas[0].finish)
        assert (raised.value.code, raised.value.status) == ("engine_dead", 503)


def test_after_its_death_nothing_is_sent(client: EngineClient, outbox: ScriptedOutbox) -> None:
    stream = client.stream(request())
    deliver(client, RequestOutput("a", "x"))
    next(stream)
    outbox.sent.clear()
    client.fail("it died")
    error = refusal(client, request("b"))
    assert (str(error), error.code, error.status) == ("it died", "engine_dead", 503)
    client.abort("a")
    del stream
    with pytest.raises(EngineError, match="it died"):
        client.control("check")
    assert outbox.sent == []


# --- restarts ---


def engine_ready(epoch: int) -> EngineReady:
    return EngineReady("m", 10, 20, 19, 100, 4, "cpu", "float32", True, epoch=epoch)


def test_requests_survive_a_restarted_runner(client: EngineClient, outbox: ScriptedOutbox) -> None:
    client.dispatch(engine_ready(0))
    stream = client.stream(request("a"))
    client.runners_restart("it died", ["ModelRunner 0", "ModelRunner 1"], epoch=1)
    assert client.status == EngineStatus("restarting", "it died")
    assert client.failure is None
    later = client.stream(request("b"))
    assert [message.rid for message in outbox.of(ClientRequest)] == ["a", "b"]
    client.dispatch(engine_ready(0))
    assert client.status.state == "restarting", "late, from the epoch that has failed"
    client.dispatch(engine_ready(1))
    assert client.status == EngineStatus("serving")
    deliver(client, RequestOutput("a", "x", finish=STOP), RequestOutput("b", "y", finish=STOP))
    assert text_of(list(stream)) + text_of(list(later)) == "xy"
    assert client.restarts == {"ModelRunner 0": 1, "ModelRunner 1": 1}


def test_requests_end_with_the_tokenizer_and_new_ones_go_to_the_next(
    client: EngineClient, outbox: ScriptedOutbox
) -> None:
    client.dispatch(engine_ready(0))
    client.dispatch(SchedulerStats(*range(len(SchedulerStats.__struct_fields__))))
    stream = client.stream(request("a"))
    following = ScriptedOutbox()
    client.reconnect("the tokenizer process died", ["tokenizer", "scheduler"], 1, following)
    error = FinishError("the tokenizer process died", code="engine_dead", status=503)
    assert [delta.finish for delta in stream] == [Finish("error", error=error)]
    assert client.stats is None
    again = client.stream(request("a"))
    assert [len(each.of(ClientRequest)) for each in (outbox, following)] == [1, 1]
    client.dispatch(engine_ready(1))
    deliver(client, RequestOutput("a", "x", finish=STOP))
    assert text_of(list(again)) == "x"
    assert client.status.state == "serving"


def test_control_hears_of_a_restart(client: EngineClient, outbox: ScriptedOutbox) -> None:
    outbox.script = lambda message: client.reconnect("it died", ["scheduler"], 1, ScriptedOutbox())
    with pytest.raises(EngineError, match="it died"):
        client.control("flush_cache", timeout_s=WAIT_S)


def test_a_restart_after_the_end_changes_nothing(client: EngineClient) -> None:
    client.fail("too many restarts")
    client.dispatch(engine_ready(0))
    assert client.status == EngineStatus("failed", "too many restarts")


def test_raise_for_error_carries_everything() -> None:
    raise_for_error(STOP)
    with pytest.raises(RequestError) as raised:
        raise_for_error(Finish("error", error=FinishError("no", param="prompt", code="c", status=418)))
    error = raised.value
    assert (error.message, error.param, error.code, error.status) == ("no", "prompt", "c", 418)


# --- n completions ---


def test_one_completion_is_the_request_itself() -> None:
    one = request()
    assert expand_n(one) == [one]


def expanded(n: int, seed: int | None) -> list[ClientRequest]:
    sampling = SamplingParams(n=n, seed=seed, temperature=0.5)
    return expand_n(generating("r", sampling, prompt="x", priority=3, cache_salt="s", timeout_s=1.0, stream=True))


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [
        (None, [None, None, None]),
        (5, [5, 6, 7]),
        (-1, [-1, 0, 1]),
        (2**63 - 2, [2**63 - 2, 2**63 - 1, -(2**63)]),
    ],
)
def test_n_completions_are_n_requests_whose_seeds_count_up(seed: int | None, seeds: list[int | None]) -> None:
    requests = expanded(3, seed)
    assert [r.sampling.seed for r in requests] == seeds
    assert len({r.rid for r in requests}) == 3
    for r in requests:
        r.sampling.validate()
        assert r == msgspec.structs.replace(
            expanded(1, None)[0], envelope=r.envelope, sampling=SamplingParams(temperature=0.5, seed=r.sampling.seed)
        )


def test_request_ids_are_new() -> None:
    rids = {new_rid() for _ in range(1000)}
    assert len(rids) == 1000
    assert all(1 <= len(rid) <= 64 for rid in rids)


# --- operators ---


def test_control_returns_the_reply_with_its_id(client: EngineClient, outbox: ScriptedOutbox) -> None:
    def answer(message: ToTokenizer) -> None:
        if isinstance(message, ControlReq):
            client.dispatch(ControlReply("somebody else's", ok=False))
            client.dispatch(ControlReply(message.id, ok=True, message=message.op))

    outbox.script = answer
    for op in ("check", "flush_cache", "check"):
        assert client.control(op).message == op
    assert len({message.id for message in outbox.of(ControlReq)}) == 3


def test_control_gives_up_after_its_timeout(client: EngineClient, outbox: ScriptedOutbox) -> None:
    with pytest.raises(EngineError, match=r"'drain' within 0\.05 s"):
        client.control("drain", timeout_s=0.05)
    late = outbox.of(ControlReq)[0]
    client.dispatch(ControlReply(late.id, ok=True))  # nobody waits for it any more
    outbox.script = lambda message: client.dispatch(ControlReply(message.id, ok=False, message="mine"))  # type: ignore[union-attr]
    assert client.control("check").message == "mine"


def test_control_hears_of_the_engines_death(client: EngineClient, outbox: ScriptedOutbox) -> None:
    outbox.script = lambda message: client.fail("it died")
    with pytest.raises(EngineError, match="it died"):
        client.control("flush_cache", timeout_s=WAIT_S)


# --- information about the engine ---


def test_readiness_and_stats(client: EngineClient) -> None:
    assert not client.ready.is_set()
    assert client.info is client.stats is None
    info = EngineReady("m", 10, 20, 19, 100, 4, "cpu", "float32", True)
    client.dispatch(info)
    assert client.ready.is_set()
    assert client.info is info
    for i in range(2):
        stats = SchedulerStats(*range(i, i + len(SchedulerStats.__struct_fields__)))
        client.dispatch(stats)
        assert client.stats is stats
