"""Small languages of JSON texts: all of their texts, and the texts that guards must leave."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.guards.guarded_grammar import GuardedTemplate
from radixrt.constrained.productions import Productions
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.schema import normalize
from radixrt.constraint import Constraint, StructuredOptions


class Repeated(ValueError):
    """An object has a key twice."""


def strict(text: str) -> Any:
    """The value of a JSON text, read by a reader that refuses repeated keys."""

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in members]
        if len(names) != len(set(names)):
            raise Repeated(text)
        return dict(members)

    return json.loads(text, object_pairs_hook=pairs)


LONGEST = 48


def texts(productions: Productions) -> Iterator[str]:
    """All texts of at most LONGEST characters."""
    recognizer = Recognizer(productions)
    todo: list[tuple[State, str]] = [(recognizer.start(), "")]
    while todo:
        state, text = todo.pop()
        if recognizer.is_complete(state):
            yield text
        if len(text) < LONGEST:
            todo.extend((after, text + char) for chars, after in recognizer.moves(state) for char in chars)


def guarded(schema: Any, backends: Backends, **options: Any) -> GuardedTemplate:
    """The template of a schema that has obligations."""
    constraint = Constraint(
        kind="json_schema", source=json.dumps(schema), options=StructuredOptions(bounded=False, **options)
    )
    template = load(compile_constraint(constraint, backends), backends)
    assert isinstance(template, GuardedTemplate)
    return template


def good_texts(schema: Any, whitespace: int = 0) -> set[str]:
    """The texts of a schema with a finite language in which no object repeats a key."""
    found = set()
    for text in texts(normalize(schema).productions(whitespace).prune()):
        try:
            strict(text)
        except Repeated:
            continue
        found.add(text)
    return found
