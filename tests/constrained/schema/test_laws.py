"""The law of the normalizer: what it enforces is what the schema says, for every value, or it is refused."""

from __future__ import annotations

from typing import Any

import jsonschema
from hypothesis import HealthCheck, assume, given, settings

from radixrt.constrained.schema import EmptySchema, NormalSchema, SchemaRefused, normalize
from tests.constrained.schema.judge import TextJudge
from tests.constrained.schema.strategies import documents, values


def reference(schema: Any, value: Any) -> bool:
    try:
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))
    except RecursionError:
        assume(False)
        raise


def normalized(schema: Any) -> NormalSchema | None:
    """None for an empty schema; skips the example if it is refused."""
    try:
        return normalize(schema)
    except EmptySchema:
        return None
    except SchemaRefused:
        assume(False)
        raise


SETTINGS = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(documents, values, values, values)
def test_value_and_text_agree_with_the_specification(schema: Any, one: Any, two: Any, three: Any) -> None:
    normal = normalized(schema)
    judge = TextJudge(normal) if normal else None
    for value in (one, two, three):
        expected = reference(schema, value)
        assert (normal is not None and normal.accepts(value)) is expected
        assert (judge is not None and judge.accepts(value)) is expected
