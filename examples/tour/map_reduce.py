"""Map and reduce over documents: each is summarized and asked for risks, and one text is made of all.

python examples/tour/map_reduce.py
"""

from __future__ import annotations

from typing import Any

import kit
from data import REPORTS

import radixrt as rt


@rt.function(temperature=0, stop="\n")
def digest(s: rt.State, reports: list[str]) -> None:
    s += rt.system("You read the reports of a company, and write one sentence about what you are asked.")
    summaries, risks = [], []
    for report, text in s.fork(reports).items():
        report += rt.user(text)
        for answer, question in report.fork(["Summarize it.", "What is the greatest risk in it?"]).items():
            answer += rt.user(question) + rt.assistant(rt.gen("sentence", max_tokens=32))
            (summaries if question == "Summarize it." else risks).append(answer)
    s += rt.user("Summaries:\n" + rt.join(summaries, "sentence")) + rt.assistant(rt.gen("digest", max_tokens=64))
    s += rt.user("Risks:\n" + rt.join(risks, "sentence")) + rt.assistant(rt.gen("risks", max_tokens=64))


def run(size: int) -> list[Any]:
    state = digest.run(REPORTS[:size])
    return [state["digest"], state["risks"]]


if __name__ == "__main__":
    kit.main(run, __doc__, size=8)
