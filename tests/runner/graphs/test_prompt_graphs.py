"""`PromptGraphRunner` with graphs that only count replays; tests/gpu/test_runner.py tests real graphs."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.forward_batch import batch_builder
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.runner.graphs import prompt_graph_runner
from radixrt.runner.graphs.captures import CAPTURE_AT_STEP
from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner
from radixrt.runner.model_runner import ModelRunner

SINKS = torch.zeros(2)
LAYERS = [AttentionLayer(i, 2, 1, 4, 0.5) for i in range(3)]


class CountingGraph:
    """Replaces torch.cuda.CUDAGraph."""

    capturing = False
    replays: ClassVar[list[CountingGraph]] = []

    def capture_begin(self, **options: Any) -> None:
        assert not CountingGraph.capturing
        CountingGraph.capturing = True

    def capture_end(self) -> None:
        assert CountingGraph.capturing
        CountingGraph.capturing = False

    def replay(self) -> None:
        CountingGraph.replays.append(self)


class Stream:
    def __init__(self, *_: Any) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass


class Attention:
    """Records the batches and layers that it is called for."""

    gathers = False  # the pool has the model's dtype

    def __init__(self) -> None:
        self.prepared: list[ForwardBatch] = []
        self.attended: list[tuple[int, int]] = []
        self.given: list[int | None] = []  # number of keys that each call of `attend_into` got

    def prepare(self, batch: ForwardBatch) -> None:
        self.prepared.append(batch)

    def slots(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(9), torch.zeros(9)

    def mix_states(self, layer: Any, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        assert batch is self.prepared[-1]
        self.attended.append((layer.name, x.shape[0]))
        return torch.full((x.shape[0], layer.mixed_features), 3.0)

    def attend_into(
        self, layer: AttentionLayer, q: torch.Tensor, k: Any, v: Any, batch: ForwardBatch, out: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:  # fmt: skip
        assert q.shape == out.shape
        assert sinks is SINKS
        assert (k is None) == (v is None)
        self.attended.append((layer.layer_id, q.shape[0]))
        self.given.append(None if k is None else len(k))


class Model:
    """Attends once in each layer; fails from a given call on."""

    attention_layers = LAYERS

    def __init__(self, fails_from: int = 1000) -> None:
        self.calls = 0
        self.inputs: list[ForwardBatch] = []
        self._fails_from = fails_from

    def stage_input(self, tokens: int) -> torch.Tensor | None:
        return None

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: AttentionBackend,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        self.calls += 1
        self.inputs.append(batch)
        for layer in LAYERS:
            new = None if attention.pool(layer) is not None else torch.zeros(len(ids), 1, 4)
            out = attention.attend(layer, torch.zeros(len(ids), 2, 4), new, new, batch, SINKS)
            assert out.shape == (len(ids), 8)
        if self.calls >= self._fails_from:
            raise RuntimeError("no memory")
        return torch.zeros(len(ids), 8)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that creates a PromptGraphRunner of a model, with its attention and its batch builder."""
    CountingGraph.capturing, CountingGraph.replays = False, []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CountingGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(prompt_graph_runner, "_unowned", lambda tensor: tensor)

    def make(model: Model) -> SimpleNamespace:
        cpu = torch.device("cpu")
        builder, attention = BatchBuilder(4, 64, cpu), Attention()
        graphs = PromptGraphRunner(
            model, attention, attention, builder, max_tokens=40, dtype=torch.float32, device=cpu,  # type: ignore[arg-type]
            group=SimpleNamespace(size=1),  # type: ignore[arg-type]
        )  # fmt: skip
        return SimpleNamespace(graphs=graphs, attention=attention, builder=builder)

    return make


def prompt(builder: BatchBuilder, tokens: int) -> ForwardBatch:
    one = np.ones(1, np.int32)
    ids = np.arange(7, 7 + tokens, dtype=np.int32)
    return builder.build_extend(ids, one, one * tokens, one * tokens, ids, one > 0, narrow=True)


def test_a_bucket_is_captured_when_steps_have_asked_for_it(runner: Any) -> None:
    model = Model()
    made = runner(model)
    for _ in range(CAPTURE_AT_STEP - 1):
        assert made.graphs.forward(prompt(made.builder, 20)) is None
    assert not made.graphs.has(20)
    assert not made.attention.prepared
    batch = prompt(made.builder, 20)
    assert made.graphs.forward(batch).shape == (20, 8)
    assert [tokens for tokens in range(1, 60) if made.graphs.has(tokens)] == [*range(1, 33)]
    assert len(CountingGraph.replays) == len(set(CountingGraph.replays)) == len(LAYERS) + 1
    assert made.attention.attended == [(0, 20), (1, 20), (2, 20)]
    static = model.inputs[-1]
    assert static.input_ids.tolist() == batch.input_ids.tolist() + [0] * 12
    assert static.positions.tolist() == [*range(20), *[0] * 12]
    assert static.out_cache_loc.tolist() == batch.out_cache_loc.tolist() + [0] * 12
    made.graphs.forward(prompt(made.builder, 17))
    assert static.input_ids.tolist()[15:] == [22, 23, *[0] * 15]  # nothing of the previous step is left
    assert made.attention.attended[3:] == [(0, 17), (1, 17), (2, 17)]


