"""A panel of judges, with the plain OpenAI client.

python examples/tour/plain/judge_panel.py
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import openai

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import ESSAYS, JUDGES


def form(kind: dict[str, Any]) -> Any:
    schema = {"type": "object", "properties": {"value": kind}, "required": ["value"], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": schema}}


SCORE = form({"type": "integer", "minimum": 1, "maximum": 9})
VERDICT = form({"enum": ["yes", "no"]})


class Panel:
    def __init__(self, client: openai.AsyncOpenAI, model: str, slots: asyncio.Semaphore) -> None:
        self.client, self.model, self.slots = client, model, slots

    async def say(self, messages: list[Any], text: str, **options: Any) -> str:
        messages.append({"role": "user", "content": text})
        answer = await self.client.chat.completions.create(
            model=self.model, messages=messages, temperature=0, **options
        )
        said = answer.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        return said

    async def judge(self, messages: list[Any], who: str) -> tuple[str, int]:
        messages = list(messages)
        note = await self.say(messages, f"Comment on it as {who} would.", max_tokens=32, stop="\n")
        score = await self.say(messages, "A score from 1 to 9?", max_tokens=32, response_format=SCORE)
        return note, json.loads(score)["value"]

    async def decide(self, essay: str) -> tuple[str, str]:
        async with self.slots:
            messages: list[Any] = [
                {"role": "system", "content": "You judge essays."},
                {"role": "user", "content": essay},
            ]
            judged = await asyncio.gather(*(self.judge(messages, who) for who in JUDGES))
            notes = "\n".join(f"{who}: {note}" for who, (note, _) in zip(JUDGES, judged, strict=True))
            asked = f"The judges wrote:\n{notes}\nPrint it?"
            verdict = json.loads(await self.say(messages, asked, max_tokens=32, response_format=VERDICT))["value"]
            return verdict, await self.say(messages, "Why?", max_tokens=32, stop="\n")


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    panel = Panel(client, model, asyncio.Semaphore(32))
    return await asyncio.gather(*(panel.decide(essay) for essay in ESSAYS[:size]))


if __name__ == "__main__":
    kit.plain(run, __doc__, size=6)
