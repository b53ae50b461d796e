"""Partial values: every beginning of a JSON text gives what is certain of it, and nothing is taken back later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.lang.core.answer_type import NOTHING, partial_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def within(part: Any, value: Any) -> bool:
    """Return True if `part` is a beginning of `value`."""
    if part is NOTHING:
        return True
    if isinstance(value, str):
        return isinstance(part, str) and value.startswith(part)
    if isinstance(value, list):
        return (
            isinstance(part, list)
            and len(part) <= len(value)
            and all(within(p, v) for p, v in zip(part, value))
            and all(p == v for p, v in zip(part[:-1], value))
        )
    if isinstance(value, dict):
        return isinstance(part, dict) and all(key in value and within(p, value[key]) for key, p in part.items())
    return bool(part == value)


@settings(max_examples=300, deadline=None)
@given(value=VALUES, ascii=st.booleans())
def test_every_beginning_gives_a_beginning_of_the_value(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    for cut in range(len(text) + 1):
        assert within(partial_json(text[:cut]), value), text[:cut]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert partial_json(text) is NOTHING  # it may go on
    else:
        assert partial_json(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", NOTHING),
        ("{", {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": "1', {"a": "1"}),
        ('{"a": "\\"1', {"a": '"1'}),
        ('{"a": [true, "x', {"a": [True, "x"]}),
        ("12", NOTHING),
        ("nonsense", NOTHING),
    ],
)
def test_examples(text: str, value: Any) -> None:
    assert partial_json(text) == value
