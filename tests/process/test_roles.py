"""A replica that computes prompts for another one that answers, between real processes that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import radixrt
from radixrt.tasks.generate import Completion
from tests.equivalence.test_tiny_models import assert_same
from tests.process.test_peers import OPTIONS, PAGE, SAMPLING, ask, only, prompt
from tests.server_process import wait_for
from tests.tiny_models import make_tiny_model

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
BUSY: dict[str, Any] = {"temperature": 0, "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(long_model: Path) -> Iterator[radixrt.Engine]:
    options = {**OPTIONS, "kv_cache_tokens": 16384}
    with radixrt.Engine(str(long_model), replicas=2, roles="prefill,decode", kv_host_gib=0.05, **options) as engine:
        yield engine
        assert wait_for(lambda: engine.client.open_requests == 0)
        engine.check_invariants()


@pytest.fixture(scope="module")
def expected(long_model: Path) -> Iterator[radixrt.Engine]:
    """An engine without replicas and tiers."""
    with radixrt.Engine(str(long_model), executor="uni", **OPTIONS) as plain:
        yield plain


@contextmanager
def busy(engine: radixrt.Engine, *, requests: int = 3) -> Iterator[list[Future[Any]]]:
    """Requests that decode meanwhile."""
    with ThreadPoolExecutor() as pool:
        begun = [pool.submit(ask_as, engine, prompt(900 + i)[:20], BUSY) for i in range(requests)]
        assert wait_for(lambda: opened(engine, 1) == requests)
        yield begun


def ask_as(engine: radixrt.Engine, tokens: list[int], sampling: dict[str, Any]) -> Completion:
    answer = engine.generate(tokens, sampling)
    assert isinstance(answer, Completion)
    return answer


def opened(engine: radixrt.Engine, replica: int) -> int:
    """Number of open requests of a replica, as the router has reported them last."""
    assert engine.replicas is not None
    stats = engine.replicas.describe()[replica].stats
    return 0 if stats is None else stats.view.open


def prefills(engine: radixrt.Engine) -> int:
    assert engine.replicas is not None
    return sum(0 if each.stats is None else each.stats.view.prefills for each in engine.replicas.describe())


def serving(engine: radixrt.Engine) -> bool:
    """The router has both replicas."""
    assert engine.replicas is not None
    found = engine.replicas.describe()
    return len(found) == 2 and all(
        each.state == "serving" and each.stats is not None and each.stats.view.state == "serving" for each in found
    )


def test_long_prompts_are_computed_apart_and_the_texts_are_those_of_one_engine(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    before = prefills(engine)
    with busy(engine) as begun:
        answers = [ask(engine, prompt(i)) for i in range(4)]
        again = ask(engine, prompt(0))
        texts = [future.result().token_ids for future in begun]
    for i, answer in enumerate(answers):
        assert answer.token_ids == ask(expected, prompt(i)).token_ids
        assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (10 * PAGE + 1, 0)
        assert answer.usage.fetched_tokens == {}
    assert again.usage.cached_tokens >= 10 * PAGE - 1
    assert again.token_ids == answers[0].token_ids
    assert texts == [ask_as(expected, prompt(900 + i)[:20], BUSY).token_ids for i in range(3)]
    assert wait_for(lambda: prefills(engine) > before)


def test_streams_samples_and_constraints_are_those_of_one_engine(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    with busy(engine, requests=2):
        for i, sampling in enumerate(
            ({"temperature": 1.0, "seed": 5, "max_tokens": 12}, {**SAMPLING, "json_schema": SCHEMA})
        ):
            tokens = prompt(20 + i)
            found = [token for chunk in engine.stream(tokens, sampling) for token in chunk.token_ids]
            assert found == ask_as(expected, tokens, sampling).token_ids


@pytest.mark.parametrize("kind", ["scheduler", "ModelRunner"])
@pytest.mark.parametrize("replica", [0, 1])
def test_a_replica_that_is_killed_costs_no_answer(
    engine: radixrt.Engine, expected: radixrt.Engine, kind: str, replica: int
) -> None:
    assert wait_for(lambda: serving(engine))
    seed = 100 + 20 * replica + len(kind)
    with busy(engine, requests=2) as begun, ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, engine, prompt(seed + 100 * i)) for i in range(3)]
        assert wait_for(lambda: opened(engine, replica) > 2 * replica or asked[0].done())
        os.kill(engine.pids[f"replica {replica} {kind}"], signal.SIGKILL)
        answers = [future.result() for future in asked]
        for future in begun:
            assert len(future.result().token_ids) == BUSY["max_tokens"]
    for i, answer in enumerate(answers):
        assert answer.token_ids == ask(expected, prompt(seed + 100 * i)).token_ids


def test_aborted_requests_leave_nothing(engine: radixrt.Engine) -> None:
    assert wait_for(lambda: serving(engine))
    with busy(engine, requests=2):
        for i in range(6):
            chunks = engine.stream(prompt(500 + i), {**SAMPLING, "max_tokens": 500})
            if i % 2:
                next(iter(chunks))
            chunks.close()  # type: ignore[attr-defined]
        assert wait_for(lambda: opened(engine, 0) == 0)
    assert wait_for(lambda: engine.client.open_requests == 0)


def test_what_is_left_serves_when_a_replica_is_drained_or_removed(
    engine: radixrt.Engine, expected: radixrt.Engine
) -> None:
    assert wait_for(lambda: serving(engine))
    assert engine.replicas is not None
    for number in (0, 1):
        engine.replicas.drain(number)
        answer = ask(engine, prompt(600 + number))
        assert answer.token_ids == ask(expected, prompt(600 + number)).token_ids
        engine.replicas.drain(number, on=False)
    engine.replicas.remove(1, 60.0)
    answer = ask(engine, prompt(602))
    assert answer.token_ids == ask(expected, prompt(602)).token_ids
    assert engine.replicas.add() == 1
    assert wait_for(lambda: serving(engine))
    assert [each.role for each in engine.replicas.describe()] == ["prefill", "decode"]


def test_roles_make_a_host_tier(long_model: Path) -> None:
    with radixrt.Engine(str(long_model), replicas=2, roles="prefill,decode", **OPTIONS) as engine:
        assert engine.config.cache.kv_host_gib > 0


def test_a_full_host_tier_means_that_prompts_are_computed(long_model: Path, expected: radixrt.Engine) -> None:
    with radixrt.Engine(str(long_model), replicas=2, roles="prefill,decode", kv_host_gib=0.0005, **OPTIONS) as engine:
        with busy(engine, requests=2):
            answers = [ask(engine, prompt(700 + i)) for i in range(3)]
        assert [answer.token_ids for answer in answers] == [ask(expected, prompt(700 + i)).token_ids for i in range(3)]


@pytest.mark.parametrize("kind", ["lfm2", "qwen3_5"])
def test_states_of_recurrent_layers_move_between_replicas(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / kind, kind, max_position_embeddings=2048)
    # The state lies one token before the prompt's end, and the decode replica copies all tokens before the state.
    prompts, options = [prompt(800 + i)[:470] for i in range(3)], {**OPTIONS, "kv_cache_tokens": 16384}
    with radixrt.Engine(str(folder), replicas=2, roles="prefill,decode", kv_host_gib=0.05, **options) as engine:
        with only(engine, 0):
            answers = [ask(engine, prompts[0])]
        with only(engine, 1):
            answers.append(ask(engine, prompts[0]))
        assert answers[1].usage.fetched_tokens == {"peer": 469}
        assert answers[1].usage.cached_tokens == 469
        # Which of these prompts move depends on measured times, and the texts do not.
        with busy(engine, requests=2):
            answers += [ask(engine, each) for each in prompts[1:]]
        engine.replicas.remove(1, 60.0)  # type: ignore[union-attr]
        answers += [ask(engine, each) for each in prompts[1:]]
        assert all(answer.usage.cached_tokens > 0 for answer in answers[-2:])
        assert wait_for(lambda: engine.client.open_requests == 0)
        engine.check_invariants()
    assert_same(folder, [prompts[0], *prompts, *prompts[1:]], answers, [SAMPLING["max_tokens"]] * 6)
