"""Workloads of `benchmarks.programs`, each written twice: in the frontend language, and as plain concurrent chat calls.

Both ask for the same texts, greedily and with fixed lengths, run the same calls at once, and wait for the same answers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import radixrt as rt
from benchmarks.common.words import prose
from radixrt.lang.core.function import Function

Messages = list[dict[str, str]]
Ask = Callable[[Messages, int], Awaitable[str]]
"""The answer of at most so many tokens to a conversation."""

NOTE, VERDICT, THOUGHT, STEP, ANSWER = 24, 32, 24, 24, 16
ASPECTS = ("clarity", "evidence", "style", "structure")
WAYS = ("the simplest one", "an unusual one", "a careful one")
RULES = "You are one of several readers. Say what you see in plain words, and be brief. " * 6


@dataclass(frozen=True)
class Workload:
    """One program.

    Attributes:
        items: arguments of each run.
        function: in the language.
        plain: with chat calls.
        concurrency: runs at once.
    """

    name: str
    items: list[dict[str, Any]]
    function: Function
    plain: Callable[..., Awaitable[None]]
    concurrency: int


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


# --- a judge: branches read one text, and a verdict is made of their notes ---


@rt.function
def judge(s: rt.State, essay: str) -> None:
    s += rt.system(RULES) + rt.user(essay)
    s += rt.assistant(rt.gen("first", max_tokens=NOTE))
    views = s.fork(ASPECTS)
    for view, aspect in views.items():
        view += rt.user(f"Comment on its {aspect}.") + rt.assistant(rt.gen("note", max_tokens=NOTE))
    s += rt.user("Notes:\n" + rt.join(views, "note")) + rt.assistant(rt.gen("verdict", max_tokens=VERDICT))


async def judge_plain(ask: Ask, essay: str) -> None:
    talk = [say("system", RULES), say("user", essay)]
    talk.append(say("assistant", await ask(talk, NOTE)))
    notes = await asyncio.gather(*(ask([*talk, say("user", f"Comment on its {a}.")], NOTE) for a in ASPECTS))
    await ask([*talk, say("user", "Notes:\n" + "\n".join(notes))], VERDICT)


# --- a tree of thoughts, three wide and three deep ---


@rt.function
def tree(s: rt.State, question: str) -> None:
    s += rt.system(RULES) + rt.user(question)
    level = [s]
    for _ in range(3):
        following: list[rt.State] = []
        for state in level:
            for branch, way in state.fork(WAYS[: 2 if len(level) > 1 else 3]).items():
                branch += rt.assistant(rt.gen("thought", max_tokens=THOUGHT)) + rt.user(f"Go on, {way}.")
                following.append(branch)
        level = following
    s += rt.assistant(rt.gen("answer", max_tokens=ANSWER))


async def tree_plain(ask: Ask, question: str) -> None:
    async def grow(talk: Messages, depth: int, wide: int) -> None:
        async def branch(way: str) -> None:
            thought = await ask(talk, THOUGHT)
            if depth > 1:
                await grow([*talk, say("assistant", thought), say("user", f"Go on, {way}.")], depth - 1, 2)

        await asyncio.gather(*(branch(way) for way in WAYS[:wide]))

    talk = [say("system", RULES), say("user", question)]
    await asyncio.gather(grow(talk, 3, 3), ask(talk, ANSWER))


# --- an agent: a conversation that grows by the answers of the model and of tools ---


@rt.function
async def agent(s: rt.State, task: str, observations: list[str]) -> None:
    s += rt.system(RULES) + rt.user(task)
    for observation in observations:
        s += rt.assistant(rt.gen("step", max_tokens=STEP))
        await s.get("step")
        await asyncio.sleep(TOOL_S)
        s += rt.user(observation)
    s += rt.assistant(rt.gen("answer", max_tokens=ANSWER))


async def agent_plain(ask: Ask, task: str, observations: list[str]) -> None:
    talk = [say("system", RULES), say("user", task)]
    for observation in observations:
        talk.append(say("assistant", await ask(talk, STEP)))
        await asyncio.sleep(TOOL_S)
        talk.append(say("user", observation))
    await ask(talk, ANSWER)


TOOL_S = 0.05


# --- questions about one document ---


@rt.function
def documents(s: rt.State, document: str, questions: list[str]) -> None:
    s += rt.system(RULES + document)
    for branch, question in s.fork(questions).items():
        branch += rt.user(question) + rt.assistant(rt.gen("answer", max_tokens=ANSWER))
        branch += rt.user("Why?") + rt.assistant(rt.gen("reason", max_tokens=ANSWER))


async def documents_plain(ask: Ask, document: str, questions: list[str]) -> None:
    async def one(question: str) -> None:
        talk = [say("system", RULES + document), say("user", question)]
        talk.append(say("assistant", await ask(talk, ANSWER)))
        await ask([*talk, say("user", "Why?")], ANSWER)

    await asyncio.gather(*(one(question) for question in questions))


def workloads(names: list[str], runs: int, concurrency: int, seed: int) -> list[Workload]:
    """The workloads of these names; texts differ from seed to seed."""
    rng = random.Random(seed)
    made: dict[str, tuple[Function, Callable[..., Awaitable[None]], Callable[[], dict[str, Any]]]] = {
        "judge": (judge, judge_plain, lambda: {"essay": prose(rng, 320)}),
        "tree": (tree, tree_plain, lambda: {"question": prose(rng, 240)}),
        "agent": (
            agent,
            agent_plain,
            lambda: {"task": prose(rng, 160), "observations": [prose(rng, 60) for _ in range(6)]},
        ),
        "documents": (
            documents,
            documents_plain,
            lambda: {"document": prose(rng, 480), "questions": [prose(rng, 24) for _ in range(6)]},
        ),
    }
    return [
        Workload(name, [make() for _ in range(runs)], function, plain, concurrency)
        for name, (function, plain, make) in made.items()
        if name in names
    ]
