"""`radixrt chat` against a real server: in a terminal with Ctrl-C and Ctrl-D, in a pipe, and with what goes wrong."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from radixrt.cli import main
from radixrt.terminal_chat import command
from tests.server_process import LIMIT_S, wait_for, wait_idle

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}

TAKE_TERMINAL = """
import fcntl, os, signal, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes the terminal on its standard input that of its session, to which Ctrl-C goes, and runs a command there. A shell
lets what it starts in the background ignore Ctrl-C, and the tests may be that."""


class Terminal:
    """`radixrt chat` in a pseudo-terminal, as a user sees it."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._fd, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", 24, 1000, 0, 0))  # a line is echoed whole
        # `pty.fork` would run Python in the child of a process with threads, whose locks nobody there releases.
        self._process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "radixrt", "chat", *arguments],
            stdin=end, stdout=end, stderr=end,
        )  # fmt: skip
        os.close(end)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def enter(self, line: str) -> None:
        """Type a line at the prompt, and read its echo.

        Before the prompt the terminal is not readline's: it would echo the line at once, and readline once more, so
        that a test which waits for a part of the line in an answer would find it in the second echo. A key such as
        Ctrl-D would be lost.
        """
        self.wait_for("> ")
        self.type(line + "\n")
        self.wait_for(line)

    def wait_for(self, text: str, limit_s: float = LIMIT_S) -> str:
        """Read until `text` is shown; return what was shown up to it, and drop both."""
        deadline = time.monotonic() + limit_s
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if select.select([self._fd], [], [], 1)[0]:
                try:
                    self.shown += os.read(self._fd, 65536).decode()
                except OSError:  # the other side is gone
                    raise AssertionError(f"ended without {text!r}: {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text)
        return before

    def drop_line(self) -> None:
        """Press Ctrl-C at the prompt until the next prompt is shown.

        Python's input notices a signal only while it waits for a key: a Ctrl-C that comes just before that has no
        effect until the next one, as a user would press it.
        """
        for _ in range(int(LIMIT_S)):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.wait_for("> ", 1.0)
                return
        raise AssertionError(f"Ctrl-C drops no line: {self.shown!r}")

    def leave(self) -> int:
        """Press Ctrl-D until the chat has ended, for between two prompts it is lost; return the exit code."""
        for _ in range(int(LIMIT_S)):
            self.type("\x04")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
                break
        return self.exit_code()

    def exit_code(self) -> int:
        code = self._process.wait(LIMIT_S)
        os.close(self._fd)
        return code


def interrupt_a_command(terminal: Terminal, pipe: Path) -> None:
    """Press Ctrl-C while a command runs: one that reads a pipe into which nobody writes."""
    os.mkfifo(pipe)
    terminal.enter(f"/schema {pipe}")
    ends: list[int] = []

    def is_read() -> bool:
        with contextlib.suppress(OSError):
            ends.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    assert wait_for(is_read)
    terminal.type("\x03")
    terminal.wait_for("^C")
    os.close(ends[0])


def piped(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixrt", "chat", *arguments], input=text, capture_output=True, text=True, timeout=120
    )


def test_a_chat_in_a_terminal(server_url: str, model_name: str, tmp_path: Path) -> None:
    saved, schema = tmp_path / "saved.json", tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    terminal = Terminal("--url", f"{server_url}/v1", "--temperature", "0")
    terminal.wait_for(f"{model_name} on {server_url}/v1")
    for line, said in (
        ("/shema x", "did you mean /schema?"),
        (f"/schema {tmp_path}/none", "none cannot be read: No such file"),
        ("/system You count.", "The system message is set."),
        ("Count from 1 to 10000, each number on its own line.", "1"),
    ):
        terminal.enter(line)
        terminal.wait_for(said)
        if line.startswith("/system"):
            interrupt_a_command(terminal, tmp_path / "pipe")
    terminal.type("\x03")  # Ctrl-C, in the middle of the answer
    terminal.wait_for("[interrupted, ")  # not "[interrupted; the message is forgotten"
    wait_idle(server_url)  # the server has stopped too
    terminal.enter(f"/schema {schema}")
    terminal.enter("Where is the Eiffel tower?")
    terminal.type(f"/save {saved}\n")  # typed before the answer is complete: it waits until the answer is kept
    answer = terminal.wait_for(" generated, ").rpartition("{")[2]
    assert '"city"' in answer
    terminal.wait_for("5 messages are in")
    messages = json.loads(saved.read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[0]["content"] == "You count."
    assert messages[2]["content"]
    assert list(json.loads(messages[4]["content"])) == ["city"]
    terminal.wait_for("> ")
    assert terminal.leave() == 0
    again = Terminal("--url", f"{server_url}/v1")
    again.wait_for("> ")
    again.type("\x1b[A")  # the last line of the chat before
    again.wait_for(f"/save {saved}")
    again.drop_line()
    assert again.leave() == 0


def test_a_pipe_has_a_message_in_each_line(server_url: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    text = f"Say one word.\n\n/clear\n//help\n/save {saved}\n"
    result = piped(text, "--url", server_url, "--temperature", "0", "--max-tokens", "4")
    assert result.returncode == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [message["content"] for message in messages][:1] == ["/help"]
    assert result.stdout.endswith(messages[1]["content"] + "\n")
    assert len(result.stdout) > len(messages[1]["content"]) + 1  # the first answer stands before it
    assert "cut at the largest number" in result.stderr

    broken = piped(f"/save {saved}\nnever sent\n", "--url", server_url)
    assert (broken.returncode, broken.stdout) == (1, "")
    assert "choose another name" in broken.stderr


def test_a_refused_key_and_servers_without_models(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"/v1/models": httpx.Response(401, json={"error": {"message": "wrong key"}})}
    asked: list[httpx.Request] = []

    def get(url: str, **options: object) -> httpx.Response:
        asked.append(httpx.Request("GET", url, headers=options["headers"]))  # type: ignore[arg-type]
        return answers[asked[-1].url.path]

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setenv("RADIXRT_API_KEY", "ours")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    for url, key in (("http://127.0.0.1:9", "ours"), ("https://api.openai.com/v1", "theirs")):
        assert main(["chat", "--url", url]) == 2
        error = capfd.readouterr().err
        assert "refuses the API key: wrong key; give the right one with --api-key" in error
        assert asked[-1].headers["authorization"] == f"Bearer {key}"
    answers["/v1/models"] = httpx.Response(404, text="nothing here")
    assert main(["chat", "--url", "http://127.0.0.1:9"]) == 2
    assert "lists no models (404); name one with --model" in capfd.readouterr().err


def test_an_answer_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def pieces() -> Iterator[command.Piece]:
        yield command.Piece("text", "a\x1b]0;title\x07\tb\n\x9bc")

    command._draw(pieces(), live=True)
    assert capsys.readouterr().out == "a]0;title\tb\nc"
