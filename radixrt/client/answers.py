"""Errors of finished requests, as exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from radixrt.errors import EngineError, RequestError
from radixrt.messages.parts import Finish

ENGINE_DEAD = "engine_dead"
"""Code of the error of requests that ended with a process of the engine."""


def raise_for_error(finish: Finish) -> None:
    """Raise the RequestError that an "error" finish carries; otherwise do nothing."""
    if finish.error is not None:
        e = finish.error
        raise RequestError(e.message, param=e.param, code=e.code, status=e.status, retry_after_s=e.retry_after_s)


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Raise EngineError for requests that ended because the engine failed."""
    try:
        yield
    except RequestError as error:
        if error.code == ENGINE_DEAD:
            raise EngineError(error.message) from None
        raise
