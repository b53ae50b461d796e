"""Form of new output: one plain token without an object of its own, everything else as a delta."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixrt.messages.parts import Finish, LogprobColumns, ReadValues
from radixrt.messages.request import Envelope
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import pack_f32, pack_i32, unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.deltas import DeltaWriter
from radixrt.scheduler.req import Req

COLUMNS = LogprobColumns(pack_f32([-1.0]), b"", b"", 0)


def request(rid: str, **sampling: Any) -> Req:
    ids = np.array([1, 2], np.int32)
    return Req(
        Envelope(rid), ids, SamplingParams(**sampling), seq=0, seed=0, eos_ids=frozenset(),
        max_len=64, now=0.0, timeout_s=60.0,
    )  # fmt: skip


def produce(writer: DeltaWriter, req: Req, token: int, columns: LogprobColumns | None = None) -> None:
    req.append(token)
    writer.token(req, token, columns)


def taken(writer: DeltaWriter) -> TokenBatch:
    batch = writer.take()
    assert batch is not None
    assert writer.take() is None
    return batch


def test_single_tokens_leave_as_columns() -> None:
    writer = DeltaWriter()
    for i, rid in enumerate("abc"):
        produce(writer, request(rid), 7 + i)
    assert taken(writer) == TokenBatch([], ["a", "b", "c"], pack_i32([7, 8, 9]))


def test_several_tokens_or_log_probabilities_need_a_delta() -> None:
    writer = DeltaWriter()
    several, scored, plain = request("s"), request("l", logprobs=0), request("p")
    produce(writer, several, 1)
    produce(writer, scored, 2, COLUMNS)
    produce(writer, plain, 3)
    produce(writer, several, 4)
    batch = taken(writer)
    assert (batch.rids, batch.token_ids) == (["p"], pack_i32([3]))
    assert {d.rid: (unpack_i32(d.token_ids).tolist(), d.logprobs) for d in batch.deltas} == {
        "s": ([1, 4], None),
        "l": ([2], COLUMNS),
    }


def test_an_end_takes_its_tokens_along() -> None:
    writer = DeltaWriter()
    req = request("a")
    produce(writer, req, 5)
    writer.finish(req, Finish("length"), 1.0)
    batch = taken(writer)
    assert batch.rids == []
    (delta,) = batch.deltas
    assert (delta.token_ids, delta.finish) == (pack_i32([5]), Finish("length"))


def test_an_end_without_tokens() -> None:
    writer = DeltaWriter()
    writer.finish(request("a"), Finish("abort"), 1.0)
    (delta,) = taken(writer).deltas
    assert delta.token_ids == b""


def test_a_token_taken_back_is_replaced() -> None:
    writer = DeltaWriter()
    req = request("a")
    produce(writer, req, 5)
    writer.take_back(req)
    req.take_back()
    produce(writer, req, 6)
    produce(writer, req, 7)
    (delta,) = taken(writer).deltas
    assert delta.token_ids == pack_i32([6, 7])


def test_tokens_that_nobody_sampled_have_log_probabilities_where_asked_for() -> None:
    writer = DeltaWriter()
    scored, plain = request("l", logprobs=1), request("p")
    writer.unsampled(scored, [3, 4])
    writer.unsampled(plain, [5])
    batch = taken(writer)
    assert (batch.rids, batch.token_ids) == (["p"], pack_i32([5]))
    (delta,) = batch.deltas
    assert delta.logprobs is not None
    assert len(delta.logprobs.token_logprobs) == 8


def test_a_prompts_log_probabilities_leave_with_the_first_token() -> None:
    writer = DeltaWriter()
    req, other = request("a", prompt_logprobs=0), request("b")
    writer.values(req, ReadValues([COLUMNS]))
    produce(writer, other, 1)
    assert taken(writer) == TokenBatch([], ["b"], pack_i32([1]))
    produce(writer, req, 2)
    (delta,) = taken(writer).deltas
    assert (delta.rid, delta.token_ids, delta.values) == ("a", pack_i32([2]), ReadValues([COLUMNS]))
    produce(writer, req, 3)
    assert taken(writer).rids == ["a"]
