"""Answers with citations, with the plain OpenAI client.

python examples/tour/plain/rag.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import openai
import pydantic

sys.path.append(str(Path(__file__).parent.parent))
import kit
from data import PASSAGES, QUESTIONS

Number = Annotated[int, pydantic.Field(ge=1, le=3)]


class Answer(pydantic.BaseModel):
    text: Annotated[str, pydantic.Field(max_length=120)]
    sources: Annotated[list[Number], pydantic.Field(min_length=1, max_length=3)]


SCHEMA = Answer.model_json_schema()
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


async def embed(client: openai.AsyncOpenAI, model: str, texts: list[str]) -> Any:
    answer = await client.embeddings.create(model=model, input=texts)
    return np.array([one.embedding for one in answer.data])


async def ask(client: openai.AsyncOpenAI, model: str, question: str, best: list[int]) -> tuple[str, Answer]:
    shown = "\n".join(f"[{n}] {PASSAGES[i]}" for n, i in enumerate(best, 1))
    messages: list[Any] = [
        {"role": "system", "content": "You answer from the passages and name their numbers."},
        {"role": "user", "content": f"{shown}\n\n{question}"},
    ]
    answer = await client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=64, response_format=FORMAT
    )
    return question, Answer.model_validate_json(answer.choices[0].message.content or "")


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    questions = QUESTIONS[:size]
    passages, asked = await asyncio.gather(embed(client, model, PASSAGES), embed(client, model, questions))
    nearest = (asked @ passages.T).argsort()[:, :-4:-1]
    return await asyncio.gather(
        *(ask(client, model, question, list(best)) for question, best in zip(questions, nearest, strict=True))
    )


if __name__ == "__main__":
    kit.plain(run, __doc__, size=8)
