"""Errors of JSON bodies that are not what was asked for."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from radixrt.chat.decoding import decoding_error
from radixrt.errors import RequestError


class Message(msgspec.Struct):
    role: Literal["user", "system"] | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    positions: Literal["last", "prompt"] | None = None
    messages: list[Message] | str = ""
    count: int = 0


def refusal(body: bytes) -> RequestError:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=Body)
    return decoding_error(body, caught.value, Body)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"positions": "all"}', "positions", 'positions must be "last" or "prompt", not \'all\''),
        (
            b'{"messages": [{}, {"role": "x"}]}',
            "messages[1].role",
            'messages[1].role must be "system" or "user", not \'x\'',
        ),
        (b'{"positions": 3}', "positions", "positions: Expected str | null, got int"),
        (b'{"count": "3"}', "count", "count: Expected int, got str"),
        (b'{"other": 1}', "other", "other is not a known field; leave it out"),
        (b"[]", "", "the body: Expected object, got array"),
    ],
)
def test_the_field_and_what_it_may_be_are_named(body: bytes, param: str, message: str) -> None:
    error = refusal(body)
    assert (error.param or "", error.message) == (param, message)


def test_the_values_are_not_named_where_the_type_is_not_known() -> None:
    body = b'{"positions": "all"}'
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(body, type=Body)
    assert decoding_error(body, caught.value).message == "positions: Invalid enum value 'all'"
