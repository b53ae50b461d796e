"""Every mistake of a caller raises an error that names it, and affects no other request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixrt.engine.engine import Completion, Engine
from radixrt.errors import ConfigError, EngineError, ModelLoadError, RequestError
from radixrt.sampling_params import SamplingParams
from tests.engine.helpers import (
    CONTEXT,
    GREEDY,
    LONG,
    TEXT,
    assert_at_rest,
    generated,
    ids_of,
    many,
    refusal,
    start,
)
from tests.tiny_models import VOCAB_SIZE


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"temprature": 1.0}, "temprature"),
        ({"max_tokens": 5, 3: 1}, "3"),
        ({"top_p": 1.5}, "top_p"),
        (SamplingParams(temperature=-1.0), "temperature"),
        ({"n": 0}, "n"),
        ({"stop": ["a", 3]}, "stop"),
        ({"logprobs": VOCAB_SIZE + 1}, "logprobs"),
        ({"logit_bias": {VOCAB_SIZE: 1}}, "logit_bias"),
        ({"stop_token_ids": [VOCAB_SIZE]}, "stop_token_ids"),
        ("greedy", "sampling_params"),
        (3, "sampling_params"),
        ([{"n": 1}, {"n": 1}], "sampling_params"),
        ([], "sampling_params"),
    ],
)
def test_a_wrong_parameter_is_named(engine: Engine, params: Any, param: str) -> None:
    error = refusal(engine, TEXT, params)
    assert (error.param, error.status) == (param, 400)
    assert param in str(error)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([[]], "input_ids"),
        ([3, VOCAB_SIZE], "input_ids"),
        ([3, -1], "input_ids"),
        ([3, 2**31], "prompt"),
        ([3, 2**70], "prompt"),
        (np.array([3, 2**32 + 3]), "prompt"),
        ([3.0, 4.0], "prompt"),
        (np.array([3.5]), "prompt"),
        ([True, False], "prompt"),
        ([[[3, 4]]], "prompt"),
        (["text", 3], "prompt"),
        ([[3, "4"]], "prompt"),
        ([None], "prompt"),
        (None, "prompt"),
        (3, "prompt"),
        (b"text", "prompt"),
        ({"prompt": TEXT}, "prompt"),
        ("half a pair: \ud83d", "prompt"),
    ],
    ids=repr,
)
def test_a_wrong_prompt_is_named(engine: Engine, prompt: Any, param: str) -> None:
    error = refusal(engine, prompt, GREEDY)
    assert (error.param, error.status) == (param, 400)


@pytest.mark.parametrize("prompt", ["word " * CONTEXT, [3] * CONTEXT, "a" * 1_000_000], ids=["text", "ids", "huge"])
def test_a_prompt_that_does_not_fit_says_what_would(engine: Engine, prompt: Any) -> None:
    error = refusal(engine, prompt, GREEDY)
    assert (error.code, error.status) == ("context_length_exceeded", 400)
    assert str(CONTEXT - 1) in str(error)


@pytest.mark.parametrize(
    ("request_field", "value"),
    [
        ("priority", "high"),
        ("priority", True),
        ("cache_salt", None),
        ("timeout_s", "1"),
        ("timeout_s", 0),
        ("timeout_s", -1.0),
        ("timeout_s", float("nan")),
        ("timeout_s", float("inf")),
    ],
)
def test_a_wrong_request_field_is_named(engine: Engine, request_field: str, value: Any) -> None:
    error = refusal(engine, TEXT, GREEDY, **{request_field: value})
    assert (error.param, error.status) == (request_field, 400)


def test_an_unknown_request_field_is_a_type_error(engine: Engine) -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        engine.generate(TEXT, max_tokens=3)


async def test_streams_and_async_calls_raise_the_same_errors(engine: Engine) -> None:
    for prompt, params, param in (("", {}, "prompt"), (TEXT, {"top_p": 2}, "top_p"), (TEXT, {"foo": 1}, "foo")):
        with pytest.raises(RequestError) as raised:
            next(iter(engine.stream(prompt, params)))
        assert raised.value.param == param
        with pytest.raises(RequestError) as raised:
            await anext(aiter(engine.async_stream(prompt, params)))
        assert raised.value.param == param
        with pytest.raises(RequestError) as raised:
            await engine.async_generate(prompt, params)
        assert raised.value.param == param


async def test_streaming_takes_one_completion(engine: Engine) -> None:
    with pytest.raises(RequestError) as raised:
        next(iter(engine.stream(TEXT, {"n": 2})))
    assert raised.value.param == "n"
    with pytest.raises(RequestError) as raised:
        await anext(aiter(engine.async_stream(TEXT, {"n": 2})))
    assert raised.value.param == "n"


def test_one_bad_prompt_in_a_list_ends_the_others_and_nothing_later(engine: Engine) -> None:
    expected = many(engine, ["a", "b"], GREEDY)
    before = generated(engine)
    error = refusal(engine, [[VOCAB_SIZE], "a", "b", "c"], LONG)
    assert (error.param, error.status) == ("input_ids", 400)
    assert_at_rest(engine)
    assert generated(engine) - before < 3 * LONG["max_tokens"]
    assert refusal(engine, ["a", "b", "c", ""], GREEDY).param == "prompt"
    assert_at_rest(engine)
    assert ids_of(many(engine, ["a", "b"], GREEDY)) == ids_of(expected)


def test_a_prompt_that_is_none_ends_those_before_it(engine: Engine) -> None:
    """They may have begun while it was read."""
    before = generated(engine)
    assert refusal(engine, ["a", "b", 3], LONG).param == "prompt"
    assert_at_rest(engine)
    assert generated(engine) - before < 2 * LONG["max_tokens"]
    assert len(many(engine, ["a", "b"], GREEDY)) == 2


async def test_one_bad_prompt_in_an_async_list_ends_the_others_and_nothing_later(engine: Engine) -> None:
    before = generated(engine)
    with pytest.raises(RequestError):
        await engine.async_generate(["a", [VOCAB_SIZE], "b", ""], LONG)
    await asyncio.to_thread(assert_at_rest, engine)
    assert generated(engine) - before < LONG["max_tokens"]
    assert isinstance(await engine.async_generate("a", GREEDY), Completion)


def test_a_wrong_parameter_in_a_list_sends_nothing(engine: Engine) -> None:
    before = generated(engine)
    assert refusal(engine, ["a", "b"], [GREEDY, {"top_p": 2}]).param == "top_p"
    assert engine.client.open_requests == 0
    engine.check_invariants()
    assert generated(engine) == before


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"modle": "x"}, ConfigError, "modle"),
        ({"page_size": 0}, ConfigError, "page_size"),
        ({"context_length": CONTEXT + 1}, ConfigError, "context_length"),
        ({"step_trace": "/nowhere/steps.json"}, ConfigError, "step_trace='/nowhere/steps.json' cannot be written"),
        ({"step_trace": "/"}, ConfigError, "step_trace='/' cannot be written"),
    ],
)
def test_an_engine_with_wrong_options_does_not_start(
    tiny_model: Callable[[str], Path], options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        start(tiny_model("llama"), **options)


def test_an_engine_without_a_model_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=str(tmp_path)):
        start(tmp_path)


def test_an_engine_whose_model_does_not_load_does_not_start(tmp_path: Path) -> None:
    from tests.tiny_models import make_tiny_model

    folder = make_tiny_model(tmp_path / "broken", "llama")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(EngineError, match=r"^the tensors in \S+ do not fit its config.json; missing: lm_head.weight, "):
        start(folder)
