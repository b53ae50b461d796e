"""Map and reduce over documents, with the plain OpenAI client.

python examples/tour/plain/map_reduce.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import openai

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import REPORTS

SYSTEM = "You read the reports of a company, and write one sentence about what you are asked."


async def ask(client: openai.AsyncOpenAI, model: str, slots: asyncio.Semaphore, messages: list[Any], most: int) -> str:
    async with slots:
        answer = await client.chat.completions.create(
            model=model, messages=messages, temperature=0, stop="\n", max_tokens=most
        )
    return answer.choices[0].message.content or ""


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    slots = asyncio.Semaphore(32)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    async def read(question: str) -> list[str]:
        return await asyncio.gather(
            *(
                ask(
                    client, model, slots,
                    [*messages[:1], {"role": "user", "content": text}, {"role": "user", "content": question}], 32,
                )
                for text in REPORTS[:size]
            )
        )  # fmt: skip

    summaries, risks = await asyncio.gather(read("Summarize it."), read("What is the greatest risk in it?"))
    results = []
    for title, sentences in (("Summaries", summaries), ("Risks", risks)):
        messages.append({"role": "user", "content": f"{title}:\n" + "\n".join(sentences)})
        said = await ask(client, model, slots, messages, 64)
        messages.append({"role": "assistant", "content": said})
        results.append(said)
    return results


if __name__ == "__main__":
    kit.plain(run, __doc__, size=8)
