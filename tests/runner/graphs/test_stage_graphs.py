"""Graphs of a pipeline stage: what is received goes into static buffers, what is sent is a copy in the step's order.

A replayed graph is the work that would have been captured; tests/gpu tests real graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.forward_batch.upload import Uploader, pack
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import pack_i32
from radixrt.runner.graphs.captures import CAPTURE_AT_STEP
from radixrt.runner.graphs.cuda_graph_runner import CudaGraphRunner
from tests.runner.graphs.test_prompt_graphs import Model as PromptModel
from tests.runner.graphs.test_prompt_graphs import prompt, runner  # noqa: F401 (a fixture)

HIDDEN = 8


class Stage:
    """A stage that multiplies what it gets by 10; the first one begins with the input ids. Records the slots that each
    row's result belongs to."""

    def __init__(self, *, first: bool, last: bool) -> None:
        self._first, self._last = first, last
        self.by_slot: dict[int, float] = {}

    def stage_input(self, tokens: int) -> torch.Tensor | None:
        return None if self._first else torch.full((tokens, 2, HIDDEN), torch.nan)

    def stage_output(self, tokens: int) -> torch.Tensor | None:
        return None if self._last else torch.full((tokens, 2, HIDDEN), torch.nan)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: Any,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        given = ids[:, None, None].expand(-1, 2, HIDDEN) if received is None else received
        assert torch.isfinite(given.float()).all(), "padding reads memory that was never written"
        self.by_slot |= dict(zip(batch.out_cache_loc.tolist(), given[:, 0, 0].tolist(), strict=True))
        return given * 10.0


def graphs(model: Stage, monkeypatch: pytest.MonkeyPatch) -> CudaGraphRunner:
    def record(self: Any, work: Callable[[], Any]) -> tuple[Any, Any]:
        return SimpleNamespace(replay=work), work()

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(CudaGraphRunner, "_record", record)
    monkeypatch.setattr(Uploader, "upload_into", lambda self, target, arrays, offsets: pack(target, arrays, offsets))
    attention = SimpleNamespace(
        tiles=(), fits_graph=lambda lens: True, plan_shared=lambda *_: None, plan_graph=lambda *_: [],
        graph_part=lambda *_: None, begin_graph=lambda *_: None,
    )  # fmt: skip
    sampler = SimpleNamespace(workspace=lambda rows: None)
    builder = BatchBuilder(8, 64, torch.device("cpu"), max_given=8)
    return CudaGraphRunner(
        model, attention, attention, sampler, builder, vocab_size=50, max_samples=8, max_rows=8, token_bytes=1,  # type: ignore[arg-type]
        device=torch.device("cpu"), group=SimpleNamespace(size=1),  # type: ignore[arg-type]
    )  # fmt: skip


def two_rows() -> ForwardStep:
    """Two rows of three and two tokens, slots 1 to 5; the tokens that sample, 3 and 5, become the first rows."""
    return ForwardStep(
        0, 1, pack_i32([1, 2]), pack_i32([3, 2]), pack_i32([1, 2, 3, 4, 5]), pack_i32([3, 2]),
        pack_i32([11, 12, 13, 14, 15]), bytes([1, 1]),
    )  # fmt: skip


def staged(made: CudaGraphRunner, step: ForwardStep) -> Any:
    rows = TokenRows.of(step)
    assert rows is not None
    for _ in range(CAPTURE_AT_STEP):
        found = made.stage(rows, np.zeros(rows.num_samples, np.float32), np.zeros(rows.num_samples))
    assert found is not None
    return found


def test_a_middle_stage_keeps_the_order_of_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stage(first=False, last=False)
    made = graphs(model, monkeypatch)
    received = torch.arange(1.0, 6.0)[:, None, None].expand(5, 2, HIDDEN).contiguous()
    sent = made.forward(staged(made, two_rows()), received)
    assert sent is not None
    assert sent.is_contiguous()
    assert sent[:, 1, 3].tolist() == [10.0, 20.0, 30.0, 40.0, 50.0]
    assert {slot: value for slot, value in model.by_slot.items() if slot} == {i: float(i) for i in range(1, 6)}


def test_a_replay_leaves_alone_what_is_still_being_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graphs(Stage(first=False, last=False), monkeypatch)
    decode = ForwardStep(0, 2, pack_i32([1, 2]), pack_i32([4, 3]), pack_i32([6, 7]), input_ids=pack_i32([8, 9]))
    first = made.forward(staged(made, decode), torch.full((2, 2, HIDDEN), 1.0))
    second = made.forward(staged(made, decode), torch.full((2, 2, HIDDEN), 2.0))
    assert first is not None
    assert second is not None
    assert (first == 10.0).all()
    assert (second == 20.0).all()


def test_a_first_stage_takes_the_ids_that_a_decode_step_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graphs(Stage(first=True, last=False), monkeypatch)
    decode = ForwardStep(0, 2, pack_i32([1, 2]), pack_i32([4, 3]), pack_i32([6, 7]), input_ids=pack_i32([8, 9]))
    sent = made.forward(staged(made, decode))
    assert sent is not None
    assert sent[:, 0, 0].tolist() == [80.0, 90.0]


def test_prompts_of_a_middle_stage(runner: Any) -> None:  # noqa: F811
    class Middle(PromptModel):
        def stage_input(self, tokens: int) -> torch.Tensor:
            return torch.full((tokens, 2, HIDDEN), torch.nan)

        def forward(
            self, ids: Any, positions: Any, batch: ForwardBatch, attention: Any, received: torch.Tensor | None = None
        ) -> torch.Tensor:
            super().forward(ids, positions, batch, attention)
            assert received is not None
            assert torch.isfinite(received).all()
            return received  # static memory, as a graph's result is

    made = runner(Middle())
    sent = []
    for i in range(CAPTURE_AT_STEP + 1):
        sent.append(made.graphs.forward(prompt(made.builder, 20), torch.full((20, 2, HIDDEN), float(i))))
    assert sent[CAPTURE_AT_STEP - 2] is None
    assert [each[0, 0, 0].item() for each in sent[CAPTURE_AT_STEP - 1 :]] == [CAPTURE_AT_STEP - 1, CAPTURE_AT_STEP]
    assert sent[-1].shape == (20, 2, HIDDEN)
