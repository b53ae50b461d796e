"""Generation of data, with the plain OpenAI client.

python examples/tour/plain/generate_data.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import openai
import pydantic

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import READERS, TOPICS

Line = Annotated[str, pydantic.Field(min_length=8, max_length=80)]


class Pair(pydantic.BaseModel):
    question: Line
    answer: Line


SCHEMA = Pair.model_json_schema()
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "pair", "strict": True, "schema": SCHEMA}}


async def generate(client: openai.AsyncOpenAI, model: str, topic: str, reader: str, seed: int, seen: set[str]) -> Any:
    messages: list[Any] = [
        {"role": "system", "content": "You write short questions with their answers, as JSON."},
        {"role": "user", "content": f"They are about {topic}."},
        {"role": "user", "content": f"One that {reader} would ask."},
    ]
    reason = ""
    for attempt in range(3):
        answer = await client.chat.completions.create(
            model=model, messages=messages, temperature=0.8, max_tokens=64, seed=seed + attempt,
            response_format=FORMAT,
        )  # fmt: skip
        text = answer.choices[0].message.content or ""
        try:
            pair = Pair.model_validate_json(text)
            if pair.question not in seen:
                seen.add(pair.question)
                return pair
            reason = "this question has been asked already; ask another one"
        except pydantic.ValidationError as error:
            reason = "; ".join(one["msg"] for one in error.errors())
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": f"This answer is not accepted: {reason}\nAnswer again."})
    return reason


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    seen: set[str] = set()
    return await asyncio.gather(
        *(
            generate(client, model, topic, reader, seed, seen)
            for topic in TOPICS[:size]
            for seed, reader in enumerate(READERS)
        )
    )


if __name__ == "__main__":
    kit.plain(run, __doc__, size=8)
