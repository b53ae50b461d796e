"""Log lines: one format for all processes, and the id of the HTTP request that a line of the main process concerns.

The main process serves each HTTP request in a separate context, so each line logged in this context carries the
request's id. A worker process handles many requests at a time. A worker's line about a request contains "request ID",
and the ID begins with the id of the HTTP request (see `radixrt.server.access.request_context.RequestContext.rid`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the HTTP request that the current context works for; empty outside of one."""

trace_id: ContextVar[str] = ContextVar("trace_id", default="")
"""Id of the trace to which the request belongs, as 32 hexadecimal digits; empty if the request is not traced."""


def configure_logging(level: str, process: str, *, format: str = "text", force: bool = False) -> None:
    """Log lines of at least `level` to stderr, each with the time, the level, the process's name and the request's id.

    Args:
        format: "text", or "json" for one JSON object a line; Python's warnings are then such lines too.
        force: replace handlers that other code has installed.
    """
    handler = PipeHandler.for_stderr() or logging.StreamHandler()
    if format == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)
    else:
        handler.addFilter(_add_request_id)
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {process}: %(request)s%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=force)


class PipeHandler(logging.Handler):
    """Writes lines to a pipe or socket without ever waiting for its reader.

    Lines that find the pipe full are dropped and counted; the next line that fits comes behind a line with their
    number.

    Args:
        descriptor: non-blocking file descriptor.

    Attributes:
        dropped: lines dropped since the last line that was written.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._is_cut = False  # the last line was written in part
        self.dropped = 0

    @staticmethod
    def for_stderr() -> PipeHandler | None:
        """Return a handler for standard error; None if that is no pipe or socket, or cannot be opened again.

        The file description is opened anew, because making the one of standard error non-blocking would do so for all
        processes that share it.
        """
        try:
            mode = os.fstat(sys.stderr.fileno()).st_mode
            if stat.S_ISFIFO(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                return PipeHandler(os.open(f"/proc/self/fd/{sys.stderr.fileno()}", flags))
            if stat.S_ISSOCK(mode):
                return SocketHandler(os.dup(sys.stderr.fileno()))
        except (OSError, ValueError, AttributeError):  # no stderr, or one that a program has replaced
            pass
        return None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        if self.dropped:
            line = f"{self._notice()}\n{line}"
        data = ("\n" * self._is_cut + line).encode(errors="backslashreplace")
        try:
            written = self._write(data)
        except OSError:  # full, or without a reader
            self.dropped += 1
            return
        self.dropped, self._is_cut = 0, written < len(data)

    def _notice(self) -> str:
        """Return the line that tells how many lines are missing."""
        text = f"{self.dropped} lines of the log were dropped, because nobody read it"
        if not isinstance(self.formatter, JsonFormatter):
            return text
        return self.format(logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None))

    def _write(self, data: bytes) -> int:
        return os.write(self._descriptor, data)


class SocketHandler(PipeHandler):
    """A `PipeHandler` for a stream socket, such as the one of systemd's journal."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._socket = socket.socket(fileno=descriptor)

    def _write(self, data: bytes) -> int:
        return self._socket.send(data, socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))


def _add_request_id(record: logging.LogRecord) -> bool:
    current = request_id.get()
    record.request = f"[{current}] " if current else ""
    return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (UTC), level, process, logger, message, and, where there are any, the
    ids of request and trace, the traceback, and the fields that the line was logged with (`extra={"fields": {...}}`).

    Args:
        process: name of this process.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, current in (("request_id", request_id.get()), ("trace_id", trace_id.get())):
            if current:
                line[name] = current
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, ensure_ascii=False, default=str)
