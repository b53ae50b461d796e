"""Scores equal those computed with transformers' modeling code, whatever the engine does on the way."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixrt
from radixrt.messages.parts import TemplateText
from radixrt.tasks.score import Decision
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.equivalence.reference import reference_logits

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "depth-1": {"max_inflight_steps": 1},
    "no-cache": {"prefix_cache": False},
    "page-16": {"page_size": 16},
    "chunk-7-page-4-depth-1": {"chunked_prefill_size": 7, "page_size": 4, "max_inflight_steps": 1},
    "chunk-7-no-cache": {"chunked_prefill_size": 7, "prefix_cache": False},
    "two-rows": {"max_running_requests": 2},
    "evicting": {"kv_cache_tokens": 192, "max_running_requests": 3},
}
CHOICES = ["yes", "yes sir", "yes sir, at once", "no", "nothing at all", " maybe"]


def reference(folder: Path, ids: list[int], start: int) -> list[float]:
    """Log-probability of each token from `start` on."""
    logprobs = reference_logits(folder, ids).log_softmax(-1)
    return [float(logprobs[i - 1, ids[i]]) for i in range(start, len(ids))]


def check(folder: Path, decision: Decision) -> None:
    prefix = decision.prompt_token_ids[: decision.kept]
    for ids, logprob in zip(decision.token_ids, decision.logprobs, strict=True):
        assert logprob == pytest.approx(sum(reference(folder, prefix + ids, len(prefix))), abs=2e-3)
    assert sum(decision.probabilities) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "variant"), [*(("llama", each) for each in VARIANTS), ("mixtral", "chunk-7-page-4-depth-1")]
)
def test_scores_equal_transformers(kind: str, variant: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(kind)
    rng = random.Random(1)
    long = [rng.randrange(3, 500) for _ in range(60)]
    options = {"kv_cache_tokens": 2048, "max_running_requests": 8, **VARIANTS[variant]}
    with radixrt.Engine(
        str(folder),
        executor="uni",
        num_threads=1,
        dtype="float32",
        show_progress=False,
        check_invariants=True,
        **options,
    ) as engine:
        for _ in range(2):  # cold and warm
            for prompt in ("The answer is ", long, ["Is it so?", long, "Answer: "]):
                decision = engine.score(prompt, CHOICES)
                check(folder, decision)
        again = engine.score(long, CHOICES)
        engine.check_invariants()
    shared = again.usage.cached_tokens
    assert shared == 0 if variant in ("no-cache", "chunk-7-no-cache") else shared >= 48


@pytest.fixture(scope="module")
def engine(cache_folder: Path) -> Any:
    with radixrt.Engine(dtype="float32", kv_cache_tokens=4096, executor="uni", show_progress=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def smollm(engine: radixrt.Engine) -> Path:
    from radixrt.config import make_config
    from radixrt.engine.settings import resolve_settings

    return Path(resolve_settings(make_config(dtype="float32"), show_progress=False)[1].folder)


def test_the_boundary_is_healed(engine: radixrt.Engine, smollm: Path) -> None:
    tokenizer = Tokenizer.from_folder(smollm)
    question = "Is the sky blue? Answer: "
    spaced = engine.score(question.rstrip(), [" yes", " no", " yesterday"])
    open_ = engine.score(question, ["yes", "no", "yesterday"])
    assert spaced.token_ids == open_.token_ids == [tokenizer.encode(w) for w in (" yes", " no", " yesterday")]
    assert spaced.logprobs == pytest.approx(open_.logprobs, abs=1e-4)
    assert open_.kept == spaced.kept == len(open_.prompt_token_ids) - 1 == len(spaced.prompt_token_ids)
    check(smollm, open_)
    by_ids = engine.score(tokenizer.encode(question), ["yes", "no"])  # ids are never tokenized again
    assert by_ids.kept == len(by_ids.prompt_token_ids)
    assert by_ids.token_ids == [tokenizer.encode("yes"), tokenizer.encode("no")]


def test_a_long_text_is_healed_as_a_whole_one(engine: radixrt.Engine, smollm: Path) -> None:
    tokenizer = Tokenizer.from_folder(smollm)
    text = "The quick brown fox, it's said, jumps   over\n\n the lazy dog 1234 times. " * 8 + "And the"
    for end in ("", " ", "  ", " r", "\n", " 12"):
        decision = engine.score(text + end, ["ed fox", "n it", "345", " x"])
        for ids, choice in zip(decision.token_ids, ["ed fox", "n it", "345", " x"], strict=True):
            assert decision.prompt_token_ids[: decision.kept] + ids == tokenizer.encode(text + end + choice)


def test_a_chat_template_ends_the_prompt(engine: radixrt.Engine, smollm: Path) -> None:
    parts = [
        TemplateText("<|im_start|>user\n"), "What is the capital of France?",
        TemplateText("<|im_end|>\n<|im_start|>assistant\n"),
    ]  # fmt: skip
    answers = ["The capital of France is Berlin.", "The capital of France is Paris.", "<|im_end|>"]
    decision = engine.score(parts, answers)
    check(smollm, decision)
    assert decision.text == answers[1]
    assert len(decision.token_ids[2]) > 1, "a choice is never read as a control token"
    greedy = engine.score(parts, answers, method="greedy")
    assert greedy.text == answers[1]


def test_unconditional_likelihood(engine: radixrt.Engine, smollm: Path) -> None:
    tokenizer = Tokenizer.from_folder(smollm)
    prompt, choices = "A dog says", [" woof", " meow meow", " the"]
    decision = engine.score(prompt, choices, method="unconditional_likelihood_normalized")
    bos = tokenizer.token_to_id(tokenizer.special_tokens["bos_token"])
    assert bos is not None
    for ids, score, logprob in zip(decision.token_ids, decision.scores, decision.logprobs, strict=True):
        alone = sum(reference(smollm, [bos, *ids], 1))
        assert score == pytest.approx((logprob - alone) / len(ids), abs=2e-3)
    check(smollm, decision)


def test_thousands_of_choices(engine: radixrt.Engine) -> None:
    choices = [f" {a} {b}" for a in range(50) for b in range(60)]
    few = engine.score("The sum of", choices[:40])
    many = engine.score("The sum of", choices)
    assert len(many.logprobs) == 3000
    assert many.logprobs[:40] == pytest.approx(few.logprobs, abs=1e-3)
    engine.check_invariants()
