"""Requests from trace files, in the formats of Mooncake and of Qwen-Bailian.

Both are JSON lines in which a prompt is a list of hashes of its blocks, so that equal prefixes have equal hashes:

    Mooncake (FAST25-release/traces)   {"timestamp": ms, "input_length", "output_length", "hash_ids"}, blocks of 512
    Qwen-Bailian (*_blksz_16.jsonl)    {"chat_id", "parent_chat_id" or -1, "timestamp": s, "input_length",
                                        "output_length", "type", "turn", "hash_ids"}, blocks of 16
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

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
