"""Exceptions, in two kinds: request errors and engine errors.

A *request error* concerns one request. Before a request is sent it is the exception `RequestError`; once the request
is inside the engine it is data, the `FinishError` of a `Finish` (see `radixrt.messages`), and ends that request alone.
An *engine error* concerns all requests: `EngineError`, raised by the engine's API and never sent to a client as a 4xx.
"""

from __future__ import annotations


def shown(value: object) -> str:
    """Format a value for an error message, in at most 40 characters."""
    try:
        return f"{value!r:.40}"
    except ValueError:  # Python does not print integers of thousands of digits
        return "a number of thousands of digits"


class RadixRTError(Exception):
    """Base of every exception that radixrt raises on purpose."""


class RequestError(RadixRTError):
    """One request cannot be served, because of the request itself or of the current load.

    Args:
        message: the problem and the fix, for the person who sent the request.
        param: name of the offending field, as the sender spelled it, or None.
        code: machine-readable reason, e.g. "context_length_exceeded", or None.
        status: HTTP status that a server answers with (4xx, or 5xx for load and failures).
        retry_after_s: seconds after which the same request is expected to be served; None if that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


def unsupported(param: str, feature: str | None = None, *, instead: str | None = None) -> RequestError:
    """Create the error for a request with an unsupported feature; `feature` defaults to the name of the field."""
    message = f"{feature or param} is not supported yet" + (f"; {instead}" if instead else "")
    return RequestError(message, param=param, code="unsupported_parameter")


class ConfigError(RadixRTError):
    """The engine's configuration is wrong or cannot be met on this machine; names the field and the fix."""


class ModelLoadError(RadixRTError):
    """The model cannot be found or read. The message names the missing part."""


class EngineError(RadixRTError):
    """The engine cannot continue: a process died or did not start, or the engine was shut down."""


class InvariantError(RadixRTError):
    """An invariant of the engine's own state does not hold: a defect in radixrt, never in a request."""
