"""Makes the table "Precision of the embedded model" of docs/benchmarks.md: error of bfloat16 against float32 on a CPU.

The embedded model scores texts of several kinds in float32 and in bfloat16. The error is the mean absolute difference
of the log-probabilities of the 20 tokens that float32 finds most probable at each position. The times are the best of
three: a prompt of 1,024 new tokens, and a token generated alone.

Run: python -m benchmarks.offline.precision
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt import Engine

CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
QUESTIONS = (
    "What is the capital of France?",
    "Name three primes and explain why they are prime.",
    "Write a haiku about the sea.",
)
PROSE = Path(__file__).resolve().parents[2] / "LICENSE"
PROMPT_TOKENS, OUTPUT_TOKENS, REPETITIONS = 1024, 48, 3
TOP, CANDIDATES = 20, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", action="append", help="compared with float32; may be repeated (default: bfloat16)")
    options = parser.parse_args()
    print(facts())
    texts = [CHAT.format(question) for question in QUESTIONS] + [PROSE.read_text(encoding="utf-8")[:3000]]
    exact, *row = measure("float32", texts, TOP)
    rows = [["float32", "0", *row]]
    for dtype in options.dtype or ["bfloat16"]:
        found, *row = measure(dtype, texts, CANDIDATES)
        differences = [
            abs(logprob - there[token])
            for here, there in zip(exact, found, strict=True)
            for token, logprob in here.items()
            if token in there
        ]
        rows.append([dtype, f"{sum(differences) / len(differences):.4f}", *row])
    columns = ["dtype", "mean error", "first answer", "log p(1st) - log p(2nd)", "prefill ms", "decode ms/token"]
    print(table(columns, rows))


def measure(dtype: str, texts: list[str], top: int) -> tuple[Any, ...]:
    """Score the texts and time a prompt and an answer.

    Returns:
        The log-probabilities of the `top` most probable tokens at each position, by token id; then the cells of a row.
    """
    with Engine(dtype=dtype, executor="uni", kv_cache_tokens=16384) as engine:
        greedy = {"temperature": 0.0, "max_tokens": 20, "prompt_logprobs": top, "logprobs": 2}
        outputs = engine.generate(texts, greedy)
        assert isinstance(outputs, list)
        positions = [
            {candidate.token_id: candidate.logprob for candidate in position.top}
            for output in outputs
            for position in output.prompt_logprobs or []
            if position.logprob is not None
        ]
        first, second = (outputs[0].logprobs or [])[0].top[:2]
        prefill = best(lambda seed: engine.generate([prompt(seed)], {"max_tokens": 1, "ignore_eos": True}))
        answer = {"max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        decode = best(lambda seed: engine.generate([[7 + seed, 8, 9]], answer)) / OUTPUT_TOKENS
        gap = f"{(first.logprob or 0.0) - (second.logprob or 0.0):.3f}"
        return positions, outputs[0].text, gap, f"{prefill * 1e3:.0f}", f"{decode * 1e3:.1f}"


def prompt(seed: int) -> list[int]:
    """Token ids that no other seed's prompt begins with."""
    return list(range(100 + 2000 * seed, 100 + 2000 * seed + PROMPT_TOKENS))


def best(run: Any) -> float:
    """Seconds of the fastest repetition, each with new tokens."""
    seconds = []
    for seed in range(REPETITIONS):
        started = time.perf_counter()
        run(seed)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
