"""Steps of a newcomer's first hour on one server, each of which returns what is wrong with its outcome."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai

ROOT = Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:30000"
"""The server's address in documents and examples."""

PATIENCE_S = 280.0
"""Time after which a step is given up, however slow the machine is. It is no measure of speed."""

SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^python (examples/\S+\.py.*)$", re.MULTILINE)

BLOCKS = (
    ("README.md", "/v1/chat/completions", '"finish_reason":"stop"'),
    ("docs/structured_output.md", '"response_format"', r'\\"city\\"'),
    ("docs/operations.md", "/health?deep=1", '"ok"'),
    ("docs/operations.md", "head -c 9000000", '"error"'),
    ("docs/operations.md", "[keys.alice]", "401 Unauthorized"),
    ("docs/operations.md", "openssl req", '"ok"'),
    ("docs/operations.md", "step_model", "radixrt_num_requests_waiting"),
    ("docs/terminal.md", "printf '/system", "Paris"),
)
"""Blocks of shell commands that need no GPU, no hub and no minutes: the document, a text in the block, and a pattern
that its output has."""

LINES = (
    "radixrt generate 'Why is the sky blue?'",
    "radixrt launch --help",
    "radixrt doctor",
    "echo true > schema.json; echo 5 > instance.json; radixrt schema check schema.json instance.json",
)
"""Commands that README.md names in its sentences."""

NEEDS_MORE = ("examples/ray_serve.py", "examples/receipts_to_rows.py", "examples/judge_screenshots.py")
"""Examples that need more than this project: a Ray cluster with Ray Serve, or a model that reads pictures."""

ADD: dict[str, Any] = {
    "description": "Add two numbers.",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "type": "object",
}
"""Parameters of `def add(a: int, b: int)`, as LangChain and others send them: without `additionalProperties`."""


@dataclass(frozen=True)
class Step:
    """One thing that a newcomer does.

    Attributes:
        kind: "command", "example", "call" or "tool".
        run: does it; returns what is wrong, "" if nothing is.
    """

    kind: str
    name: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Outcome:
    step: Step
    seconds: float
    wrong: str


def perform(step: Step) -> Outcome:
    """Run a step and time it. An exception is an outcome like others."""
    started = time.perf_counter()
    try:
        wrong = step.run()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return Outcome(step, time.perf_counter() - started, wrong)


# --- commands and examples ---


