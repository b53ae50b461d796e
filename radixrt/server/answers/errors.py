"""Bodies of errors, in the forms of OpenAI's API and of Anthropic's Messages API.

The Messages API's body has no `param`, so the message names the field.
"""

from __future__ import annotations

from radixrt.errors import RequestError
from radixrt.server.answers.base import Answer

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    **_TYPES, 408: "timeout_error", 409: "conflict_error", 413: "request_too_large", 503: "overloaded_error",
}  # fmt: skip


class ErrorDetail(Answer):
    """An error; `param` names the field of the request that is at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """Body of an error, as in OpenAI's API."""

    error: ErrorDetail


class MessagesErrorDetail(Answer):
    """An error in the form of Anthropic's API."""

    type: str
    message: str


class MessagesErrorBody(Answer, tag_field="type", tag="error"):
    """Body of an error of the Messages API, and the event that ends its streams."""

    error: MessagesErrorDetail
    request_id: str


def error_detail(error: RequestError) -> ErrorDetail:
    """Return the error in the form of OpenAI's API."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    param = None if error.param is None else _encodable(error.param)
    return ErrorDetail(_encodable(error.message), kind, param, error.code)


def messages_error(error: RequestError, request_id: str) -> MessagesErrorBody:
    """Return the error in the form of Anthropic's API. The message begins with the field unless it names it."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    named = error.param is None or error.param in error.message
    message = error.message if named else f"{error.param}: {error.message}"
    return MessagesErrorBody(MessagesErrorDetail(kind, _encodable(message)), request_id)


def _encodable(text: str) -> str:
    """Return the text with lone surrogates, which a client's JSON may have brought, as escapes: UTF-8 has none."""
    return text.encode("utf-8", "backslashreplace").decode()
