"""The command `radixrt chat`: reads lines, streams answers, and keeps the history of lines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from types import ModuleType

from radixrt.errors import RequestError
from radixrt.models.loading.source import cache_folder
from radixrt.openai_api import find_server
from radixrt.terminal_chat.commands import NAMES, Commands, read_schema
from radixrt.terminal_chat.conversation import Answer, ChatClient, Conversation, Piece

HISTORY_LINES = 1000
PROMPT = "> "
DIM, PLAIN = "\x1b[2m", "\x1b[0m"
CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160)))
"""Characters of an answer that would drive the terminal: all control characters but tab and newline."""


def chat(
    url: str,
    model: str | None = None,
    api_key: str | None = None,
    *,
    system: str | None = None,
    schema: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
) -> int:
    """Chat with a server until Ctrl-D or /quit; where the input is no terminal, answer each of its lines.

    Args:
        schema: file with a JSON schema for the answers.

    Returns:
        The exit code: 1 if a line of a pipe could not be answered, which ends the chat; else 0.

    Raises:
        ConfigError: the server does not answer, or refuses the key.
        RequestError: the schema's file cannot be read.
    """
    conversation = Conversation(system, None if schema is None else read_schema(schema))
    server = find_server(url, model, api_key)
    client = ChatClient(server, max_completion_tokens=max_tokens, temperature=temperature)
    commands = Commands(conversation, server.model)
    live = sys.stdin.isatty() and sys.stdout.isatty()
    if live:
        print(f"{server.model} on {server.url}. /help lists the commands; Ctrl-D leaves.")
    try:
        for line in _typed_lines() if live else (line.strip() for line in sys.stdin):
            try:
                if not _take(line, conversation, commands, client, live=live):
                    return 0
            except RequestError as error:
                print(f"radixrt chat: {error}", file=sys.stderr)
                if not live:
                    return 1
            except KeyboardInterrupt:  # when an answer was just complete, or while a command ran
                if not live:
                    raise
                print(PLAIN)
    finally:
        client.close()
    return 0


def _take(line: str, conversation: Conversation, commands: Commands, client: ChatClient, *, live: bool) -> bool:
    """Carry out or answer a line; return False to leave the chat."""
    if not line:
        return True
    if line.startswith("/") and not line.startswith("//"):
        said = commands.run(line)
        if said is not None and live:
            print(said)
        return said is not None
    _answer(line[1:] if line.startswith("//") else line, conversation, client, live=live)
    return True


def _answer(message: str, conversation: Conversation, client: ChatClient, *, live: bool) -> None:
    """Stream the answer to a message. Ctrl-C ends it and keeps what came; without any, the message is forgotten."""
    turns = conversation.turns
    turns.append({"role": "user", "content": message})
    answer, start = Answer(), time.monotonic()
    interrupted = False
    try:
        with contextlib.closing(client.ask(conversation, answer)) as pieces:
            _draw(pieces, live=live)
    except KeyboardInterrupt:
        if not live:
            raise
        interrupted = True
    finally:  # also after an error in the middle
        if answer.text or answer.finish_reason:
            turns.append({"role": "assistant", "content": answer.text})
        else:
            turns.pop()
        if live or answer.text:
            print(PLAIN if live else "", flush=True)
    if live:
        print(f"{DIM}[{_summary(answer, time.monotonic() - start, interrupted=interrupted)}]{PLAIN}")
    elif answer.finish_reason == "length":
        print("radixrt chat: the answer was cut at the largest number of tokens", file=sys.stderr)


def _draw(pieces: Iterator[Piece], *, live: bool) -> None:
    """Print an answer as it comes; reasoning is dim on a terminal, and not printed elsewhere."""
    reasoning = False
    for piece in pieces:
        if not live:
            if piece.kind == "text":
                print(piece.text, end="", flush=True)
            continue
        if reasoning != (piece.kind == "reasoning"):
            reasoning = not reasoning
            print(DIM if reasoning else f"{PLAIN}\n", end="")
        print(piece.text.translate(CONTROLS), end="", flush=True)


def _summary(answer: Answer, seconds: float, *, interrupted: bool) -> str:
    parts = []
    if interrupted:
        parts.append("interrupted" if answer.text else "interrupted; the message is forgotten")
    if answer.finish_reason == "length":
        parts.append("cut at the largest number of tokens")
    if answer.usage is not None:
        usage = answer.usage
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        parts.append(f"{usage.get('prompt_tokens')} prompt tokens" + (f", {cached} cached" if cached else ""))
        parts.append(f"{usage.get('completion_tokens')} generated")
    return ", ".join([*parts, f"{seconds:.1f} s"])


def _typed_lines() -> Iterator[str]:
    """Yield the lines that are typed, with editing and history. Ctrl-C drops the line, Ctrl-D ends."""
    with _history():
        while True:
            try:
                line = input(PROMPT)
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return
            yield line.strip()


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Load the history of lines, and write it back. A folder that cannot be written is no error."""
    readline = _readline()
    if readline is None:
        yield
        return
    file = cache_folder() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims(" ")
    readline.set_completer(lambda text, n: ([name + " " for name in NAMES if name.startswith(text)] + [None])[n])
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))  # what was typed is its writer's alone
            readline.write_history_file(file)


def _readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:  # a Python without it; lines are read all the same
        return None
    return readline
