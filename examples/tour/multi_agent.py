"""Several agents: a writer and two critics, each with its own instructions, answer each other for two rounds.

python examples/tour/multi_agent.py
"""

from __future__ import annotations

from typing import Any

import kit
from data import PRODUCTS

import radixrt as rt

CRITICS = {
    "lawyer": "You are a lawyer. You see to it that a text promises nothing that is not true.",
    "editor": "You are an editor. You see to it that a text is short and clear.",
}
ROUNDS = 2


@rt.function(temperature=0, max_tokens=40, stop="\n")
def campaign(s: rt.State, product: str) -> None:
    critics = s.fork(CRITICS)
    for critic, name in critics.items():
        critic += rt.system(CRITICS[name])
    s += rt.system("You write advertisements of one sentence.") + rt.user(f"Write one for {product}.")
    s += rt.assistant(rt.gen("text"))
    for _ in range(ROUNDS):
        for critic in critics:
            critic += rt.user(rt.join([s], "text")) + rt.assistant(rt.gen("note"))
        s += rt.user(rt.join(critics, "note", format="{key}: {value}") + "\nWrite it again.")
        s += rt.assistant(rt.gen("text"))


def run(size: int) -> list[Any]:
    return [item.error or item["text"] for item in campaign.batch(PRODUCTS[:size])]


if __name__ == "__main__":
    kit.main(run, __doc__, size=6)
