"""A scripted engine behind a real `EngineClient`: an outbox whose thread answers requests through `client.dispatch`."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from radixrt.client.engine_client import EngineClient
from radixrt.messages.cache_events import FromWatched, ToWatched
from radixrt.messages.client import (
    ClientRequest,
    ContinuationTokens,
    EmbeddingInfo,
    EngineReady,
    OutputBatch,
    PairInput,
    PartsInput,
    RelevanceInfo,
    RequestOutput,
    TextInput,
    TokenInput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.parts import ChatPrompt, Finish, FinishError, Timings, Usage
from radixrt.messages.reads import HiddenStates, PromptValues, TokenLogprob
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, ReleaseReq
from radixrt.messages.scheduler_stats import LoadStats, ProgramStats, SchedulerStats, StepTimes
from radixrt.messages.wire import pack_f32, pack_i32

MODEL = "fake"
VOCAB = 1000
MAX_INPUT = 512


class Sent:
    """A request that the engine got, with the fields of its envelope and its prompt in one place.

    Attributes:
        client: address of the client, which `request` lacks.
    """

    def __init__(self, request: ClientRequest) -> None:
        self.client = request.envelope.client
        self.request = replace(request, envelope=replace(request.envelope, client=""))
        self.rid = request.rid
        row = request.rows[0]
        self.prompt = row.input.text if isinstance(row.input, TextInput) else None
        self.input_ids = row.input.ids if isinstance(row.input, TokenInput) else None
        self.parts = row.input.parts if isinstance(row.input, PartsInput) else None
        self.chat = row.input if isinstance(row.input, ChatPrompt) else None
        self.truncate_prompt_tokens = row.keep_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.request if hasattr(self.request, name) else self.request.envelope, name)


Script = Callable[[Sent], Iterable[RequestOutput | float]]
"""Deltas to send, and seconds to wait in between."""


def info() -> EngineReady:
    return EngineReady(
        model="/models/fake",
        vocab_size=VOCAB,
        context_length=MAX_INPUT + 8,
        max_input_tokens=MAX_INPUT,
        num_slots=4096,
        max_running_requests=8,
        device="cpu",
        dtype="float32",
        has_chat_template=True,
        chat_templates={"default": "{{ messages }}"},
        special_tokens={"bos_token": "<s>"},
        tokenizer_info=b'{"eos_token":"</s>"}',
        embedding=EmbeddingInfo(normalize=False, prompts={"query": "Query: "}),
        relevance=RelevanceInfo("classifier"),
    )


def stats() -> SchedulerStats:
    return SchedulerStats(
        waiting=3,
        running=2,
        slots_total=100,
        slots_free=50,
        slots_evictable=30,
        slots_protected=15,
        prompt_tokens=1000,
        cached_tokens=400,
        generated_tokens=77,
        evicted_tokens=5,
        retractions=1,
        finished=9,
        extend_steps=11,
        decode_steps=22,
        schedule_s=0.5,
        runner_s=1.5,
        commit_s=0.25,
        refused=6,
        load=LoadStats(1.5, 3000, 400, 2500.0, 120.0, StepTimes(0.01, 0.001, 1e-6, 0.002, 1e-4, 1e-7, 0.1, 50, 5)),
        programs=ProgramStats(programs=2, holds=3, held_tokens=40, prompt_tokens=50, cached_tokens=30, leases=1),
    )


def token(word: str, logprob: float | None, k: int) -> TokenLogprob:
    top = [TokenLogprob(7 + j, f"alt{j}", b"alt%d" % j, (logprob or 0.0) - 0.5 * j) for j in range(k)]
    return TokenLogprob(len(word), word, word.encode(), logprob, top if logprob is not None else [])


def error_delta(
    request: Sent, message: str, status: int, code: str | None = None, param: str | None = None,
    retry_after_s: float | None = None,
) -> RequestOutput:  # fmt: skip
    error = FinishError(message, param, code, status, retry_after_s)
    return RequestOutput(request.rid, finish=Finish("error", error=error))


def speak(request: Sent, words: list[str], pause: float = 0.0) -> Iterable[RequestOutput | float]:
    """The words, one token each, as a stream or all at once; with the log-probabilities that were asked for."""
    sampling = request.sampling
    limit = len(words) if sampling.max_tokens is None else min(sampling.max_tokens, len(words))
    reason: Literal["stop", "length"] = "stop" if limit == len(words) and sampling.max_tokens != limit else "length"
    words = words[:limit]
    prompt_rows = None
    if sampling.prompt_logprobs is not None:
        prompt = (request.prompt or "<9>").split(" ")
        prompt_rows = [
            token(word if i == 0 else " " + word, None if i == 0 else -0.5, sampling.prompt_logprobs)
            for i, word in enumerate(prompt)
        ]
    rows = None
    if sampling.logprobs is not None:
        rows = [token(word, float("-inf") if word == "impossible" else -1.0, sampling.logprobs) for word in words]
    last: Any = {
        "finish": Finish(reason, matched="END" if reason == "stop" else None),
        "usage": Usage(prompt_tokens=10, completion_tokens=len(words), cached_tokens=4),
        "timings": Timings(0.01, 0.02, 0.03, 1),
    }
    hidden = None
    if sampling.return_hidden_states is not None:
        rows_of_prompt = 10 if sampling.return_hidden_states == "prompt" else 1
        hidden = HiddenStates(2, pack_f32([[0.5, -1.0]] * rows_of_prompt))
    values = PromptValues(prompt_rows, hidden)
    ids = [len(word) for word in words]
    prompt_ids = pack_i32(range(10))
    if not request.stream or not words:
        yield RequestOutput(
            request.rid, "".join(words), pack_i32(ids), logprobs=rows, prompt_values=values,
            prompt_ids=prompt_ids, **last,
        )  # fmt: skip
        return
    for i, word in enumerate(words):
        if pause:
            yield pause
        yield RequestOutput(
            request.rid,
            word,
            pack_i32([ids[i]]),
            logprobs=None if rows is None else [rows[i]],
            prompt_values=values if i == 0 else None,
            prompt_ids=prompt_ids if i == 0 else None,
            **(last if i == len(words) - 1 else {}),
        )


def answer(question: Sent) -> RequestOutput:
    """Choice i is one token, i, with a log-probability of -i; row i reads [i, 0.1] of an embedding, [i, 0.5] of two
    labels, and i / 10 of a pair."""
    ends: Any = {"finish": Finish("stop"), "usage": Usage(10, 0, 4), "timings": Timings(0.01, 0.02)}
    prompt_ids = pack_i32(range(10))
    row, count = question.rows[0], len(question.rows)
    if not question.computes:
        text = "" if row.decode is None else "text"
        return RequestOutput(question.rid, text, finish=Finish("stop"), prompt_ids=prompt_ids)
    if row.continuations is not None:
        size = len(row.continuations.texts)
        tokens = ContinuationTokens([[i] for i in range(size)], 9)
        values = [-float(i) for i in range(size)] + [0.0] * size * row.continuations.unconditional
        return RequestOutput(question.rid, values=pack_f32(values), continuations=tokens, prompt_ids=prompt_ids, **ends)
    if isinstance(row.input, PairInput):
        return RequestOutput(question.rid, values=pack_f32([i / 10 for i in range(count)]), **ends)
    second = 0.1 if question.task == "embed" else 0.5
    return RequestOutput(question.rid, values=pack_f32([[i, second] for i in range(count)]), **ends)


class FakeEngine:
    """See the module's docstring.

    Attributes:
        script: what each request is answered with; set it before sending.
        answer: what each question is answered with.
        watched: what a reader of the cache is answered.
        requests, questions, released, aborted: all that came so far.
    """

    def __init__(self) -> None:
        self.script: Script = lambda request: speak(request, ["Hello", ",", " world", "!"])
        self.answer: Callable[[Any], RequestOutput] = answer
        self.requests: list[Sent] = []
        self.questions: list[Sent] = []
        self.watched: Callable[[ToWatched], list[FromWatched]] = lambda message: []
        self.released: list[ReleaseReq] = []
        self.aborted: list[str] = []
        self.control_reply = ControlReply("", ok=True, message="flushed")
        self.controls: list[ControlReq] = []
        self._open: set[str] = set()
        self._inbox: queue.SimpleQueue[ToTokenizer | None] = queue.SimpleQueue()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToMain).decode
        self.client = EngineClient(self)
        self.deliver(info())
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    # --- the outbox of the client ---

    def send(self, message: ToTokenizer) -> None:
        self._inbox.put(message)

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(60)

    # --- the engine ---

    def deliver(self, message: ToMain) -> None:
        self.client.dispatch(self._decode(self._encode(message)))

    def _serve(self) -> None:
        while (message := self._inbox.get()) is not None:
            if isinstance(message, ClientRequest) and message.sampling is not None:
                self.requests.append(Sent(message))
                self._open.add(message.rid)
                threading.Thread(target=self._play, args=(self.requests[-1],), daemon=True).start()
            elif isinstance(message, ClientRequest):
                self.questions.append(Sent(message))
                self.deliver(OutputBatch([self.answer(self.questions[-1])]))
            elif isinstance(message, ReleaseReq):
                self.released.append(message)
            elif isinstance(message, AbortReq):
                self.aborted.append(message.rid)
                if message.rid in self._open:
                    self._open.discard(message.rid)
                    self.deliver(
                        OutputBatch([RequestOutput(message.rid, finish=Finish("abort"), usage=Usage(10, 1, 0))])
                    )
            elif isinstance(message, ToWatched):
                for watched in self.watched(message):
                    self.deliver(watched)
            elif isinstance(message, ControlReq):
                self.controls.append(message)
                self.deliver(msgspec.structs.replace(self.control_reply, id=message.id))

    def _play(self, request: Sent) -> None:
        for item in self.script(request):
            if isinstance(item, float):
                time.sleep(item)
                continue
            if request.rid not in self._open:
                return
            if item.finish is not None:
                self._open.discard(request.rid)
            self.deliver(OutputBatch([item]))

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "condition not met in time"
            time.sleep(0.005)
