"""Prefixes outlive the processes that computed them: the scheduler and the ModelRunner in host memory, the server on
disk."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixrt.parts.tiers.folder import stored_models
from tests.process.helpers import generate, workers
from tests.server_process import LIMIT_S, ServerProcess, wait_for

PROMPT = [(17 * i * i + 5 * i) % 40_000 + 100 for i in range(2000)]
SAMPLING = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def start(folder: Path, *options: str) -> ServerProcess:
    return ServerProcess(
        "--kv-host-gib", "0.3", "--kv-disk", str(folder), "--kv-disk-gib", "0.3", "--kv-cache-tokens", "4096", *options
    ).wait_ready()  # fmt: skip


def ask(server: ServerProcess) -> tuple[list[int], int]:
    """Return the tokens of the answer, and the number of prompt tokens that were not computed."""
    answer: dict[str, Any] = generate(server, text=None, input_ids=PROMPT, sampling_params=SAMPLING).json()
    return answer["output_ids"], answer["meta_info"]["cached_tokens"]


def wait_saved(folder: Path) -> None:
    """Wait until the host tier and the disk tier have the prompt's whole pages."""
    assert wait_for(lambda: sum(model.pages for model in stored_models(folder)) >= 31)


def answers_again(server: ServerProcess) -> bool:
    """Wait until the engine serves, and return whether it was restarted."""

    def serves() -> bool:
        try:
            return httpx.get(f"{server.url}/ready", timeout=LIMIT_S).status_code == 200
        except httpx.HTTPError:
            return False

    return wait_for(serves)


@pytest.mark.parametrize("signalled", ["TERM", "KILL"])
def test_a_restarted_server_finds_the_prompt(tmp_path: Path, signalled: str) -> None:
    server = start(tmp_path / "kv")
    try:
        expected, cached = ask(server)
        assert cached == 0
        if signalled == "KILL":
            wait_saved(tmp_path / "kv")
            server.process.kill()
    finally:
        code = server.stop()
    assert code == (0 if signalled == "TERM" else -signal.SIGKILL)
    server = start(tmp_path / "kv")
    try:
        assert ask(server) == (expected, 1984)
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["scheduler", "runner"])
def test_the_host_tier_outlives_a_process_that_is_killed(tmp_path: Path, kind: str) -> None:
    server = start(tmp_path / "kv")
    try:
        expected, _ = ask(server)
        wait_saved(tmp_path / "kv")
        workers(server)[kind].kill()
        assert wait_for(lambda: any("serving again" in line for line in server.lines))
        assert answers_again(server)
        assert ask(server) == (expected, 1984)
    finally:
        assert server.stop() == 0


def test_a_second_signal_ends_the_saving(tmp_path: Path) -> None:
    server = start(tmp_path / "kv", "--grace-s", "0")
    try:
        expected, _ = ask(server)
        body = {"prompt": PROMPT[:100], "max_tokens": 1000, "ignore_eos": True, "stream": True}
        runner = workers(server)["runner"]
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=LIMIT_S) as answer:
            next(answer.iter_lines())
            runner.suspend()  # a step is in flight for ever, which saving waits for
            server.process.terminate()
            assert wait_for(lambda: any("prefixes are being saved" in line for line in server.lines))
            server.process.terminate()
            assert wait_for(lambda: any("a signal has ended the saving" in line for line in server.lines))
            runner.resume()
        assert server.wait() == 0
    finally:
        server.process.kill()
    assert not any("Traceback" in line for line in server.lines)
    server = start(tmp_path / "kv")
    try:
        answer, cached = ask(server)
        assert answer == expected
        assert cached in range(0, 1985, 64)
    finally:
        assert server.stop() == 0


def test_two_signals_at_once_leave_no_page_that_is_torn(tmp_path: Path) -> None:
    expected = None
    for _ in range(2):
        server = start(tmp_path / "kv")
        try:
            answer, cached = ask(server)
            assert answer == (expected or answer)
            assert cached in range(0, 1985, 64)
            expected = answer
            server.process.terminate()
            server.process.terminate()
            assert server.wait() in (0, 130)
        finally:
            server.process.kill()
        assert not any("Traceback" in line for line in server.lines)
