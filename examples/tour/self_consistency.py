"""Self-consistency: many reasoned answers to one problem, and a vote.

python examples/tour/self_consistency.py
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import kit
from data import PROBLEMS, SHOTS

import radixrt as rt

SAMPLES = 8


@rt.function(temperature=0.7)
def solve(s: rt.State, problem: str) -> str:
    s += f"{SHOTS}Q: {problem}\nA:"
    samples = s.fork(SAMPLES)
    for seed, sample in enumerate(samples):
        sample += rt.gen("reason", max_tokens=32, seed=seed, stop=["\n", " The answer"])
        sample += " The answer is" + rt.gen("answer", regex=" [0-9]{1,4}", stop=".", seed=seed)
    (answer, _), *_ = Counter(samples.values("answer")).most_common()
    return answer


def run(size: int) -> list[Any]:
    return [solve.run(problem).returned for problem in PROBLEMS[:size]]


if __name__ == "__main__":
    kit.main(run, __doc__, size=4)
