"""Ranks as real processes: one is killed, and ranks that torchrun or a script started find each other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import radixrt
from radixrt.errors import EngineError
from tests.equivalence.reference import greedy
from tests.process.helpers import generate, gone, socket_folders
from tests.server_process import LIMIT_S, ServerProcess, wait_for

OPTIONS = {"dtype": "float32", "kv_cache_tokens": 4096, "num_threads": 1, "show_progress": False}
PROMPTS = [[3, 4, 5, 6], [3, 4, 9], [100] * 30]
SCRIPT = f"""
import json, os, sys, radixrt
if os.environ.get("BAD_RANK") == os.environ["RANK"]:
    sys.argv[1] = "/nowhere"
pp = int(os.environ.get("STAGES", "1"))
with radixrt.Engine(sys.argv[1], executor="external", pp=pp, **{OPTIONS!r}) as engine:
    print("PIDS", json.dumps(engine.pids), flush=True)
    if "WAIT" in os.environ:
        sys.stdin.readline()
    for c in engine.generate({PROMPTS!r}, {{"temperature": 0, "max_tokens": 8, "ignore_eos": True}}):
        print("IDS", json.dumps(c.token_ids), flush=True)
    engine.check_invariants()
"""


def said(output: str, word: str) -> list[object]:
    return [json.loads(line.partition(" ")[2]) for line in output.splitlines() if line.startswith(word)]


def started_ranks(folder: Path, size: int, **more: str) -> list[subprocess.Popen[str]]:
    """Each rank's process, started as SLURM would: with variables and nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), **more}
    return [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(size)
    ]  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_engine_by_name(rank: int, long_model: Path) -> None:
    folders = socket_folders()
    engine = radixrt.Engine(str(long_model), tp=2, max_restarts=0, **OPTIONS)
    with engine:
        pids = engine.pids
        stream = engine.stream("hello", {"max_tokens": 4000, "ignore_eos": True})
        next(stream)
        os.kill(pids[f"ModelRunner {rank}"], signal.SIGKILL)
        with pytest.raises(EngineError, match=rf"ModelRunner {rank} process .* signal 9"):
            list(stream)
    assert wait_for(lambda: all(gone(pid) for pid in pids.values()))
    assert socket_folders() <= folders


def test_ranks_outlive_the_scheduler(long_model: Path) -> None:
    """If the scheduler died between sending a step to the one rank and to the other, all processes start anew."""
    params = {"temperature": 0, "max_tokens": 64, "ignore_eos": True}
    with radixrt.Engine(str(long_model), tp=2, max_restarts=100, **OPTIONS) as engine:
        expected = [c.token_ids for c in engine.generate(["hello", "go on"], params)]
        for _ in range(3):
            before = engine.pids
            stream = engine.stream("hello", {"max_tokens": 4000, "ignore_eos": True})
            next(stream)
            os.kill(before["scheduler"], signal.SIGKILL)
            with pytest.raises(EngineError, match=r"scheduler process .* signal 9"):
                list(stream)
            assert [c.token_ids for c in engine.generate(["hello", "go on"], params)] == expected
            kept = [engine.pids[f"ModelRunner {rank}"] == before[f"ModelRunner {rank}"] for rank in range(2)]
            assert kept in ([True, True], [False, False])
            if kept[0]:
                return
        pytest.fail("all ranks were started anew three times")


def test_the_server_runs_over_two_ranks(tiny_model: Callable[[str], Path]) -> None:
    server = ServerProcess(
        "--model", str(tiny_model("llama")), "--dtype", "float32", "--kv-cache-tokens", "4096", "--num-threads", "1",
        "--tp", "2",
    ).wait_ready()  # fmt: skip
    assert generate(server).json()["meta_info"]["completion_tokens"] == 4
    assert server.stop() == 0


def test_a_model_that_cannot_be_shared_is_one_clear_line(tiny_model: Callable[[str], Path]) -> None:
    server = ServerProcess("--model", str(tiny_model("llama")), "--tp", "3")
    assert server.wait() == 2
    assert any("radixrt: tp=3 does not divide" in line for line in server.lines), server.lines


def test_ranks_that_torchrun_started(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script),
         str(folder)],
        capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said(done.stdout, "IDS") == [greedy(folder, ids, 8) for ids in PROMPTS]
    assert set(said(done.stdout, "PIDS")[0]) == {"tokenizer", "scheduler", "ModelRunner 0"}


def test_ranks_that_only_variables_tell_where_they_are(tiny_model: Callable[[str], Path]) -> None:
    """As pipeline stages, whose last one the launcher's rank 0 has."""
    folder = tiny_model("llama")
    ranks = started_ranks(folder, 2, STAGES="2")
    output, errors = ranks[0].communicate(timeout=LIMIT_S)
    assert ranks[0].returncode == 0, errors
    assert said(output, "IDS") == [greedy(folder, ids, 8) for ids in PROMPTS]
    assert ranks[1].communicate(timeout=LIMIT_S)[0] == ""
    assert ranks[1].returncode == 0


def test_a_lost_external_rank_is_named(tiny_model: Callable[[str], Path]) -> None:
    ranks = started_ranks(tiny_model("llama"), 2, WAIT="1")
    assert ranks[0].stdout is not None
    while not ranks[0].stdout.readline().startswith("PIDS"):
        assert ranks[0].poll() is None
    ranks[1].kill()
    _, errors = ranks[0].communicate("\n", timeout=LIMIT_S)
    assert ranks[0].returncode != 0
    assert "rank 1 is gone" in errors or "broke runner 0" in errors, errors
    ranks[1].communicate()


def test_an_external_rank_that_cannot_start_says_why(tiny_model: Callable[[str], Path]) -> None:
    ranks = started_ranks(tiny_model("llama"), 2, BAD_RANK="1")
    _, errors = ranks[1].communicate(timeout=LIMIT_S)
    assert ranks[1].returncode == 2
    assert "/nowhere" in errors
    ranks[0].kill()
    ranks[0].communicate()


def test_an_external_rank_ends_with_a_killed_rank_0(tiny_model: Callable[[str], Path]) -> None:
    ranks = started_ranks(tiny_model("llama"), 2, WAIT="1")
    assert ranks[0].stdout is not None
    while not ranks[0].stdout.readline().startswith("PIDS"):
        assert ranks[0].poll() is None
    ranks[0].kill()
    ranks[0].communicate()
    ranks[1].communicate(timeout=LIMIT_S)
    assert ranks[1].returncode == 0
