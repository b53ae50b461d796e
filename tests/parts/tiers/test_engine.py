"""A whole engine on the CPU whose pool holds two prompts: the others come back from host memory, with equal texts."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from radixrt import Engine
from tests.tiny_models import make_tiny_model

GREEDY = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}


@pytest.mark.parametrize("page_size", [1, 16])
def test_evicted_prompts_come_back(tmp_path: Path, page_size: int) -> None:
    folder = str(make_tiny_model(tmp_path / "model", "llama"))
    prompts = [np.random.default_rng(i).integers(3, 400, 150).tolist() for i in range(5)]
    options = {"show_progress": False, "device": "cpu", "dtype": "float32", "executor": "uni", "page_size": page_size}
    with Engine(folder, kv_cache_tokens=2048, **options) as engine:
        expected = [engine.generate(prompt, GREEDY).token_ids for prompt in prompts]
    with Engine(folder, kv_cache_tokens=352, kv_host_gib=0.02, **options) as engine:
        fetched, deadline = 0, time.monotonic() + 60
        while not fetched:  # prompts are copied in idle moments
            assert time.monotonic() < deadline
            for prompt, tokens in zip(prompts, expected):
                answer = engine.generate(prompt, GREEDY)
                assert answer.token_ids == tokens
                fetched += answer.usage.fetched_tokens.get("host", 0)
        engine.check_invariants()
        moves = engine.stats.tiers.moves
        assert not any(each.failed for each in moves.values())
