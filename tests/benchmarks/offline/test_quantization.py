"""The quality benchmark of quantized weights, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.common.quantized_folders import WRITERS, write_quantized
from benchmarks.offline.forced_answers import QUESTIONS
from benchmarks.offline.quantization import JSON_SCHEMA, Scorer, Variant, _is_valid, compare, text_windows
from radixrt.models.loading.weights import check_checkpoint
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "m", "llama", hidden_size=128, intermediate_size=256)


def test_the_divergence_grows_as_bits_get_fewer(tiny: Path) -> None:
    ids = np.random.default_rng(0).integers(3, 500, 48).astype(np.int32)
    scorers = [Scorer(Variant(str(tiny), kind), "cpu", 48) for kind in ("none", "int8", "int4")]
    for step_tokens in (48, 1):
        (itself, same), (int8, _), (int4, _) = compare(scorers[0], scorers, [ids], step_tokens)
        assert (itself, same) == (0.0, 1.0)
        assert 0 < int8 < int4 / 4


def test_rounded_inputs_lose_more_than_rounded_weights_but_for_single_tokens(tiny: Path) -> None:
    ids = np.random.default_rng(0).integers(3, 500, 48).astype(np.int32)
    variants = [Variant(str(tiny), "none"), Variant(str(tiny), "fp8"), Variant(str(tiny), "fp8", rounds_inputs=True)]
    scorers = [Scorer(variant, "cpu", 48) for variant in variants]
    _, (weights, _), (both, _) = compare(scorers[0], scorers, [ids], 48)
    assert 0 < weights < both < 8 * weights
    _, weights_alone, both_alone = compare(scorers[0], scorers, [ids], 1)
    assert weights_alone == both_alone


@pytest.mark.parametrize("name", WRITERS)
def test_folders_are_checkpoints(name: str, tiny: Path, tmp_path: Path) -> None:
    check_checkpoint(write_quantized(tiny, tmp_path / "q", name))


def test_windows_are_the_same_every_time(tiny: Path) -> None:
    tokenizer = Tokenizer.from_folder(tiny)
    windows = text_windows(tokenizer, 100, 32)
    assert [len(each) for each in windows] == [32] * 4
    assert len({each.tobytes() for each in windows}) == 4
    for one, other in zip(windows, text_windows(tokenizer, 100, 32), strict=True):
        assert (one == other).all()


def test_questions_have_one_right_answer() -> None:
    assert len(QUESTIONS) == 100
    for question, choices, right in QUESTIONS:
        assert len(set(choices)) == 4, question
        assert 0 <= right < 4
    assert ("The capital of Germany is", 1) in {(question, right) for question, _, right in QUESTIONS}
    sums = [(question.split(), choices[right]) for question, choices, right in QUESTIONS if " plus " in question]
    assert all(int(words[0]) + int(words[2]) == int(answer) for words, answer in sums)


def test_what_the_schema_allows_is_valid_and_nothing_else() -> None:
    good = {"name": "Ada", "age": 36, "languages": ["en"], "married": True}
    assert _is_valid(json.dumps(good))
    assert set(JSON_SCHEMA["required"]) == set(good)  # type: ignore[call-overload]
    for bad in ({**good, "age": -1}, {**good, "more": 1}, {**good, "languages": ["en"] * 4}, {"name": "Ada"}):
        assert not _is_valid(json.dumps(bad))
    assert not _is_valid(json.dumps(good)[:-1])
