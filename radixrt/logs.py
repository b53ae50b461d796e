"""Log lines: one format for all processes, and the id of the HTTP request that a line of the main process concerns.

The main process works for one request in one context, so that each line that it logs there carries the request's id. A
worker process handles many requests at a time, and a line of it that concerns one names it as "request ID"; that id
begins with the id of the HTTP request (see `radixrt.server.tenants.RequestContext.rid`).
"""

from __future__ import annotations

import logging
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the HTTP request that the current context works for; empty outside of one."""


def configure_logging(level: str, process: str, *, force: bool = False) -> None:
    """Log lines of at least `level` to stderr, each with the time, the level, the process's name and the request's id.

    Args:
        force: replace handlers that other code has installed.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_add_request_id)
    line = f"%(asctime)s %(levelname)s {process}: %(request)s%(message)s"
    logging.basicConfig(level=level.upper(), format=line, handlers=[handler], force=force)


def _add_request_id(record: logging.LogRecord) -> bool:
    current = request_id.get()
    record.request = f"[{current}] " if current else ""
    return True
