"""Checks of requests before they are sent to the engine."""

from __future__ import annotations

from radixrt.errors import RequestError, shown
from radixrt.messages.client import ClientRequest, InputRow, PairInput, PartsInput, TextInput
from radixrt.messages.parts import ProgramHint, PromptPart, TemplateText
from radixrt.messages.request import Envelope

MAX_ROWS = 2048
"""Largest number of rows of one request."""


def check_request(request: ClientRequest) -> None:
    """Check parameters and types of a request.

    The engine drops a message whose fields have wrong types, and such a request would never be answered.

    Raises:
        RequestError: a field is not valid; names it.
    """
    if request.sampling is not None:
        request.sampling.validate()
    _check_envelope(request.envelope)
    if not 1 <= len(request.rows) <= MAX_ROWS:
        raise RequestError(f"a request must have 1 to {MAX_ROWS} prompts, not {len(request.rows)}", param="prompts")
    single = request.sampling is not None or request.rows[0].continuations is not None
    reads = {(row.pooling is None, len(row.targets), row.continuations is None) for row in request.rows}
    if len(reads) > 1 or (single and len(request.rows) > 1):
        raise RequestError("all prompts of a request must be read in the same way", param="prompts")
    for row in request.rows:
        _check_row(row, len(request.texts))


def _check_row(row: InputRow, num_texts: int) -> None:
    given = row.input
    if isinstance(given, PartsInput):
        _check_parts(given.parts)
    elif isinstance(given, TextInput):
        if not isinstance(given.text, str):
            raise RequestError(f"{given.param} must be a str, not {shown(given.text)}", param=given.param)
        _check_index(given.before, -1, num_texts)
    elif isinstance(given, PairInput):
        for index, least in ((given.query, 0), (given.document, 0), (given.instruction, -1)):
            _check_index(index, least, num_texts)
    if row.continuations is not None:
        for i, choice in enumerate(row.continuations.texts):
            if not isinstance(choice, str):
                raise RequestError(f"choices[{i}] must be a text, not {shown(choice)}", param=f"choices[{i}]")


def _check_index(index: int, least: int, num_texts: int) -> None:
    if not least <= index < num_texts:
        raise RequestError(f"there is no text {index} in the request, which has {num_texts}", param="texts")


def _check_hint(hint: ProgramHint | None) -> None:
    if hint is None:
        return
    if not isinstance(hint, ProgramHint):
        raise RequestError(f"program must be a ProgramHint, not {shown(hint)}", param="program")
    for name, kind in (
        ("program", str),
        ("branch", str),
        ("fork_len", int),
        ("siblings", int),
        ("will_continue", bool),
    ):
        value = getattr(hint, name)
        if type(value) is not kind:
            raise RequestError(f"program.{name} must be a {kind.__name__}, not {shown(value)}", param=f"program.{name}")
    for name in ("fork_len", "siblings"):
        if not -(2**31) <= getattr(hint, name) < 2**31:
            raise RequestError(f"program.{name} must be a 32-bit integer", param=f"program.{name}")


def _check_envelope(envelope: Envelope) -> None:
    priority, salt, timeout_s = envelope.priority, envelope.cache_salt, envelope.timeout_s
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise RequestError(f"priority must be an integer, not {shown(priority)}", param="priority")
    if not isinstance(salt, str):
        raise RequestError(f"cache_salt must be a string, not {shown(salt)}", param="cache_salt")
    _check_hint(envelope.program)
    if timeout_s is not None and (not isinstance(timeout_s, (int, float)) or isinstance(timeout_s, bool)):
        raise RequestError(f"timeout_s must be a number, not {shown(timeout_s)}", param="timeout_s")


def _check_parts(parts: list[PromptPart]) -> None:
    for i, part in enumerate(parts):
        if not isinstance(part, (str, list, TemplateText)):
            raise RequestError(
                f"input_parts[{i}] must be a text, a list of token ids or a TemplateText, not {shown(part)}",
                param=f"input_parts[{i}]",
            )
