"""Request errors for schemas, each naming the place at fault.

Three cases: the document is not a schema (`MalformedSchema`), it is a schema of which a keyword cannot be enforced
exactly (`Unsupported`, collected into `SchemaRefused`), or it is one that no value satisfies (`EmptySchema`).
"""

from __future__ import annotations

from collections.abc import Sequence

from radixrt.errors import RequestError


def shown_pointer(pointer: str) -> str:
    """Return the JSON pointer for a message: quoted, the root by name, very long pointers abbreviated."""
    if not pointer:
        return "the root of the schema"
    if len(pointer) > 300:
        pointer = f"{pointer[:140]}...{pointer[-140:]}"
    return f"'{pointer}'"


class MalformedSchema(RequestError):
    """The document is not a JSON Schema of its draft.

    Args:
        pointer: JSON pointer to the offending place.
        problem: the problem, and a suggestion.
    """

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(f"The schema is malformed at {shown_pointer(pointer)}: {problem}", code="invalid_schema")
        self.pointer = pointer
        self.problem = problem


class Unsupported(RequestError):
    """One keyword of a schema cannot be enforced exactly.

    Args:
        pointer: JSON pointer to the schema object that holds the keyword.
        keyword: the keyword.
        reason: the reason.
        fix: suggested change.
        droppable: the rest of the schema can be enforced without this keyword.
    """

    def __init__(self, pointer: str, keyword: str, reason: str, fix: str, *, droppable: bool = True) -> None:
        place = shown_pointer(pointer)
        super().__init__(f"'{keyword}' at {place} cannot be enforced: {reason}. {fix}", code="unsupported_schema")
        self.pointer = pointer
        self.keyword = keyword
        self.reason = reason
        self.fix = fix
        self.droppable = droppable


class SchemaRefused(RequestError):
    """A schema has keywords that cannot be enforced; `errors` lists all such keywords."""

    def __init__(self, errors: Sequence[Unsupported]) -> None:
        more = len(errors) - 1
        rest = f" ({more} more {'place' if more == 1 else 'places'} in this schema cannot be enforced either.)"
        super().__init__(errors[0].message + (rest if more else ""), code="unsupported_schema")
        self.errors = list(errors)


class EmptySchema(RequestError):
    """No JSON value satisfies the schema."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(
            f"No value can satisfy the schema: {reason} (at {shown_pointer(pointer)}).", code="empty_schema"
        )
        self.pointer = pointer
        self.reason = reason
