"""Programs from trace files (`radixrt.bench.traces`).

The tokens of a block are made from its hash. A turn of a Bailian chat begins at its own time, and not before the turn
before it has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from benchmarks.fleet.programs import Call, Program, Steps
from radixrt.bench.traces import BAILIAN_BLOCK, MOONCAKE_BLOCK, TraceLine
from radixrt.messages.wire import Int32Array


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
