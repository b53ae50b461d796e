"""Generation of data: questions and answers on many topics for several readers, none of them twice.

python examples/tour/generate_data.py
"""

from __future__ import annotations

from typing import Annotated, Any

import kit
import pydantic
from data import READERS, TOPICS

import radixrt as rt

Line = Annotated[str, pydantic.Field(min_length=8, max_length=80)]


class Pair(pydantic.BaseModel):
    question: Line
    answer: Line


class New:
    """Accepts each question once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, pair: Pair) -> None:
        if pair.question in self.seen:
            raise ValueError("this question has been asked already; ask another one")
        self.seen.add(pair.question)


@rt.function(temperature=0.8, max_tokens=64)
def generate(s: rt.State, topic: str, new: New) -> list[Pair]:
    s += rt.system("You write short questions with their answers, as JSON.") + rt.user(f"They are about {topic}.")
    for seed, (branch, reader) in enumerate((asked := s.fork(READERS)).items()):
        branch += rt.user(f"One that {reader} would ask.")
        branch += rt.assistant(rt.gen("pair", Pair, seed=seed, check=new, retries=2))
    return asked.values("pair")


def run(size: int) -> list[Any]:
    new = New()
    made = generate.batch([(topic, new) for topic in TOPICS[:size]])
    return [pair for item in made for pair in ([item.error] if item.error else item.state.returned)]


if __name__ == "__main__":
    kit.main(run, __doc__, size=8)
