"""Requests from trace files, in the formats of Mooncake and of Qwen-Bailian.

Both are JSON lines in which a prompt is a list of hashes of its blocks, so that equal prefixes have equal hashes:

    Mooncake (FAST25-release/traces)   {"timestamp": ms, "input_length", "output_length", "hash_ids"}, blocks of 512
    Qwen-Bailian (*_blksz_16.jsonl)    {"chat_id", "parent_chat_id" or -1, "timestamp": s, "input_length",
                                        "output_length", "type", "turn", "hash_ids"}, blocks of 16

The tokens of a block are made from its hash. A turn of a Bailian chat begins at its own time, and not before the turn
before it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.fleet.programs import Call, Program, Steps
from radixrt.messages.wire import Int32Array

MOONCAKE_BLOCK, BAILIAN_BLOCK = 512, 16
FORMATS = ("mooncake", "bailian")


@dataclass(frozen=True)
class TraceLine:
    """A request of a trace.

    Attributes:
        at: seconds since the trace began.
        chat, parent: ids of the chat's turns; -1 if there is none.
    """

    at: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    chat: int = -1
    parent: int = -1


def read_trace(path: Path, kind: str, limit: int | None = None) -> list[TraceLine]:
    """Read the requests of a trace in the order of their times.

    Args:
        kind: one of FORMATS.
        limit: number of lines that are read; None for all.

    Raises:
        ValueError: a line is not a request of that format; names the line and the field.
    """
    with path.open(encoding="utf-8") as file:
        lines = [
            _line(text, kind, f"{path}, line {number}")
            for number, text in enumerate(file, 1)
            if text.strip() and (limit is None or number <= limit)
        ]
    if not lines:
        raise ValueError(f"{path} holds no requests")
    return sorted(lines, key=lambda line: line.at)


def _line(text: str, kind: str, place: str) -> TraceLine:
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"{place}: not a JSON object")

    def number(name: str, *, whole: bool) -> float:
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value < 0:
            raise ValueError(f"{place}: {name!r} must be a number, 0 or more, not {value!r}")
        return value

    block = MOONCAKE_BLOCK if kind == "mooncake" else BAILIAN_BLOCK
    length, output = int(number("input_length", whole=True)), int(number("output_length", whole=True))
    hashes = fields.get("hash_ids")
    if not isinstance(hashes, list) or not all(isinstance(h, int) and not isinstance(h, bool) for h in hashes):
        raise ValueError(f"{place}: 'hash_ids' must be a list of integers")
    if len(hashes) * block < length:
        raise ValueError(f"{place}: 'hash_ids' has {len(hashes)} blocks of {block} for {length} tokens; wrong format?")
    at = number("timestamp", whole=False) / (1000 if kind == "mooncake" else 1)
    if kind == "mooncake":
        return TraceLine(at, length, output, hashes)
    chat, parent = fields.get("chat_id"), fields.get("parent_chat_id", -1)
    if not isinstance(chat, int) or not isinstance(parent, int):
        raise ValueError(f"{place}: 'chat_id' and 'parent_chat_id' must be integers")
    return TraceLine(at, length, output, hashes, chat, parent)


def trace_programs(lines: Iterable[TraceLine], kind: str, speed: float, max_tokens: int) -> Iterator[Program]:
    """Yield the requests of a trace, each a program of one call, or of one chat's turns for Bailian.

    Args:
        speed: factor by which requests come faster than in the trace.
        max_tokens: longest sequence that is served; longer prompts are cut to leave a quarter of it to outputs.
    """
    block = MOONCAKE_BLOCK if kind == "mooncake" else BAILIAN_BLOCK
    chats: list[list[TraceLine]] = []
    by_turn: dict[int, list[TraceLine]] = {}
    for line in lines:
        chat = by_turn.get(line.parent) if line.parent >= 0 else None
        if chat is None:
            chat = []
            chats.append(chat)
        chat.append(line)
        if line.chat >= 0:
            by_turn[line.chat] = chat
    for number, chat in enumerate(chats):
        yield Program(chat[0].at / speed, f"t{number}", _turns(chat, block, speed, max_tokens))


def _turns(chat: list[TraceLine], block: int, speed: float, max_tokens: int) -> Steps:
    for line in chat:
        length = min(max(line.input_length, 1), max_tokens * 3 // 4)
        prompt = block_tokens(line.hash_ids, block)[:length]
        output = np.full(min(max(line.output_length, 1), max_tokens - length - 1), 1, np.int32)
        yield [Call(prompt, output, not_before=line.at / speed, has_known_end=False)]


def block_tokens(hash_ids: list[int], block: int) -> Int32Array:
    """Return int32[len(hash_ids) * block] tokens: equal for equal hashes, and different at once for others."""
    starts = np.array(hash_ids, np.uint64) * np.uint64(block)
    tokens = starts[:, None] + np.arange(block, dtype=np.uint64)
    return (tokens % np.uint64(2**31 - 16) + np.uint64(8)).astype(np.int32).reshape(-1)
