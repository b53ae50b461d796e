"""The wire: every message comes back equal through its union, and columns are little-endian."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixrt.messages import cache_events, client, fleet, parts, peers, runner, scheduler, scheduler_stats, wire
from radixrt.messages.client import OutputBatch, RequestOutput, ToMain, ToTokenizer
from radixrt.messages.fleet import FromReplica, ToRouter
from radixrt.messages.parts import Finish
from radixrt.messages.reads import TokenLogprob
from radixrt.messages.runner import FromRunner, ToRunner
from radixrt.messages.scheduler import ToScheduler
from radixrt.messages.wire import Message, pack_f32, pack_i32, unpack_f32, unpack_i32
from radixrt.sampling_params import SamplingParams
from tests.client_requests import generating

UNIONS: dict[str, Any] = {
    "ToTokenizer": ToTokenizer,
    "ToScheduler": ToScheduler,
    "ToRunner": ToRunner,
    "FromRunner": FromRunner,
    "ToMain": ToMain,
    "ToRouter": ToRouter,
    "FromReplica": FromReplica,
}
MODULES = (cache_events, client, fleet, parts, peers, runner, scheduler, scheduler_stats, wire)
MEMBERS = [(name, kind) for name, union in UNIONS.items() for kind in typing.get_args(union)]

SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=12),
    bool: st.booleans(),
    type(None): st.none(),
    Any: st.none() | st.text(max_size=8),  # what clients may give in other forms is text by the time it is sent
}


def values(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Any value of an annotated type; a list of structs within structs ends at a depth of 4."""
    args = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if hint in SCALARS:
        return SCALARS[hint]
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values(args[0], depth), max_size=2) if depth < 4 else st.just([])
    if origin is tuple:
        if args[-1] is ...:
            return st.lists(values(args[0], depth), max_size=2).map(tuple)
        return st.tuples(*[values(arg, depth) for arg in args])
    if origin is dict:
        return st.dictionaries(values(args[0], depth), values(args[1], depth), max_size=2)
    if args:
        return st.one_of([values(arg, depth) for arg in args])
    fields = msgspec.structs.fields(hint)
    return st.builds(hint, **{f.name: values(f.type, depth + 1) for f in fields})


# --- round trips ---


@pytest.mark.parametrize(("union", "kind"), MEMBERS, ids=[f"{u}-{k.__name__}" for u, k in MEMBERS])
def test_every_message_comes_back_equal_through_its_union(union: str, kind: type[Message]) -> None:
    @settings(max_examples=50, deadline=None)
    @given(values(kind))
    def check(message: Message) -> None:
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=UNIONS[union])
        assert type(back) is kind
        assert back == message

    check()


def test_every_message_class_travels_in_some_union() -> None:
    found = (c for module in MODULES for c in vars(module).values() if isinstance(c, type))
    defined = {c for c in found if issubclass(c, Message)} - {Message}
    assert defined == {kind for _, kind in MEMBERS}


@pytest.mark.parametrize("kind", dict.fromkeys(kind for _, kind in MEMBERS), ids=lambda kind: kind.__name__)
def test_a_message_is_an_array_with_its_name_and_cannot_be_changed(kind: type[Message]) -> None:
    @settings(max_examples=1, deadline=None)
    @given(values(kind))
    def check(message: Message) -> None:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(message))[0] == kind.__name__
        with pytest.raises(AttributeError):
            setattr(message, kind.__struct_fields__[0], None)

    check()


@pytest.mark.parametrize("union", UNIONS)
def test_a_union_takes_no_message_of_another(union: str) -> None:
    own = typing.get_args(UNIONS[union])
    for _, kind in MEMBERS:
        if kind in own:
            continue
        frame = msgspec.msgpack.encode([kind.__name__])
        with pytest.raises(msgspec.ValidationError, match=f"Invalid value '{kind.__name__}'"):
            msgspec.msgpack.decode(frame, type=UNIONS[union])


def test_defaults_are_left_out_of_sampling_params_and_come_back() -> None:
    request = generating("r", SamplingParams(), prompt="x")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request))[3] == {}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=ToTokenizer) == request


def test_stop_given_as_a_string_or_list_crosses_as_a_tuple() -> None:
    for stop in ("ab", ["ab"], ("ab",)):
        request = generating("r", SamplingParams(stop=stop, stop_token_ids=[3]), prompt="x")  # type: ignore[arg-type]
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=ToTokenizer)
        assert back.sampling.stop == ("ab",)
        assert back.sampling.stop_token_ids == (3,)
        assert back == request


def test_a_reason_that_is_none_of_the_four_is_refused() -> None:
    for reason in ("stop", "length", "abort", "error"):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode([reason]), type=Finish).reason == reason
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(["done"]), type=Finish)


def test_special_numbers_cross() -> None:
    """Log-probabilities may be -inf."""
    row = TokenLogprob(1, "a", b"a", float("-inf"), [TokenLogprob(2, "b", b"\xff", 0.0)])
    batch = OutputBatch([RequestOutput("r", logprobs=[row])])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(batch), type=ToMain) == batch


# --- columns ---


def test_columns_are_little_endian() -> None:
    assert pack_i32([1, -2, 2**31 - 1]) == bytes.fromhex("01000000 feffffff ffffff7f")
    assert pack_f32([1.0, -2.5]) == bytes.fromhex("0000803f 000020c0")
    big = np.array([1, -2], ">i4")
    assert pack_i32(big) == bytes.fromhex("01000000 feffffff")
    assert unpack_i32(bytes.fromhex("01000000 feffffff")).tolist() == [1, -2]
    assert unpack_f32(bytes.fromhex("0000803f 000020c0")).tolist() == [1.0, -2.5]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20))
def test_an_int32_column_comes_back(numbers: list[int]) -> None:
    column = pack_i32(numbers)
    assert len(column) == 4 * len(numbers)
    assert unpack_i32(column).tolist() == numbers
    assert pack_i32(np.array(numbers, np.int64)) == column


@given(st.lists(st.floats(width=32), max_size=20))
def test_a_float32_column_comes_back(numbers: list[float]) -> None:
    back = unpack_f32(pack_f32(numbers))
    np.testing.assert_array_equal(back, np.array(numbers, np.float32))


def test_a_column_is_a_view_that_cannot_be_written() -> None:
    for column in (unpack_i32(pack_i32([1, 2])), unpack_f32(pack_f32([1.0, 2.0]))):
        assert column.itemsize == 4
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_a_strided_array_packs_its_own_elements() -> None:
    assert unpack_i32(pack_i32(np.arange(10)[::3])).tolist() == [0, 3, 6, 9]
    assert pack_i32([]) == pack_f32([]) == b""


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_an_integer_beyond_32_bits_does_not_wrap(number: int) -> None:
    with pytest.raises(OverflowError):
        pack_i32([number])
