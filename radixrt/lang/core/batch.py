"""Batches: a program over many items, with bounded concurrency, errors per item, and a file that can be resumed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from radixrt.lang.core.saved_values import VALUES, plain_input, restored, saved
from radixrt.lang.core.state import State
from radixrt.lang.core.type_names import Scope
from radixrt.lang.errors import ProgramError, describe, hand_over
from radixrt.lang.observe.run_log import ProgramUsage

RETRY_S = 0.25
"""Seconds before a failed item is run again; twice as many before each further time, up to MAX_RETRY_S."""
MAX_RETRY_S = 30.0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class BatchItem:
    """The result for one item.

    Attributes:
        index: index of the item.
        values: values by name; of the program's types too if they were read from a file.
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
    concurrency: int, progress: bool | None, output: Any, resume: bool, retries: int, scope: Scope,
) -> list[BatchItem]:  # fmt: skip
    """See `Function.batch`. `scope`: names that the program sees, for the types of the values in the output file."""
    for argument, number, least in (("concurrency", concurrency, 1), ("retries", retries, 0)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ProgramError(f"{argument} must be a whole number from {least} on, not {number!r}")
    results: dict[int, BatchItem] = {}
    done = {} if output is None else _read_back(Path(output), resume, scope)
    remaining = enumerate(items)
    total = len(items) if isinstance(items, Sized) else None
    with _Output(output, scope) as file, _Bar(name, total, progress) as bar:

        async def work() -> None:
            for index, item in remaining:  # all workers share one iterator
                before = done.get(index)
                if before is not None and before.input == plain_input(item):
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

    def __init__(self, path: Any, scope: Scope) -> None:
        self._scope = scope
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
        line: dict[str, Any] = {"index": item.index, "input": plain_input(item.input)}
        if item.error is not None:
            line["error"] = item.error
        else:
            types = {} if item.state is None else item.state.types()
            line |= saved(item.values, types, self._scope)
        usage = item.usage
        if usage is not None:
            line["usage"] = {
                "calls": usage.calls,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": usage.cached_tokens,
                "completion_tokens": usage.completion_tokens,
            }
            if usage.fetched_tokens:
                line["usage"]["fetched_tokens"] = usage.fetched_tokens
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._file.flush()
        if item.exception is not None:
            hand_over(item.exception, None)
        return replace(item, state=None)


def _read_back(path: Path, resume: bool, scope: Scope) -> dict[int, BatchItem]:
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
            if VALUES in entry:
                found[index] = BatchItem(index, entry["input"], restored(entry, scope), resumed=True)
        except (ValueError, KeyError, TypeError) as error:
            raise ProgramError(
                f"{path}, line {number}, is no result of this program: {describe(error)}; remove the line to run its "
                "item again, or name another file"
            ) from None
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
