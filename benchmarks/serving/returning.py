"""Table "Prompts that return" of docs/benchmarks.md: time to the first token of prompts that a server has seen before.

    python -m benchmarks.serving.returning restart --prompts 2 --tokens 1000 --rounds 3 \\
        --server 'radixrt=radixrt launch --num-threads 1 --kv-host-gib 0.5 --kv-disk {folder} --port {port}' \\
        --server 'llama.cpp=llama-server -m FILE.gguf -t 1 -np 2 -c 4096 --slot-save-path {folder} --port {port}'

restart: the prompts are sent, the server rests for `--rest` seconds, is stopped and started again, and gets the prompts
    again. A llama-server keeps one prompt in each slot, which is saved by /slots/ID?action=save before the stop and
    restored after the start; its `-np` must be at least the number of prompts.
eviction: the prompts are sent twice to one server, whose KV pool (--kv-cache-tokens, -c) must be too small for all of
    them.

Each round starts every server in turn, with new prompts, which are the same for all servers. Before the first prompt
each server gets three short requests of other text. Figures are medians over prompts and rounds of the milliseconds to
the first token, the first time (cold) and the second time (again), and of their quotient for each prompt. "same" counts
the answers of the second time, greedy, that equal the first one's. No speed is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from benchmarks.common import machine
from benchmarks.common.servers import ServerError, served_model, started
from benchmarks.common.tables import table
from benchmarks.serving.__main__ import named

OUTPUT = 8
WORD_TOKENS = 2.0
"""Tokens of an average word of `WORDS`, so that the length of prompts is about right; servers report the exact one."""
WORDS = [
    "river", "stone", "light", "garden", "window", "music", "paper", "silver", "morning", "forest", "table",
    "yellow", "bridge", "winter", "number", "coffee", "letter", "mountain", "island", "engine", "doctor", "summer",
    "kitchen", "market", "planet", "story", "shadow", "bottle", "metal", "village",
]  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """First answer of a server to a prompt, or a later one.

    Attributes:
        first_s: seconds to the first token.
    """

    first_s: float
    text: str
    prompt_tokens: int


@dataclass(frozen=True)
class Returned:
    """A prompt that a server got twice."""

    server: str
    cold: Answer
    again: Answer


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.returning",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("scenario", choices=("restart", "eviction"))
    parser.add_argument("--server", action="append", type=named, required=True, metavar="NAME=COMMAND")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of a prompt, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=2.0, help="seconds before the stop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ready-limit", type=float, default=300.0)
    return parser.parse_args(argv)


def prompts(count: int, tokens: int, seed: int) -> list[str]:
    """Return unique prompts of about the same number of tokens."""
    draw = random.Random(seed)
    length = max(int(tokens / WORD_TOKENS), 1)
    return [" ".join(f"{draw.choice(WORDS)}{draw.randrange(10)}" for _ in range(length)) for _ in range(count)]


class Client:
    """Sends prompts to a server that is ready.

    Args:
        has_slots: the server is a llama-server, whose slots are named, saved and restored.
    """

    def __init__(self, url: str, *, has_slots: bool) -> None:
        self._url = url
        self._has_slots = has_slots
        self._model = served_model(url)
        # A connection for each request: llama-server closes kept ones without a word.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(trust_env=False, timeout=600.0, limits=limits)
        for i in range(3):
            self.ask(f"{i} is a number")

    def ask(self, prompt: str, slot: int | None = None) -> Answer:
        """Return a greedy answer; raise ServerError if the server refuses.

        Args:
            slot: slot of a llama-server; None lets the server choose.
        """
        body = {
            "model": self._model, "prompt": prompt, "max_tokens": OUTPUT, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        if self._has_slots and slot is not None:
            body["id_slot"] = slot
        began, first_s, text, tokens = time.perf_counter(), None, "", 0
        with self._http.stream("POST", f"{self._url}/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise ServerError(response.read().decode(errors="replace"))
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                first_s = first_s or time.perf_counter() - began
                text += "".join(choice.get("text") or "" for choice in chunk["choices"])
                tokens = (chunk.get("usage") or {}).get("prompt_tokens", tokens)
        if first_s is None:
            raise ServerError("the server has answered nothing")
        return Answer(first_s, text, tokens)

    def slots(self, action: str, count: int) -> None:
        """Save or restore the first slots of a llama-server; nothing for other servers."""
        for slot in range(count if self._has_slots else 0):
            answer = self._http.post(
                f"{self._url}/slots/{slot}", params={"action": action}, json={"filename": f"slot{slot}"}
            )
            if answer.status_code != 200:
                raise ServerError(f"/slots/{slot}?action={action}: {answer.text}")


@contextmanager
def serving(command: str, folder: Path, ready_limit_s: float) -> Iterator[Client]:
    """Start a server, and stop it at the end by SIGTERM."""
    filled = command.replace("{folder}", str(folder))
    log = folder / "log"
    with started(filled, log, ready_limit_s, 30.0) as server:
        try:
            yield Client(server.url, has_slots="llama-server" in command)
        except httpx.HTTPError as error:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            raise ServerError(f"{type(error).__name__}: {error}\n{last}") from None


def restart(name: str, command: str, texts: list[str], options: argparse.Namespace) -> list[Returned]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        os.chmod(folder, 0o700)
        with serving(command, folder, options.ready_limit) as client:
            cold = [client.ask(text, i) for i, text in enumerate(texts)]
            client.slots("save", len(texts))
            time.sleep(options.rest)
        with serving(command, folder, options.ready_limit) as client:
            client.slots("restore", len(texts))
            again = [client.ask(text, i) for i, text in enumerate(texts)]
    return [Returned(name, *pair) for pair in zip(cold, again, strict=True)]


def eviction(name: str, command: str, texts: list[str], options: argparse.Namespace) -> list[Returned]:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with serving(command, folder, options.ready_limit) as client:
            cold, again = ([client.ask(text) for text in texts] for _ in range(2))
    return [Returned(name, *pair) for pair in zip(cold, again, strict=True)]


def summary(found: Sequence[Returned]) -> str:
    """Return the table of all servers."""
    rows = []
    for name in dict.fromkeys(each.server for each in found):
        own = [each for each in found if each.server == name]
        rows.append(
            [
                name,
                f"{median(each.cold.prompt_tokens for each in own):,.0f}",
                f"{1000 * median(each.cold.first_s for each in own):,.0f}",
                f"{1000 * median(each.again.first_s for each in own):,.0f}",
                f"{median(each.again.first_s / each.cold.first_s for each in own):.2f}",
                f"{sum(each.again.text == each.cold.text for each in own)} of {len(own)}",
            ]
        )
    return table(["server", "prompt", "cold, ms", "again, ms", "again / cold", "same"], rows)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    run, found = restart if options.scenario == "restart" else eviction, []
    for number in range(options.rounds):
        texts = prompts(options.prompts, options.tokens, options.seed + number)
        for name, command in options.server:
            try:
                found += run(name, command, texts, options)
            except ServerError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 1
            print(f"round {number + 1}, {name}: load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    print(json.dumps(machine.facts()))
    print(summary(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
