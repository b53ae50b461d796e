"""The grammar benchmark counts correctly, and survives failures of its worker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.structure import __main__ as structured
from benchmarks.structure.grammar_jobs import read_entries, run, run_beside
from benchmarks.structure.grammar_worker import Answer, declared, in_order

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
ENTRIES: list[dict[str, Any]] = [
    {"id": "good", "schema": PERSON, "tests": [{"data": {"age": 3}, "valid": True}, {"data": {}, "valid": False}]},
    {"id": "labelled wrongly", "schema": PERSON, "tests": [{"data": {"age": 3}, "valid": False}]},
    {"id": "refused", "schema": {"pattern": r"^(a+)\1$"}, "tests": [{"data": "", "valid": True}]},
]


@pytest.mark.parametrize("engine", ["radixrt", "llguidance"])
def test_answers_of_an_engine(engine: str, tiny_model: Callable[[str], Path]) -> None:
    good, wrong, refused = run(engine, tiny_model("llama"), ENTRIES, 60.0)
    assert (good.id, good.error, good.tests, good.valid_refused, good.invalid_accepted) == ("good", None, 2, 0, 0)
    assert good.compile_s > good.load_s >= 0
    assert bool(good.load_s) is (engine == "radixrt")
    assert refused.load_s == 0
    assert len(good.masks_us) >= 2
    assert (wrong.tests, wrong.invalid_accepted) == (1, 1)
    assert refused.error is not None
    assert refused.tests == 0


def test_a_schema_over_the_limit_ends_its_worker_and_no_more(tiny_model: Callable[[str], Path]) -> None:
    names = [f"p{i}" for i in range(2000)]
    slow = {"allOf": [{"anyOf": [{"required": [name]}, {"properties": {name: {"type": "null"}}}]} for name in names]}
    over, good = run("radixrt", tiny_model("llama"), [{"id": "slow", "schema": slow}, ENTRIES[0]], 0.02)
    assert over.error == "over 0.02 s"
    assert good.id == "good"


def test_another_version_answers_each_schema_in_turn(tiny_model: Callable[[str], Path]) -> None:
    here = Path(structured.__file__).parents[2]
    pairs = list(run_beside("radixrt", tiny_model("llama"), ENTRIES[:1], 60.0, here))
    assert [(ours.id, theirs.id) for ours, theirs in pairs] == [("good", "good")]
    assert pairs[0][0].masks_digest == pairs[0][1].masks_digest
    missing = run_beside("radixrt", tiny_model("llama"), ENTRIES[:1], 60.0, here / "nowhere")
    with pytest.raises(OSError, match="nowhere"):
        next(missing)


def test_schemas_are_taken_at_even_distances(tmp_path: Path) -> None:
    file = tmp_path / "schemas.jsonl"
    file.write_text("\n".join(json.dumps({"id": i, "schema": {}}) for i in range(10)) + "\n")
    assert [entry["id"] for entry in read_entries(file, 4)] == [0, 2, 5, 7]
    assert len(read_entries(file, None)) == 10


def test_the_tables(
    tmp_path: Path, tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file = tmp_path / "schemas.jsonl"
    file.write_text("\n".join(map(json.dumps, ENTRIES)))
    out = tmp_path / "out.json"
    arguments = ["grammars", "--data", str(file), "--engine", "llguidance", "--model", str(tiny_model("llama"))]
    assert structured.main([*arguments, "--json-out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 schemas of schemas.jsonl" in printed
    assert "| llguidance | 2        | 1       | 0                  | 1 (33.3%)" in printed
    assert [answer["id"] for answer in json.loads(out.read_text())["llguidance"]] == [e["id"] for e in ENTRIES]


def test_verdicts_tell_refusals_from_deaths() -> None:
    answers = [
        Answer("a", tests=2),
        Answer("b", tests=1, valid_refused=1),
        Answer("e", tests=2, valid_refused=1, refused_in_order=1),
        Answer("c", error="RequestError: no"),
        Answer("d", error="over 3 s", compile_s=3.0),
    ]
    assert structured.verdicts("x", answers) == ["x", "3", "1", "1", "1 (20.0%)", "2 (40.0%)", "1 of 5", "0 of 5"]
    assert structured.times("x", answers)[1:6] == ["0.0", "1800.0", "2400.0", "2880.0", "3000.0"]


def test_instances_take_the_order_of_the_schema() -> None:
    inner = {"properties": {"b": {}, "a": {}}}
    schema = {"properties": {"list": {"items": inner}, "first": {}}, "$defs": {"other": {"properties": {"x": {}}}}}
    value = {"other": 1, "first": 2, "list": [{"a": 1, "z": 2, "b": 3}]}
    ordered = in_order(declared(schema), value)
    assert list(ordered) == ["list", "first", "other"]
    assert list(ordered["list"][0]) == ["b", "a", "z"]
    assert ordered == value
