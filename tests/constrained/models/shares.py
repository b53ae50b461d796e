"""How much of what pydantic and zod emit is enforced, by compiling it and by random answers through its masks.

    python -m tests.constrained.models.shares

A schema is enforced if jsonschema takes the answers. A type may refuse some of them, because the schema that pydantic
emits says less than the type; given to an engine, the type has a schema that says more.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from pydantic import PydanticUserError, TypeAdapter

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constraint import Constraint
from radixrt.errors import RequestError
from radixrt.pydantic_schema import json_schema
from tests.constrained.models.pydantic_types import types
from tests.constrained.vocabularies import allowed, small_vocabulary

ZOD = Path(__file__).with_name("zod_schemas.json")
WALKS, TOKENS = 4, 24
NOT_IN_PYTHON = re.compile(r"\\p\{|\\z")


@cache
def backends() -> Backends:
    return Backends(small_vocabulary("byte_level"))


def answers(schema: Any, seed: int) -> Iterator[str]:
    """Yield answers under a schema: random allowed tokens, closed after a few. Raises RequestError."""
    constraint = Constraint(kind="json_schema", source=json.dumps(schema))
    template = load(compile_constraint(constraint, backends()), backends())
    vocabulary = backends().vocabulary
    chosen = random.Random(seed)
    ends = set(vocabulary.eos_ids)
    for _ in range(WALKS):
        grammar = template.new()
        tokens: list[int] = []
        for _ in range(chosen.randrange(TOKENS)):
            options = sorted(allowed(grammar, vocabulary.vocab_size) - ends)
            if not options:
                break
            token = chosen.choice(options)
            if not grammar.fits(token, 2000):
                break
            assert grammar.accept(token)
            tokens.append(token)
        yield vocabulary.decode([*tokens, *grammar.closing()]).decode()


def pydantic_problem(kind: Any, *, to_engine: bool = False) -> str | None:
    """Return why a type is not enforced: the refusal, or an answer that pydantic does not take; None if it is.

    Args:
        to_engine: with the schema of a type that is given to an engine, instead of pydantic's own.
    """
    adapter = TypeAdapter(kind)
    try:
        schema = json_schema(adapter) if to_engine else adapter.json_schema()
        for text in answers(schema, 1):
            try:
                adapter.validate_json(text)
            except ValueError as error:
                return f"answer {text[:60]!r}: {str(error).splitlines()[-2].strip()}"
    except RequestError as error:
        return f"refused: {error.message}"
    except PydanticUserError as error:
        return f"refused: {error.message.splitlines()[0]}"
    return None


def schema_problem(schema: Any) -> str | None:
    """Return why a schema is not enforced: the refusal, or an answer that jsonschema does not take; None if it is."""
    validator = jsonschema.Draft202012Validator(_without_ecma_patterns(schema))
    try:
        for text in answers(schema, 1):
            problem = next(validator.iter_errors(json.loads(text)), None)
            if problem is not None:
                return f"answer {text[:60]!r}: {problem.message}"
    except RequestError as error:
        return f"refused: {error.message}"
    return None


def _without_ecma_patterns(schema: Any) -> Any:
    """Return the schema without patterns of a kind that Python's re, which jsonschema uses, does not have."""
    if isinstance(schema, dict):
        kept = {name: value for name, value in schema.items() if name != "pattern" or not NOT_IN_PYTHON.search(value)}
        return {name: _without_ecma_patterns(value) for name, value in kept.items()}
    return [_without_ecma_patterns(one) for one in schema] if isinstance(schema, list) else schema


def main() -> None:
    kinds = dict(types())
    schemas = {name: TypeAdapter(kind).json_schema() for name, kind in kinds.items()}
    zod = json.loads(ZOD.read_text(encoding="utf-8"))
    for source, problems in (
        ("schemas of pydantic", {name: schema_problem(schema) for name, schema in schemas.items()}),
        ("types of pydantic, by these schemas", {name: pydantic_problem(kind) for name, kind in kinds.items()}),
        ("types given to an engine", {name: pydantic_problem(kind, to_engine=True) for name, kind in kinds.items()}),
        ("schemas of zod", {name: schema_problem(schema) for name, schema in zod.items()}),
    ):
        good = sum(problem is None for problem in problems.values())
        print(f"{source}: {good} of {len(problems)} enforced ({good / len(problems):.1%})")
        for name, problem in problems.items():
            if problem is not None:
                print(f"  {name}: {problem}")


if __name__ == "__main__":
    main()
