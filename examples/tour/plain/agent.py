"""An agent with tools, with the plain OpenAI client.

python examples/tour/plain/agent.py
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
from data import PEOPLE, TASKS


def population(city: str) -> int:
    return PEOPLE[city]


def add(a: int, b: int) -> int:
    return a + b


FUNCTIONS: dict[str, Any] = {"population": population, "add": add}


def tool(name: str, description: str, properties: dict[str, Any]) -> Any:
    parameters = {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
    }  # fmt: skip
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool(
        "population",
        "Returns the number of people who live in a city.",
        {"city": {"enum": ["Oslo", "Rome", "Lima"]}},
    ),
    tool("add", "Adds two numbers.", {"a": {"type": "integer"}, "b": {"type": "integer"}}),
]


def call(name: str, arguments: str) -> str:
    try:
        return json.dumps(FUNCTIONS[name](**json.loads(arguments)))
    except Exception as error:
        return f"error: {error}"


async def agent(client: openai.AsyncOpenAI, model: str, slots: asyncio.Semaphore, task: str) -> str:
    messages: list[Any] = [
        {"role": "system", "content": "You answer with the help of functions."},
        {"role": "user", "content": task},
    ]
    async with slots:
        for _ in range(2):
            answer = await client.chat.completions.create(
                model=model, messages=messages, temperature=0, max_tokens=64, tools=TOOLS, tool_choice="required"
            )
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            for made in message.tool_calls or []:
                result = call(made.function.name, made.function.arguments)  # type: ignore[union-attr]
                messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
        answer = await client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=24, tools=TOOLS, tool_choice="none"
        )
    return answer.choices[0].message.content or ""


async def run(client: openai.AsyncOpenAI, model: str, size: int) -> list[Any]:
    slots = asyncio.Semaphore(32)
    return await asyncio.gather(*(agent(client, model, slots, task) for task in TASKS[:size]))


if __name__ == "__main__":
    kit.plain(run, __doc__, size=6)
