"""/v1/systemone as TypeSafe's own client sees it, and `radixrt calibrate`: a real server of the default model.

`server_url` and `model_name` come from tests/conftest.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typesafe_sdk
from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

from radixrt.calibrate.command import calibrate
from radixrt.config import parse_decision_temperature

STATE = {"message": "My card was charged twice for the same order.", "channel": "support"}


@pytest.fixture(scope="module")
def client(server_url: str, model_name: str) -> Iterator[TypeSafeClient]:
    with TypeSafeClient(base_url=server_url, api_key="none", model=model_name) as made:
        yield made


def test_typed_questions(client: TypeSafeClient, model_name: str) -> None:
    questions = {
        "billing": Noul(instructions="Is this about a payment?", criteria={"true": "It concerns a charge."}),
        "tone": Choice(instructions="What is the tone?", criteria={"calm": None, "angry": "an upset message"}),
        "urgency": Score(instructions="How urgent is it?", criteria=["can wait", "this week", "today"]),
    }
    made = client.system_one(state=STATE, questions=questions)
    assert made.model == model_name
    assert 0.0 < made.nouls["billing"].noul < 1.0
    tone = made.choices["tone"]
    assert tone.choice in ("calm", "angry")
    assert tone.confidence == tone.probabilities[tone.choice] == max(tone.probabilities.values())
    assert sum(tone.probabilities.values()) == pytest.approx(1.0)
    urgency = made.scores["urgency"]
    assert urgency.legend == {0: "can wait", 1: "this week", 2: "today"}
    assert urgency.score == pytest.approx(sum(int(level) * p for level, p in urgency.probabilities.items()))
    assert made.usage.input_tokens > 0
    assert made.usage.output_tokens == 0


def test_mistakes_name_the_field(client: TypeSafeClient) -> None:
    with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match=r"questions\.q\.criteria must hold 2 to 255"):
        client.system_one(state="x", questions={"q": Choice(instructions="?", criteria={"only": None})})


def test_questions_about_a_state_share_its_prefix(server_url: str) -> None:
    state = "A long report. " * 60
    questions = {f"q{i}": {"type": "noul", "instructions": f"Is sentence {i} true?"} for i in range(4)}
    answer = httpx.post(f"{server_url}/v1/systemone", json={"state": state, "questions": questions}, timeout=120).json()
    usages = [each["usage"] for each in answer["answers"].values()]
    assert sum(usage["input_tokens"] for usage in usages) == answer["usage"]["input_tokens"]
    assert sum(usage["cached_tokens"] > 0.9 * 180 for usage in usages) >= 3
    assert all(0.0 < each["label_mass"] <= 1.0 for each in answer["answers"].values())


def test_calibrate(server_url: str, tmp_path: Path) -> None:
    path, written, out = tmp_path / "examples.jsonl", tmp_path / "calibration.json", io.StringIO()
    words = ["Paris", "Rome", "Oslo", "apple", "pear", "plum"]
    lines = [
        {
            "state": f"{word}, number {i}",
            "questions": {"city": {"type": "noul", "instructions": "The text names a city."}},
            "answers": {"city": word[0].isupper()},
        }
        for i in range(4)
        for word in words
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert calibrate(str(path), server_url, None, concurrency=4, write=str(written), out=out) == 0
    text = out.getvalue()
    assert "24 answers to the questions of 24 requests" in text
    assert "ECE" in text
    temperature = parse_decision_temperature(str(written))
    assert text.endswith(f"radixrt launch --decision-temperature {written}\n")
    assert f"after (temperature {temperature:g})" in text
