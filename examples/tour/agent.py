"""An agent with tools: the model calls Python functions, and goes on with what they return.

python examples/tour/agent.py
"""

from __future__ import annotations

from typing import Any, Literal

import kit
from data import PEOPLE, TASKS

import radixrt as rt


def population(city: Literal["Oslo", "Rome", "Lima"]) -> int:
    """Returns the number of people who live in a city."""
    return PEOPLE[city]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@rt.function(temperature=0, max_tokens=64)
def agent(s: rt.State, task: str) -> None:
    s += rt.system("You answer with the help of functions.") + rt.user(task)
    for _ in range(2):
        s += rt.assistant(rt.gen("step", tools=[population, add], tool_choice="required"))
        s.run_tools("step", on_error="tell")
    s += rt.assistant(rt.gen("answer", max_tokens=24))


def run(size: int) -> list[Any]:
    return [item["answer"] for item in agent.batch(TASKS[:size])]


if __name__ == "__main__":
    kit.main(run, __doc__, size=6)
