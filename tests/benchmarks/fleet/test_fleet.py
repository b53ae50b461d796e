"""The simulated fleet serves every call once, gives the same result twice, and its policies differ as they should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from benchmarks.fleet.__main__ import main
from benchmarks.fleet.baselines import ABS_THRESHOLD, Blocks, CacheAware, EagerRouter, LMetric, Sticky
from benchmarks.fleet.device import H200_8B, Device
from benchmarks.fleet.fleet import Fleet, Outcome
from benchmarks.fleet.programs import WORKLOAD_A, WORKLOAD_B, Call, Program, fork_programs, shared_prefix
from benchmarks.fleet.variants import POLICIES, make_router
from radixrt.messages.parts import Finish, ProgramHint, Timings, Usage
from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenBatch, TokenDelta
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams


def played(
    policy: str, programs: Iterator[Program], replicas: int = 2, lag_s: float = 0.001, **sizes: float | StepTimes
) -> Outcome:  # fmt: skip
    device = Device(**{"num_slots": 60_000, **sizes})  # type: ignore[arg-type]
    fleet = Fleet(device, make_router(policy, replicas, device), replicas, lag_s=lag_s, event_lag_s=0.01)
    return fleet.run(programs)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_call_of_every_program_is_served_once(policy: str) -> None:
    outcome = played(policy, fork_programs(WORKLOAD_A, 10.0, 8, seed=1))
    again = played(policy, fork_programs(WORKLOAD_A, 10.0, 8, seed=1))
    calls = sum(1 for p in fork_programs(WORKLOAD_A, 10.0, 8, seed=1) for step in p.steps for _ in step)
    assert len(outcome.ttft) == calls
    assert len(outcome.program_s) == 8
    assert outcome.output_tokens == 96 * calls
    assert outcome.refused == 0
    assert outcome == again


@pytest.mark.parametrize("policy", ["priced", "wait", "moves"])
def test_no_replica_counts_as_silent_during_a_long_step(policy: str) -> None:
    outcome = played(policy, fork_programs(WORKLOAD_A, 0.1, 2, seed=1), times=structs.replace(H200_8B, step=9.0))
    assert len(outcome.program_s) == 2
    assert outcome.refused == 0


def test_a_first_token_takes_the_prompt_two_messages_and_a_step() -> None:
    device = Device()
    prompt = np.arange(8, 4008, dtype=np.int32)
    program = Program(0.0, "p", iter([[Call(prompt, np.full(3, 9, np.int32))]]))
    outcome = played("round_robin", iter([program]), lag_s=0.5)
    assert outcome.ttft == [pytest.approx(2 * 0.5 + device.times.seconds(0, 0, 4000, 0))]
    decode = sum(device.times.seconds(1, context) for context in (4001, 4002))
    assert outcome.request_s == [pytest.approx(outcome.ttft[0] + decode)]


def test_an_output_of_unknown_length_ends_by_its_end_token() -> None:
    prompt = np.arange(8, 108, dtype=np.int32)
    call = Call(prompt, np.full(7, 9, np.int32), has_known_end=False)
    assert played("round_robin", iter([Program(0.0, "p", iter([[call]]))])).output_tokens == 7


def test_calls_wait_for_their_time_and_for_those_before_them() -> None:
    prompt, output = np.arange(8, 72, dtype=np.int32), np.full(2, 9, np.int32)
    steps = iter([[Call(prompt, output)], [Call(prompt, output, not_before=30.0)]])
    outcome = played("round_robin", iter([Program(1.0, "p", steps)]))
    assert 29.0 < outcome.program_s[0] < 29.1


def test_programs_find_their_prefixes_where_they_stay_and_by_price() -> None:
    hits = {p: played(p, fork_programs(WORKLOAD_A, 5.0, 12, seed=0), 4) for p in ("round_robin", "sticky", "priced")}
    shares = {policy: o.cached_tokens / o.prompt_tokens for policy, o in hits.items()}
    assert min(shares["sticky"], shares["priced"]) > shares["round_robin"] + 0.1


def test_prefixes_move_where_that_is_faster_than_their_computation() -> None:
    """A fork of 32 branches behind a long prompt, on idle replicas."""
    shape = replace(WORKLOAD_B, branches=(32,), branch_out=64, first=8, join=8)

    def run(policy: str, move_s: float = 1.0) -> Outcome:
        return played(policy, fork_programs(shape, 0.1, 3, seed=0), 4, num_slots=200_000, move_s=move_s)

    computed, moved = run("priced"), run("moves", 1e-6)
    assert run("moves", 1.0) == computed, "transfers take longer"
    assert sum(moved.program_s) < sum(computed.program_s)
    assert sum(moved.ttft) < 0.9 * sum(computed.ttft)


def test_without_the_cost_to_others_a_price_is_another_one() -> None:
    outcomes = [played(policy, fork_programs(WORKLOAD_A, 10.0, 20, seed=0)) for policy in ("wait", "priced")]
    assert outcomes[0] != outcomes[1]


def request(rid: str, ids: list[int], program: str = "") -> Request:
    hint = ProgramHint(program) if program else None
    return Request.generate(rid, pack_i32(ids), SamplingParams(max_tokens=4), program=hint)


def sent_to(router: EagerRouter, message: Request) -> int:
    router.submit(message, 0.0)
    (send,) = router.take()
    assert send.message is message
    return send.target


def test_cache_aware_follows_a_known_prefix_until_the_load_is_out_of_balance() -> None:
    router = CacheAware(2)
    known, rest = list(range(8, 8 + 640)), list(range(10_000, 10_640))
    assert sent_to(router, request("a", known)) == 0
    assert sent_to(router, request("b", rest)) == 1
    assert sent_to(router, request("c", known + rest)) == 0, "half of it is known there"
    assert sent_to(router, request("d", known[:64] + rest[:576])) == 1, "a tenth is not enough"
    for i in range(ABS_THRESHOLD - 1):
        assert sent_to(router, request(f"e{i}", known)) == 0
    assert router.open == [ABS_THRESHOLD + 1, 2]
    for i in range(2):
        assert sent_to(router, request(f"f{i}", known)) == 0
    assert sent_to(router, request("g", known)) == 1, "the difference is above the threshold"


@pytest.mark.parametrize(("make", "replica"), [(Blocks, 1), (LMetric, 0)])
def test_formulas_of_others_weigh_what_is_cached_against_what_is_open(make: type[Blocks], replica: int) -> None:
    """Replica 0 has the second prompt, but decodes behind a longer one; replica 1 is idle."""
    router, known = make(2), list(range(8, 8 + 640))
    assert sent_to(router, request("a", known)) == 0
    assert router.queued == [640, 0]
    router.receive(0, 0, TokenBatch([], ["a"], pack_i32([1])), 0.0)
    router.take()
    assert (router.queued, router.lengths, router.open) == ([0, 0], [640, 0], [1, 0])
    assert sent_to(router, request("b", known[:576])) == replica
    assert router.queued == [0, 576 if replica else 0]
    router.receive(0, 0, TokenBatch([TokenDelta("a", pack_i32([1]), Finish("stop"), Usage(), Timings())]), 0.0)
    assert router.lengths == ([0, 576] if replica else [576, 0])


def test_a_sticky_program_stays_although_its_replica_is_the_busiest() -> None:
    router = Sticky(2)
    assert [sent_to(router, request(f"r{i}", [9], "p")) for i in range(3)] == [0, 0, 0]
    assert sent_to(router, request("s", [9], "q")) == 1


def test_requests_behind_shared_prefixes_hit_most_of_their_prompt() -> None:
    outcome = played("round_robin", shared_prefix(200.0, 400, 0, groups=4))
    assert outcome.prompt_tokens == 400 * 1088
    assert 0.9 < outcome.cached_tokens / outcome.prompt_tokens < 0.932


def test_the_command_prints_a_table_and_writes_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--workload",
        "A",
        "--count",
        "4",
        "--rate",
        "5",
        "10",
        "--replicas",
        "2",
        "--policy",
        "round_robin",
        "sticky",
        "--seeds",
        "2",
    ]
    assert main([*options, "--plots", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert table.count("| A 5/s ") == table.count("| A 10/s ") == 2
    assert "program mean s" in table
    assert "±" in table
    for name in ("ttft.svg", "program.svg"):
        assert all(f">{policy}</text>" in (tmp_path / name).read_text() for policy in ("round_robin", "sticky"))


def test_the_command_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mooncake", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--replicas", "0"])
    assert "--replicas must be at least 1" in capsys.readouterr().err
    for option, value in (("rate", "nan"), ("rate", "inf"), ("lag", "nan"), ("noise", "inf"), ("link", "nan")):
        with pytest.raises(SystemExit):
            main(["--workload", "A", f"--{option}", value])
        assert f"--{option} must be a finite number" in capsys.readouterr().err
