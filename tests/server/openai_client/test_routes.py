"""Models, `/generate`, metrics and the flush of the cache."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import openai
import pytest


def test_models(client: openai.OpenAI, model_name: str) -> None:
    assert [model.id for model in client.models.list()] == [model_name]
    assert client.models.retrieve(model_name).id == model_name
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_native_generate(server_url: str) -> None:
    params = {"temperature": 0, "max_new_tokens": 5, "logprobs": 1}
    body = {"text": "The capital of France is", "sampling_params": params}
    answer = httpx.post(f"{server_url}/generate", json=body, timeout=60).json()
    assert "Paris" in answer["text"]
    assert len(answer["output_ids"]) == 5
    meta = answer["meta_info"]
    assert meta["completion_tokens"] == 5
    assert [row[1] for row in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["finish_reason"]["type"] == "length"
    assert meta["prefill_s"] >= 0


def test_metrics_count(chat: Callable, server_url: str) -> None:
    def value(name: str) -> float:
        lines = httpx.get(f"{server_url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    names = ("radixrt_e2e_request_latency_seconds_count", "radixrt_time_to_first_token_seconds_count")
    before = [value(name) for name in names]
    chat(max_tokens=3)
    assert [value(name) for name in names] == [count + 1 for count in before]
    assert value("radixrt_kv_slots_capacity") > 0


def test_flush_cache(chat: Callable, server_url: str, idle: Callable[[], None]) -> None:
    chat()
    idle()
    assert httpx.post(f"{server_url}/flush_cache", timeout=60).status_code == 200
    assert chat().usage.prompt_tokens_details.cached_tokens == 0
