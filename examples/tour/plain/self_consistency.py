"""Self-consistency, with the plain OpenAI client.

python examples/tour/plain/self_consistency.py
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import openai

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import PROBLEMS, SHOTS

SAMPLES = 8


async def sample(client: openai.AsyncOpenAI, model: str, prompt: str, seed: int) -> str:
    reason = await client.completions.create(
        model=model, prompt=prompt, max_tokens=32, temperature=0.7, seed=seed, stop=["\n", " The answer"]
    )
    # OpenAI's API has no regular expressions: this server's own field, as vLLM has it.
    answer = await client.completions.create(
        model=model, prompt=f"{prompt}{reason.choices[0].text} The answer is", max_tokens=8, temperature=0.7,
        seed=seed, stop=".", extra_body={"structured_outputs": {"regex": " [0-9]{1,4}"}},
    )  # fmt: skip
    return answer.choices[0].text


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    results = []
    for problem in PROBLEMS[:size]:
        prompt = f"{SHOTS}Q: {problem}\nA:"
        answers = await asyncio.gather(*(sample(client, model, prompt, seed) for seed in range(SAMPLES)))
        (answer, _), *_ = Counter(answers).most_common()
        results.append(answer)
    return results


if __name__ == "__main__":
    kit.plain(run, __doc__, size=4)
