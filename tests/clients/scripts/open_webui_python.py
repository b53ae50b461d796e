"""Open WebUI's backend itself: what it asks its OpenAI connection, its Anthropic route and its RAG engine for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from harness import MODEL, V1, case, main

LIMIT_S = 300.0
SETTINGS = {
    "ANONYMIZED_TELEMETRY": "False",
    "ENABLE_OLLAMA_API": "False",
    "ENABLE_VERSION_UPDATE_CHECK": "False",
    "OFFLINE_MODE": "True",
    "OPENAI_API_BASE_URLS": V1,
    "OPENAI_API_KEYS": "none",
    "RAG_EMBEDDING_ENGINE": "openai",
    "RAG_EMBEDDING_MODEL": MODEL,
    "RAG_OPENAI_API_BASE_URL": V1,
    "RAG_OPENAI_API_KEY": "none",
    "WEBUI_SECRET_KEY": "none",
}
QUESTION = [{"role": "user", "content": "Name a colour."}]


class WebUI:
    """The backend on a free port, with a first user."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder = tempfile.mkdtemp(prefix="open-webui-")
        command = [
            str(Path(sys.executable).with_name("open-webui")),
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        environment = {**os.environ, **SETTINGS, "DATA_DIR": folder}
        self.process = subprocess.Popen(command, env=environment, cwd=folder, stdout=sys.stderr, stderr=sys.stderr)
        self.url = f"http://127.0.0.1:{port}"
        self.token = ""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.call("GET", "/health")
                break
            except urllib.error.URLError:
                time.sleep(0.5)
        user = {"name": "me", "email": "me@example.com", "password": "a-password-of-Mine-1"}
        self.token = self.call("POST", "/api/v1/auths/signup", user)["token"]

    def text(self, method: str, path: str, body: object = None) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None

    def call(self, method: str, path: str, body: object = None):
        return json.loads(self.text(method, path, body))


web = WebUI()


@case
def connect():
    """The connection test of the admin's settings, then the list of models."""
    verified = web.call("POST", "/openai/verify", {"url": V1, "key": "none"})
    assert verified["data"][0]["id"] == MODEL
    assert [model["id"] for model in web.call("GET", "/api/models?refresh=true")["data"]] == [MODEL]


@case
def chat_stream():
    """The fields that its page sends for a turn of a chat."""
    body = {
        "stream": True, "model": MODEL, "messages": QUESTION, "stream_options": {"include_usage": True},
        "params": {
            "max_tokens": 16, "temperature": 0.7, "top_p": 0.9, "min_p": 0.01, "top_k": 20, "seed": 1,
            "stop": ["\n\n\n"], "frequency_penalty": 0.1, "presence_penalty": 0.1, "reasoning_effort": "low",
            "logit_bias": {"5": -100}, "custom_params": {"repetition_penalty": "1.1"},
        },
        "features": {"voice": False, "image_generation": False, "code_interpreter": False, "web_search": False},
        "variables": {"{{USER_NAME}}": "me"}, "model_item": {"id": MODEL},
    }  # fmt: skip
    text = web.text("POST", "/api/chat/completions", body)
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk.get("choices"))
    assert any(chunk.get("usage") for chunk in chunks)


@case
def chat():
    answer = web.call("POST", "/api/chat/completions", {"model": MODEL, "messages": QUESTION, "max_tokens": 8})
    assert answer["choices"][0]["message"]["content"]


@case
def proxied():
    answer = web.call("POST", "/openai/chat/completions", {"model": MODEL, "messages": QUESTION, "max_tokens": 8})
    assert answer["choices"][0]["message"]["content"]


@case
def tools():
    parameters = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    tool = {
        "type": "function",
        "function": {"name": "weather", "description": "The weather.", "parameters": parameters},
    }
    body = {"model": MODEL, "messages": QUESTION, "tools": [tool], "tool_choice": "required", "max_tokens": 48}
    answer = web.call("POST", "/api/chat/completions", {**body, "stream": False})
    assert answer["choices"][0]["message"]["tool_calls"]


@case
def emoji_task():
    """Run the task of its page whose tokens Open WebUI bounds.

    Tags and follow-ups have no bound, and a small model may go on to the end of its context.
    """
    answer = web.call("POST", "/api/v1/tasks/emoji/completions", {"model": MODEL, "prompt": "It is sunny."})
    assert answer["choices"][0]["message"]["content"] is not None


@case
def embeddings():
    answer = web.call("POST", "/api/embeddings", {"model": MODEL, "input": ["a cat", "a dog"]})
    assert len(answer["data"]) == 2


@case
def rag():
    """A text that is taken into a collection, and a query of it."""
    web.call(
        "POST",
        "/api/v1/retrieval/process/text",
        {"name": "a", "content": "The sky is blue.", "collection_name": "colours"},
    )
    query = {"collection_name": "colours", "query": "What is the sky?", "k": 1}
    assert "blue" in json.dumps(web.call("POST", "/api/v1/retrieval/query/doc", query))


@case
def responses():
    answer = web.call("POST", "/openai/responses", {"model": MODEL, "input": "Name a colour.", "max_output_tokens": 8})
    assert answer["output"][0]["content"][0]["text"]


try:
    main()
finally:
    web.process.terminate()
    web.process.wait(60)
