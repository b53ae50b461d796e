"""`whitespace_pattern` of vLLM and Outlines: checks that JSON without whitespace satisfies the pattern."""

from __future__ import annotations

import re

from radixrt.constrained.regex import RegexError, parse_regex
from radixrt.errors import RequestError, shown

MAX_PATTERN = 200
_REFERENCE = re.compile(r"\\[1-9k]|\(\?P=")


def check_whitespace_pattern(pattern: object, whitespace: int | None, parent: str) -> None:
    """Check that a pattern for the whitespace between the tokens of JSON matches the empty text.

    JSON is then written without whitespace, as the pattern allows.

    Args:
        whitespace: the most whitespace characters, if the client states a number as well.
        parent: the field that holds both.

    Raises:
        RequestError: it is no regular expression, or requires whitespace, or the number is another statement.
    """
    field = f"{parent}.whitespace_pattern"
    if whitespace:
        name = f"{parent}.whitespace"
        raise RequestError(f"{name} and whitespace_pattern exclude each other; give one", param=name)
    if not isinstance(pattern, str):
        raise RequestError(f"{field} must be a text, not {shown(pattern)}", param=field)
    if len(pattern) > MAX_PATTERN:
        raise RequestError(f"{field} has {len(pattern)} characters; at most {MAX_PATTERN} are taken", param=field)
    if _REFERENCE.search(pattern):  # writing them out may take seconds
        raise RequestError(f"{field}: references to groups are not taken here; write their texts", param=field)
    try:
        allows_none = parse_regex(pattern, search=False).nullable
    except RegexError as error:
        raise RequestError(f"{field}: {error}", param=field) from None
    if not allows_none:
        raise RequestError(
            f"{field} requires whitespace, and only whitespace that may be left out is supported: write "
            f"(?:{pattern})?, or a number in structured.whitespace",
            param=field,
        )
