"""Traces: files that record what programs do, for looking at later and for replaying as a load.

    with rt.trace("runs.jsonl"):
        judge.run(essay="...")

Each line is one object with "v" (the format's version), "kind" and "program" (the run's id): a "program" line when a
run starts, a "call" line when a call ends, a "branch" line when a branch ends, an "end" line when the run does. Times
are seconds since the run's start. A call's prompt is written as the difference to that of an earlier call of the same
run, `base`: its first `base_chars` characters and `base_tokens` token ids, then `prompt_text` and `prompt_ids`. Files
may be concatenated.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from radixrt.errors import RadixRTError
from radixrt.lang.observe.run_log import BranchRecord, CallRecord, Event, Record, RunLog, observe
from radixrt.lang.observe.shared_prefix import Sharing

VERSION = 1


class TraceError(RadixRTError):
    """A file is not a trace; names the line."""


# --- lines ---


class ProgramLine(msgspec.Struct, tag_field="kind", tag="program", kw_only=True, omit_defaults=True):
    """The start of a run. `time`: seconds since 1970."""

    v: int
    program: str
    name: str
    backend: str
    time: float


class CallLine(CallRecord, tag_field="kind", tag="call", kw_only=True, omit_defaults=True):
    """The end of a call: its record, with the prompt shortened by what `base` has of it."""

    v: int
    program: str
    name: str = ""
    type: str = "str"
    probabilities: tuple[float | None, ...] = ()  # type: ignore[assignment]  # JSON has null for NaN
    base: int | None = None
    base_chars: int = 0
    base_tokens: int = 0


class BranchLine(BranchRecord, tag_field="kind", tag="branch", kw_only=True, omit_defaults=True):
    """The end of a branch: its record."""

    v: int
    program: str
    parent: str | None = None
    key: str = ""
    group: int = 0


class EndLine(msgspec.Struct, tag_field="kind", tag="end", kw_only=True, omit_defaults=True):
    """The end of a run after `seconds`."""

    v: int
    program: str
    seconds: float
    error: str | None = None


Line = ProgramLine | CallLine | BranchLine | EndLine


def _encode(value: object) -> list[int]:
    if isinstance(value, array):
        return value.tolist()
    raise NotImplementedError


def _decode(kind: type, value: Any) -> Any:
    return array("i", value)


_encoder = msgspec.json.Encoder(enc_hook=_encode)
_decoder = msgspec.json.Decoder(Line, dec_hook=_decode)


# --- writing ---


class trace:
    """Writes what every program of this process does, from `start` (or the beginning of a `with`) to `close`.

    Args:
        path: the file; it is replaced.
        append: keep the file's content and add to it.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | PathLike[str], *, append: bool = False) -> None:
        self.path = Path(path)
        self._mode = "ab" if append else "wb"
        self._file: IO[bytes] | None = None
        self._stop: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._runs: dict[str, Sharing] = {}

    def start(self) -> trace:
        self._file = self.path.open(self._mode)
        self._stop = observe(self._observe)
        return self

    def close(self) -> None:
        """Stop writing. Calls that have not ended by now are not in the trace."""
        if self._stop is not None:
            self._stop()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> trace:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _observe(self, log: RunLog, event: Event, record: Record | None) -> None:
        with self._lock:
            if self._file is None or log.dry_run:
                return
            sharing = self._runs.get(log.program)
            if sharing is None:
                sharing = self._runs[log.program] = Sharing()
                self._write(
                    ProgramLine(v=VERSION, program=log.program, name=log.name, backend=log.backend, time=log.unix_time)
                )
            if event == "call_end" and isinstance(record, CallRecord):
                self._write(_call_line(log, record, sharing))
            elif event == "branch_end" and isinstance(record, BranchRecord):
                self._write(BranchLine(v=VERSION, program=log.program, **_shifted(record, -log.start)))
            elif event == "program_end":
                del self._runs[log.program]
                seconds = 0.0 if log.end is None else log.end - log.start
                self._write(EndLine(v=VERSION, program=log.program, seconds=seconds, error=log.error))
                self._file.flush()

    def _write(self, line: Line) -> None:
        assert self._file is not None
        self._file.write(_encoder.encode(line) + b"\n")


def _call_line(log: RunLog, call: CallRecord, sharing: Sharing) -> CallLine:
    shared = sharing.add(call)
    fields = _shifted(call, -log.start)
    text, ids = call.prompt_text[shared.chars :], call.prompt_ids
    if not text.isascii():  # JSON's encoder refuses halves of surrogate pairs
        text = text.encode("utf-8", errors="replace").decode()
    fields["prompt_text"] = text
    fields["prompt_ids"] = None if ids is None else ids[shared.tokens :]
    base: dict[str, Any] = {"base": shared.base, "base_chars": shared.chars, "base_tokens": shared.tokens}
    return CallLine(v=VERSION, program=log.program, **base, **fields)


def _shifted(record: Record, seconds: float) -> dict[str, Any]:
    """The fields of a record, with its times moved."""
    kind = CallRecord if isinstance(record, CallRecord) else BranchRecord
    fields = {name: getattr(record, name) for name in kind.__struct_fields__}
    for name in kind.TIMES:
        if fields[name] is not None:
            fields[name] += seconds
    return fields


# --- reading ---


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


def _lines(path: Path) -> Iterator[tuple[int, Line]]:
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
        log.branches[line.id] = BranchRecord(**_shifted(line, log.start))
    else:
        log.calls.append(_call_record(log, line))


def _call_record(log: RunLog, line: CallLine) -> CallRecord:
    record = CallRecord(**_shifted(line, log.start))
    record.probabilities = tuple(float("nan") if share is None else share for share in line.probabilities)
    if line.base is not None:
        base = next((call for call in reversed(log.calls) if call.id == line.base), None)
        if base is None:
            raise KeyError(line.base)
        record.prompt_text = base.prompt_text[: line.base_chars] + record.prompt_text
        if record.prompt_ids is not None and base.prompt_ids is not None:
            record.prompt_ids = base.prompt_ids[: line.base_tokens] + record.prompt_ids
    return record


def _complete(log: RunLog) -> None:
    """Sort the calls by the order in which they became ready, and add the branches that had not ended."""
    log.calls.sort(key=lambda call: call.id)
    for call in log.calls:
        path = call.branch
        while path and path not in log.branches:
            parent = path.rpartition("/")[0]
            log.branches[path] = BranchRecord(path, parent or None, "", 0, call.queued)
            path = parent
    log.branches = dict(sorted(log.branches.items(), key=lambda item: (item[1].created, item[0].count("/"))))
