"""`RowReads`: every value is read once, however the row is cut into chunks and computed again."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixrt.messages.parts import LogprobColumns
from radixrt.messages.reads import HiddenRead, LogprobRead
from radixrt.messages.request import Row
from radixrt.messages.wire import pack_f32, pack_i32, unpack_f32, unpack_i32
from radixrt.parts.reads.scheduler import RowReads, reads_of

LENGTH = 40


@pytest.mark.parametrize("seed", range(50))
def test_chunks_in_flight_and_computed_again(seed: int) -> None:
    rng = random.Random(seed)
    positions = sorted(rng.choices(range(LENGTH), k=rng.randint(0, 12)))
    cuts = sorted(rng.sample(range(LENGTH + 1), 2 * rng.randint(0, 4)))
    spans = [(first, end - first) for first, end in zip(cuts[::2], cuts[1::2])]
    row = Row(
        pack_i32(range(LENGTH)),
        logprobs=LogprobRead(pack_i32(positions), pack_i32(np.arange(len(positions)))),
        hidden=HiddenRead(pack_i32([number for span in spans for number in span])),
    )
    reads = RowReads(row)
    in_flight: list[tuple[int, int]] = []
    at = 0
    while not reads.is_done:
        event = rng.random()
        if event < 0.2:  # everything is lost: the row goes on before the first value that is missing
            in_flight.clear()
            at = rng.randint(0, reads.first)
        elif event < 0.7 and at < LENGTH and len(in_flight) < 2:
            end = min(at + rng.randint(1, 15), LENGTH)
            in_flight.append((at, end))
            at = end
        elif in_flight:
            start, end = in_flight.pop(0)
            found = reads.within(start, end)
            where, tokens, _ = reads.of(found.targets)
            assert all(start <= position < end for position in where)
            columns = LogprobColumns(pack_f32([10 * p + t for p, t in zip(where, tokens)]), b"", b"", 0)
            sums = [pack_f32([sum(range(first, first + count))]) for first, count in found.spans]
            reads.take(found, columns if len(where) else None, sums)
    answer = reads.answer()
    assert unpack_f32(answer.logprobs[0].token_logprobs).tolist() == [10 * p + i for i, p in enumerate(positions)]
    means = [first + (count - 1) / 2 for first, count in spans]
    assert unpack_f32(answer.hidden).tolist() == pytest.approx(means)


def test_a_row_without_reads() -> None:
    assert reads_of(Row(pack_i32([1]))) is None


def test_a_prompt_of_one_token_has_columns_of_no_rows() -> None:
    reads = reads_of(Row(pack_i32([1]), logprobs=LogprobRead(b"", b"", 2)))
    assert reads is not None
    assert reads.is_done
    (columns,) = reads.answer().logprobs
    assert (columns.token_logprobs, columns.k) == (b"", 2)
    assert unpack_i32(columns.top_ids).tolist() == []
