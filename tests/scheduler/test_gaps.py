"""`max_gap_ms`: prompts that are computed beside decode rows delay the rows' tokens for no longer, by prediction."""

from __future__ import annotations

import dataclasses
import math
import random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.common.simulated_engine import SimulatedEngine, SimulatedRequest
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.parts.stages.scheduler import StagePacing
from radixrt.scheduler.pacing import MIN_CHUNK_TOKENS, Pacing
from tests.scheduler.simulated_load import CPU, GPU, WARM_UP_S, Load

TIMES = StepTimes(step=5e-3, row=1e-5, context=1e-7, extend=1e-3, token=5e-5, pair=1e-9, extend_steps=100)
FITTED = SimpleNamespace(times=TIMES)


def rows(count: int, length: int = 1000) -> list[Any]:
    return [SimpleNamespace(kv=SimpleNamespace(length=length), num_pending=0, last_step=0) for _ in range(count)]


@pytest.mark.parametrize("start", [0, 8000, 64_000])
def test_a_step_with_rows_takes_as_long_as_allowed(start: int) -> None:
    pacing = Pacing(0.05)
    pacing.rows(rows(64))
    tokens = pacing.budget(8192, FITTED, []).tokens_behind(start)
    assert tokens % MIN_CHUNK_TOKENS == 0
    taken = TIMES.seconds(64, 64_000, tokens, tokens * (start + tokens / 2))
    more = tokens + MIN_CHUNK_TOKENS
    assert taken <= 0.05 < TIMES.seconds(64, 64_000, more, more * (start + more / 2))
    assert start or pacing.chunk_tokens(8192, FITTED) == tokens


def test_chunks_get_half_of_the_time_beside_slow_rows() -> None:
    pacing = Pacing(0.05)
    pacing.rows(rows(64, 16_000))
    tokens = pacing.budget(8192, FITTED, []).tokens_behind(0)
    rows_s = TIMES.seconds(64, 64 * 16_000)
    assert rows_s > 0.05
    assert rows_s - MIN_CHUNK_TOKENS * 2 * TIMES.token < TIMES.chunk_seconds(tokens, tokens**2 / 2) <= rows_s


def test_nothing_is_bounded_without_rows_without_an_option_and_without_data() -> None:
    alone, unbounded, unknown = Pacing(0.05), Pacing(), Pacing(0.05)
    alone.rows([])
    unbounded.rows(rows(8))
    unknown.rows(rows(8))
    new = SimpleNamespace(times=msgspec.structs.replace(TIMES, extend_steps=0))
    for pacing, times in ((alone, FITTED), (unbounded, FITTED), (unknown, new)):
        assert pacing.budget(8192, times, []).tokens_behind(0) == 8192
        assert pacing.chunk_tokens(8192, times) == 8192


def test_a_row_of_a_pipeline_waits_for_a_step_of_every_stage() -> None:
    one, two = Pacing(0.05), StagePacing(2, 0.1)
    one.rows(rows(32))
    two.rows(rows(64))
    burst = [(0, 1_000_000)]
    bounded = two.budget(8192, FITTED, burst).tokens_behind(0)
    assert bounded == one.budget(8192, FITTED, burst).tokens_behind(0)
    free = StagePacing(2)
    free.rows(rows(64))
    assert free.budget(8192, FITTED, burst).tokens_behind(0) > bounded


def gaps(device: Any, chunk: int, **options: object) -> tuple[list[float], float, float]:
    """Serve 32 requests of long outputs, among which long prompts arrive.

    Returns:
        Seconds between two tokens of the requests while prompts are computed, the mean seconds until the prompts' first
        tokens, and the seconds until all is served.
    """
    ids = np.random.default_rng(1)
    warm = Load(lambda rng: (rng.randint(200, 4000), 30, 60), warm_rate=4.0).requests(4.0, 2.0)
    begin = warm[-1].at + 2.0
    made = [SimulatedRequest(begin, ids.integers(2, 900, 64).astype(np.int32), 900, 1000) for _ in range(32)]
    rng = random.Random(2)
    long = [
        SimulatedRequest(begin + 2.0 + rng.random(), ids.integers(2, 900, 12_000).astype(np.int32), 2, 8)
        for _ in range(3)
    ]
    quiet = dataclasses.replace(device, slow_share=0.0, noise=0.02)
    lives = SimulatedEngine(quiet, chunked_prefill_size=chunk, **options).run([*warm, *made, *long])
    streams, prompts = lives[len(warm) : -3], lives[-3:]
    assert all(life.is_served for life in lives)
    until = max(life.tokens[0] for life in prompts)
    found = [
        after - before
        for life in streams
        for before, after in zip(life.tokens, life.tokens[1:], strict=False)
        if before > begin + 1.5 and after <= until
    ]
    waited = [life.tokens[0] - life.request.at for life in prompts]
    return found, sum(waited) / 3, max(life.ended_at for life in lives) - WARM_UP_S


def test_long_prompts_beside_streams() -> None:
    """With the bound, no token is late; prompts wait longer only because the streams get their tokens meanwhile."""
    free, waited_free, ended_free = gaps(GPU, 8192)
    bound, waited, ended = gaps(GPU, 8192, max_gap_ms=50.0)
    assert max(free) > 0.15
    assert max(bound) < 0.06
    assert waited < 1.5 * waited_free
    assert ended < 1.05 * ended_free


def test_a_slow_device_has_larger_gaps_and_still_computes_prompts() -> None:
    bound, waited, _ = gaps(CPU, 1024, max_gap_ms=50.0)
    free, waited_free, _ = gaps(CPU, 1024)
    assert max(bound) < 0.3 * max(free)
    assert waited < 2.5 * waited_free


def test_no_bound_is_inf_or_0() -> None:
    assert gaps(GPU, 8192, max_gap_ms=math.inf)[0] == gaps(GPU, 8192, max_gap_ms=0.0)[0]
