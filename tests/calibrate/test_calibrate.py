"""`radixrt calibrate`: the fitted temperature, its file of examples, and what is wrong with either."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from radixrt.calibrate.command import calibrate
from radixrt.calibrate.examples import Line, examples_of, read_lines
from radixrt.calibrate.fit import Example, best_temperature, held_out_quality, quality
from radixrt.errors import ConfigError


def drawn(temperature: float, count: int, seed: int = 0) -> list[Example]:
    """Examples whose right answers follow the softmax of their log-probabilities at a temperature."""
    rng = random.Random(seed)
    examples = []
    for _ in range(count):
        logprobs = [rng.gauss(0.0, 3.0) for _ in range(rng.randint(2, 5))]
        weights = [math.exp(value / temperature) for value in logprobs]
        examples.append(Example(logprobs, rng.choices(range(len(weights)), weights)[0]))
    return examples


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 6.0])
def test_the_temperature_of_the_examples_is_found(temperature: float) -> None:
    examples = drawn(temperature, 1200)
    found = best_temperature(examples)
    assert found == pytest.approx(temperature, rel=0.15)
    before, after, held_out = quality(examples, 1.0), quality(examples, found), held_out_quality(examples)
    assert after.nll <= before.nll
    assert after.ece < 0.05
    assert held_out.ece < 0.05
    assert before.accuracy == after.accuracy == held_out.accuracy
    if temperature != 1.0:
        assert after.ece < before.ece / 2


def test_quality_of_known_examples() -> None:
    sure = Example([math.log(0.9), math.log(0.1)], 0)
    wrong = Example([math.log(0.9), math.log(0.1)], 1)
    found = quality([sure, sure, sure, wrong], 1.0)
    assert found.accuracy == 0.75
    assert found.confidence == pytest.approx(0.9)
    assert found.ece == pytest.approx(0.15)
    assert found.nll == pytest.approx(-(3 * math.log(0.9) + math.log(0.1)) / 4)


# --- the file ---

QUESTIONS = {
    "money": {"type": "noul", "instructions": "?"},
    "team": {"type": "choice", "criteria": {"a": None, "b": None}},
    "urgency": {"type": "score", "criteria": ["low", "high"]},
}
GIVEN: dict[str, dict[str, Any]] = {
    "money": {"type": "noul", "noul": 0.75},
    "team": {"type": "choice", "probabilities": {"a": 0.0, "b": 1.0}},
    "urgency": {"type": "score", "probabilities": {"0": 0.5, "1": 0.5}},
}


def test_right_answers_become_examples() -> None:
    line = Line("f, line 1", {}, {"money": False, "team": "b", "urgency": 1})
    money, team, urgency = examples_of(line, GIVEN)
    assert (money.right, team.right, urgency.right) == (1, 1, 1)
    assert [math.exp(value) for value in money.logprobs] == pytest.approx([0.75, 0.25])
    assert team.logprobs[0] < -600


@pytest.mark.parametrize(
    "answers", [{"money": "yes"}, {"money": 1}, {"team": "c"}, {"team": True}, {"urgency": 2}, {"urgency": None}]
)
def test_a_right_answer_that_cannot_be_is_named(answers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"f, line 3: the answer to '(money|team|urgency)' must be one of"):
        list(examples_of(Line("f, line 3", {}, answers), GIVEN))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "has no examples"),
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 must be an object"),
        ("\n" + json.dumps({"state": "x", "questions": QUESTIONS}), "line 2 needs the members"),
        (json.dumps({"state": "x", "questions": QUESTIONS, "answers": {"mood": True}}), "'mood'"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=wrong):
        read_lines(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_lines(str(tmp_path / "none"))


def test_no_server(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(json.dumps({"state": "x", "questions": QUESTIONS, "answers": {"money": True}}) + "\n")
    with pytest.raises(ConfigError, match="does not answer"):
        calibrate(str(path), "http://127.0.0.1:9", None, concurrency=2)
