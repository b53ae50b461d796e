"""The doctor's report on replicas with roles, from made-up facts about the machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from radixrt.cli import main
from radixrt.doctor.advice import Finding, advise
from radixrt.doctor.facts import GIB, Facts
from radixrt.doctor.model import ModelNeeds
from radixrt.doctor.report import as_text
from radixrt.doctor.roles import role_layout
from tests.doctor.test_advice import CPU_MACHINE, GPU_MACHINE

NEEDS = ModelNeeds("m", "LlamaForCausalLM", weight_bytes=2 * GIB, token_bytes=128 * 1024)
LISTED = "prefill,decode,decode"


def on(machine: Facts, listed: str = LISTED, needs: ModelNeeds | None = NEEDS, **facts: Any) -> Facts:
    layout = role_layout(listed, machine.memory_free)
    return dataclasses.replace(machine, layout=layout, model=needs, **facts)


def finding(facts: Facts) -> Finding:
    (found,) = advise(facts)
    return found


def line(facts: Facts) -> str:
    (found,) = [each for each in as_text(facts, advise(facts)).splitlines() if each.startswith("roles ")]
    return found


def test_a_layout_that_runs_is_shown_with_the_prompts_that_move() -> None:
    facts = on(CPU_MACHINE)
    assert advise(facts) == []
    assert line(facts).split(None, 1)[1] == (
        f"--replicas 3 --roles {LISTED}: 1 prefill, 2 decode; prefixes move by host tiers of 1.7 GiB each, or of "
        "--kv-host-gib, which keep 13,653 tokens; longer prompts are computed where they are answered"
    )
    hybrid = dataclasses.replace(NEEDS, state_bytes=64 << 20)
    assert "which keep 13,141 tokens" in line(on(CPU_MACHINE, needs=hybrid))
    assert line(on(CPU_MACHINE, needs=None)).endswith("or of --kv-host-gib")
    assert line(on(CPU_MACHINE, "both,both")).endswith("2 both; each computes what it answers")
    unknown = on(dataclasses.replace(CPU_MACHINE, memory_free=0))
    assert line(unknown).endswith("1 prefill, 2 decode; prefixes move by host tiers of --kv-host-gib")


@pytest.mark.parametrize(
    ("listed", "problem"),
    [
        ("prefill,prefill", "needs a replica with the role decode too"),
        ("decode,both", "needs a replica with the role prefill too"),
        ("prefil,decode", "each of both, prefill, decode, not 'prefil,decode'"),
        ("prefill", "needs a replica with the role decode too"),
    ],
)
def test_a_layout_that_is_refused_is_an_error(listed: str, problem: str) -> None:
    found = finding(on(CPU_MACHINE, listed))
    assert found.severity == "error"
    assert problem in found.what


def test_each_replica_has_gpus_of_its_own() -> None:
    assert finding(on(GPU_MACHINE)).what == f"roles={LISTED}: 3 replicas need 3 GPUs, and there are 1"
    found = advise(on(GPU_MACHINE, ranks=2, gpus=GPU_MACHINE.gpus * 4))
    assert [each.what for each in found] == [f"roles={LISTED}: 3 replicas of 2 ranks need 6 GPUs, and there are 4"]
    assert advise(on(GPU_MACHINE, gpus=GPU_MACHINE.gpus * 3)) == []


def test_replicas_on_a_cpu_have_weights_and_host_tiers_of_their_own() -> None:
    needs = dataclasses.replace(NEEDS, weight_bytes=6 * GIB)
    assert finding(on(CPU_MACHINE, needs=needs)).what == (
        f"roles={LISTED}: the weights and host tiers of 3 replicas need 23.0 GiB, and 20.0 GiB are free"
    )


def test_the_command_takes_roles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cpu", "--roles", "prefill,prefill"]) == 1
    assert "needs a replica with the role decode too" in capsys.readouterr().out
