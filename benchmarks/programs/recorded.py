"""Calls of programs as plain data, recorded from runs on a backend that answers at once and in the same way every time.

Tokens are words and pieces of words, and answers are random words of the full length that a call asks for, so that a
recording takes a second and needs no model.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from array import array
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.programs.workloads import Workload
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall
from radixrt.lang.observe.dry_run import ROLES
from radixrt.lang.observe.run_log import RunLog, observe
from radixrt.lang.pictures import Picture
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import Finish, ProgramHint, SelectMethod, TemplateText, Usage
from radixrt.messages.wire import pack_i32
from radixrt.tasks.embed import Embedding
from radixrt.tasks.prompts import Part
from radixrt.tasks.rerank import Reranking
from radixrt.tasks.score import Decision

ANSWER_S = 0.05
"""Time of an answer, and of the tokenization of a fork's prefix: meanwhile the program appends what it can, as it does
while a model computes, so that the hints are always the same."""
TOKEN = re.compile(r"\w+|[^\w\s]|\n")


@dataclass(frozen=True)
class RecordedCall:
    """One call of a run.

    Attributes:
        after: indices of the calls of its run whose answers it waits for.
        pause_s: time from these answers to the call.
    """

    prompt: array[int]
    output: array[int]
    after: tuple[int, ...]
    pause_s: float
    hint: ProgramHint


@dataclass(frozen=True)
class Recorded:
    """The calls of each run of a workload, as the language sends them and as plain calls, of which none are shared."""

    language: list[list[RecordedCall]]
    plain: list[list[RecordedCall]]


def record(workload: Workload) -> Recorded:
    """Run a workload, all runs at once."""
    logs: dict[str, RunLog] = {}
    backend = _Recorder()

    def note(log: RunLog, event: str, record: object) -> None:
        logs.setdefault(log.program, log)

    stop = observe(note)
    try:
        items = workload.function.batch(
            workload.items, backend=backend, sampling={"temperature": 0, "ignore_eos": True}, progress=False,
            concurrency=len(workload.items),
        )  # fmt: skip
    finally:
        stop()
    for item in items:
        if item.exception is not None:
            raise item.exception
    states = [item.state for item in items if item.state is not None]
    ordered = [logs[state.log.program] for state in states]
    return Recorded(
        [_calls(log, backend.hints, workload.pause_s, shared=True) for log in ordered],
        [_calls(log, backend.hints, workload.pause_s, shared=False) for log in ordered],
    )


def _calls(
    log: RunLog, hints: Mapping[tuple[str, str, int], ProgramHint], pause_s: float, *, shared: bool
) -> list[RecordedCall]:
    sent = [call for call in log.calls if call.same_as is None or not shared]
    places = {call.id: place for place, call in enumerate(sent)}
    if shared:
        places |= {call.id: places[call.same_as] for call in log.calls if call.same_as is not None}
    numbers: dict[str, int] = {}
    made = []
    for call in sent:
        after = tuple(sorted({places[other] for other in call.depends}))
        if call.same_as is None:
            number = numbers[call.branch] = numbers.get(call.branch, -1) + 1
            hint = hints[log.program, call.branch, number]
        else:  # a plain call, of which only the branch is used
            hint = ProgramHint(log.program, call.branch)
        pause = pause_s if after else 0.0
        made.append(RecordedCall(_ids(call.prompt_ids), _ids(call.output_ids), after, pause, hint))
    return made


def _ids(ids: array[int] | None) -> array[int]:
    return array("i", ids or ())


class _Recorder(Backend):
    """See the module's docstring."""

    name = "recorder"
    tokens = True

    def __init__(self) -> None:
        self.hints: dict[tuple[str, str, int], ProgramHint] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        hint = call.hint
        assert hint is not None
        assert call.sampling.max_tokens is not None
        key = (hint.program, hint.branch)
        number = self._numbers[key] = self._numbers.get(key, -1) + 1
        self.hints[*key, number] = hint
        prompt = _tokens(call.prompt.parts)
        seed = hashlib.sha256(prompt.tobytes() + repr(call.sampling.seed).encode()).hexdigest()
        text = " ".join(f"w{seed[:9]}x{i}" for i in range(call.sampling.max_tokens))
        await asyncio.sleep(ANSWER_S)
        output = _tokens([text])
        yield RequestOutput(
            "", text, pack_i32(output), Finish("length"), Usage(len(prompt), len(output)), prompt_ids=pack_i32(prompt),
            kept=len(output),
        )  # fmt: skip

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        raise NotImplementedError("workloads only generate")

    async def embed(self, call: EmbedCall) -> Embedding:
        raise NotImplementedError("workloads only generate")

    async def rerank(self, call: RerankCall) -> Reranking:
        raise NotImplementedError("workloads only generate")

    async def chat_template(self) -> Mapping[str, Any]:
        return ROLES

    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        await asyncio.sleep(ANSWER_S)
        return _tokens(parts).tolist()

    async def release(self, program: str, branch: str | None = None) -> None:
        return

    async def aclose(self) -> None:
        return


def _tokens(parts: Sequence[Part]) -> array[int]:
    ids = array("i")
    for part in parts:
        text = part.template if isinstance(part, TemplateText) else part
        if isinstance(text, str):
            ids.extend(int(hashlib.md5(word.encode()).hexdigest()[:7], 16) for word in TOKEN.findall(text))
        else:
            ids.extend(text)
    return ids
