"""Greedy text is that of transformers when prefixes come back from host memory and from disk."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixrt
from radixrt.engine.engine import Completion
from radixrt.errors import EngineError
from radixrt.parts.tiers.policy import Prices
from tests.equivalence.test_tiny_models import assert_same, engine
from tests.tiny_models import make_tiny_model

HOST: dict[str, Any] = {"kv_host_gib": 0.02, "kv_cache_tokens": 1024, "max_running_requests": 4}
"""The pool holds three of the prompts below, and the host tier all of them."""

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth-1": {"max_inflight_steps": 1},
    "page-16": {"page_size": 16},
    "chunk-16": {"chunked_prefill_size": 16},
    "chunk-48-page-48": {"chunked_prefill_size": 48, "page_size": 48, "kv_cache_tokens": 1056},
    "torch-native": {"attention_backend": "torch_native"},
    "lfu": {"eviction_policy": "lfu"},
    "retracting": {"schedule_conservativeness": 0.0, "kv_cache_tokens": 640, "max_running_requests": 8},
    "small-host": {"kv_host_gib": 0.0012},
}
ROUNDS = 3


def tree_prompts() -> list[list[int]]:
    """Four documents of three to five pages, each with three continuations of odd lengths."""
    rng = random.Random(3)
    documents = [[rng.randrange(3, 500) for _ in range(rng.randrange(190, 330))] for _ in range(4)]
    return [document + [rng.randrange(3, 500) for _ in range(rng.randrange(1, 90))] for document in documents * 3]


def fetched(outputs: list[Completion], tier: str) -> int:
    return sum(output.usage.fetched_tokens.get(tier, 0) for output in outputs)


def ask(made: radixrt.Engine, folder: Path, *, rounds: int = ROUNDS) -> list[Completion]:
    """Ask all prompts in each round, a few at a time, and compare the answers with transformers."""
    inputs = tree_prompts()
    lengths = [3 + i % 11 for i in range(len(inputs))]
    params = [{"temperature": 0, "max_tokens": n, "min_tokens": n} for n in lengths]
    outputs: list[Completion] = []
    for _ in range(rounds):
        found: list[Completion] = []
        for first in range(0, len(inputs), 3):
            found += made.generate(inputs[first : first + 3], params[first : first + 3])
        assert_same(folder, inputs, found, lengths)
        outputs += found
    return outputs


@pytest.fixture
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch whatever can be fetched: a tiny model computes its tokens faster than they are copied."""
    monkeypatch.setattr(Prices, "pays", lambda *_: True)


@pytest.mark.usefixtures("always_pays")
@pytest.mark.parametrize(
    ("kind", "variant"),
    [
        *itertools.product(["llama"], VARIANTS),
        *itertools.product(["mistral", "gpt_oss"], ["default"]),
    ],
)
def test_prefixes_from_host_memory(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    with engine(folder, **{**HOST, **VARIANTS[variant]}) as made:
        outputs = ask(made, folder)
    assert fetched(outputs, "host") > 0


@pytest.mark.usefixtures("always_pays")
def test_prefixes_of_an_earlier_engine_from_disk(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder, options = tiny_model("llama"), {**HOST, "kv_disk": str(tmp_path / "kv"), "kv_disk_gib": 0.1}
    with engine(folder, **options) as made:
        first = ask(made, folder, rounds=1)
        time.sleep(3.0)  # idle
    with engine(folder, **options) as made:
        again = ask(made, folder, rounds=1)
    assert fetched(first, "disk") == 0
    assert fetched(again, "disk") > 1000


HYBRID: dict[str, dict[str, Any]] = {
    "default": {},
    "depth-1": {"max_inflight_steps": 1},
    "chunk-16": {"chunked_prefill_size": 16},
    "few-states": {"num_states": 7},
    "retracting": VARIANTS["retracting"],
    "small-host": {"kv_host_gib": 0.0005},
}


@pytest.mark.usefixtures("always_pays")
@pytest.mark.parametrize(
    ("kind", "variant"),
    [*itertools.product(["qwen3_5"], HYBRID), ("lfm2", "default"), ("lfm2", "few-states"), ("qwen3_next", "chunk-16")],
)
def test_states_from_host_memory(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    with engine(folder, **{**HOST, **HYBRID[variant]}) as made:
        outputs = ask(made, folder)
        hint = {"temperature": 0, "max_tokens": 6, "min_tokens": 6, "n": 3}
        fork = made.generate(tree_prompts()[0], hint)
        made.check_invariants()
    assert fetched(outputs, "host") > 0
    assert len({tuple(branch.token_ids) for branch in fork}) == 1


@pytest.mark.usefixtures("always_pays")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [("lfm2", {}), ("qwen3_5", {"kv_host_gib": 0.002}), ("qwen3_next", {"tp": 2}), ("stages", {"pp": 2})],
    ids=["lfm2", "qwen3_5-small-host", "tp-2", "pp-2"],
)
def test_states_of_an_earlier_engine_from_disk(
    kind: str, layout: dict[str, Any], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    if kind == "stages":  # the second stage has no recurrent layer
        layers = ["linear_attention", "full_attention", "full_attention", "full_attention"]
        folder = make_tiny_model(tmp_path / "m", "qwen3_next", layer_types=layers)
    else:
        folder = tiny_model(kind)
    disk = {"kv_disk": str(tmp_path / "kv"), "kv_disk_gib": 0.1}
    ranks = {"executor": "mp"} if "tp" in layout or "pp" in layout else {}
    for start in range(2):
        with engine(folder, **{**HOST, **disk, **layout, **ranks}) as made:
            outputs = ask(made, folder, rounds=1)
            assert bool(fetched(outputs, "disk")) is (start == 1)
            made.check_invariants()
            time.sleep(3.0)  # idle


@pytest.mark.usefixtures("always_pays")
@pytest.mark.parametrize("killed", ["ModelRunner", "scheduler"])
def test_states_outlive_a_process_that_is_killed(killed: str, tiny_model: Callable[[str], Path]) -> None:
    folder, prompt = tiny_model("qwen3_5"), tree_prompts()[0]
    with engine(folder, **{**HOST, "kv_cache_tokens": 4096}, executor="mp") as made:

        def answer() -> Completion:
            output = made.generate([prompt], {"temperature": 0, "max_tokens": 5, "min_tokens": 5})
            assert_same(folder, [prompt], output, [5])
            return output[0]

        answer()
        time.sleep(2.0)  # idle
        (pid,) = [pid for name, pid in made.pids.items() if killed.lower() in name.lower()]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            try:
                again = answer()
                break
            except EngineError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
        made.check_invariants()
    assert again.usage.cached_tokens == len(prompt) - 1


@pytest.mark.parametrize("layout", [{"tp": 2}, {"pp": 2}], ids=["tp-2", "pp-2"])
def test_several_ranks(layout: dict[str, int], tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    options = {**HOST, **layout, "executor": "mp", "kv_disk": str(tmp_path / "kv"), "kv_disk_gib": 0.1}
    for _ in range(2):
        with engine(folder, **options) as made:
            outputs = ask(made, folder)
            made.check_invariants()
            time.sleep(3.0)  # idle
    assert sum(fetched(outputs, tier) for tier in ("host", "disk")) > 0
