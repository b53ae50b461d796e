"""Many changed rows of req_to_token at once: what is written one by one, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.messages.runner import RowWrite
from radixrt.messages.wire import pack_i32

pytestmark = pytest.mark.gpu


def random_writes(rng: np.random.Generator, rows: list[int], longest: int) -> list[RowWrite]:
    writes = []
    for row in rows:
        start, count = int(rng.integers(0, 40)), int(rng.integers(1, longest))
        writes.append(RowWrite(row, start, pack_i32(rng.integers(1, 1000, count))))
    return writes


@pytest.mark.parametrize("longest", [3, 300, 9000])
def test_equals_one_by_one(triton_device: str, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt.kernels.triton.write_rows import write_rows

    rng = np.random.default_rng(longest)
    writes = random_writes(rng, rng.permutation(12)[:9].tolist(), longest)
    builder = BatchBuilder(12, 9050, torch.device(triton_device))
    calls = []
    monkeypatch.setattr(builder, "_write_many", lambda *args: (calls.append(1), write_rows(*args)))
    builder.req_to_token.fill_(-5)
    builder.write_rows(writes)
    assert calls
    expected = torch.full_like(builder.req_to_token, -5).cpu()
    for write in writes:
        slots = torch.from_numpy(np.frombuffer(write.slots, np.int32).copy())
        expected[write.req_pool_idx, write.start : write.start + len(slots)] = slots
    assert builder.req_to_token.cpu().equal(expected)


def test_of_a_row_that_changed_hands_the_last_write_wins(triton_device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("runs of one row may not be written at once")

    rng = np.random.default_rng(0)
    builder = BatchBuilder(8, 400, torch.device(triton_device))
    monkeypatch.setattr(builder, "_write_many", refused)
    writes = random_writes(rng, [1, 2, 3, 4, 5], 300)
    writes += [RowWrite(3, 0, pack_i32(np.full(350, 7))), RowWrite(6, 0, pack_i32([1]))]
    builder.write_rows(writes)
    assert (builder.req_to_token[3, :350] == 7).all()
