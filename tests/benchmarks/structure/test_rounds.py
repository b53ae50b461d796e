"""The cells of a row in the benchmark of constrained rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.structure.rounds import (
    KINDS,
    MIXED,
    OUTPUT_TOKENS,
    Round,
    cells,
    mixed_schemas,
    parameters,
    prompts,
    twin,
)
from radixrt.constrained.schema import normalize


def test_ratios_leave_the_first_round_out() -> None:
    rounds = [
        Round([40, 60], 0, 0, 1.0, 0.9), Round([200, 200], 100, 0, 1.0, 0.002), Round([30, 70], 20, 1, 0.5, 0.004),
    ]  # fmt: skip
    twins = [Round([200, 200], 0, 0, 0.8), Round([30, 70], 0, 0, 0.5)]
    assert cells("integers", rounds, twins, plain=600.0) == [
        "integers", "2", "100", "400", "200", "300", "0.50", "0.90", "0.33", "20%", "1", "3.00",
    ]  # fmt: skip
    assert cells("integers", [Round([100], 0, 0, 1.0)] * 2, twins[:1], plain=None)[-1] == ""


def test_a_twin_has_the_lengths_of_the_outputs_and_no_constraint() -> None:
    assert [each["max_tokens"] for each in twin([5, 0, 7])] == [5, 1, 7]
    assert all(each["ignore_eos"] and "json_schema" not in each for each in twin([5]))


def test_mixed_schemas_are_those_whose_outputs_fit(tmp_path: Path) -> None:
    long = {"type": "string", "minLength": OUTPUT_TOKENS}
    refused = {"type": "integer", "minimum": 3, "maximum": 2}
    rows = [long, refused] + [{"type": "array", "minItems": i} for i in range(MIXED + 3)]
    path = tmp_path / "schemas.jsonl"
    path.write_text("\n".join(json.dumps({"schema": schema}) for schema in rows))
    chosen = mixed_schemas(path)
    assert len(chosen) == MIXED
    assert long not in chosen
    assert refused not in chosen
    path.write_text("\n".join(json.dumps({"schema": schema}) for schema in rows[:MIXED]))
    with pytest.raises(ValueError, match=f"{MIXED - 2} of {MIXED}"):
        mixed_schemas(path)


@pytest.mark.parametrize("kind", [kind for kind, given in KINDS.items() if "json_schema" in given])
def test_a_shortest_output_of_each_kind_fits(kind: str) -> None:
    """The shapes' tokenizer has a token for each byte."""
    productions = normalize(KINDS[kind]["json_schema"]).productions()
    assert productions.shortest[productions.start] < OUTPUT_TOKENS


def test_prompts_are_new_in_each_round() -> None:
    first, second = prompts(4, seed=1), prompts(4, seed=2)
    assert len({tuple(prompt) for prompt in first + second}) == 8
    assert first == prompts(4, seed=1)


def test_every_kind_but_plain_has_a_constraint() -> None:
    constraints = {"json_schema", "regex", "ebnf"}
    for kind in KINDS:
        assert bool(constraints & parameters(kind, 1, [])[0].keys()) == (kind != "plain")
    beside = parameters("beside", 4, [])
    assert ["json_schema" in each for each in beside] == [False, True, False, True]
    mixed = parameters("schemas", 3, [{"type": "integer"}, {"type": "string"}])
    assert [each["json_schema"]["type"] for each in mixed] == ["integer", "string", "integer"]
