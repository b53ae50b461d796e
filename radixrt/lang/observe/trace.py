"""`trace`: writes what programs do to a file, for looking at later and for replaying as a load.

    with rt.trace("runs.jsonl"):
        judge.run(essay="...")

`trace_file` says what is in it and reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from radixrt.lang.observe.dry_run import PREFIX
from radixrt.lang.observe.run_log import BranchRecord, CallRecord, Event, Record, RunLog, observe
from radixrt.lang.observe.shared_prefix import Sharing
from radixrt.lang.observe.trace_file import PLAIN, TIMES, VERSION, BranchLine, CallLine, EndLine, Line, ProgramLine


class trace:
    """Writes what every program of this process does, from `start` (or the beginning of a `with`) to `close`.

    Args:
        path: the file; it is replaced.
        append: keep what it holds and add to it.

    Raises:
        OSError: it cannot be written.
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
        """What has not ended by now is not in the trace."""
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
            if self._file is None or log.backend.startswith(PREFIX):  # `explain` only pretends
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
                self._write(_branch_line(log, record))
            elif event == "program_end":
                del self._runs[log.program]
                seconds = 0.0 if log.end is None else log.end - log.start
                self._write(EndLine(v=VERSION, program=log.program, seconds=seconds, error=log.error))
                self._file.flush()

    def _write(self, line: Line) -> None:
        assert self._file is not None
        self._file.write(msgspec.json.encode(line) + b"\n")


def _call_line(log: RunLog, call: CallRecord, sharing: Sharing) -> CallLine:
    shared = sharing.add(call)
    return CallLine(
        v=VERSION,
        program=log.program,
        call=call.kind,
        base=shared.base,
        base_chars=shared.chars,
        base_tokens=shared.tokens,
        prompt_text=_text(call.prompt_text[shared.chars :]),
        prompt_ids=None if call.prompt_ids is None else call.prompt_ids[shared.tokens :].tolist(),
        output_ids=None if call.output_ids is None else call.output_ids.tolist(),
        sampling=None if call.sampling is None else msgspec.to_builtins(call.sampling),
        choices=tuple(call.choices),
        probabilities=tuple(call.probabilities),
        **{name: getattr(call, name) for name in PLAIN},
        **{name: _since(log, getattr(call, name)) for name in TIMES},
    )


def _branch_line(log: RunLog, branch: BranchRecord) -> BranchLine:
    return BranchLine(
        v=VERSION,
        program=log.program,
        id=branch.id,
        parent=branch.parent,
        key=branch.key,
        group=branch.group,
        created=branch.created - log.start,
        ended=_since(log, branch.ended),
        after=branch.after,
        error=branch.error,
    )


def _since(log: RunLog, moment: float | None) -> Any:
    return None if moment is None else moment - log.start


def _text(text: str) -> str:
    """Without halves of surrogate pairs, which JSON's encoder refuses."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()
