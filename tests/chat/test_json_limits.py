"""Limits of JSON: what is just within them passes, what is just beyond them is refused with the limit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixrt.chat import json_limits
from radixrt.chat.json_limits import MAX_DEPTH, MAX_MEMBERS, MAX_VALUES, check_json_limits
from radixrt.errors import RequestError

JSON = st.recursive(
    st.one_of(st.none(), st.text('a"\\[]{}:,é'), st.integers()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text('a"\\[]{}:,'), inner)),
)


def refusal(text: bytes, max_string_bytes: int | None = None) -> str | None:
    try:
        check_json_limits(text, max_string_bytes)
    except RequestError as error:
        return f"{error.status} {error.code} {error.message}"
    return None


def nested(levels: int) -> bytes:
    return b'{"a":[' * (levels // 2) + b"]}" * (levels // 2)


def test_depth() -> None:
    assert refusal(nested(MAX_DEPTH)) is None
    refused = f"400 json_limit_exceeded the JSON is nested more than {MAX_DEPTH} levels deep"
    assert refusal(nested(MAX_DEPTH + 2)) == refused
    assert refusal(b'["' + b"[" * 100_000 + b'"]') is None
    assert refusal(b'["\\"' + b"[" * 100_000 + b'"]') is None
    assert refusal(b'["\\\\"' + b"[" * 1_000 + b'"]') is not None


def test_members_and_values() -> None:
    pairs = b'{"k":' + b'[],"k":' * (MAX_MEMBERS // 2 - 1) + b"1}"  # as many arrays, less one, and the object
    assert refusal(pairs) is None
    assert str(MAX_MEMBERS) in (refusal(b"[" + pairs + b",{}]") or "")
    numbers = b"[" + b"1," * MAX_VALUES + b"1]"
    assert refusal(numbers) is None
    assert str(MAX_VALUES) in (refusal(b"[1," + numbers[1:]) or "")


@pytest.mark.parametrize("before", [0, 1, 300_000])
def test_strings_are_measured_across_chunks(before: int) -> None:
    def text(size: int) -> bytes:
        return b'["' + b"x" * before + b'","' + b"\\n" * (size // 2) + b'"]'

    assert refusal(text(400_000), 400_000) is None
    assert "400000 bytes" in (refusal(text(400_002), 400_000) or "")


@given(JSON)
def test_depth_and_members_are_counted_exactly(value: object) -> None:
    def measure(value: object) -> tuple[int, int]:
        if not isinstance(value, (list, dict)):
            return 0, 0
        inner = [measure(child) for child in (value.values() if isinstance(value, dict) else value)]
        members = len(value) if isinstance(value, dict) else 0
        return 1 + max((d for d, _ in inner), default=0), 1 + members + sum(m for _, m in inner)

    depth, members = measure(value)
    text = json.dumps(value, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "_CHUNK", 3)
        for depth_limit, member_limit in ((depth, members), (depth - 1, members), (depth, members - 1)):
            patch.setattr(json_limits, "MAX_DEPTH", depth_limit)
            patch.setattr(json_limits, "MAX_MEMBERS", member_limit)
            within = depth_limit >= depth and member_limit >= members
            assert within == (refusal(text) is None)
