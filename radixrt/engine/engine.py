"""`Engine`: the offline API. The engine runs in the same processes as under the server, or in this one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Unpack, overload

from radixrt.client.answers import engine_errors
from radixrt.client.collector import OutputCollector
from radixrt.client.engine_client import EngineClient
from radixrt.config import make_config
from radixrt.engine.external import is_other_rank, serve_rank
from radixrt.engine.head_start import head_start
from radixrt.engine.in_process import InProcessEngine
from radixrt.engine.launcher import Launcher
from radixrt.engine.replica_set import ReplicaSet
from radixrt.engine.settings import resolve_settings
from radixrt.errors import EngineError
from radixrt.messages.client import EngineReady, RequestOutput, TextInput
from radixrt.messages.parts import SelectMethod
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.tasks.classify import Classification, Classify
from radixrt.tasks.embed import Embed, Embedding
from radixrt.tasks.generate import Chunk, Completion, Job, RequestOptions, jobs, streamed_job
from radixrt.tasks.messages import Messages
from radixrt.tasks.prompts import Prompt, ScoredPrompt, input_of, inputs_of, new_envelope, split, take_envelope
from radixrt.tasks.rerank import Relate, Relevance, Rerank, Reranking, texts_of
from radixrt.tasks.run import arun, run
from radixrt.tasks.score import Decision, Score
from radixrt.tasks.tokenize import Detokenize, Tokenize

__all__ = ["Chunk", "Classification", "Completion", "Decision", "Embedding", "Engine", "Relevance", "Reranking"]


@contextlib.contextmanager
def _progress_bar(total: int, wanted: bool | None) -> Iterator[Any]:
    """Show the progress of a call. With `wanted` None, show it for several completions if stderr is a terminal."""
    from tqdm import tqdm

    hidden = None if wanted is None and total > 1 else not wanted  # None: tqdm hides it where there is no terminal
    with tqdm(total=total, desc="generate", unit="completion", disable=hidden) as bar:
        yield bar


class Engine:
    """An engine on this machine: `with radixrt.Engine() as engine: engine.generate("...")`.

    Args:
        model: the embedded default, a local Hugging Face folder, a GGUF file, or a hub id.
        show_progress: draw progress bars on stderr while the model is fetched, converted and loaded; None: if stderr
            is a terminal.
        options: any option of `radixrt.config`, e.g. `executor="uni"` to run everything in this process, `tp=2`,
            `kv_cache_tokens=32768`, `dtype="float32"`. With `executor="external"`, rank 0 gets the engine; on all other
            ranks the constructor never returns, because they serve rank 0 and exit with it.

    Attributes:
        config: the given options with the device's defaults.
        settings: values derived from the options and the model, e.g. the model's folder.

    Raises:
        ConfigError, ModelLoadError: an option or the model is invalid; the message names the problem and the fix.
        EngineError: a process did not start.
    """

    def __init__(self, model: str | None = None, *, show_progress: bool | None = None, **options: Any) -> None:
        if model is not None:
            options["model"] = model
        config = make_config(**options)
        if is_other_rank(config):
            serve_rank(config)
        show_progress = sys.stderr.isatty() if show_progress is None else show_progress
        self._launcher: Launcher | InProcessEngine
        with head_start(config.executor) as early:
            self.config, self.settings = resolve_settings(config, show_progress=show_progress)
            if self.config.executor.executor == "uni":
                self._launcher = InProcessEngine(self.config, self.settings)
            else:
                self._launcher = Launcher(self.config, self.settings, early)
            self.client: EngineClient = self._launcher.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the processes; open requests end with an error."""
        self._launcher.close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name; empty when everything runs in this process."""
        return self._launcher.pids

    @property
    def replicas(self) -> ReplicaSet | None:
        """Replicas, to list, add, drain and remove; None for an engine without a router."""
        return self._launcher.replicas

    @property
    def window(self) -> int:
        """Maximum number of open requests of a call: enough for full batches, and at most the queue's size."""
        limits = self.config.scheduler
        rows, queued = limits.max_running_requests * (self.config.executor.replicas or 1), limits.max_queued_requests
        return min(rows + queued // 2, queued)

    # --- one call, many prompts ---

    @overload
    def generate(
        self,
        prompts: str,
        sampling_params: Any = ...,
        *,
        progress: bool | None = ...,
        **options: Unpack[RequestOptions],
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Any],
        sampling_params: Any = ...,
        *,
        progress: bool | None = ...,
        **options: Unpack[RequestOptions],
    ) -> Completion | list[Completion]: ...

    def generate(
        self,
        prompts: Prompt | Messages | Sequence[Prompt | Messages],
        sampling_params: Any = None,
        *,
        progress: bool | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion | list[Completion]:
        """Complete a prompt, or many prompts at once.

        Args:
            prompts: a text, a list of token ids, messages for the chat template, maybe with pictures (see
                `radixrt.tasks.messages.Messages`), or a list of prompts.
            sampling_params: `SamplingParams` or a dict for all prompts, or a list with an entry for each prompt.
            progress: show a progress bar; default: for several completions, if stderr is a terminal.
            options: a constraint (json_schema, regex, ebnf, choices or structural_tag, and structured) where
                sampling_params has none; priority, cache_salt, timeout_s. See `RequestOptions`.

        Returns:
            A Completion for a single prompt with n = 1; else a list, with n completions for each prompt in turn.

        Raises:
            RequestError: a prompt or a parameter is invalid; the message names it. Other requests are aborted.
            EngineError: the engine failed.
        """
        each, single = split(prompts)
        made: list[Job] = []
        out: list[Completion] = []
        streams: deque[tuple[Job, Iterator[RequestOutput]]] = deque()
        try:
            with engine_errors():
                for job in jobs(each, sampling_params, dict(options)):  # sent at once, so that the engine starts early
                    made.append(job)
                    if len(made) <= self.window:
                        streams.append((job, self.client.stream(job.request)))
                later = itertools.islice(made, len(streams), None)
                with _progress_bar(len(made), progress) as bar:
                    while streams:
                        job, stream = streams.popleft()
                        collector = OutputCollector()
                        for output in stream:
                            whole = collector.add(output)
                        out.append(job.completion(whole))
                        bar.update()
                        streams.extend((job, self.client.stream(job.request)) for job in itertools.islice(later, 1))
        finally:
            for unanswered in made[len(out) :]:  # after an error or Ctrl-C, nothing waits for the rest
                self.client.abort(unanswered.request.rid)
        return out[0] if single and len(out) == 1 else out

    async def async_generate(
        self,
        prompts: Prompt | Messages | Sequence[Prompt | Messages],
        sampling_params: Any = None,
        **options: Unpack[RequestOptions],
    ) -> Completion | list[Completion]:
        """Like `generate`, for an event loop. Cancelling the call aborts its requests."""
        each, single = split(prompts)
        made = list(jobs(each, sampling_params, dict(options)))
        slots = asyncio.Semaphore(self.window)
        tasks = [asyncio.ensure_future(self._collect(job, slots)) for job in made]
        try:
            with engine_errors():
                out = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return out[0] if single and len(out) == 1 else out

    async def _collect(self, job: Job, slots: asyncio.Semaphore) -> Completion:
        collector = OutputCollector()
        async with slots, contextlib.aclosing(self.client.astream(job.request)) as stream:
            async for output in stream:
                whole = collector.add(output)
        return job.completion(whole)

    # --- streaming ---

    def stream(
        self, prompt: Prompt | Messages, sampling_params: Any = None, **options: Unpack[RequestOptions]
    ) -> Iterator[Chunk]:
        """Iterate over the increments of a completion. Leaving the loop early aborts the request. n must be 1."""
        job = streamed_job(prompt, sampling_params, dict(options))
        collector = OutputCollector()
        with engine_errors():
            for output in self.client.stream(job.request):
                yield job.chunk(collector, output)

    async def async_stream(
        self, prompt: Prompt | Messages, sampling_params: Any = None, **options: Unpack[RequestOptions]
    ) -> AsyncGenerator[Chunk, None]:
        """Like `stream`, for an event loop."""
        job = streamed_job(prompt, sampling_params, dict(options))
        collector = OutputCollector()
        with engine_errors():
            async with contextlib.aclosing(self.client.astream(job.request)) as stream:
                async for output in stream:
                    yield job.chunk(collector, output)

    # --- embeddings, classification, scoring, tokens ---

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Embedding:
        """Embed a prompt, or many prompts at once: pool final hidden states as configured in the model's files.

        Args:
            prompts: a text, a list of token ids, or a list of prompts.
            dimensions: number of leading dimensions to return, for models trained for this (Matryoshka).
            normalize: scale the returned vectors to length 1; None to use the model's files, or True if they do not
                say.
            prompt_name: name of the model's prompt to write before each text, e.g. "query"; default: the model's
                default prompt.
            prompt: text to write before each text, in place of a prompt of the model.
            options: priority, cache_salt, timeout_s.

        Returns:
            `vectors`, float32 [n, dimensions], also for a single prompt; and `usage`.

        Raises:
            RequestError: a prompt or an option is invalid; the message names it. Other requests are aborted.
            EngineError: the engine failed.
        """
        options |= {"dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name, "prompt": prompt}
        return run(self.client, self._embed(prompts, options))

    async def async_embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        **options: Any,
    ) -> Embedding:
        """Like `embed`, for an event loop. Cancelling the call aborts its requests."""
        options |= {"dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name, "prompt": prompt}
        return await arun(self.client, self._embed(prompts, options))

    def _embed(self, prompts: Prompt | Sequence[Prompt], options: dict[str, Any]) -> Embed:
        return Embed(self._info, inputs_of(split(prompts)[0], "prompts"), take_envelope(options), **options)

    def classify(
        self, prompts: Prompt | Sequence[Prompt], *, activation: bool = True, **options: Any
    ) -> Classification:
        """Score the labels of a prompt, or of many prompts at once, by a sequence classification model.

        Args:
            prompts: a text, a list of token ids, or a list of prompts.
            activation: False for logits; True to apply the activation of the model's files, e.g. for probabilities.
            options: priority, cache_salt, timeout_s.

        Raises:
            RequestError: the model is of another kind, or a prompt or an option is invalid; the message names it.
            EngineError: the engine failed.
        """
        return run(self.client, self._classify(prompts, {"activation": activation, **options}))

    async def async_classify(
        self, prompts: Prompt | Sequence[Prompt], *, activation: bool = True, **options: Any
    ) -> Classification:
        """Like `classify`, for an event loop. Cancelling the call aborts its requests."""
        return await arun(self.client, self._classify(prompts, {"activation": activation, **options}))

    def _classify(self, prompts: Prompt | Sequence[Prompt], options: dict[str, Any]) -> Classify:
        return Classify(self._info, inputs_of(split(prompts)[0], "prompts"), take_envelope(options), **options)

    @property
    def _info(self) -> EngineReady:
        """Properties of the engine, which is ready before it has callers."""
        assert self.client.info is not None
        return self.client.info

    def rerank(self, query: str, documents: Sequence[str], *, top_n: int | None = None, **options: Any) -> Reranking:
        """Sort documents by their relevance to a query, by a reranker, an embedding model or a classifier of one label.

        Args:
            top_n: number of documents to return; None for all.
            options: instruction (the task, for models whose template has one), activation (False for logits), priority,
                cache_salt, timeout_s.

        Raises:
            RequestError: the model scores no pairs, or an argument is invalid; the message names it.
            EngineError: the engine failed.
        """
        return run(self.client, self._rerank(query, documents, {"top_n": top_n, **options}))

    async def async_rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, **options: Any
    ) -> Reranking:
        """Like `rerank`, for an event loop. Cancelling the call aborts the request."""
        return await arun(self.client, self._rerank(query, documents, {"top_n": top_n, **options}))

    def _rerank(self, query: str, documents: Sequence[str], options: dict[str, Any]) -> Rerank:
        texts = texts_of(documents, "documents", one=False)
        return Rerank(self._info, TextInput(query, "query"), texts, take_envelope(options), **options)

    def relevance(self, queries: str | Sequence[str], documents: str | Sequence[str], **options: Any) -> Relevance:
        """Score pairs of a query and a document, as `/v1/score` does: equally many, or one text and each of the others.

        Options and errors are those of `rerank`.
        """
        return run(self.client, self._relate(queries, documents, options))

    async def async_relevance(
        self, queries: str | Sequence[str], documents: str | Sequence[str], **options: Any
    ) -> Relevance:
        """Like `relevance`, for an event loop. Cancelling the call aborts the request."""
        return await arun(self.client, self._relate(queries, documents, options))

    def _relate(self, queries: str | Sequence[str], documents: str | Sequence[str], options: dict[str, Any]) -> Relate:
        sides = texts_of(queries, "queries"), texts_of(documents, "documents")
        return Relate(self._info, *sides, take_envelope(options), **options)

    def score(
        self,
        prompt: ScoredPrompt,
        choices: Sequence[str],
        method: SelectMethod = "token_length_normalized",
        **options: Any,
    ) -> Decision:
        """Score texts that may follow a prompt by the model's exact probability of their tokens.

        Args:
            prompt: a text, token ids, or parts (see `radixrt.messages.client.PartsInput`).
            choices: at least one, all different.
            method: how one of them is selected, see `radixrt.tasks.score`.
            options: priority, cache_salt, timeout_s, program (a `ProgramHint`).

        Raises:
            RequestError: the prompt or a choice is invalid; the message names it.
            EngineError: the engine failed.
        """
        return run(self.client, Score(input_of(prompt), choices, new_envelope(**options), method))

    async def async_score(
        self,
        prompt: ScoredPrompt,
        choices: Sequence[str],
        method: SelectMethod = "token_length_normalized",
        **options: Any,
    ) -> Decision:
        """Like `score`, for an event loop. Cancelling the call aborts the request."""
        return await arun(self.client, Score(input_of(prompt), choices, new_envelope(**options), method))

    def tokenize(self, prompt: ScoredPrompt) -> list[int]:
        """Tokenize a prompt as a request would. Raises as `score` does."""
        return run(self.client, Tokenize(input_of(prompt), new_envelope()))

    def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Convert token ids to text. Raises as `score` does."""
        return run(self.client, Detokenize(token_ids, new_envelope(), skip_special_tokens=skip_special_tokens))

    # --- programs, cache, statistics ---

    def release(self, program: str, branch: str | None = None) -> None:
        """Announce that a program, or a branch of a program, sends no more requests.

        The ids are those of `radixrt.messages.parts.ProgramHint`.
        """
        self.client.release(program, branch)

    def flush_cache(self) -> None:
        """Evict all prefixes that no running request uses. Raises EngineError if a scheduler does not answer."""
        self._control("flush_cache")

    def check_invariants(self) -> None:
        """Check the scheduler's invariants now. Raises EngineError if one does not hold."""
        self._control("check")

    def _control(self, op: str) -> None:
        reply = self.client.control(op)
        if not reply.ok:
            raise EngineError(reply.message)

    @property
    def stats(self) -> SchedulerStats | None:
        """Latest snapshot of the scheduler; at most about a quarter of a second old while it is busy."""
        return self.client.stats
