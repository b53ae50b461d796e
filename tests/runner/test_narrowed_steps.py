"""A runner with a narrowed last layer computes and stores what one that computes the whole last layer does."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from radixrt.forward_batch import batch_builder
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.messages.runner import ForwardStep, SamplingRow
from radixrt.messages.sections import READS, ReadSection, encode
from radixrt.messages.wire import pack_i32, unpack_f32
from radixrt.parts.reads.runner import StepReader
from radixrt.runner.model_runner import ModelRunner
from radixrt.runner.runner_config import RunnerConfig
from radixrt.runner.step_result import LogitsProcessorOutput
from radixrt.sampling_params import DrawParams
from tests.tiny_models import KINDS

MAX_ROWS = 6


@pytest.fixture(autouse=True)
def narrow_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_builder, "MIN_SAVED_TOKENS", 1)


def runner_config(folder: Path, **options: Any) -> RunnerConfig:
    settings: dict[str, Any] = {
        "dtype": "float32", "load_format": "auto", "device": "cpu", "attention_backend": "auto", "num_threads": 1,
        "context_length": 128, "max_running_requests": MAX_ROWS, "page_size": 1, "kv_cache_tokens": 1024,
        "memory_fraction": 0.5, "kv_cache_dtype": "auto", "max_step_tokens": 128, "cuda_graph": "off",
        "random_seed": 0, "kernel_cache": os.environ["RADIXRT_CACHE"] + "/kernels",
    }  # fmt: skip
    return RunnerConfig(folder=str(folder), **{**settings, **options})


@contextmanager
def runner(folder: Path, **options: Any) -> Iterator[ModelRunner]:
    made = ModelRunner(runner_config(folder, **options), make_reader=StepReader.of)
    made.initialize()
    yield made
    made.shutdown()


@dataclass
class Row:
    """One sequence: its prompt, its computed tokens, and the number of tokens that it samples."""

    place: int
    prompt: np.ndarray
    outputs: int
    done: int = 0
    slots: list[int] = field(default_factory=list)

    def chunk(self, rng: np.random.Generator) -> int:
        """Return the new tokens of its next step; 0 if it has ended."""
        left = len(self.prompt) - self.done
        return int(rng.integers(1, left + 1)) if left > 0 else int(self.done < len(self.prompt) + self.outputs)


def greedy(place: int, **more: Any) -> SamplingRow:
    return SamplingRow(req_pool_idx=place, draw=DrawParams(temperature=0.0), seed=1, **more)


def steps(seed: int) -> Iterator[ForwardStep]:
    """Yield EXTEND steps of random sequences in random chunks, some without a sampling row, until all have ended."""
    rng = np.random.default_rng(seed)
    rows = [
        Row(i + 1, rng.integers(3, 500, int(rng.integers(1, 90))), int(rng.integers(0, 6))) for i in range(MAX_ROWS)
    ]
    free = (rng.permutation(1000) + 1).tolist()
    while True:
        chunks = [(row, row.chunk(rng)) for row in rows if rng.integers(3)]
        chunks = [(row, new) for row, new in chunks if new]
        if not chunks and not any(row.chunk(rng) for row in rows):
            return
        if not chunks:
            continue
        ids, slots = [], []
        for row, new in chunks:
            known = row.prompt[row.done : row.done + new].tolist()
            ids += known + [-1] * (new - len(known))
            row.slots += [free.pop() for _ in range(new)]
            slots += row.slots[-new:]
            row.done += new
        yield ForwardStep(
            step_id=0, mode=1, req_pool_idx=pack_i32([row.place for row, _ in chunks]),
            seq_lens=pack_i32([row.done for row, _ in chunks]), out_cache_loc=pack_i32(slots),
            extend_lens=pack_i32([new for _, new in chunks]), input_ids=pack_i32(ids),
            samples=bytes([row.done >= len(row.prompt) for row, _ in chunks]),
            sampling_rows=[greedy(row.place) for row, new in chunks if row.done == new],
        )  # fmt: skip


@torch.inference_mode()
def run(runner: ModelRunner, step: ForwardStep) -> tuple[ForwardBatch, LogitsProcessorOutput, Any]:
    batch = runner.prepare(step)
    assert isinstance(batch, ForwardBatch)
    output = runner.forward(batch)
    return batch, output, runner.sample(output, batch, step, None)


@pytest.mark.parametrize("sizes", [(), (2, MAX_ROWS)], ids=["as they are", "padded"])
@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_narrowed_steps_equal_whole_ones(
    kind: str, backend: str, sizes: tuple[int, ...], tiny_model: Callable[[str], Path]
) -> None:
    folder = tiny_model(kind)
    narrowed_steps = empty_steps = 0
    with runner(folder, attention_backend=backend) as narrow, runner(folder, attention_backend=backend) as whole:
        whole._model.narrows = False
        narrow.batches.sample_sizes = sizes
        for step in itertools.chain.from_iterable(map(steps, range(4))):
            batch, got, _ = run(narrow, step)
            unchanged, expected, _ = run(whole, step)
            assert unchanged.narrowed is None
            torch.testing.assert_close(got.next_token_logits, expected.next_token_logits, atol=2e-5, rtol=0)
            if batch.narrowed is not None:
                samples = sum(step.samples)
                padded = next((size for size in sizes if size >= samples), samples) if samples else 0
                assert got.hidden_states.shape == (padded, 64)
                assert got.hidden_states.dtype == expected.hidden_states.dtype
                narrowed_steps += 1
                empty_steps += not any(step.samples)
            slots = batch.out_cache_loc
            for ours, theirs in zip(narrow.kv_cache.k + narrow.kv_cache.v, whole.kv_cache.k + whole.kv_cache.v):
                torch.testing.assert_close(ours[slots], theirs[slots], atol=2e-5, rtol=0)
            narrow.batches.future_token_ids.copy_(whole.batches.future_token_ids)
    assert narrowed_steps > 10
    assert empty_steps > 0


@pytest.mark.parametrize("sizes", [(), (2, MAX_ROWS)], ids=["as they are", "padded"])
@pytest.mark.parametrize("samples", [(1, 0, 0, 1), (0, 0, 0, 0), (1, 1, 0, 0)])
def test_last_tokens_that_are_pooled_or_scored(
    samples: tuple[int, ...], sizes: tuple[int, ...], tiny_model: Callable[[str], Path]
) -> None:
    """Rows that sample, rows whose last token is pooled or scored twice, and one that only goes on."""
    rng = np.random.default_rng(0)
    lens = np.array([30, 20, 25, 40])
    ends = np.cumsum(lens) - 1
    step = ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32([1, 2, 3, 4]), seq_lens=pack_i32(lens), extend_lens=pack_i32(lens),
        out_cache_loc=pack_i32(np.arange(1, 116)), input_ids=pack_i32(rng.integers(3, 500, 115)),
        samples=bytes(samples), sampling_rows=[greedy(i) for i in (1, 2, 3, 4)],
        sections={READS: encode(ReadSection(
            pack_i32([ends[1], ends[1], ends[3]]), pack_i32([7, 8, 9]), pack_i32([2, 0, 1, 0]), pack_i32([ends[2], 1])
        ))},
    )  # fmt: skip
    with runner(tiny_model("qwen3")) as narrow, runner(tiny_model("qwen3")) as whole:
        whole._model.narrows = False
        narrow.batches.sample_sizes = sizes
        batch, got, found = run(narrow, step)
        unchanged, expected, wanted = run(whole, step)
        assert torch.equal(narrow.batches.future_token_ids, whole.batches.future_token_ids)
    assert unchanged.narrowed is None
    assert batch.narrowed is not None
    assert got.hidden_states.shape[0] < 10
    assert got.next_token_logits.shape == expected.next_token_logits.shape == (sum(samples), 512)
    torch.testing.assert_close(got.next_token_logits, expected.next_token_logits, atol=2e-5, rtol=0)
    ours, theirs = found.values.message(), wanted.values.message()
    np.testing.assert_allclose(unpack_f32(ours.hidden), unpack_f32(theirs.hidden), atol=1e-5)
    for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
        np.testing.assert_allclose(unpack_f32(one.token_logprobs), unpack_f32(other.token_logprobs), atol=1e-5)


def test_gemms_run_with_every_number_of_rows_that_may_sample(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GEMMs with numbers of prompt tokens run too, except with the output head, which never has that many rows."""
    from radixrt.runner.profile_run import load_gemm_kernels

    with runner(tiny_model("llama")) as made:
        layers = [m for m in made._model.modules() if isinstance(m, Linear) and not isinstance(m, LMHead)]
        weights = {tuple(m.weight.shape) for m in layers if m.weight is not None}
        seen: list[tuple[int, ...]] = []
        heads: list[int] = []
        monkeypatch.setattr(F, "linear", lambda x, weight, bias: seen.append((*weight.shape, len(x))))
        monkeypatch.setattr(made._model, "compute_logits", lambda hidden, out: heads.append(len(hidden)))
        load_gemm_kernels(made._model, torch.zeros(1600, 64), [1, 2, 6], lambda _: None)
    assert len(weights) == 4
    assert heads == [1, 2, 6]
    assert set(seen) == {(*weight, n) for weight in weights for n in (1, 2, 6, 512, 768, 1024, 1536)}
    assert len(seen) == len(set(seen))


def test_the_profile_runs_whole_steps(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from radixrt.runner.profile_run import largest_step

    with runner(tiny_model("llama")) as made:
        seen: list[Any] = []
        forward = made.forward
        monkeypatch.setattr(made, "forward", lambda batch: seen.append(batch) or forward(batch))
        with torch.inference_mode():
            made._run_once(largest_step(2, 100, 128))
            made._run_once(largest_step(2, 100, 128), narrow=True)
    assert [batch.narrowed is None for batch in seen] == [True, False]