def shell(text: str, url: str, folder: Path, wanted: str = "") -> str:
    """Run commands in a folder, as printed but for the server's address; return what is wrong."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)
    }  # fmt: skip
    # Servers that the block starts are its children: they end with it.
    script = f"trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n{text.replace(URL, url)}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder, env=environment
    )
    if done.returncode or not re.search(wanted, done.stdout):
        return f"exit code {done.returncode}: {done.stdout[-300:]} {done.stderr[-600:]}"
    return ""


def block_of(document: str, mark: str) -> str:
    """Return the block of shell commands of a document that has a text."""
    (found,) = [block for block in SHELL_BLOCK.findall((ROOT / document).read_text()) if mark in block]
    return str(found)


def commands(url: str, folder: Path, port: int) -> Iterator[Step]:
    """Yield the runnable blocks of the documents; servers that a block starts listen on `port`."""
    for document, mark, wanted in BLOCKS:
        text = block_of(document, mark)
        if "radixrt launch" in text:
            text = text.replace("radixrt launch", f"radixrt launch --port {port}").replace(":30000", f":{port}")
        text = text.replace("radixrt chat", f"radixrt chat --url {url}/v1")
        yield Step("command", f"{document}: {mark}", partial(shell, text, url, folder, wanted))
    yield Step("command", "README.md: Python", partial(python_blocks, url))
    for line in LINES:
        yield Step("command", line, partial(shell, line, url, folder))


def python_blocks(url: str) -> str:
    """Run the blocks of README.md in their order; later ones use the engine that the first one has opened."""
    import radixrt as rt

    names: dict[str, Any] = {"__name__": "readme"}
    with rt.Engine(log_level="warning") as engine:
        rt.set_default_backend(url)
        try:
            for block in PYTHON_BLOCK.findall((ROOT / "README.md").read_text()):
                exec(compile(block, "README.md", "exec", dont_inherit=True), names)
                names["engine"] = engine
        finally:
            rt.set_default_backend(None)
    return "" if json.loads(names["cut"].text) else "no JSON"


def examples(url: str, folder: Path) -> Iterator[Step]:
    """Yield each command in the docstrings of the examples."""
    for path in sorted((ROOT / "examples").rglob("*.py")):
        for line in EXAMPLE.findall(path.read_text()):
            words = line.partition("  #")[0].strip()
            if words.startswith(NEEDS_MORE):
                continue
            if ("plain/" in words or "openai_client" in words) and "--base-url" not in words:
                words += f" --base-url {URL}"
            command = f"cd {shlex.quote(str(ROOT))} && python {words}"
            yield Step("example", words, partial(shell, command, url, folder))


# --- clients ---


def calls(url: str, model: str, seeds: int) -> Iterator[Step]:
    """Yield first calls of clients without max_tokens, at temperature 1, once for each seed."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    said: Any = [{"role": "user", "content": "What is the capital of Japan?"}]
    listed: Any = [{"role": "user", "content": "List three cities with their countries, as JSON."}]

    def chat(seed: int, **more: Any) -> str:
        answer: Any = client.chat.completions.create(model=model, messages=said, temperature=1, seed=seed, **more)
        return _ended(answer.choices[0].finish_reason, answer.choices[0].message.content)

    def stream(seed: int) -> str:
        chunks = client.chat.completions.create(model=model, messages=said, temperature=1, seed=seed, stream=True)
        found = [chunk.choices[0] for chunk in chunks if chunk.choices]
        return _ended(found[-1].finish_reason, "".join(each.delta.content or "" for each in found))

    def json_object(seed: int) -> str:
        answer = client.chat.completions.create(
            model=model, messages=listed, temperature=1, seed=seed, response_format={"type": "json_object"}
        )
        text = answer.choices[0].message.content or ""
        return _ended(answer.choices[0].finish_reason, text) or ("" if isinstance(json.loads(text), dict) else text)

    def completion(seed: int) -> str:
        answer = client.completions.create(model=model, prompt="The capital of Japan is", temperature=1, seed=seed)
        return _ended(answer.choices[0].finish_reason, answer.choices[0].text)

    def response(seed: int) -> str:
        answer: Any = client.responses.create(
            model=model, input="What is the capital of Japan?", temperature=1, extra_body={"seed": seed}
        )
        return "" if answer.status in ("completed", "incomplete") and answer.output_text else str(answer.status)

    def message(seed: int) -> str:  # this API has no default of max_tokens
        made = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        answer: Any = made.messages.create(
            model=model, messages=said, max_tokens=1024, extra_body={"temperature": 1, "seed": seed}
        )
        return "" if answer.stop_reason in ("end_turn", "max_tokens") and answer.content else str(answer.stop_reason)

    every: list[Callable[[int], str]] = [chat, stream, json_object, completion, response, message]
    for seed in range(seeds):
        for call in every:
            yield Step("call", f"{call.__name__}, seed {seed}", partial(call, seed))


def _ended(reason: str | None, text: str | None) -> str:
    return "" if reason in ("stop", "length") and text else f"{reason}: {text!r:.200}"


def tools(url: str, model: str, rounds: int) -> Iterator[Step]:
    """Yield calls of a function of two arguments, which must get these two and no others."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
    said: Any = [{"role": "user", "content": "What is 3 + 4?"}]

    def of_openai(seed: int) -> str:
        tool: Any = {"type": "function", "function": {"name": "add", "parameters": ADD}}
        answer: Any = client.chat.completions.create(
            model=model, messages=said, tools=[tool], tool_choice="required", temperature=1, seed=seed
        )
        return _arguments(json.loads(call.function.arguments) for call in answer.choices[0].message.tool_calls)

    def of_anthropic(seed: int) -> str:
        made = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        tool: Any = {"name": "add", "input_schema": ADD}
        answer: Any = made.messages.create(
            model=model, messages=said, tools=[tool], tool_choice={"type": "any"}, max_tokens=1024,
            extra_body={"temperature": 1, "seed": seed},
        )  # fmt: skip
        return _arguments(block.input for block in answer.content if block.type == "tool_use")

    for seed in range(rounds):
        for call in (of_openai, of_anthropic):
            yield Step("tool", f"{call.__name__}, seed {seed}", partial(call, seed))


def _arguments(found: Iterator[Any]) -> str:
    given = list(found)
    good = all(set(each) == {"a", "b"} and all(type(value) is int for value in each.values()) for each in given)
    return "" if given and good else f"called with {given}"
