"""A client with an ordinary stream, whose text and pace must not depend on what other clients send."""

from __future__ import annotations

import json
import threading
import time

import httpx

from tests.server_process import LIMIT_S

BODY = {"prompt": "A neighbour who minds its own business", "max_tokens": 100, "temperature": 0, "ignore_eos": True}


class Neighbour:
    """Streams the same greedy completion again and again, in a thread, until `stop`.

    Attributes:
        texts: the text of each finished stream.
        gaps_s: seconds between consecutive events of each stream.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.texts: list[str] = []
        self.gaps_s: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Neighbour:
        self.stream()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.stream()
            except Exception as error:
                self.errors.append(repr(error))
                return

    def stream(self) -> None:
        """Read one stream to its end."""
        parts: list[str] = []
        last = None
        with httpx.stream(
            "POST", f"{self._url}/v1/completions", json={**BODY, "stream": True}, timeout=LIMIT_S
        ) as answer:
            for line in answer.iter_lines():
                if not line:
                    continue
                now = time.perf_counter()
                if last is not None:
                    self.gaps_s.append(now - last)
                last = now
                event = line.removeprefix("data: ")
                if event == "[DONE]":
                    self.texts.append("".join(parts))
                    return
                content = json.loads(event)
                if "error" in content:
                    raise RuntimeError(event)
                parts.append(content["choices"][0]["text"])
        raise RuntimeError(f"the stream ended early: {answer.status_code}")
