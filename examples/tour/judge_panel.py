"""A panel of judges: each reads the essay in its own role, and a verdict is made of their notes and scores.

python examples/tour/judge_panel.py
"""

from __future__ import annotations

from typing import Annotated, Any

import kit
import pydantic
from data import ESSAYS, JUDGES

import radixrt as rt

Score = Annotated[int, pydantic.Field(ge=1, le=9)]


@rt.function(temperature=0, stop="\n")
def panel(s: rt.State, essay: str) -> None:
    s += rt.system("You judge essays.") + rt.user(essay)
    judges = s.fork(JUDGES)
    for judge, who in judges.items():
        judge += rt.user(f"Comment on it as {who} would.") + rt.assistant(rt.gen("note", max_tokens=32))
        judge += rt.user("A score from 1 to 9?") + rt.assistant(rt.gen("score", Score))
    s += rt.user("The judges wrote:\n" + rt.join(judges, "note", format="{key}: {value}") + "\nPrint it?")
    s += rt.assistant(rt.select("verdict", ["yes", "no"]))
    s += rt.user("Why?") + rt.assistant(rt.gen("reason", max_tokens=32))


def run(size: int) -> list[Any]:
    return [(item["verdict"], item["reason"]) for item in panel.batch(ESSAYS[:size])]


if __name__ == "__main__":
    kit.main(run, __doc__, size=6)
