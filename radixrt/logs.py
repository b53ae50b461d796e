"""Log lines: one format for all processes, and the id of the HTTP request that a line of the main process concerns.

The main process serves each HTTP request in a separate context, so each line logged in this context carries the
request's id. A worker process handles many requests at a time. A worker's line about a request contains "request ID",
and the ID begins with the id of the HTTP request (see `radixrt.server.access.request_context.RequestContext.rid`).
"""

from __future__ import annotations

import json
import logging
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
    handler = logging.StreamHandler()
    if format == "json":
        handler.setFormatter(JsonFormatter(process))
        logging.captureWarnings(True)
    else:
        handler.addFilter(_add_request_id)
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s {process}: %(request)s%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=force)


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
