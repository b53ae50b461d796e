"""Batches: a program over many items, with bounded concurrency, errors per item, and a file that can be resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pydantic_core

from radixrt.lang.core.state import State
from radixrt.lang.errors import ProgramError, describe, hand_over
from radixrt.lang.observe.run_log import ProgramUsage
from radixrt.tasks.rerank import RankedDocument

RETRY_S = 0.25
"""Seconds before a failed item is run again; twice as many before each further time, up to MAX_RETRY_S."""
MAX_RETRY_S = 30.0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class BatchItem:
    """The result for one item.

    Attributes:
        index: index of the item.
        values: values by name; if they were read from a file, vectors and ranked documents as they were, others as
            plain JSON.
        state: state of the run, also of one that failed; None for a run that never began, and where results go to a
            file, since there may be very many.
        usage: tokens and calls; None for a run that never began or was read from a file.
        error: message of the error, or None; `exception` is the error itself.
        resumed: the result was read from a file.
    """

    index: int
    input: Any
    values: dict[str, Any] = field(default_factory=dict)
    state: State | None = None
    usage: ProgramUsage | None = None
    error: str | None = None
    exception: BaseException | None = None
    resumed: bool = False

    def __getitem__(self, name: str) -> Any:
        if self.exception is not None:
            raise self.exception
        return self.values[name]


async def run_batch(
    name: str, one: Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[State]], items: Iterable[Any], *,
    concurrency: int, progress: bool | None, output: Any, resume: bool, retries: int,
) -> list[BatchItem]:  # fmt: skip
    """See `Function.batch`."""
    for argument, number, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ProgramError(f"{argument} must be a whole number from {least} on, not {number!r}")
    results: dict[int, BatchItem] = {}
    done = {} if output is None else _read_back(Path(output), resume)
    remaining = enumerate(items)
    total = len(items) if isinstance(items, Sized) else None
    with _Output(output) as file, _Bar(name, total, progress) as bar:

        async def work() -> None:
            for index, item in remaining:  # all workers share one iterator
                before = done.get(index)
                if before is not None and before.input == plain(item):
                    results[index] = before
                else:
                    for attempt in range(retries + 1):
                        result = await _one(one, index, item)
                        if result.error is None or attempt == retries:
                            break
                        await asyncio.sleep(retry_pause_s(attempt))
                    results[index] = file.add(result)
                bar.add(results[index])

        workers = [
            asyncio.ensure_future(work()) for _ in range(concurrency if total is None else min(concurrency, total))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return [results[index] for index in sorted(results)]


def retry_pause_s(attempt: int) -> float:
    """Return the seconds between an attempt, counted from 0, and the next one."""
    return min(RETRY_S * 2.0 ** min(attempt, 16), MAX_RETRY_S)


async def _one(one: Callable[..., Awaitable[State]], index: int, item: Any) -> BatchItem:
    state: State | None = None
    try:
        args, kwargs = _arguments(item)
        state = await one(args, kwargs)
        return BatchItem(index, item, state.values(), state, state.usage)
    except Exception as error:
        hand_over(error, state or _state_of(error))
        state = _state_of(error)
        usage = None if state is None else state.usage
        return BatchItem(index, item, state=state, usage=usage, error=describe(error), exception=error)


def _state_of(error: BaseException) -> State | None:
    held = getattr(error, "state", None)
    return held if isinstance(held, State) else None


def _arguments(item: Any) -> Arguments:
    if isinstance(item, Mapping):
        return (), dict(item)
    return (item, {}) if isinstance(item, tuple) else ((item,), {})


class _Output:
    """The file of results, one line each."""

    def __init__(self, path: Any) -> None:
        self._path = None if path is None else Path(path)
        self._file: TextIO | None = None

    def __enter__(self) -> _Output:
        if self._path is not None:
            self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, item: BatchItem) -> BatchItem:
        """Write a result, if there is a file; return it without what need not stay in memory then."""
        if self._file is None:
            return item
        line: dict[str, Any] = {"index": item.index, "input": plain(item.input)}
        if item.error is not None:
            line["error"] = item.error
        else:
            line |= {"values": plain(item.values), **kinds_of(item.values)}
        usage = item.usage
        if usage is not None:
            line["usage"] = {
                "calls": usage.calls,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            }
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        if item.exception is not None:
            hand_over(item.exception, None)
        return replace(item, state=None)


def _read_back(path: Path, resume: bool) -> dict[int, BatchItem]:
    """Read the results of a file, except failed ones. An incomplete last line is truncated."""
    if not path.exists():
        return {}
    if not resume:
        raise ProgramError(f"{path} exists; batch(..., resume=True) goes on with it, or name another file")
    found: dict[int, BatchItem] = {}
    whole = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        whole += len(line)
        try:
            entry = json.loads(line)
            index = entry["index"]
            if "values" in entry:
                found[index] = BatchItem(index, entry["input"], restored(entry["values"], entry), resumed=True)
        except (ValueError, KeyError, TypeError) as error:
            raise ProgramError(f"{path}, line {number}, is no result of a batch: {error!r}") from None
    with path.open("rb+") as file:
        file.truncate(whole)
    return found


class _Bar:
    """The progress bar: items done, and of those that ran here the errors and the prompt tokens that were cached."""

    def __init__(self, name: str, total: int | None, wanted: bool | None) -> None:
        from tqdm import tqdm

        self._bar = tqdm(total=total, desc=name, unit="item", disable=None if wanted is None else not wanted)
        self._errors = self._resumed = self._prompt = self._cached = 0

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, item: BatchItem) -> None:
        self._errors += item.error is not None
        self._resumed += item.resumed
        if item.usage is not None:
            self._prompt += item.usage.prompt_tokens
            self._cached += item.usage.cached_tokens
        if not self._bar.disable:
            shown = {"reused": f"{self._cached / max(self._prompt, 1):.0%}"}
            shown |= {name: str(n) for name, n in (("resumed", self._resumed), ("errors", self._errors)) if n}
            self._bar.set_postfix(shown, refresh=False)
        self._bar.update()


VECTORS, RANKINGS = "vectors", "rankings"
"""Keys of a line that list the names of vectors, and of ranked documents."""


def plain(value: Any) -> Any:
    """Return the value as JSON gives it back."""
    return json.loads(pydantic_core.to_json(value, fallback=_as_json, inf_nan_mode="strings"))


def _as_json(value: Any) -> Any:
    """Return what replaces a value that is not JSON: the numbers of a vector, a description of anything else."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def kinds_of(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of vectors and of ranked documents, by the keys of a line; a key without names is missing."""
    kinds: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            kinds.setdefault(VECTORS, []).append(name)
        elif isinstance(value, list) and value and all(isinstance(each, RankedDocument) for each in value):
            kinds.setdefault(RANKINGS, []).append(name)
    return kinds


def restored(values: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a line, with float32 arrays and `RankedDocument`s where its keys list them.

    Raises:
        KeyError, TypeError, ValueError: a listed value is missing, or is no such value.
    """
    read = dict(values)
    for name in line.get(VECTORS, ()):
        read[name] = np.array(values[name], np.float32)
    for name in line.get(RANKINGS, ()):
        read[name] = [_ranked(**each) for each in values[name]]
    return read


def _ranked(index: int, score: float | str, document: str) -> RankedDocument:
    return RankedDocument(index, float(score), document)  # a score that is not finite was written as a text
