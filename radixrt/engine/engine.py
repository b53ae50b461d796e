"""`Engine`: the offline API, over the same processes as the server or all in this one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from radixrt.config import make_config
from radixrt.engine.client import EngineClient, expand_n, new_rid, raise_for_error
from radixrt.engine.in_process import InProcessEngine
from radixrt.engine.launcher import Launcher
from radixrt.engine.settings import resolve_settings
from radixrt.errors import EngineError, RequestError, shown
from radixrt.messages import (
    Finish,
    GenerateReq,
    SchedulerStats,
    TextDelta,
    Timings,
    TokenLogprob,
    Usage,
    pack_i32,
    unpack_i32,
)
from radixrt.sampling_params import SamplingParams

Prompt = str | Sequence[int]

NO_DEADLINE_S = 1e9
"""Offline, whoever started the work waits for it; `request_timeout_s` is for servers."""


@dataclass(frozen=True)
class Completion:
    """One finished completion.

    Attributes:
        text: the output, without its stop string or end token unless asked for.
        token_ids: output token ids, the stop token included if one ended it.
        finish_reason: "stop", "length" or "abort".
        matched_stop: the stop string or token id that ended it.
        logprobs, prompt_logprobs: one entry for each token, when asked for.
        usage: token counts, cached ones included.
        timings: seconds in the scheduler.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    matched_stop: int | str | None
    prompt_token_ids: list[int]
    usage: Usage
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed completion; the last one carries `completion`."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None


@dataclass
class _Collector:
    """Puts the deltas of one request together."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] | None = None
    has_logprobs: bool = False

    def add(self, delta: TextDelta) -> Chunk:
        tokens = unpack_i32(delta.token_ids).tolist()
        self.text.append(delta.text)
        self.token_ids += tokens
        if delta.prompt_ids is not None:
            self.prompt_ids = unpack_i32(delta.prompt_ids).tolist()
        if delta.logprobs is not None:
            self.has_logprobs = True
            self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        done = None if delta.finish is None else self._completion(delta, delta.finish)
        return Chunk(delta.text, tokens, done)

    def _completion(self, delta: TextDelta, finish: Finish) -> Completion:
        raise_for_error(finish)
        return Completion(
            text="".join(self.text),
            token_ids=self.token_ids,
            finish_reason=finish.reason,
            matched_stop=finish.matched,
            prompt_token_ids=self.prompt_ids,
            usage=delta.usage or Usage(),
            timings=delta.timings or Timings(),
            logprobs=self.logprobs if self.has_logprobs else None,
            prompt_logprobs=self.prompt_logprobs,
        )


class Engine:
    """An engine on this machine: `with radixrt.Engine() as engine: engine.generate("...")`.

    Args:
        model: the embedded default, a local Hugging Face folder, a GGUF file, or a hub id.
        options: any option of `radixrt.config`, e.g. `executor="uni"` for everything in this process,
            `kv_cache_tokens=32768`, `dtype="float32"`.

    Raises:
        ConfigError, ModelLoadError: an option or the model is wrong; names it and the fix.
        EngineError: a process did not start.
    """

    def __init__(self, model: str | None = None, *, show_progress: bool = True, **options: Any) -> None:
        if model is not None:
            options["model"] = model
        self.config = make_config(**options)
        settings = resolve_settings(self.config, show_progress=show_progress)
        kind = Launcher if self.config.executor.executor == "mp" else InProcessEngine
        self._launcher: Launcher | InProcessEngine = kind(self.config, settings)
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
    def _window(self) -> int:
        """Requests of one call that are open at once: enough to fill every batch, never more than the queue takes."""
        limits = self.config.scheduler
        return min(limits.max_running_requests + limits.max_queued_requests // 2, limits.max_queued_requests)

    # --- one call, many prompts ---

    @overload
    def generate(
        self, prompts: str, sampling_params: SamplingParams | dict[str, Any] | None = ..., **kwargs: Any
    ) -> Completion: ...
    @overload
    def generate(
        self, prompts: Sequence[Any], sampling_params: Any = ..., **kwargs: Any
    ) -> Completion | list[Completion]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Any = None, *, progress: bool | None = None,
        **request: Any,
    ) -> Completion | list[Completion]:  # fmt: skip
        """Complete one prompt or many at once.

        Args:
            prompts: a text, a list of token ids, or a list of these.
            sampling_params: one for all, or a list with one for each prompt; dicts are taken too.
            progress: show a progress bar; default: for lists of more than one, on a terminal.
            request: priority, cache_salt, timeout_s.

        Returns:
            A Completion for one prompt with n = 1; else a list, prompt by prompt, n for each.

        Raises:
            RequestError: a prompt or a parameter is not valid; names it. Of a list, nothing else is lost: the others
                are aborted.
            EngineError: the engine failed.
        """
        each, single = _split(prompts)
        requests = self._requests(each, sampling_params, request)
        out: list[Completion] = []
        try:
            with _engine_errors(), _progress(len(requests), progress) as bar:
                later = iter(requests)
                streams = deque(self.client.stream(r) for r in itertools.islice(later, self._window))
                while streams:
                    collector = _Collector()
                    for delta in streams.popleft():
                        chunk = collector.add(delta)
                    assert chunk.completion is not None
                    out.append(chunk.completion)
                    bar.update()
                    streams.extend(self.client.stream(r) for r in itertools.islice(later, 1))
        finally:
            for unanswered in requests[len(out) :]:  # after an error or Ctrl-C: nobody waits for them
                self.client.abort(unanswered.rid)
        return out[0] if single and len(out) == 1 else out

    async def async_generate(
        self, prompts: Prompt | Sequence[Prompt], sampling_params: Any = None, **request: Any
    ) -> Completion | list[Completion]:
        """`generate` for an event loop; cancelling it aborts its requests."""
        each, single = _split(prompts)
        requests = self._requests(each, sampling_params, request)
        slots = asyncio.Semaphore(self._window)
        tasks = [asyncio.ensure_future(self._collect(r, slots)) for r in requests]
        try:
            with _engine_errors():
                out = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return out[0] if single and len(out) == 1 else out

    async def _collect(self, request: GenerateReq, slots: asyncio.Semaphore) -> Completion:
        collector = _Collector()
        async with slots, contextlib.aclosing(self.client.astream(request)) as stream:
            async for delta in stream:
                chunk = collector.add(delta)
        assert chunk.completion is not None
        return chunk.completion

    # --- streaming ---

    def stream(self, prompt: Prompt, sampling_params: Any = None, **request: Any) -> Iterator[Chunk]:
        """The pieces of one completion as they come; leaving the loop early aborts it. n must be 1."""
        collector = _Collector()
        with _engine_errors():
            for delta in self.client.stream(self._one(prompt, sampling_params, request)):
                yield collector.add(delta)

    async def async_stream(self, prompt: Prompt, sampling_params: Any = None, **request: Any) -> AsyncIterator[Chunk]:
        """`stream` for an event loop."""
        collector = _Collector()
        with _engine_errors():
            stream = self.client.astream(self._one(prompt, sampling_params, request))
            async with contextlib.aclosing(stream):
                async for delta in stream:
                    yield collector.add(delta)

    # --- the rest ---

    def flush_cache(self) -> None:
        """Drop everything from the prefix cache that no running request holds."""
        self.client.control("flush_cache")

    def check_invariants(self) -> None:
        """Check the scheduler's invariants now.

        Raises:
            EngineError: one does not hold.
        """
        reply = self.client.control("check")
        if not reply.ok:
            raise EngineError(reply.message)

    @property
    def stats(self) -> SchedulerStats | None:
        """The scheduler's latest snapshot; at most about a quarter of a second old while it works."""
        return self.client.stats

    def _one(self, prompt: Prompt, sampling_params: Any, request: dict[str, Any]) -> GenerateReq:
        params = as_sampling_params(sampling_params)
        if params.n != 1:
            raise RequestError("streaming takes n=1; start several streams instead", param="n")
        return _request(prompt, params, stream=True, **request)

    def _requests(self, prompts: list[Prompt], params: Any, request: dict[str, Any]) -> list[GenerateReq]:
        each = list(params) if isinstance(params, (list, tuple)) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise RequestError(f"{len(prompts)} prompts but {len(each)} sampling_params", param="sampling_params")
        made = [_request(p, as_sampling_params(s), stream=False, **request) for p, s in zip(prompts, each, strict=True)]
        return [one for r in made for one in expand_n(r)]


