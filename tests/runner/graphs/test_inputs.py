"""Static buffers of a bucket's graphs: each step leaves its own numbers and padding, whatever the steps before it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.messages.state_slots import SCRATCH_STATE
from radixrt.runner.graphs.cuda_graph_runner import _Inputs

ROWS, SAMPLES = 12, 8
NAMES = ["req_pool_idx", "seq_lens", "slots", "id_rows", "targets", "uniforms", "temperature", "state_src", "state_dst"]
PADDING = [0, 1, 0, 0, 0, 0.0, 0.0, SCRATCH_STATE, SCRATCH_STATE]


class Copies:
    """Uploads at once, into tensors of this machine."""

    def upload_into(self, target: torch.Tensor, arrays: Sequence[npt.NDArray[Any]], offsets: Sequence[int]) -> None:
        for array, offset in zip(arrays, offsets, strict=True):
            target[offset : offset + array.nbytes] = torch.from_numpy(array.view(np.uint8).copy())


def test_any_sequence_of_steps() -> None:
    rng, uploader = random.Random(1), Copies()
    planned = [np.zeros(ROWS + 1, np.int32), np.zeros(3, np.int32)]
    inputs = _Inputs(ROWS, SAMPLES, planned, torch.device("cpu"))
    for _ in range(200):
        rows = rng.randint(1, ROWS)
        sizes = [rows] * 4 + [rng.randint(1, min(rows, SAMPLES))] * 3 + [rng.choice([0, rows])] * 2
        columns: list[Any] = [np.array([rng.randint(1, 99) for _ in range(size)], np.int32) for size in sizes]
        columns[5] = columns[5] / 128
        plans = [np.full(len(each), rng.randint(1, 99), np.int32) for each in planned]
        inputs.fill(uploader, columns, plans)  # type: ignore[arg-type]
        for name, column, padding in zip(NAMES, columns, PADDING, strict=True):
            found = getattr(inputs, name).numpy()
            assert found[: len(column)].tolist() == column.tolist(), name
            assert (found[len(column) :] == padding).all(), name
        assert all((found.numpy() == plan).all() for found, plan in zip(inputs.planned, plans, strict=True))
    inputs.fill_mask_slots(uploader, np.arange(SAMPLES, dtype=np.int32))  # type: ignore[arg-type]
    assert inputs.mask_slots.tolist() == list(range(SAMPLES))
