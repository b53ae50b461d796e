"""The load generator against a stand-in server on 127.0.0.1: counts, errors, and that nothing is left running."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks.common.machine import group_members
from benchmarks.common.servers import ServerError, served_model, started
from benchmarks.serving import __main__ as serving
from benchmarks.serving.client import run_workload
from benchmarks.serving.workloads import build

FAKE = f"{sys.executable} {Path(__file__).with_name('fake_server.py')} {{port}}"


def test_counts_and_errors(tmp_path: Path) -> None:
    with started(FAKE, tmp_path / "log", ready_limit_s=20, grace_s=5) as server:
        assert served_model(server.url + "/v1") == "fake"
        job = build("random", 1).scaled(0.2)
        _, outcomes = asyncio.run(run_workload(server.url + "/v1", "fake", job, limit_s=20))
        assert [outcome.output_tokens for outcome in outcomes] == [job.max_tokens] * job.requests
        assert outcomes[0].text.split()[:2] == ["w0", "w1"]
        _, turns = asyncio.run(run_workload(server.url, "fake", build("multi-turn", 1).scaled(0.1), limit_s=20))
        _, late = asyncio.run(run_workload(server.url, "fake", job, limit_s=0))
    errors = [outcome.error for outcome in turns]
    assert errors == [None, None, "HTTP 400: no", *["not sent: an earlier turn failed"] * 2]
    assert {outcome.error for outcome in late} == {"no answer within the limit of 0 s"}


@pytest.mark.parametrize("hearing", ["", " deaf"])
def test_the_whole_process_group_ends(tmp_path: Path, hearing: str) -> None:
    with started(FAKE + hearing, tmp_path / "log", ready_limit_s=20, grace_s=0.5) as server:
        assert len(group_members(server.pid)) == 2
        assert server.ready_seconds > 0
    assert group_members(server.pid) == []


def test_a_server_that_ends_at_once(tmp_path: Path) -> None:
    command = f"{sys.executable} -c 'print(\"out of luck\"); raise SystemExit(3)'"
    server = started(command, tmp_path / "log", ready_limit_s=20, grace_s=5)
    with pytest.raises(ServerError, match=r"(?s)ended with 3.*out of luck"), server:
        pass


def test_two_servers_in_turn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "runs.json"
    options = ["--server", f"a={FAKE}", "--server", f"b={FAKE}", "--rounds", "2", "--scale", "0.1", "--seed", "5"]
    options += ["--workload", "single", "--workload", "tree", "--log-dir", str(tmp_path), "--json-out", str(record)]
    assert serving.main(options) == 0
    runs = json.loads(record.read_text())["runs"]
    assert [(run["server"], run["seed"]) for run in runs] == [("a", 5), ("b", 5), ("a", 6), ("b", 6)]
    counts = [[summary["prompt_tokens"] for summary in run["summaries"]] for run in runs]
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    printed = capsys.readouterr().out
    assert "a / b" in printed
    assert "ready after" in printed
    assert "peak RSS MiB" in printed