def test_few_graphs_serve_every_step_from_the_start(runner: Any) -> None:
    model = Model()
    made = runner(model)
    made.graphs.capture_first()
    assert [len(batch.input_ids) for batch in model.inputs[1::2]] == [40, 16]
    assert made.graphs.forward(prompt(made.builder, 20)).shape == (20, 8)
    assert made.attention.prepared[-1].num_tokens == 20


def test_the_rest_is_captured_while_idle(runner: Any) -> None:
    made = runner(Model())
    assert made.graphs.forward(prompt(made.builder, 33)) is None
    assert sum(iter(made.graphs.capture_next, False)) == 3  # 16, 32 and 40 tokens
    assert made.graphs.forward(prompt(made.builder, 1)).shape == (1, 8)
    assert made.graphs.forward(prompt(made.builder, 41)) is None


def test_requested_graphs_are_captured_before_all_others(runner: Any) -> None:
    """Also before decode graphs that no step has requested."""
    model = Model()
    made = runner(model)
    order: list[bool] = []

    def capture_next(*, requested: bool) -> bool:
        order.append(requested)
        return not requested

    graphs: Any = SimpleNamespace(
        _graphs=SimpleNamespace(capture_next=capture_next), _prompt_graphs=made.graphs, _inputs=None
    )
    assert made.graphs.forward(prompt(made.builder, 33)) is None
    assert ModelRunner._capture_next(graphs)
    assert [len(batch.input_ids) for batch in model.inputs[1::2]] == [40]
    assert ModelRunner._capture_next(graphs)
    assert order == [True, True, False]


def test_all_tokens_are_computed(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs compute the whole last layer, so the batch is prepared without its narrowed batch."""
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 8)
    made = runner(Model())
    while made.graphs.capture_next():
        pass
    batch = prompt(made.builder, 40)
    assert batch.narrowed is not None
    assert made.graphs.forward(batch).shape == (40, 8)
    assert made.attention.prepared[-1].narrowed is None


def test_long_steps_give_attention_their_keys_and_values(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that begin in such a step read them as computed; graphs of shorter steps have stored them."""
    monkeypatch.setattr(prompt_graph_runner, "MIN_FRESH_TOKENS", 32)
    made = runner(Model())
    while made.graphs.capture_next():
        pass
    for tokens in (20, 36, 16):
        assert made.graphs.forward(prompt(made.builder, tokens)).shape == (tokens, 8)
    assert made.attention.given == [20] * 3 + [36] * 3 + [None] * 3


def test_keys_and_values_of_another_dtype_are_stored_first(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_graph_runner, "MIN_FRESH_TOKENS", 32)
    monkeypatch.setattr(Attention, "gathers", True)
    made = runner(Model())
    while made.graphs.capture_next():
        pass
    assert made.graphs.forward(prompt(made.builder, 36)).shape == (36, 8)
    assert made.attention.given == [None] * 3


@pytest.mark.parametrize("fails_from", [1, 2])
def test_a_failed_capture_ends_capturing(runner: Any, fails_from: int) -> None:
    """The first call only warms up; the second one is captured, and the stream must not stay in capture mode."""
    made = runner(Model(fails_from))
    assert not made.graphs.capture_next()
    assert not CountingGraph.capturing
    assert made.graphs.forward(prompt(made.builder, 16)) is None


def test_recurrences_are_launched_between_graphs(runner: Any) -> None:
    """Beside attentions; their results stand in a buffer, where the next graph reads them."""
    recurrent = SimpleNamespace(name="recurrent", mixed_features=6)
    buffers: list[torch.Tensor] = []

    class Hybrid(Model):
        def forward(
            self, ids: Any, positions: Any, batch: ForwardBatch, attention: AttentionBackend, received: Any = None
        ) -> torch.Tensor:
            buffers.append(attention.mix_states(recurrent, torch.zeros(len(ids), 9), batch))  # type: ignore[arg-type]
            return super().forward(ids, positions, batch, attention)

    made = runner(Hybrid())
    batch = prompt(made.builder, 20)
    for _ in range(CAPTURE_AT_STEP):
        hidden = made.graphs.forward(batch)
    assert hidden is not None
    assert made.attention.attended == [("recurrent", 20), (0, 20), (1, 20), (2, 20)]
    assert len(CountingGraph.replays) == len(LAYERS) + 2
    captured = buffers[-1]
    assert captured.shape == (32, 6)
    assert (captured[:20] == 3).all()
    assert not captured[20:].any()
