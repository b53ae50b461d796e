"""The router of real processes knows what the host tiers of replicas have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

import radixrt
from radixrt.config import ServerConfig
from radixrt.server.app import create_app
from tests.process.helpers import only
from tests.server_process import wait_for

PAGE = 64
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 1024, "num_threads": 1, "show_progress": False, "check_invariants": True,
}  # fmt: skip


def prompt(seed: int) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(3, 400, 10 * PAGE + 1).tolist()
    return tokens


def test_a_request_goes_where_a_host_tier_has_its_prefix(long_model: Path) -> None:
    sampling = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    with radixrt.Engine(str(long_model), replicas=2, kv_host_gib=0.05, **OPTIONS) as engine:

        def in_host_tier() -> int:
            found = engine.client.replica_stats.get(1)
            tiers = None if found is None or found.stats is None else found.stats.tiers
            return 0 if tiers is None else tiers.tokens_used["host"]

        with only(engine, 1):
            first = engine.generate(prompt(0), sampling)
            assert wait_for(lambda: in_host_tier() >= 10 * PAGE)
            for seed in (1, 2):  # the pool has room for one of these prompts
                engine.generate(prompt(seed), sampling)

        app = create_app(engine.client, ServerConfig(), "tiny", replica_set=engine.replicas)
        http = TestClient(app, base_url="http://127.0.0.1")
        body = {"prompt": prompt(0), "temperature": 0, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
        answer = http.post("/v1/completions", json=body).json()
        details = answer["usage"]["prompt_tokens_details"]
        assert details["cached_tokens"] == 10 * PAGE
        assert details["cached_tokens_details"]["host"] == 10 * PAGE, "another replica has copied the prefix, or none"
        assert answer["choices"][0]["token_ids"] == first.token_ids
        engine.check_invariants()
