"""Checks whether a constraint is well-formed, which needs no model.

The check is cheap and needs no tokenizer, so the author of a malformed constraint gets its error at once. Compiling may
still refuse a well-formed constraint: for a keyword that cannot be enforced, a grammar that is too large, or control
tokens that a model does not have.
"""

from __future__ import annotations

import contextlib
import json
from functools import lru_cache
from typing import Any

from radixrt.constrained.regex import Regex, RegexError, RegexTooComplex, parse_regex
from radixrt.constraint import Constraint
from radixrt.errors import RequestError

MAX_KNOWN = 1024
MAX_KNOWN_CHARS = 10_000
"""Longer constraints are checked again each time instead of being cached."""


def check_well_formed(constraint: Constraint) -> None:
    """Takes microseconds to a few milliseconds; short constraints that are well-formed are cached.

    Raises:
        RequestError: it is malformed; `param` is its kind.
    """
    if len(constraint.source) <= MAX_KNOWN_CHARS:
        _check_remembered(constraint.kind, constraint.source)
    else:
        _check(constraint.kind, constraint.source)


def read_regex(source: str) -> Regex:
    """The language of a `regex`, which describes the whole text.

    Raises:
        RequestError: the constraint is malformed, or uses an unsupported feature.
        RegexTooComplex: it is too large.
    """
    try:
        return parse_regex(source, search=False)
    except RegexError as error:
        raise RequestError(f"regex: {error}", param="regex", code="invalid_regex") from None


def read_json(text: str, param: str) -> Any:
    """The value of a JSON text. Raises RequestError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply", param=param, code="too_complex") from None
    except ValueError as error:
        raise RequestError(f"{param} is not JSON: {error}", param=param, code="invalid_json") from None


def _check(kind: str, source: str) -> None:
    try:
        if kind == "regex":
            read_regex(source)
        elif kind == "ebnf":
            from radixrt.constrained.lark_input.syntax import NotTranslated
            from radixrt.constrained.user_grammar import read_grammar

            with contextlib.suppress(NotTranslated):  # only llguidance can tell
                read_grammar(source)
        elif kind == "json_schema":
            _check_schema(read_json(source, kind))
        else:
            read_json(source, kind)
    except RequestError as error:
        raise RequestError(error.message, param=error.param or kind, code=error.code) from None
    except RegexTooComplex as error:
        raise RequestError(f"{kind} is too complex: {error}", param=kind, code="too_complex") from None
    except RecursionError:
        raise RequestError(f"{kind} is nested too deeply", param=kind, code="too_complex") from None


_check_remembered = lru_cache(maxsize=MAX_KNOWN)(_check)


def _check_schema(schema: Any) -> None:
    from radixrt.constrained.schema.document import Document
    from radixrt.constrained.schema.errors import Unsupported
    from radixrt.constrained.schema.limits import Limits

    with contextlib.suppress(Unsupported):
        Document(schema, Limits())
