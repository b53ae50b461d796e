"""The runner under the scheduler, step by step, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.errors import EngineError
from radixrt.executor.uniproc_executor import StepWorker, UniProcExecutor
from radixrt.messages.request import Request
from radixrt.messages.runner import RunnerReady
from radixrt.messages.scheduler import RunnerRestarted, TokenBatch
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.loop import SchedulerLoop
from tests.scheduler.fake_runner import deltas_of
from tests.scheduler.test_scheduler import NO_JUMPS, FixedSequence


class RestartableExecutor(UniProcExecutor):
    """A new worker for each epoch, as if in a process of its own; a worker of an earlier epoch answers no more."""

    def __init__(self, make_worker: Callable[[LocalChannel], StepWorker]) -> None:
        self._make_worker = make_worker
        answers: LocalChannel = LocalChannel()
        super().__init__(make_worker(answers), answers, encode=True)

    def restart(self, epoch: int) -> None:
        self.close()
        self.__init__(self._make_worker)  # type: ignore[misc]

    def poll_ready(self) -> RunnerReady | None:
        return self.wait_ready(60)

    @property
    def is_restartable(self) -> bool:
        return True


class Bench:
    """The loop, the scheduler, the executor and the runner, without a tokenizer."""

    def __init__(self, folder: Path, **options: Any) -> None:
        config = make_config(model=str(folder), num_threads=1, executor="uni", **{"dtype": "float32", **options})
        config, settings = resolve_settings(config, show_progress=False)
        self.inbox: LocalChannel = LocalChannel()
        self.outbox: LocalChannel = LocalChannel()
        self.executor = RestartableExecutor(lambda answers: assembly.make_runner_worker(config, settings, answers))
        self.loop: SchedulerLoop = assembly.make_scheduler_loop(
            config, settings, self.executor, self.inbox, self.outbox
        )
        self.core = self.loop._core
        self.runner = self.executor._worker._runner
        self.tokens: dict[str, list[int]] = {}
        self.finishes: dict[str, Any] = {}
        self.logprobs: dict[str, bytes] = {}
        self.scores: dict[str, bytes] = {}
        self.epoch = 0

    def restart(self) -> None:
        """Announce new ranks, as main does when the runner has died."""
        self.epoch += 1
        self.inbox.send(RunnerRestarted(self.epoch, "it was told to"))

    def send(self, rid: str, ids: list[int], **sampling: Any) -> None:
        self.inbox.send(Request.generate(rid, pack_i32(ids), SamplingParams(**{"temperature": 0.0, **sampling})))

    def turn(self) -> bool:
        busy = self.loop.run_once(wait=False)
        while (message := self.outbox.recv()) is not None:
            for delta in deltas_of(message) if isinstance(message, TokenBatch) else []:
                self.tokens.setdefault(delta.rid, []).extend(unpack_i32(delta.token_ids).tolist())
                if delta.values is not None:
                    assert delta.rid not in self.scores
                    found = [each.token_logprobs for each in delta.values.logprobs]
                    self.scores[delta.rid] = b"".join([*found, delta.values.hidden])
                if delta.logprobs is not None:
                    self.logprobs[delta.rid] = self.logprobs.get(delta.rid, b"") + delta.logprobs.token_logprobs
                if delta.finish is not None:
                    self.finishes[delta.rid] = delta.finish
        return busy

    def drain(self) -> None:
        deadline = time.monotonic() + 60
        while self.turn() or not self.core.is_idle:
            assert time.monotonic() < deadline


@pytest.mark.parametrize("page_size", [1, 8])
def test_the_mirror_equals_the_schedulers_table(page_size: int, tiny_model: Callable[[str], Path]) -> None:
    bench = Bench(
        tiny_model("llama"), kv_cache_tokens=96, page_size=page_size, chunked_prefill_size=16, max_inflight_steps=1,
        schedule_conservativeness=0.0, max_running_requests=6, check_invariants=True,
    )  # fmt: skip
    base = list(range(3, 40))
    for i in range(12):
        bench.send(f"r{i}", [*base[: 5 + 3 * i], 100 + i, 7], max_tokens=20, ignore_eos=True)
    compared = 0
    while bench.turn():
        active = bench.core.active
        rows = [r.kv.req_pool_idx for r in active]
        lens = [r.kv.length - bench.loop.inflight for r in active]  # what is in flight has run already, in one process
        mirror = unpack_i32(bench.executor.debug_rows(rows, lens).slots)
        table = bench.core.kv.rows.table
        expected = [table[row, :n] for row, n in zip(rows, lens, strict=True)]
        # Re-pointed slots reach the mirror with the next step; until then both hold the same keys and values.
        pending = {w.req_pool_idx for w in bench.core.kv.row_writes}
        start = 0
        for row, part in zip(rows, expected, strict=True):
            if row not in pending:
                np.testing.assert_array_equal(mirror[start : start + len(part)], part)
                compared += len(part)
            start += len(part)
    assert compared > 1000
    assert bench.core.counters.retractions > 0
    assert len(bench.finishes) == 12


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grammar_is_enforced_by_the_mask(depth: int, tiny_model: Callable[[str], Path]) -> None:
    bench = Bench(tiny_model("llama"), kv_cache_tokens=256, max_inflight_steps=depth)
    wanted = [11, 400, 32, 31, 500, 3]
    sampling = SamplingParams(temperature=0.9, seed=1, max_tokens=20, structured=NO_JUMPS)
    bench.core.part(Constraints).add(
        Request.generate("bound", pack_i32([5, 6, 7]), sampling),
        time.monotonic(),
        FixedSequence(wanted, bench.runner.vocab_size),
    )
    bench.send("free", [5, 6, 7], max_tokens=8, ignore_eos=True)
    bench.drain()
    assert bench.tokens["bound"] == wanted
    assert bench.finishes["bound"].reason == "stop"
    assert len(bench.tokens["free"]) == 8


def test_a_step_that_raises_loses_only_its_own_requests(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tiny_model("llama"), kv_cache_tokens=512, max_running_requests=2, max_inflight_steps=1)
    bench.send("before", [5, 6, 7], max_tokens=4, ignore_eos=True)
    bench.drain()
    forward = bench.runner.forward

    def broken(batch: Any) -> Any:
        monkeypatch.setattr(bench.runner, "forward", forward)
        raise MemoryError("no room for activations")

    monkeypatch.setattr(bench.runner, "forward", broken)
    bench.send("victim", [8, 9, 10], max_tokens=4)
    bench.turn()
    bench.send("after", [5, 6, 7], max_tokens=4, ignore_eos=True)
    bench.drain()
    assert "MemoryError: no room" in bench.finishes["victim"].error.message
    assert bench.tokens["after"] == bench.tokens["before"]


def test_a_device_that_is_unusable_after_an_error_ends_the_worker(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tiny_model("llama"), kv_cache_tokens=512)

    def broken(batch: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(bench.runner, "forward", broken)
    monkeypatch.setattr(bench.runner, "is_usable", lambda: False)
    bench.send("victim", [8, 9, 10], max_tokens=4)
    with pytest.raises(EngineError, match=r"step 0 .*illegal memory access"):
        bench.turn()


def test_rows_with_broken_logits_end_alone(tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tiny_model("llama"), kv_cache_tokens=512, max_inflight_steps=1)
    compute = bench.runner._model.compute_logits

    def poisoned(hidden: Any, out: Any = None) -> Any:
        logits = compute(hidden)
        logits[0] = float("nan")
        return logits

    monkeypatch.setattr(bench.runner._model, "compute_logits", poisoned)
    bench.send("first", [5, 6, 7], max_tokens=2, ignore_eos=True)
    bench.send("second", [8, 9, 10], max_tokens=1, ignore_eos=True)
    bench.turn()
    bench.drain()
    assert "NaN" in bench.finishes["first"].error.message
    assert bench.finishes["second"].reason == "length"
