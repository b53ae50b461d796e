"""/v1/systemone: TypeSafe's questions and answers, what a temperature changes, and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from radixrt.config import config_to_dict, make_config, parse_decision_temperature
from radixrt.errors import ConfigError
from radixrt.server.protocol.questions import shares
from tests.server.helpers import Caller, check_error
from tests.server.test_decisions import messages_of
from tests.server.test_decisions import shares as fake_shares

NOUL = {"type": "noul", "instructions": "Is it about money?"}
CHOICE = {
    "type": "choice",
    "instructions": {"task": "Find the team."},
    "criteria": {"billing": "charges", "support": None, "sales": ["new", "customers"]},
}
SCORE = {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", {"when": "today"}]}


def test_questions(caller: Caller) -> None:
    state = {"message": "I was charged twice.", "channel": "mail"}
    body = {"model": "fake", "state": state, "questions": {"money": NOUL, "team": CHOICE, "urgency": SCORE}}
    answer = caller.post("/v1/systemone", body).json()
    two, three = fake_shares(2), fake_shares(3)
    more = {"label_mass": 1.0, "usage": {"input_tokens": 10, "cached_tokens": 4}}
    assert answer["answers"] == {
        "money": {"type": "noul", "noul": pytest.approx(two[0]), **more},
        "team": {
            "type": "choice",
            "choice": "billing",
            "confidence": pytest.approx(three[0]),
            "probabilities": pytest.approx(dict(zip(["billing", "support", "sales"], three, strict=True))),
            **more,
        },
        "urgency": {
            "type": "score",
            "score": pytest.approx(two[1]),
            "confidence": pytest.approx(two[0]),
            "legend": {"0": "can wait", "1": {"when": "today"}},
            "probabilities": pytest.approx({"0": two[0], "1": two[1]}),
            **more,
        },
    }
    assert answer["model"] == "fake"
    assert answer["usage"]["input_tokens"] == 30
    assert answer["usage"]["output_tokens"] == 0
    asked = caller.engine.questions
    assert [q.rows[0].continuations.texts for q in asked] == [
        ["Yes", "No"],
        ['"billing"', '"support"', '"sales"'],
        ["0", "1"],
    ]
    texts = [messages_of(question)[0]["content"] for question in asked]
    written = json.dumps(state, separators=(",", ":"))
    assert all(text.replace('": ', '":').replace(', "', ',"').startswith(f"{written}\n\n") for text in texts)
    assert '- "billing": charges\n- "support"\n- "sales": ["new"' in texts[1]
    assert '0: can wait\n1: {"when"' in texts[2]


@pytest.mark.parametrize(
    ("criteria", "told"),
    [
        ({"true": "a bill", "false": None}, "Is it about money?\n\nYes means: a bill\n\nIs this true?"),
        ({"false": ["a", "b"]}, 'No means: ["a"'),
        (None, "Is it about money?\n\nIs this true?"),
    ],
)
def test_criteria_of_a_noul(caller: Caller, criteria: Any, told: str) -> None:
    assert caller.post("/v1/systemone", {"state": "x", "questions": {"q": {**NOUL, "criteria": criteria}}}).is_success
    assert told in messages_of(caller.engine.questions[0])[0]["content"]


def test_a_choice_without_instructions(caller: Caller) -> None:
    body = {"state": ["a", {"b": 1}], "questions": {"q": {"type": "choice", "criteria": {"yes": None, "no": None}}}}
    assert caller.post("/v1/systemone", body).is_success
    text = messages_of(caller.engine.questions[0])[0]["content"]
    assert "\n\nAnswer with one of these, and nothing else:" in text
    assert "\n\n\n" not in text


def body(**fields: Any) -> dict[str, Any]:
    return {"state": "x", "questions": {"q": NOUL}, **fields}


def one(**fields: Any) -> dict[str, Any]:
    return {"state": "x", "questions": {"q": fields}}


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"questions": {"q": NOUL}}, "state"),
        (body(state=None), "state"),
        (body(state=5), "state"),
        (body(questions={}), "questions"),
        (body(questions=None), "questions"),
        (body(questions={f"q{i}": NOUL for i in range(401)}), "questions"),
        (one(type="box"), "questions.q.type"),
        (one(type="Noul"), "questions.q.type"),
        (one(type="noul"), "questions.q.instructions"),
        (one(type="noul", instructions=7), "questions.q.instructions"),
        (one(type="noul", criteria={"maybe": "x"}), "questions.q.criteria.maybe"),
        (one(type="noul", criteria=["x"]), "questions.q.criteria"),
        (one(type="choice", instructions="x"), "questions.q.criteria"),
        (one(type="choice", criteria=["a", "b"]), "questions.q.criteria"),
        (one(type="choice", criteria={"a": None}), "questions.q.criteria"),
        (one(type="choice", criteria={"a": 5, "b": None}), "questions.q.criteria.a"),
        (one(type="choice", criteria={str(i): None for i in range(256)}), "questions.q.criteria"),
        (one(type="score", instructions="x"), "questions.q.criteria"),
        (one(type="score", criteria={"0": "x"}), "questions.q.criteria"),
        (one(type="score", criteria=[]), "questions.q.criteria"),
        (one(type="score", criteria=["x"] * 11), "questions.q.criteria"),
        (one(type="score", criteria=["x", 5]), "questions.q.criteria[1]"),
    ],
)
def test_errors_name_the_field(caller: Caller, sent: dict[str, Any], param: str) -> None:
    check_error(caller.post("/v1/systemone", sent), 400, param)
    assert not caller.engine.questions


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        (body(state="~"), "state"),
        (body(state={"a": "~"}), "state"),
        (one(type="noul", instructions=["~"]), "questions.q.instructions"),
        (one(type="choice", criteria={"~": None, "b": None}), "questions.q.criteria"),
        (one(type="choice", criteria={"a": "~", "b": None}), "questions.q.criteria"),
        (one(type="score", criteria=["a", "~"]), "questions.q.criteria[1]"),
    ],
)
def test_invalid_utf8_names_the_field(caller: Caller, sent: dict[str, Any], param: str) -> None:
    content = json.dumps(sent).encode().replace(b"~", b"\xff")
    answer = caller.post("/v1/systemone", content=content, headers={"content-type": "application/json"})
    check_error(answer, 400, param, "invalid_utf8")


def test_an_encoded_body_is_refused_by_name(caller: Caller) -> None:
    for encoding in ("zstd", "gzip"):
        response = caller.post("/v1/systemone", body(), headers={"content-encoding": encoding})
        assert f"Content-Encoding {encoding!r}" in check_error(response, 415, None)


# --- probabilities ---


def test_a_temperature_flattens_probabilities_and_leaves_the_label_mass() -> None:
    logprobs = [math.log(0.6), math.log(0.15), math.log(0.05)]
    plain, flat = shares(logprobs, 1.0), shares(logprobs, 2.0)
    assert plain.probabilities == pytest.approx([0.75, 0.1875, 0.0625])
    assert plain.label_mass == flat.label_mass == pytest.approx(0.8)
    assert flat.confidence < plain.confidence
    assert (plain.best, flat.best) == (0, 0)
    assert sum(flat.probabilities) == pytest.approx(1.0)
    assert plain.expected_level == pytest.approx(0.1875 + 2 * 0.0625)
    assert shares([0.0, -1e-9], 1.0).label_mass == 1.0


def test_the_option_is_a_number_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text('{"temperature": 1.5, "examples": 100}')
    assert parse_decision_temperature(str(path)) == 1.5
    assert parse_decision_temperature("0.5") == 0.5
    settled = make_config(decision_temperature=str(path))
    path.unlink()  # processes that start later do not read the file again
    again = make_config(**config_to_dict(settled))
    assert parse_decision_temperature(again.server.decision_temperature) == 1.5
    path.write_text('{"temperature": "hot"}')
    for wrong, named in (
        (str(path), "between 0.01 and 100"), ("0", "between"), ("nan", "between"), ("inf", "between"),
        (str(tmp_path / "none.json"), "neither a number nor a file"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="decision_temperature") as raised:
            make_config(decision_temperature=wrong)
        assert named in str(raised.value)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="between"):
        make_config(decision_temperature=str(path))
    path.write_text("no json")
    with pytest.raises(ConfigError, match="radixrt calibrate"):
        make_config(decision_temperature=str(path))
