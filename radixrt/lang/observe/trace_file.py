"""What a trace's file holds, and how it is read; `trace` writes it.

Each line is one object with "v" (the format's version), "kind" and "program" (the run's id): a "program" line when a
run starts, a "call" line when a call ends, a "branch" line when a branch ends, an "end" line when the run does. Times
are seconds since the run's start. A call's prompt is told by that of an earlier call of the same run, `base`: its first
`base_chars` characters and `base_tokens` token ids, then `prompt_text` and `prompt_ids`. Files may be concatenated.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from radixrt.errors import RadixRTError
from radixrt.lang.observe.run_log import BranchRecord, CallKind, CallRecord, RunLog
from radixrt.sampling_params import SamplingParams

VERSION = 1


class TraceError(RadixRTError):
    """A file is not a trace; names the line."""


class Line(msgspec.Struct, tag_field="kind", kw_only=True, omit_defaults=True):
    v: int
    program: str


class ProgramLine(Line, tag="program", kw_only=True):
    """A run has started. `time`: seconds since 1970."""

    name: str
    backend: str
    time: float


class CallLine(Line, tag="call", kw_only=True):
    """A call has ended; see `CallRecord`."""

    id: int
    branch: str
    name: str = ""
    call: CallKind
    type: str = "str"
    index: int = 0
    depends: tuple[int, ...] = ()
    queued: float
    start: float | None = None
    admitted: float | None = None
    first_token: float | None = None
    end: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    text: str = ""
    finish: str = ""
    error: str | None = None
    base: int | None = None
    base_chars: int = 0
    base_tokens: int = 0
    prompt_text: str = ""
    prompt_ids: list[int] | None = None
    output_ids: list[int] | None = None
    rerendered: bool = False
    sampling: dict[str, Any] | None = None
    choices: tuple[str, ...] = ()
    probabilities: tuple[float | None, ...] = ()
    method: str = ""
    fork_len: int = 0
    siblings: int = 1


class BranchLine(Line, tag="branch", kw_only=True):
    """A branch has ended; see `BranchRecord`."""

    id: str
    parent: str | None = None
    key: str = ""
    group: int = 0
    created: float
    ended: float | None = None
    after: int | None = None
    error: str | None = None


class EndLine(Line, tag="end", kw_only=True):
    """A run has ended after `seconds`."""

    seconds: float
    error: str | None = None


PLAIN = (
    "id", "branch", "name", "type", "index", "depends", "prompt_tokens", "cached_tokens", "completion_tokens",
    "forced_tokens", "text", "finish", "error", "rerendered", "method", "fork_len", "siblings",
)  # fmt: skip
TIMES = ("queued", "start", "admitted", "first_token", "end")


_decoder = msgspec.json.Decoder(ProgramLine | CallLine | BranchLine | EndLine)


def read_trace(path: str | PathLike[str]) -> list[RunLog]:
    """The runs of a trace, in the order in which they started; their clock is seconds since 1970.

    A run that had not ended when the trace was closed has the calls that had. An unfinished last line is ignored.

    Raises:
        TraceError: a line is not of a trace, or of a later version; names it.
        OSError: the file cannot be read.
    """
    runs: dict[str, RunLog] = {}
    for number, line in _lines(Path(path)):
        try:
            if isinstance(line, ProgramLine):
                runs[line.program] = RunLog(line.program, line.name, line.backend, start=line.time, unix_time=line.time)
            else:
                _add(runs[line.program], line)
        except KeyError as error:
            raise TraceError(
                f"{path}, line {number}: it refers to {error}, which no line before it has; was the beginning cut off?"
            ) from None
    for log in runs.values():
        _complete(log)
    return sorted(runs.values(), key=lambda log: log.unix_time)


def _lines(path: Path) -> Iterator[tuple[int, ProgramLine | CallLine | BranchLine | EndLine]]:
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if not raw.strip():
                continue
            try:
                line = _decoder.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if not raw.endswith(b"\n"):
                    return
                raise TraceError(f"{path}, line {number}: this is not a line of a trace: {error}") from None
            if line.v > VERSION:
                raise TraceError(
                    f"{path}, line {number}: version {line.v} of the format; this radixrt reads up to {VERSION}"
                )
            yield number, line


def _add(log: RunLog, line: CallLine | BranchLine | EndLine) -> None:
    if isinstance(line, EndLine):
        log.end, log.error = log.start + line.seconds, line.error
    elif isinstance(line, BranchLine):
        ended = None if line.ended is None else log.start + line.ended
        log.branches[line.id] = BranchRecord(
            line.id, line.parent, line.key, line.group, log.start + line.created, line.after, ended, line.error
        )
    else:
        log.calls.append(_call_record(log, line))


def _call_record(log: RunLog, line: CallLine) -> CallRecord:
    text, ids = line.prompt_text, None if line.prompt_ids is None else array("i", line.prompt_ids)
    if line.base is not None:
        base = next((call for call in reversed(log.calls) if call.id == line.base), None)
        if base is None:
            raise KeyError(line.base)
        text = base.prompt_text[: line.base_chars] + text
        if ids is not None and base.prompt_ids is not None:
            ids = base.prompt_ids[: line.base_tokens] + ids
    fields: dict[str, Any] = {name: getattr(line, name) for name in PLAIN}
    for name in TIMES:
        moment = getattr(line, name)
        fields[name] = None if moment is None else log.start + moment
    return CallRecord(
        kind=line.call,
        prompt_text=text,
        prompt_ids=ids,
        output_ids=None if line.output_ids is None else array("i", line.output_ids),
        sampling=None if line.sampling is None else msgspec.convert(line.sampling, SamplingParams),
        choices=line.choices,
        probabilities=[float("nan") if share is None else share for share in line.probabilities],
        **fields,
    )


def _complete(log: RunLog) -> None:
    """Calls in the order in which they became ready; a branch that had not ended is there all the same."""
    log.calls.sort(key=lambda call: call.id)
    for call in log.calls:
        path = call.branch
        while path and path not in log.branches:
            parent = path.rpartition("/")[0]
            log.branches[path] = BranchRecord(path, parent or None, "", 0, call.queued)
            path = parent
    log.branches = dict(sorted(log.branches.items(), key=lambda item: (item[1].created, item[0].count("/"))))
