"""The cells of a row in the benchmark of constrained rounds."""

from __future__ import annotations

from benchmarks.structure.rounds import KINDS, Round, cells, parameters, prompts


def test_ratios_leave_the_first_round_out() -> None:
    rounds = [Round(100, 0, 0, 1.0, 0.9), Round(400, 100, 0, 1.0, 0.002), Round(100, 20, 1, 0.5, 0.004)]
    assert cells("integers", 8, rounds, plain=600.0) == [
        "integers", "8", "100", "400", "200", "300", "0.50", "0.33", "20%", "1", "3.00",
    ]  # fmt: skip
    assert cells("integers", 8, [Round(100, 0, 0, 1.0)] * 2, plain=None)[-1] == ""


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
