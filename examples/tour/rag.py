"""Answers with citations: passages are found by their embeddings, and an answer names those that it is from.

python examples/tour/rag.py
"""

from __future__ import annotations

from typing import Annotated, Any

import kit
import pydantic
from data import PASSAGES, QUESTIONS

import radixrt as rt

Number = Annotated[int, pydantic.Field(ge=1, le=3)]


class Answer(pydantic.BaseModel):
    text: Annotated[str, pydantic.Field(max_length=120)]
    sources: Annotated[list[Number], pydantic.Field(min_length=1, max_length=3)]


@rt.function(temperature=0, max_tokens=64)
def ask(s: rt.State, questions: list[str]) -> list[Any]:
    s += rt.system("You answer from the passages and name their numbers.")
    s += rt.embed("passages", PASSAGES) + rt.embed("questions", questions)
    nearest = (s["questions"] @ s["passages"].T).argsort()[:, :-4:-1]
    asked = s.fork(questions)
    for (branch, question), best in zip(asked.items(), nearest, strict=True):
        shown = "\n".join(f"[{n}] {PASSAGES[i]}" for n, i in enumerate(best, 1))
        branch += rt.user(f"{shown}\n\n{question}") + rt.assistant(rt.gen("answer", Answer))
    return [(question, branch["answer"]) for branch, question in asked.items()]


def run(size: int) -> list[Any]:
    return list(ask.run(QUESTIONS[:size]).returned)


if __name__ == "__main__":
    kit.main(run, __doc__, size=8)
