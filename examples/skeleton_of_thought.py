"""Skeleton of thought: first the points of an answer, then all points concurrently, each in its own branch.

python examples/skeleton_of_thought.py
python examples/skeleton_of_thought.py "How do I learn to play the guitar?"

One long answer is decoded token after token; three short ones in one batch take a third of the steps.
"""

from __future__ import annotations

import common

import radixrt as rt

POINT = "[A-Z][a-z ]{3,30}"


@rt.function(temperature=0)
def answer(s: rt.State, question: str) -> str:
    s += rt.user(f"{question} List three short points, without explanations.")
    s += rt.assistant(rt.gen("skeleton", regex=f"1\\. {POINT}\n2\\. {POINT}\n3\\. {POINT}"))
    # Reading a value waits for that value alone. The branches of a fork are named by their points.
    points = s.fork([line[3:] for line in s["skeleton"].splitlines()])
    for branch, point in points.items():
        branch += rt.user(f"Explain in one sentence: {point}")
        branch += rt.assistant(rt.gen("text", max_tokens=40, stop="\n"))
    return str(rt.join(points, "text", sep="\n\n", format="{key}: {value}"))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("question", nargs="?", default="How do I stay healthy?")
    args = parser.parse_args()
    with common.backend(args):
        state = answer.run(args.question)
        print(state.returned)
        print("\n" + state.report() + "\n")  # the branches overlap in time: "at once on average" measures how much
        print(common.reuse(state))


if __name__ == "__main__":
    main()
