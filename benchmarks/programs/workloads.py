"""Workloads of `benchmarks.programs`, each written twice: in the frontend language, and as plain concurrent chat calls.

Four are made for the benchmark, three are programs of examples/tour with outputs of fixed length. Together they and
POOL, RUNS and CONCURRENCY are what docs/benchmarks.md measures under cache pressure.

Both ask for the same texts, greedily and with fixed lengths, run the same calls at once, and wait for the same answers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import radixrt as rt
from radixrt.bench.words import prose
from radixrt.lang.core.function import Function

Messages = list[dict[str, str]]
Ask = Callable[[Messages, int], Awaitable[str]]
"""The answer of at most so many tokens to a conversation."""

POOL, RUNS, CONCURRENCY = 3_072, 8, 8
"""Tokens of a KV pool that is too small for the programs at once; runs of each program, and how many at once."""

NAMES = ("judge", "tree", "agent", "documents", "reduce", "votes", "team")
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
        pause_s: seconds between an answer and the calls that follow it.
    """

    name: str
    items: list[dict[str, Any]]
    function: Function
    plain: Callable[..., Awaitable[None]]
    concurrency: int
    pause_s: float = 0.0


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


# --- from the tour: map and reduce, with two questions about each document ---


@rt.function
def reduce(s: rt.State, documents: list[str]) -> None:
    s += rt.system(RULES)
    summaries, risks = [], []
    for document, text in s.fork(documents).items():
        document += rt.user(text)
        told, risk = document.fork(QUESTIONS)
        told += rt.user(QUESTIONS[0]) + rt.assistant(rt.gen("sentence", max_tokens=NOTE))
        risk += rt.user(QUESTIONS[1]) + rt.assistant(rt.gen("sentence", max_tokens=NOTE))
        summaries.append(told)
        risks.append(risk)
    s += rt.user("Summaries:\n" + rt.join(summaries, "sentence")) + rt.assistant(rt.gen("digest", max_tokens=VERDICT))
    s += rt.user("Risks:\n" + rt.join(risks, "sentence")) + rt.assistant(rt.gen("risks", max_tokens=VERDICT))


async def reduce_plain(ask: Ask, documents: list[str]) -> None:
    talk = [say("system", RULES)]

    async def answers(question: str) -> list[str]:
        asked = ([*talk[:1], say("user", text), say("user", question)] for text in documents)
        return await asyncio.gather(*(ask(each, NOTE) for each in asked))

    summaries, risks = await asyncio.gather(*(answers(question) for question in QUESTIONS))
    talk.append(say("user", "Summaries:\n" + "\n".join(summaries)))
    talk.append(say("assistant", await ask(talk, VERDICT)))
    await ask([*talk, say("user", "Risks:\n" + "\n".join(risks))], VERDICT)


QUESTIONS = ("Summarize it.", "What is the greatest risk in it?")


# --- from the tour: self-consistency, six reasoned samples of one prompt with many shots ---


@rt.function
def votes(s: rt.State, shots: str, problem: str) -> None:
    s += rt.system(RULES + shots) + rt.user(problem)
    for sample, way in s.fork(SAMPLES).items():
        sample += rt.user(f"Think in {way}.") + rt.assistant(rt.gen("reason", max_tokens=THOUGHT))
        sample += rt.user("So?") + rt.assistant(rt.gen("answer", max_tokens=VOTE))


async def votes_plain(ask: Ask, shots: str, problem: str) -> None:
    async def sample(way: str) -> None:
        talk = [say("system", RULES + shots), say("user", problem), say("user", f"Think in {way}.")]
        talk.append(say("assistant", await ask(talk, THOUGHT)))
        await ask([*talk, say("user", "So?")], VOTE)

    await asyncio.gather(*(sample(way) for way in SAMPLES))


SAMPLES = ("words", "numbers", "pictures", "steps", "parts", "opposites")
VOTE = 4


# --- from the tour: a writer and two critics, each with its own instructions ---


@rt.function
def team(s: rt.State, brief: str, instructions: list[str]) -> None:
    critics = s.fork(instructions)
    for critic, text in critics.items():
        critic += rt.system(text)
    s += rt.system(RULES) + rt.user(brief) + rt.assistant(rt.gen("text", max_tokens=VERDICT))
    for _ in range(ROUNDS):
        for critic in critics:
            critic += rt.user(rt.join([s], "text")) + rt.assistant(rt.gen("note", max_tokens=NOTE))
        s += rt.user(rt.join(critics, "note")) + rt.assistant(rt.gen("text", max_tokens=VERDICT))


async def team_plain(ask: Ask, brief: str, instructions: list[str]) -> None:
    async def answer(talk: Messages, text: str, most: int) -> str:
        talk.append(say("user", text))
        talk.append(say("assistant", await ask(talk, most)))
        return talk[-1]["content"]

    critics = [[say("system", text)] for text in instructions]
    writer = [say("system", RULES)]
    text = await answer(writer, brief, VERDICT)
    for _ in range(ROUNDS):
        notes = await asyncio.gather(*(answer(critic, text, NOTE) for critic in critics))
        text = await answer(writer, "\n".join(notes), VERDICT)


ROUNDS = 3


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
        "reduce": (reduce, reduce_plain, lambda: {"documents": [prose(rng, 200) for _ in range(4)]}),
        "votes": (votes, votes_plain, lambda: {"shots": prose(rng, 320), "problem": prose(rng, 60)}),
        "team": (
            team,
            team_plain,
            lambda: {"brief": prose(rng, 160), "instructions": [prose(rng, 120) for _ in range(2)]},
        ),
    }
    return [
        Workload(name, [make() for _ in range(runs)], function, plain, concurrency, TOOL_S if name == "agent" else 0.0)
        for name, (function, plain, make) in made.items()
        if name in names
    ]
