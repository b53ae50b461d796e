"""Branch, solve, merge: a judge comments on three aspects of an essay in parallel, and then decides.

python examples/branch_solve_merge.py
python examples/branch_solve_merge.py --essay examples/data/essay.txt --report examples/output/judge.html
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import common
import pydantic
from pydantic import Field

import radixrt as rt


class Verdict(pydantic.BaseModel):
    score: Annotated[int, Field(ge=1, le=10)]
    reason: Annotated[str, Field(max_length=80)]


@rt.function
def judge(s, essay: str):
    s += rt.system("You grade essays.") + rt.user(essay)
    views = s.fork(["clarity", "evidence", "style"])
    # The three branches run concurrently. The text before the fork is computed for the first one and shared by all.
    for view, topic in views.items():
        view += rt.user(f"Comment on its {topic}.") + rt.assistant(rt.gen("note", max_tokens=48, stop="\n"))
    # `join` waits for the notes; no statement above waits.
    s += rt.user("Notes:\n" + rt.join(views, "note"))
    s += rt.assistant(rt.select("grade", ["pass", "fail"]))
    s += rt.user("Now the verdict.") + rt.assistant(rt.gen("verdict", Verdict))


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--essay", type=Path, default=common.DATA / "essay.txt", help="a text file")
    parser.add_argument("--report", type=Path, help="write what the run computed and reused to this HTML file")
    args = parser.parse_args()
    with common.backend(args):
        state = judge.run(essay=args.essay.read_text(), sampling={"temperature": 0})

        print(state.messages()[2]["content"])
        chosen = state.meta["grade"]
        print("grade:", ", ".join(f"{c} {p:.0%}" for c, p in zip(chosen.choices, chosen.probabilities, strict=True)))
        verdict = state["verdict"]
        print(f"verdict: {verdict.score} of 10: {verdict.reason}")
        print(common.reuse(state))
        if args.report:
            args.report.parent.mkdir(exist_ok=True)
            state.save_report(args.report)


if __name__ == "__main__":
    main()