def as_sampling_params(value: Any) -> SamplingParams:
    """SamplingParams from None, a dict or itself.

    Raises:
        RequestError: an unknown field, or a value out of bounds.
    """
    if value is None:
        return SamplingParams()
    if isinstance(value, SamplingParams):
        return value.validate()
    if not isinstance(value, dict):
        raise RequestError("sampling_params must be a SamplingParams or a dict", param="sampling_params")
    for name in value:
        if name not in SamplingParams.__struct_fields__:
            known = ", ".join(SamplingParams.__struct_fields__)
            raise RequestError(f"unknown sampling parameter {shown(name)}; known are {known}", param=str(name))
    return SamplingParams(**value).validate()


def _request(
    prompt: Prompt, sampling: SamplingParams, *, stream: bool, priority: int = 0, cache_salt: str = "",
    timeout_s: float = NO_DEADLINE_S,
) -> GenerateReq:  # fmt: skip
    if isinstance(prompt, str):
        return GenerateReq(
            new_rid(), sampling, prompt=prompt, stream=stream, priority=priority, cache_salt=cache_salt,
            timeout_s=timeout_s,
        )  # fmt: skip
    return GenerateReq(
        new_rid(), sampling, input_ids=_token_ids(prompt), stream=stream, priority=priority, cache_salt=cache_salt,
        timeout_s=timeout_s,
    )  # fmt: skip


def _token_ids(prompt: Any) -> bytes:
    """The column of a flat sequence of integers."""
    try:
        ids = np.asarray(prompt)
    except (TypeError, ValueError, OverflowError):
        ids = np.empty((), object)
    whole = ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids))
    if not whole or (len(ids) and not -(2**31) <= ids.min() <= ids.max() < 2**31):
        raise RequestError(
            f"a prompt must be a text or a list of token ids, which are integers; not {shown(prompt)}", param="prompt"
        )
    return pack_i32(ids)


def _split(prompts: Any) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether it was a single one: a text, or a flat list of token ids."""
    if isinstance(prompts, str):
        return [prompts], True
    if not hasattr(prompts, "__iter__") or isinstance(prompts, (bytes, dict)):
        raise RequestError(f"prompts must be texts or lists of token ids, not {shown(prompts)}", param="prompt")
    prompts = list(prompts)
    if prompts and not any(hasattr(p, "__len__") for p in prompts):
        return [prompts], True
    return prompts, False


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    """What ended a request because the engine is dead is an EngineError to the caller."""
    try:
        yield
    except RequestError as error:
        if error.code == "engine_dead":
            raise EngineError(error.message) from None
        raise


@contextlib.contextmanager
def _progress(total: int, wanted: bool | None) -> Iterator[Any]:
    from tqdm import tqdm

    hidden = None if wanted is None and total > 1 else not wanted  # None: tqdm hides it where there is no terminal
    with tqdm(total=total, desc="generate", unit="completion", disable=hidden) as bar:
        yield bar
