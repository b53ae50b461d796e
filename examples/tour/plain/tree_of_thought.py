"""Tree of thought, with the plain OpenAI client.

python examples/tour/plain/tree_of_thought.py
"""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import openai

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import TRIPS

PROPOSED, KEPT, DEPTH = 3, 2, 2


class Planner:
    def __init__(self, client: openai.AsyncOpenAI, model: str) -> None:
        self.client, self.model = client, model

    async def step(self, messages: list[Any], seed: int) -> list[Any]:
        answer = await self.client.chat.completions.create(
            model=self.model, messages=messages, temperature=0.8, seed=seed, max_tokens=24, stop="\n"
        )
        return [*messages, {"role": "assistant", "content": answer.choices[0].message.content or ""}]

    async def worth(self, messages: list[Any]) -> float:
        """OpenAI's API scores no given text: the probability of the first token is as near as it comes."""
        answer = await self.client.chat.completions.create(
            model=self.model, messages=[*messages, {"role": "user", "content": "Is this a good plan?"}],
            max_tokens=1, temperature=0, logprobs=True, top_logprobs=10,
        )  # fmt: skip
        logprobs = answer.choices[0].logprobs
        top = logprobs.content[0].top_logprobs if logprobs is not None and logprobs.content else []
        found = {one.token.strip().lower(): math.exp(one.logprob) for one in reversed(top)}
        yes, no = found.get("yes", 0.0), found.get("no", 0.0)
        return yes / (yes + no) if yes + no else 0.0

    async def plan(self, task: str) -> str:
        plans: list[list[Any]] = [
            [
                {"role": "system", "content": "You plan step by step."},
                {"role": "user", "content": f"A plan for {task}. The first step, in a few words?"},
            ]
        ]
        for depth in range(DEPTH):
            tries = [messages for messages in plans for _ in range(PROPOSED)]
            steps = await asyncio.gather(*(self.step(each, 10 * depth + i) for i, each in enumerate(tries)))
            worth = await asyncio.gather(*(self.worth(each) for each in steps))
            best = sorted(range(len(steps)), key=lambda i: -worth[i])
            plans = [[*steps[i], {"role": "user", "content": "The next step?"}] for i in best[:KEPT]]
        return " / ".join(message["content"] for message in plans[0] if message["role"] == "assistant")


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    planner = Planner(client, model)
    return await asyncio.gather(*(planner.plan(task) for task in TRIPS[:size]))


if __name__ == "__main__":
    kit.plain(run, __doc__, size=4)
