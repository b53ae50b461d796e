"""Every numeric field of every route, walked through numbers at and beyond its limits, and what is no number."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
import msgspec.inspect as types
import pytest

from radixrt.config import ServerConfig
from radixrt.server.protocol.decisions import DecisionRequest
from radixrt.server.protocol.fields import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    NativeRequest,
    ReleaseRequest,
)
from radixrt.server.protocol.systemone import SystemOneRequest
from radixrt.server.routes.embeddings import EmbeddingRequest
from radixrt.server.routes.similarity import RerankRequest, ScoreRequest
from radixrt.server.routes.tokens import DetokenizeBody, TokenizeBody
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller

USER = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, tuple[type[msgspec.Struct], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": USER}),
    "/v1/completions": (CompletionRequest, {"prompt": "x"}),
    "/generate": (NativeRequest, {"text": "x"}),
    "/v1/systemone": (SystemOneRequest, {"state": "x", "questions": {"q": {"type": "noul", "instructions": "y"}}}),
    "/v1/decisions": (DecisionRequest, {"text": "x", "choices": ["a", "b"]}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "x"}),
    "/v1/rerank": (RerankRequest, {"query": "x", "documents": ["x"]}),
    "/v1/score": (ScoreRequest, {"text_1": "x", "text_2": "x"}),
    "/tokenize": (TokenizeBody, {"prompt": "x"}),
    "/detokenize": (DetokenizeBody, {"tokens": [1]}),
    "/abort": (AbortRequest, {"rid": "x"}),
    "/release": (ReleaseRequest, {"program": "x"}),
}
NUMBERS = [
    "0", "-1", "1", "-0.0", "0.5", str(2**31), str(-(2**31) - 1), str(2**63), str(-(2**63) - 1), str(2**64),
    "1" + "0" * 400,
    "1e308", "-1e308", "1e-400", "1e400", "NaN", "Infinity", "-Infinity",
]  # fmt: skip
OTHERS = ['""', '"1"', '"x"', "null", "true", "false", "[]", "[1]", "[[1]]", "{}", '{"1": 1}', '{"x": null}']


BESIDE = {"program": {"id": "x"}, "structured_outputs": {"regex": "a"}, "structured": {"reasoning_end": "</x>"}}
"""Fields that an object needs besides the number."""


@dataclass(frozen=True)
class Place:
    """A numeric field: the names of the objects around it, and its own."""

    path: tuple[str, ...]
    shape: str
    """The JSON of the field's value, with %s for the number."""


def numeric(kind: types.Type, path: tuple[str, ...] = (), shape: str = "%s") -> Iterator[Place]:
    """The places within a type that take a number."""
    if isinstance(kind, types.StructType):
        if path and shape == "%s":
            for field in kind.fields:
                yield from numeric(field.type, (*path, field.encode_name))
        elif not path:
            for field in kind.fields:
                yield from numeric(field.type, (field.encode_name,))
    elif isinstance(kind, types.UnionType):
        for option in kind.types:
            yield from numeric(option, path, shape)
    elif isinstance(kind, types.ListType):
        yield from numeric(kind.item_type, path, shape.replace("%s", "[%s]"))
    elif isinstance(kind, types.DictType) and not isinstance(kind.value_type, types.AnyType):
        yield from numeric(kind.value_type, path, shape.replace("%s", '{"1": %s}'))
    elif isinstance(kind, types.IntType | types.FloatType):
        yield Place(path, shape)


STRUCTURED = [Place(("structured", "whitespace"), "%s"), Place(("structured", "reasoning_budget"), "%s")]
CASES = [
    pytest.param(path, place, id=f"{path}-{'.'.join(place.path)}-{place.shape}")
    for path, (kind, _) in ROUTES.items()
    for place in dict.fromkeys([*numeric(types.type_info(kind)), *(STRUCTURED if "/v1/c" in path else [])])
]


def body_with(base: dict[str, Any], place: Place, number: str) -> bytes:
    """The body with a value at the place, and what the fields around it need beside it."""
    outer = {name: value for name, value in base.items() if not _replaces(place.path[0], name)}
    if place.path[0] == "structured":
        outer["regex"] = "a"
    text = place.shape.replace("%s", number)
    for i in reversed(range(1, len(place.path))):
        text = _object(place.path[i], text, BESIDE.get(place.path[i - 1], {}))
    return _object(place.path[0], text, outer).encode()


def _object(name: str, text: str, others: dict[str, Any]) -> str:
    members = [f"{json.dumps(other)}: {json.dumps(value)}" for other, value in others.items()]
    return "{" + ", ".join([*members, f'"{name}": {text}']) + "}"


def _replaces(name: str, other: str) -> bool:
    """Return True if two fields are forms of the same one, e.g. of the prompt."""
    forms = {"text", "input_ids", "input_parts", "prompt", "messages", "tokens"}
    return name == other or (name in forms and other in forms)


def check(response: httpx.Response, place: Place, sent: bytes) -> None:
    status = response.status_code
    assert 200 <= status < 500, (status, sent[:200], response.text[:300])
    if status >= 400:
        error = response.json()["error"]
        names = {place.path[-1], f"{place.path[0]}[...]"}  # msgspec does not name the keys of a dict
        named = str(error["param"]) + " " + error["message"]
        assert any(name in named for name in names), (sent[:200], error)
        assert len(response.text) < 1_000


@pytest.mark.parametrize(("path", "place"), CASES)
def test_a_number_is_taken_or_refused_by_its_field(caller: Caller, path: str, place: Place) -> None:
    _, base = ROUTES[path]
    for number in [*NUMBERS, *OTHERS]:
        sent = body_with(base, place, number)
        check(caller.post(path, content=sent, headers={"content-type": "application/json"}), place, sent)
    assert not caller.engine.client.open_requests


def test_alternatives_are_bounded(engine: FakeEngine) -> None:
    caller = Caller(engine, ServerConfig())
    for field, most in (("logprobs", 512), ("prompt_logprobs", 64)):
        for count, status in ((most, 200), (most + 1, 400)):
            answer = caller.post("/generate", {"text": "x", "sampling_params": {field: count}})
            assert answer.status_code == status, answer.text
            if status == 400:
                assert answer.json()["error"]["param"] == f"sampling_params.{field}"
                assert str(most) in answer.text
