"""Tree of thought: several next steps for each plan, each is judged, and the best are continued.

python examples/tour/tree_of_thought.py
"""

from __future__ import annotations

from typing import Any

import kit
from data import TRIPS

import radixrt as rt

PROPOSED, KEPT, DEPTH = 3, 2, 2


@rt.function(max_tokens=24, stop="\n")
def plan(s: rt.State, task: str) -> str:
    s += rt.system("You plan step by step.") + rt.user(f"A plan for {task}. The first step, in a few words?")
    plans = [s]
    for depth in range(DEPTH):
        steps = [step for plan in plans for step in plan.fork(PROPOSED)]
        for seed, step in enumerate(steps):
            step += rt.assistant(rt.gen("step", temperature=0.8, seed=10 * depth + seed))
        judges = [step.copy() for step in steps]
        for judge in judges:
            judge += rt.user("Is this a good plan?") + rt.assistant(rt.select("good", ["yes", "no"]))
        worth = [judge.meta["good"].probabilities[0] for judge in judges]
        best = sorted(range(len(steps)), key=lambda i: -worth[i])
        for i in best[KEPT:]:
            steps[i].end()
        plans = [steps[i] for i in best[:KEPT]]
        for one in plans:
            one += rt.user("The next step?")
    return " / ".join(message["content"] for message in plans[0].messages() if message["role"] == "assistant")


def run(size: int) -> list[Any]:
    return [item.state.returned if item.state else item.error for item in plan.batch(TRIPS[:size])]


if __name__ == "__main__":
    kit.main(run, __doc__, size=4)
