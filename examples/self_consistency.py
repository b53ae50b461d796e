"""Self-consistency: sample several chains of thought, and take the most frequent answer.

python examples/self_consistency.py --samples 12

After Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models", arXiv 2203.11171.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import common
from pydantic import Field

import radixrt as rt

SHOTS = (
    ("Ann has 3 apples and buys 4 more. How many apples has she?", "Ann has 3 apples. She buys 4 more. 3 + 4 = 7.", 7),
    ("A bus has 10 people in it. 6 get off. How many are left?", "There are 10 people. 6 get off. 10 - 6 = 4.", 4),
    ("2 boxes have 5 pens each. How many pens are there?", "There are 2 boxes with 5 pens. 2 * 5 = 10.", 10),
)


@rt.function
def solve(s: rt.State, question: str, samples: int) -> Counter[int]:
    for asked, reasoning, answer in SHOTS:
        s += rt.user(asked) + rt.assistant(f"{reasoning}\nAnswer: {answer}")
    s += rt.user(question)
    paths = s.fork(samples)
    for seed, path in enumerate(paths):
        with path.assistant():
            # Each sample has its own seed, so that another run gives the same votes.
            path += rt.gen("reasoning", temperature=0.5, seed=seed, max_tokens=40, stop="\n")
            path += "\nAnswer: " + rt.gen("answer", Annotated[int, Field(ge=0, le=999)], temperature=0)
    return Counter(paths.values("answer"))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("question", nargs="?", default="Eva has 6 books. She gets 2 more. How many books has she?")
    parser.add_argument("--samples", type=int, default=8, help="how often to think")
    args = parser.parse_args()
    with common.backend(args):
        state = solve.run(args.question, args.samples)
        votes: Counter[int] = state.returned
        print(args.question)
        for answer, count in votes.most_common():
            print(f"{answer:6}  {'#' * count}")
        print(f"answer: {votes.most_common(1)[0][0]}")
        print(common.reuse(state))


if __name__ == "__main__":
    main()
