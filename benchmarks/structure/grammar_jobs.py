"""Run `benchmarks.structure.grammar_worker` over many schemas, with limits on the time of each and on its memory."""

import json
import os
import resource
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.structure.grammar_worker import Answer

START_LIMIT_S = 120.0
MEMORY_BYTES = 12 << 30


class Worker:
    """One child process. It is killed when it does not answer in time, and another is started for the next schema.

    Args:
        checkout: folder of the version of radixrt that the process runs; None is this one.
    """

    def __init__(self, engine: str, folder: Path, checkout: Path | None = None) -> None:
        self._checkout = checkout
        self._command = [sys.executable, "-m", "benchmarks.structure.grammar_worker", engine, str(folder)]
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def ask(self, entry: dict[str, Any], limit_s: float) -> Answer:
        """The result of one schema; an answer with an error if the worker died or took longer than `limit_s`."""
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(entry).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(limit_s)
        except BrokenPipeError:
            line = b""
        if line:
            return Answer(**json.loads(line))
        code = self._process.poll()
        self.close()
        reason = f"over {limit_s:g} s" if code is None else f"the process ended with {code}"
        return Answer(str(entry["id"]), error=reason, compile_s=limit_s)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> None:
        self._rest = b""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._checkout,
            env=os.environ
            | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
            | ({} if self._checkout is None else {"PYTHONPATH": str(self._checkout)}),
            preexec_fn=_limit_memory,
        )
        if self._line(START_LIMIT_S) != b"ready":
            raise RuntimeError(f"{' '.join(self._command)} did not start")

    def _line(self, limit_s: float) -> bytes:
        """The next line of its output; empty when it ended or the time is over."""
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return b""
                piece = os.read(self._process.stdout.fileno(), 1 << 16)
                if not piece:
                    self._process.wait()
                    return b""
                self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def run(engine: str, folder: Path, entries: Sequence[dict[str, Any]], limit_s: float) -> Iterator[Answer]:
    """The answer for each schema, as they come."""
    worker = Worker(engine, folder)
    try:
        for entry in entries:
            yield worker.ask(entry, limit_s)
    finally:
        worker.close()


def run_beside(
    engine: str, folder: Path, entries: Sequence[dict[str, Any]], limit_s: float, checkout: Path
) -> Iterator[tuple[Answer, Answer]]:
    """The answers of this version and of another for each schema, one right after the other, as they come."""
    workers = [Worker(engine, folder), Worker(engine, folder, checkout)]
    try:
        for entry in entries:
            ours, theirs = (worker.ask(entry, limit_s) for worker in workers)
            yield ours, theirs
    finally:
        for worker in workers:
            worker.close()


def read_entries(file: Path, limit: int | None) -> list[dict[str, Any]]:
    """Schemas of a JSONL file: all, or `limit` of them at even distances."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if limit is not None and limit < len(lines):
        lines = [lines[i * len(lines) // limit] for i in range(limit)]
    entries = [json.loads(line) for line in lines]
    return [entry if "schema" in entry else {"schema": entry} for entry in entries]
