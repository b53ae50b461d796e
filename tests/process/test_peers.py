"""Prefixes that a replica gets from another one, between real processes that are stopped and killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import radixrt
from radixrt.tasks.generate import Completion
from tests.process.helpers import only
from tests.server_process import wait_for

PAGE = 64
SAMPLING = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 8192, "num_threads": 1, "show_progress": False, "max_restarts": 100,
    "hang_timeout_s": 600.0, "check_invariants": True,
}  # fmt: skip


def prompt(seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(3, 400, 10 * PAGE + 1).tolist()
    return tokens


@pytest.fixture(scope="module")
def engine(long_model: Path) -> Iterator[radixrt.Engine]:
    with radixrt.Engine(str(long_model), replicas=2, kv_host_gib=0.05, **OPTIONS) as engine:
        yield engine
        assert wait_for(lambda: engine.client.open_requests == 0)
        engine.check_invariants()


@pytest.fixture(scope="module")
def expected(long_model: Path) -> Iterator[radixrt.Engine]:
    """An engine without replicas and tiers."""
    with radixrt.Engine(str(long_model), executor="uni", **OPTIONS) as plain:
        yield plain


def ask(engine: radixrt.Engine, tokens: list[int], **options: Any) -> Completion:
    answer = engine.generate(tokens, SAMPLING, **options)
    assert isinstance(answer, Completion)
    return answer


def test_the_next_replica_gets_the_prefix_and_gives_the_same_text(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    tokens = prompt(0)
    with only(engine, 0):
        first = ask(engine, tokens)
    with only(engine, 1):
        second = ask(engine, tokens)
        assert ask(engine, tokens).usage.fetched_tokens == {}
    assert second.usage.fetched_tokens == {"peer": 10 * PAGE}
    assert second.usage.cached_tokens == 10 * PAGE
    assert first.token_ids == second.token_ids == ask(expected, tokens).token_ids
    with only(engine, 0):  # and what the second replica has added comes back
        longer = [*tokens, *second.token_ids, *prompt(1)[:400]]
        ask(engine, tokens)
    with only(engine, 1):
        ask(engine, longer)
    with only(engine, 0):
        third = ask(engine, longer)
    assert third.usage.cached_tokens == 16 * PAGE
    assert third.usage.fetched_tokens["peer"] > 5 * PAGE
    assert third.token_ids == ask(expected, longer).token_ids


def test_another_tenant_gets_nothing(engine: radixrt.Engine, expected: radixrt.Engine) -> None:
    tokens = prompt(2)
    with only(engine, 0):
        ask(engine, tokens)
        ask(engine, tokens, cache_salt="b")
    with only(engine, 1):
        answer = ask(engine, tokens, cache_salt="a")
        assert (answer.usage.cached_tokens, answer.usage.fetched_tokens) == (0, {})
        assert ask(engine, tokens, cache_salt="b").usage.fetched_tokens == {"peer": 10 * PAGE}
    assert answer.token_ids == ask(expected, tokens).token_ids


@pytest.mark.parametrize("kind", ["scheduler", "ModelRunner"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_replica_that_cannot_answer_is_not_waited_for(
    engine: radixrt.Engine, expected: radixrt.Engine, kind: str, number: int
) -> None:
    tokens = prompt(10 * number + len(kind))
    with only(engine, 0):
        ask(engine, tokens)
    with only(engine, 1):
        pid = engine.pids[f"replica 0 {kind}"]
        os.kill(pid, number)
        try:
            answer = ask(engine, tokens)
        finally:
            if number == signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
    assert answer.token_ids == ask(expected, tokens).token_ids


def test_a_replica_that_dies_while_it_waits_for_a_prefix_loses_nothing(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    tokens = prompt(5)
    with only(engine, 0):
        ask(engine, tokens)
    with only(engine, 1):
        stopped, killed = engine.pids["replica 0 scheduler"], engine.pids["replica 1 scheduler"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            chunks = engine.stream(tokens, SAMPLING)
            os.kill(killed, signal.SIGKILL)
        finally:
            os.kill(stopped, signal.SIGCONT)
        found = [token for chunk in chunks for token in chunk.token_ids]
    assert found == ask(expected, tokens).token_ids


def test_prefixes_of_a_replica_that_is_removed_are_on_another_one(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    tokens = prompt(6)
    with only(engine, 0):
        ask(engine, tokens)
        ask(engine, tokens, cache_salt="b")
    assert engine.replicas is not None
    engine.replicas.remove(0, 60.0)
    for salt in ("", "b"):
        answer = ask(engine, tokens, cache_salt=salt)
        assert answer.usage.fetched_tokens == {"host": 10 * PAGE}
        assert answer.token_ids == ask(expected, tokens).token_ids
