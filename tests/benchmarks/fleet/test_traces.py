"""Trace files of both formats become programs whose prompts share tokens where their hashes say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fleet.traces import block_tokens, trace_programs
from radixrt.bench.traces import BAILIAN_BLOCK, MOONCAKE_BLOCK, read_trace

MOONCAKE = [
    {"timestamp": 3000, "input_length": 1030, "output_length": 3, "hash_ids": [0, 7, 8]},
    {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
]
BAILIAN = [
    {"chat_id": 3, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "output_length": 2, "type": "text",
     "turn": 1, "hash_ids": [11, 12]},
    {"chat_id": 4, "parent_chat_id": -1, "timestamp": 2.0, "input_length": 16, "output_length": 2, "type": "text",
     "turn": 1, "hash_ids": [11]},
    {"chat_id": 9, "parent_chat_id": 3, "timestamp": 61.5, "input_length": 33, "output_length": 4, "type": "text",
     "turn": 2, "hash_ids": [11, 12, 13]},
]  # fmt: skip


def written(folder: Path, lines: list[dict[str, object]]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_mooncake_requests_come_in_order_of_time_and_share_their_blocks(tmp_path: Path) -> None:
    lines = read_trace(written(tmp_path, MOONCAKE), "mooncake")
    assert [line.at for line in lines] == [0.0, 3.0]
    first, second = (next(p.steps)[0] for p in trace_programs(lines, "mooncake", 2.0, 100_000))
    assert (len(first.prompt), len(first.output), len(second.prompt), len(second.output)) == (600, 5, 1030, 3)
    assert np.array_equal(first.prompt[:MOONCAKE_BLOCK], second.prompt[:MOONCAKE_BLOCK])
    assert first.prompt[MOONCAKE_BLOCK] != second.prompt[MOONCAKE_BLOCK]
    assert [p.at for p in trace_programs(lines, "mooncake", 2.0, 100_000)] == [0.0, 1.5]


def test_bailian_turns_of_a_chat_are_one_program(tmp_path: Path) -> None:
    lines = read_trace(written(tmp_path, BAILIAN), "bailian")
    chat, other = trace_programs(lines, "bailian", 1.0, 100_000)
    turns = [calls[0] for calls in chat.steps]
    assert [turn.not_before for turn in turns] == [1.5, 61.5]
    assert [len(turn.prompt) for turn in turns] == [20, 33]
    assert np.array_equal(turns[0].prompt, turns[1].prompt[:20])
    assert other.at == 2.0
    assert np.array_equal(next(other.steps)[0].prompt, turns[0].prompt[:BAILIAN_BLOCK])


def test_the_first_lines_can_be_read_alone_and_long_prompts_are_cut(tmp_path: Path) -> None:
    lines = read_trace(written(tmp_path, MOONCAKE), "mooncake", limit=1)
    assert [line.input_length for line in lines] == [1030]
    (program,) = trace_programs(lines, "mooncake", 1.0, 1000)
    call = next(program.steps)[0]
    assert len(call.prompt) == 750
    assert len(call.output) == 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input_length": -1}, "'input_length' must be a number, 0 or more"),
        ({"output_length": "many"}, "'output_length'"),
        ({"timestamp": None}, "'timestamp'"),
        ({"hash_ids": [1, "x"]}, "'hash_ids' must be a list of integers"),
        ({"hash_ids": [1]}, "1 blocks of 512 for 600 tokens; wrong format?"),
    ],
)
def test_a_malformed_line_is_named_with_its_field(tmp_path: Path, change: dict[str, object], named: str) -> None:
    path = written(tmp_path, [MOONCAKE[0], MOONCAKE[1] | change])
    with pytest.raises(ValueError, match="line 2") as caught:
        read_trace(path, "mooncake")
    assert named in str(caught.value)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for text, named in (("", "holds no requests"), ("nonsense\n", "line 1"), ("[1]\n", "not a JSON object")):
        path.write_text(text)
        with pytest.raises(ValueError, match=named):
            read_trace(path, "bailian")


def test_tokens_of_large_hashes_fit_int32() -> None:
    tokens = block_tokens([2**40 + 3, 5], 16)
    assert tokens.dtype == np.int32
    assert tokens.min() >= 8
    assert len(set(tokens.tolist())) == 32
