"""OpenAI's own client of the real server: `radixrt launch` in a process of its own, the default model.

`server_url` and `model_name` come from tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from tests.server_process import wait_idle

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def chat(client: openai.OpenAI, model_name: str) -> Callable[..., Any]:
    def ask(**fields: Any) -> Any:
        fields = {"model": model_name, "messages": QUESTION, "max_tokens": 8, "temperature": 0, **fields}
        return client.chat.completions.create(**fields)

    return ask


@pytest.fixture
def complete(client: openai.OpenAI, model_name: str) -> Callable[..., Any]:
    def ask(prompt: Any = "The capital of France is", **fields: Any) -> Any:
        return client.completions.create(**{"model": model_name, "prompt": prompt, "temperature": 0, **fields})

    return ask


@pytest.fixture
def idle(server_url: str) -> Callable[[], None]:
    """Wait until the server has nothing left of any request."""
    return lambda: wait_idle(server_url)
