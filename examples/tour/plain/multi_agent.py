"""Several agents, with the plain OpenAI client.

python examples/tour/plain/multi_agent.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import openai

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import PRODUCTS

CRITICS = {
    "lawyer": "You are a lawyer. You see to it that a text promises nothing that is not true.",
    "editor": "You are an editor. You see to it that a text is short and clear.",
}
ROUNDS = 2


class Agent:
    def __init__(self, client: openai.AsyncOpenAI, model: str, instructions: str) -> None:
        self.client, self.model = client, model
        self.messages: list[Any] = [{"role": "system", "content": instructions}]

    async def answer(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        answer = await self.client.chat.completions.create(
            model=self.model, messages=self.messages, temperature=0, max_tokens=40, stop="\n"
        )
        said = answer.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": said})
        return said


async def campaign(client: openai.AsyncOpenAI, model: str, product: str) -> str:
    critics = {name: Agent(client, model, instructions) for name, instructions in CRITICS.items()}
    writer = Agent(client, model, "You write advertisements of one sentence.")
    text = await writer.answer(f"Write one for {product}.")
    for _ in range(ROUNDS):
        notes = await asyncio.gather(*(critic.answer(text) for critic in critics.values()))
        told = "\n".join(f"{name}: {note}" for name, note in zip(critics, notes, strict=True))
        text = await writer.answer(f"{told}\nWrite it again.")
    return text


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    return await asyncio.gather(*(campaign(client, model, product) for product in PRODUCTS[:size]))


if __name__ == "__main__":
    kit.plain(run, __doc__, size=6)
