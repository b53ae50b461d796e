"""Tree of thought: propose several next steps for each plan, judge each step, and keep only the best.

python examples/tree_of_thought.py
python examples/tree_of_thought.py "a day in Paris" --propose 4 --keep 2

Every plan is a state and its next steps are forks of it, so each step is computed once, however many plans continue it.

After Yao et al., "Tree of Thoughts: Deliberate Problem Solving with Large Language Models", arXiv 2305.10601.
"""

from __future__ import annotations

import common

import radixrt as rt


@rt.function(stop="\n", max_tokens=24)
def plan(s: rt.State, task: str, depth: int, propose: int, keep: int) -> rt.State:
    s += f"A plan in {depth} steps for {task}.\n"
    beam = [s]
    for step in range(1, depth + 1):
        thoughts = [branch for state in beam for branch in state.fork(propose)]
        for seed, thought in enumerate(thoughts):
            thought += f"Step {step}:" + rt.gen("thought", temperature=0.6, seed=100 * step + seed) + "\n"
        # Judge a copy, so that the judgement does not become part of the plan. All of these calls run concurrently.
        judges = [thought.copy() for thought in thoughts]
        for judge in judges:
            judge += "Question: Is this plan good?\nAnswer:" + rt.select("good", [" yes", " no"])
        worth = [judge.meta["good"].probabilities[0] for judge in judges]
        ranked = sorted(range(len(thoughts)), key=lambda i: -worth[i])
        for i in ranked:
            print(f"{'keep' if i in ranked[:keep] else 'drop'} {worth[i]:6.1%}  step {step}:{thoughts[i]['thought']}")
        for i in ranked[keep:]:
            thoughts[i].end()  # nothing will continue this state, so its cached tokens may be evicted
        beam = [thoughts[i] for i in ranked[:keep]]
    return beam[0]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("task", nargs="?", default="a picnic in the park")
    parser.add_argument("--depth", type=int, default=3, help="steps of a plan")
    parser.add_argument("--propose", type=int, default=3, help="next steps that are tried")
    parser.add_argument("--keep", type=int, default=2, help="plans that are followed")
    args = parser.parse_args()
    with common.backend(args):
        state = plan.run(args.task, args.depth, args.propose, args.keep)
        print("\n" + state.returned.text())
        print(common.reuse(state))


if __name__ == "__main__":
    main()
