"""Constraints of answers in channels on a real engine, whose random model would write anything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixrt import Engine
from radixrt.chat.answer import AnswerForm, AnswerParser, Part
from radixrt.chat.dialect import read_dialect
from radixrt.chat.harmony import HARMONY, MARKERS, harmony_constraint
from radixrt.chat.reasoning import Reasoning
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.config import make_config
from radixrt.constrained.tags.tools import Tool
from tests.engine.harmony_model import make_harmony_model

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [Tool("get", json.dumps({**CITY, "additionalProperties": False})), Tool("get_all", '{"type":"object"}')]
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
SEEDS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_harmony_model(tmp_path_factory.mktemp("harmony") / "model")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    options: dict[str, Any] = {"executor": "uni", "dtype": "float32", "kv_cache_tokens": 2048, "num_threads": 1}
    with Engine(str(folder), show_progress=False, **options) as made:
        yield made


def answers(engine: Engine, **options: Any) -> list[tuple[list[Part], bool]]:
    """The parts of several answers under a constraint, and whether each has complete calls."""
    sampling = {"structural_tag": harmony_constraint(reserved=MARKERS, **options), "skip_special_tokens": False}
    params = [{**sampling, "temperature": 1.0, "seed": seed, "max_tokens": 120} for seed in range(SEEDS)]
    found = []
    for each in engine.generate([f"{seed} times<|start|>assistant" for seed in range(SEEDS)], params):
        parser = AnswerParser(AnswerForm(channels=HARMONY, tools=tuple(TOOLS)))
        found.append(([*parser.feed(each.text), *parser.finish()], parser.has_calls))
    return found


def text_of(parts: list[Part], kind: Any) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


def test_the_folder_has_the_dialect(folder: Path) -> None:
    dialect = read_dialect(make_config(), str(folder))
    assert dialect.channels is HARMONY
    assert dialect.tokens.keys() >= set(MARKERS)
    assert dialect.special_tokens >= set(MARKERS)


def test_a_required_call_comes_whole(engine: Engine) -> None:
    found = answers(engine, tools=TOOLS, required=True, response=None)
    for parts, complete in found:
        assert complete
        (name,) = [part.name for part in parts if isinstance(part, CallBegin)]
        arguments = json.loads(text_of(parts, CallArguments))
        assert name == "get_all" or arguments in ({"city": "Rome"}, {"city": "Oslo"})
    assert any(text_of(parts, Reasoning) for parts, _ in found)  # some reason first


def test_an_answer_is_held_to_its_schema_behind_free_reasoning(engine: Engine) -> None:
    found = answers(engine, tools=[], required=False, response=NUMBER)
    assert all(isinstance(json.loads(text_of(parts, Text)), int) for parts, _ in found)
    assert any(text_of(parts, Reasoning) for parts, _ in found)


def test_an_answer_or_a_call(engine: Engine) -> None:
    for parts, complete in answers(engine, tools=TOOLS, required=False, response=NUMBER):
        if complete:
            json.loads(text_of(parts, CallArguments))
        else:
            json.loads(text_of(parts, Text).rpartition("\n")[2])
