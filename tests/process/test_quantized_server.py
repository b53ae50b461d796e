"""Servers of the embedded model whose weights are quantized while they load: chats, JSON, /server_info."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.server_process import LIMIT_S, ServerProcess

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
    "required": ["city", "large"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["int8", "int4"])
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, ServerProcess]]:
    server = ServerProcess("--quantization", request.param, "--device", "cpu", "--kv-cache-tokens", "4096")
    try:
        yield request.param, server.wait_ready()
    finally:
        server.stop()


def ask(server: ServerProcess, question: str, **options: Any) -> str:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="-", timeout=LIMIT_S)
    message = {"role": "user", "content": question}
    answer = client.chat.completions.create(
        model="smollm2-135m-instruct", messages=[message], temperature=0.0, **options
    )  # type: ignore[list-item]
    return answer.choices[0].message.content or ""


def test_a_chat(server: tuple[str, ServerProcess]) -> None:
    assert "Paris" in ask(server[1], "What is the capital of France?", max_tokens=24)


def test_json(server: tuple[str, ServerProcess]) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    found = json.loads(ask(server[1], "Describe Paris.", max_tokens=64, response_format=form))
    assert isinstance(found["city"], str)
    assert isinstance(found["large"], bool)


def test_server_info(server: tuple[str, ServerProcess]) -> None:
    kind, process = server
    weights = httpx.get(f"{process.url}/server_info", timeout=LIMIT_S).json()["weights"]
    assert weights["scheme"].startswith(kind)
    assert weights["kernels"]
    assert weights["quantized"] == 1.0
    said = f"100 % of the weights are quantized: {weights['scheme']}, kernels: {', '.join(weights['kernels'])}"
    assert any(said in line for line in process.lines)
