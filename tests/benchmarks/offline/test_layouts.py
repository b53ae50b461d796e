"""Layouts of several GPUs: which there are, what fits, their floors, the tables, and the command itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common.device_rates import H200, Device
from benchmarks.common.model_shapes import shape_folder, shape_of
from benchmarks.offline.layout_floors import divide, layout_floor
from benchmarks.offline.layout_plan import GIB, ONE, Fit, Layout, fit_of, layouts_for, layouts_of, parse_layout
from benchmarks.offline.layout_tables import Cell, Started, choices, choices_table, results_table, started_table
from benchmarks.offline.layouts import main
from benchmarks.offline.workloads import Workload, floor_of, make_workload

READS, COMPUTES = Device(1e12, 1e30), Device(1e30, 1e12)
"""Devices whose time is that of bytes alone, and of operations alone."""


def test_layouts_of_eight_gpus() -> None:
    names = [layout.name for layout in layouts_of(8)]
    assert names[:3] == ["tp8", "tp4-pp2", "tp2-pp4"]
    assert set(names[3:]) == {"tp4-r2", "tp2-pp2-r2", "pp4-r2", "tp2-r4", "pp2-r4", "r8"}
    assert [layout.name for layout in layouts_of(6)] == ["tp2-r3", "pp2-r3", "r6"]


def test_one_gpu_is_always_compared_with() -> None:
    assert [layout.name for layout in layouts_for([2, 1])] == ["one", "tp2", "pp2", "r2"]


@pytest.mark.parametrize("layout", layouts_for([2, 4, 8]))
def test_a_name_says_its_layout(layout: Layout) -> None:
    assert parse_layout(layout.name) == layout


@pytest.mark.parametrize("name", ["", "tp", "2", "tp2,pp2", "r2-tp2", "tp0"])
def test_other_names_are_errors(name: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        parse_layout(name)


def fit(layout: Layout, shape: str, gib: float, device: str = "cuda") -> Fit:
    folder = str(shape_folder(shape))
    return fit_of(layout, folder, device=device, memory=int(gib * GIB), dtype="auto", context_length=16_384)


def test_70b_needs_two_gpus() -> None:
    needed = 70.55e9 * 2 / GIB
    alone = fit(ONE, "llama-3.1-70b", 80)
    assert alone.weight_gib == pytest.approx(needed, rel=0.001)
    assert alone.problem == "131.4 GiB of weights do not fit the 80.0 GiB of a GPU"
    assert "a request may have 16,384" in fit(ONE, "llama-3.1-70b", 132).problem
    for layout in (Layout(tp=2), Layout(pp=2), Layout(tp=2, replicas=2)):
        found = fit(layout, "llama-3.1-70b", 80)
        assert not found.problem
        assert found.weight_gib == pytest.approx(needed / 2, rel=0.001)
    assert fit(Layout(replicas=8), "llama-3.1-70b", 80).problem


def test_replicas_have_room_of_their_own_and_divide_a_cpu() -> None:
    alone, four = (fit(Layout(replicas=n), "llama-3.1-8b", 140) for n in (1, 4))
    assert four.kv_tokens == 4 * alone.kv_tokens
    assert not fit(ONE, "llama-3.1-8b", 50, "cpu").problem
    assert "GiB of a replica" in fit(Layout(replicas=4), "llama-3.1-8b", 50, "cpu").problem


def test_a_shape_that_does_not_divide_is_no_layout() -> None:
    assert "tp=8 does not divide" in fit(Layout(tp=8), "tiny", 10).problem
    assert "pp=4" in fit(Layout(pp=4), "tiny", 10).problem


SHAPE = "llama-3.1-8b"


@pytest.mark.parametrize("name", ["single", "prefill", "tree"])
@pytest.mark.parametrize("device", [READS, COMPUTES])
def test_ranks_divide_the_floor(name: str, device: Device) -> None:
    workload = make_workload(name, seed=1)
    alone = layout_floor(workload, SHAPE, ONE, device)
    assert alone == floor_of(workload, shape_of(SHAPE), device).seconds
    assert layout_floor(workload, SHAPE, Layout(tp=4), device) == pytest.approx(alone / 4)


def test_more_ranks_than_heads_of_keys_hold_the_same_ones() -> None:
    """The tiny shape has two of them: four ranks divide what two do, but for the weights."""
    workload = make_workload("decode64", seed=1)
    shape = shape_of("tiny")
    kv = sum(shape.kv_bytes * (64 * 512 + step * 64) for step in range(1, 256)) / 2
    weights = shape.weight_bytes(64) / 4 * 256
    assert layout_floor(workload, "tiny", Layout(tp=4), READS) == pytest.approx((kv + weights) / 1e12)


def test_stages_divide_prompts_and_not_one_request() -> None:
    single, prefill = make_workload("single", seed=1), make_workload("prefill", seed=1)
    assert layout_floor(single, SHAPE, Layout(pp=4), H200) == pytest.approx(layout_floor(single, SHAPE, ONE, H200))
    alone = layout_floor(prefill, SHAPE, ONE, H200)
    assert layout_floor(prefill, SHAPE, Layout(pp=4), H200) == pytest.approx(alone / 4)


def test_each_stage_reads_its_weights_for_each_part_of_the_rows() -> None:
    shape = shape_of(SHAPE)
    kv = sum(shape.kv_bytes * (32 * 512 + step * 32) for step in range(1, 256))
    expected = (shape.weight_bytes(64) * 256 + kv) / 1e12
    assert layout_floor(make_workload("decode64", seed=1), SHAPE, Layout(pp=2), READS) == pytest.approx(expected)


def test_replicas_divide_requests_and_each_computes_a_shared_prefix() -> None:
    tree, shared = make_workload("tree", seed=1), make_workload("shared4k", seed=1)
    alone, four = (layout_floor(tree, SHAPE, Layout(replicas=n), COMPUTES) for n in (1, 4))
    assert four == pytest.approx(alone / 4)
    parts = divide(shared, 4)
    assert [len(part.paths) for part in parts] == [64] * 4
    assert [floor_of(part, shape_of(SHAPE), H200).new_tokens for part in parts] == [4096 + 64 * 128] * 4
    assert len(divide(make_workload("single", seed=1), 4)) == 1


def test_copies_have_tokens_of_their_own() -> None:
    one, four = (make_workload("shared4k", seed=1, scale=0.1, copies=n) for n in (1, 4))
    shape = shape_of(SHAPE)
    assert floor_of(four, shape, H200).new_tokens == 4 * floor_of(one, shape, H200).new_tokens
    prompts = four.prompts()
    assert prompts[::4] == one.prompts()
    assert len({tuple(prompt[:400]) for prompt in prompts}) == 4
    chats, chat = (make_workload("chat8", seed=1, scale=0.05, copies=n) for n in (2, 1))
    assert next_of(chats)[::2] == next_of(chat)


def next_of(workload: Workload) -> list[list[int]]:
    return workload.next_prompts(1, workload.prompts(), [[7]] * len(workload.paths))


CELLS = [
    Cell(layout, workload, [rate], ttft, 2 * ttft, 0.5)
    for workload, each in {
        "single": [(ONE, 200.0, 0.01), (Layout(tp=2), 340.0, 0.02)],
        "tree": [
            (ONE, 100.0, 0.3),
            (Layout(tp=2), 170.0, 0.2),
            (Layout(pp=2), 195.0, 0.4),
            (Layout(1, 1, 2), 199, 0.3),
        ],
        "decode64": [(ONE, 100.0, 0.3), (Layout(tp=2), 101.0, 0.2)],
    }.items()
    for layout, rate, ttft in each
]


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()][2:]


def test_the_table_of_results() -> None:
    rows = rows_of(results_table(CELLS))
    assert rows[1] == ["single", "tp2", "340", "1.70", "20", "40", "50%"]
    assert rows_of(results_table(CELLS[1:2]))[0][3] == "-"


def test_the_fastest_layout_is_chosen_or_one_as_good_with_fewer_gpus() -> None:
    assert [each.layout for each in choices(CELLS)] == ["tp2", "r2", "one"]
    assert rows_of(choices_table(CELLS)) == [
        ["single", "tp2", "340", "-", "one (10 ms)"],
        ["tree", "r2", "199", "pp2", "tp2 (200 ms)"],
        ["decode64", "one", "100", "tp2", "tp2 (200 ms)"],
    ]


def test_a_layout_that_did_not_run_says_why() -> None:
    text = started_table([Started(ONE, 131.4, problem="no room"), Started(Layout(tp=2), 65.7, 1_000, 9.0)])
    assert rows_of(text) == [["one", "1", "131.4", "-", "-", "no room"], ["tp2", "2", "65.7", "1,000", "9.0", "ran"]]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    options = ["--set", "executor=uni", "--set", "num_threads=1", "--set", "kv_cache_tokens=4096"]
    given = ["--device", "cpu", "--layouts", "one", "tp8", "pp2", "--scale", "0.01", "--runs", "1", "--copies", "2"]
    assert main([*given, *options, "--workloads", "single", "tree", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["shapes"]["tiny"]
    assert [(each["name"], each["workload"]) for each in found["results"]] == [("one", "single"), ("one", "tree")]
    one, tp8, pp2 = found["layouts"]
    assert (one["kv_tokens"], one["problem"]) == (4096, "")
    assert "tp=8 does not divide" in tp8["problem"]
    assert "pp=2 needs a process for each rank" in pp2["problem"]  # what the engine said
    for each in found["results"]:
        assert 0 < each["ttft_p50"] <= each["ttft_p99"]
        assert 0 < each["floor_share"] < 1
    assert "| tree     | one    |" in capsys.readouterr().out


def test_a_plan_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "llama-3.1-70b", "--plan", "--gpus", "4", "--memory-gib", "80"]) == 0
    shown = capsys.readouterr().out
    assert "131.4 GiB of weights do not fit" in shown
    assert "| tp4 " in shown


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--layouts", "two"], "two is no layout"),
        (["--gpus", "0"], "at least 1"),
        (["--copies", "0"], "at least 1"),
        (["--memory-gib", "0"], "above 0"),
        (["--set", "tp=2"], "use --layouts"),
    ],
)
def test_bad_arguments(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--device", "cpu", *given])
    assert said in capsys.readouterr().err
