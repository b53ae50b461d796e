"""Every bound of every parameter, from both sides, and every type that is not the right one; errors name the field."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from radixrt.constraint import KINDS, Kind, StructuredOptions
from radixrt.errors import RequestError
from radixrt.sampling_params import (
    DEFAULT_MAX_TOKENS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_PROMPT_LOGPROBS,
    MAX_STOP_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    SamplingParams,
    StopScope,
)

VOCAB = 1000
NAN, INF = float("nan"), float("inf")
HUGE = 10**400
UNPRINTABLE = 10**5000
"""Python refuses to turn it into a string, so an error message must not try."""

SCORING = {"prompt_logprobs": 0}

# name: (least, most, what must be set beside it)
INTEGERS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "max_tokens": (0, 10_000_000, SCORING),
    "min_tokens": (0, 10_000_000, {"max_tokens": None}),
    "top_k": (-1, 2**31 - 1, {}),
    "seed": (-(2**63), 2**63 - 1, {}),
    "n": (1, MAX_N, {}),
    "logprobs": (0, MAX_LOGPROBS, {}),
    "prompt_logprobs": (0, MAX_PROMPT_LOGPROBS, {}),
}
NUMBERS: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (5e-324, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 10.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
OPTIONAL = {"max_tokens", "seed", "logprobs", "prompt_logprobs"}
FLAGS = ["ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize"]


def refusal(vocab_size: int | None = None, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        SamplingParams(**fields).validate(vocab_size)
    error = raised.value
    assert error.status == 400
    assert error.param is not None
    assert error.param in str(error)
    assert len(str(error)) < 200
    assert "\n" not in str(error)
    return error


def accepted(vocab_size: int | None = None, **fields: Any) -> SamplingParams:
    params = SamplingParams(**fields)
    assert params.validate(vocab_size) is params
    return params


def test_every_field_is_tested_here() -> None:
    others = {"logit_bias", "return_hidden_states", "stop", "stop_scope", "stop_token_ids", "structured", *KINDS}
    assert set(SamplingParams.__struct_fields__) == {*INTEGERS, *NUMBERS, *FLAGS, *others}


@pytest.mark.parametrize("positions", ["last", "prompt"])
def test_hidden_states_are_of_the_last_token_or_of_the_prompt(positions: Any) -> None:
    assert accepted(return_hidden_states=positions).return_hidden_states == positions
    assert accepted(return_hidden_states=positions, max_tokens=0).max_tokens == 0
    assert refusal(return_hidden_states=positions.upper()).param == "return_hidden_states"
    assert refusal(return_hidden_states=True).param == "return_hidden_states"


def test_the_defaults_are_valid() -> None:
    params = accepted()
    assert params.max_tokens == DEFAULT_MAX_TOKENS
    assert not params.is_greedy
    assert not params.needs_penalties


# --- constraints ---

CONSTRAINTS: dict[str, Any] = {
    "json_schema": '{"type":"integer"}',
    "regex": "[a-z]+",
    "ebnf": 'root ::= "a"',
    "choices": ("yes", "no"),
    "structural_tag": '{"type":"structural_tag","format":{"type":"any_text"}}',
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_constraint_is_read_back(kind: Kind) -> None:
    options = StructuredOptions(whitespace=2)
    constraint = accepted(**{kind: CONSTRAINTS[kind], "structured": options}).constraint
    assert constraint is not None
    assert (constraint.kind, constraint.options) == (kind, options)
    source = json.loads(constraint.source) if kind == "choices" else constraint.source
    assert source == (list(CONSTRAINTS[kind]) if kind == "choices" else CONSTRAINTS[kind])


def test_no_constraint() -> None:
    assert accepted().constraint is None


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(KINDS, 2)))
def test_two_constraints_exclude_each_other(first: str, second: str) -> None:
    error = refusal(**{first: CONSTRAINTS[first], second: CONSTRAINTS[second]})
    assert error.param == second
    assert first in error.message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", ["", 5, ("",), (), "x" * (4 * 1024 * 1024 + 1), "\ud800"])
def test_what_is_no_constraint_is_refused_by_name(kind: str, value: Any) -> None:
    if kind == "json_schema" and isinstance(value, (int, tuple)):
        return  # read as a Python type, see tests/constrained/test_python_types.py
    if kind == "choices" and isinstance(value, str):
        value = (value,)
    assert refusal(**{kind: value}).param == kind


def test_too_many_choices() -> None:
    assert refusal(choices=tuple(str(i) for i in range(10_001))).param == "choices"


def test_a_schema_and_a_tag_may_be_objects() -> None:
    assert json.loads(accepted(json_schema={"type": "null"}).json_schema) == {"type": "null"}
    assert json.loads(accepted(structural_tag={"type": "x"}).structural_tag) == {"type": "x"}
    assert accepted(choices=["a"]).choices == ("a",)


@pytest.mark.parametrize("kind", ["json_schema", "choices"])
def test_stop_strings_are_not_looked_for_in_json_and_choices(kind: str) -> None:
    made = accepted(**{kind: CONSTRAINTS[kind], "stop": ("}",), "min_tokens": 2})
    assert (made.stop, made.watched_stops) == (("}",), ())
    assert made.constraint == accepted(**{kind: CONSTRAINTS[kind]}).constraint


def test_a_choice_that_holds_a_stop_string_is_refused() -> None:
    assert "'axe' holds 'x'" in refusal(choices=("a", "axe"), stop=("b", "x")).message


def test_stop_strings_of_a_structural_tag() -> None:
    made = accepted(structural_tag="{}", stop=("x",))
    assert made.constraint is not None
    assert made.constraint.stop == made.watched_stops == ("x",)
    scoped = accepted(structural_tag="{}", stop=("x",), stop_scope=StopScope(until=("<call>",)))
    assert scoped.constraint is not None
    assert (scoped.constraint.stop, scoped.watched_stops) == ((), ("x",))


@pytest.mark.parametrize("until", [(), ["x"], (1,), None])
def test_a_malformed_stop_scope(until: Any) -> None:
    assert refusal(stop_scope=StopScope(until=until), structural_tag="{}").param == "stop_scope"
    assert refusal(stop_scope=until or "x", structural_tag="{}").param == "stop_scope"


def test_a_stop_scope_of_reasoning_names_its_end() -> None:
    scope = StopScope(reasoning_end="</think>", reasoning_start="<think>")
    assert accepted(stop=("x",), stop_scope=scope).stop_scope == scope
    for bad in (StopScope(reasoning_start="<think>"), StopScope(until=("x",), reasoning_start="<think>"),
                StopScope(reasoning_end=1), StopScope(reasoning_end="x", reasoning_start=None)):  # type: ignore[arg-type]  # fmt: skip
        assert refusal(stop_scope=bad).param == "stop_scope"


@pytest.mark.parametrize("kind", ["regex", "ebnf"])
def test_stop_strings_are_for_texts(kind: str) -> None:
    made = accepted(**{kind: CONSTRAINTS[kind], "stop": ("z", "z", "y")})
    assert made.constraint is not None
    assert made.constraint.stop == ("z", "y")
    assert refusal(**{kind: CONSTRAINTS[kind], "stop": ("z",), "min_tokens": 2}).param == "min_tokens"
    assert accepted(**{kind: CONSTRAINTS[kind], "stop": ("z",), "structured": StructuredOptions(reasoning_end="x")})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("whitespace", -1), ("whitespace", 65), ("whitespace", True), ("whitespace", 1.0), ("closed", 1),
        ("jump_forward", None), ("formats", "maybe"), ("on_unsupported", ""), ("backend", "outlines"),
        ("on_length", "abort"), ("reasoning_end", ""), ("reasoning_end", "x" * 65), ("reasoning_budget", 5),
    ],
)  # fmt: skip
def test_options_out_of_bounds(name: str, value: Any) -> None:
    assert refusal(regex="a", structured=StructuredOptions(**{name: value})).param == name


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, 10_000_001])
def test_a_reasoning_budget_out_of_bounds(budget: Any) -> None:
    options = StructuredOptions(reasoning_end="</think>", reasoning_budget=budget)
    assert refusal(regex="a", structured=options).param == "reasoning_budget"


def test_reasoning_needs_something_that_follows() -> None:
    assert refusal(structured=StructuredOptions(reasoning_end="</think>")).param == "reasoning_end"


def test_grammars_are_shared_by_what_compiles_alike() -> None:
    base = accepted(regex="a").constraint
    same = accepted(regex="a", structured=StructuredOptions(on_length="stop", jump_forward=False)).constraint
    other = accepted(regex="a", structured=StructuredOptions(backend="xgrammar")).constraint
    text = accepted(ebnf="a").constraint
    assert base is not None
    assert same is not None
    assert other is not None
    assert text is not None
    assert base.key == same.key
    assert len({base.key, other.key, text.key}) == 3


# --- integers ---


@pytest.mark.parametrize("name", INTEGERS)
def test_the_bounds_of_an_integer(name: str) -> None:
    low, high, beside = INTEGERS[name]
    for value in (low, high):
        accepted(**{**beside, name: value})
    for value in (low - 1, high + 1, HUGE, -HUGE, UNPRINTABLE, -UNPRINTABLE):
        error = refusal(**{**beside, name: value})
        assert error.param == name
        assert str(low) in str(error)
        assert str(high) in str(error)


@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_no_integer(name: str) -> None:
    for value in (True, False, 1.0, NAN, INF, "1", b"1", [1], (1,), {}, object()):
        assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("name", INTEGERS)
def test_none_only_where_it_means_something(name: str) -> None:
    if name in OPTIONAL:
        accepted(**{name: None})
    else:
        assert refusal(**{name: None}).param == name


def test_max_tokens_of_zero_needs_something_to_score() -> None:
    assert refusal(max_tokens=0).param == "max_tokens"
    accepted(max_tokens=0, prompt_logprobs=0)


def test_min_tokens_is_at_most_max_tokens() -> None:
    assert refusal(max_tokens=3, min_tokens=4).param == "min_tokens"
    accepted(max_tokens=3, min_tokens=3)
    accepted(max_tokens=None, min_tokens=10_000)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_no_more_alternatives_than_tokens(name: str) -> None:
    accepted(32, **{name: 32})
    error = refusal(32, **{name: 33})
    assert error.param == name
    assert "32" in str(error)
    assert refusal(10**6, **{name: MAX_LOGPROBS + 1}).param == name


# --- numbers ---


@pytest.mark.parametrize("name", NUMBERS)
def test_the_bounds_of_a_number(name: str) -> None:
    low, high = NUMBERS[name]
    for value in (low, high):
        accepted(**{name: value})
    below = 0.0 if low == 5e-324 else np.nextafter(low, -INF).item()
    for value in (below, np.nextafter(high, INF).item(), low - 1, high + 1, 1e308, -1e308):
        error = refusal(**{name: value})
        assert error.param == name
        assert f"{high:g}" in str(error)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_integer_is_a_number(name: str) -> None:
    accepted(**{name: 1})
    for value in (HUGE, -HUGE, UNPRINTABLE, -UNPRINTABLE):
        assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number(name: str) -> None:
    for value in (NAN, INF, -INF, True, False, "1.0", b"1", None, [1.0], 1j, object()):
        assert refusal(**{name: value}).param == name


# --- flags ---


@pytest.mark.parametrize("name", FLAGS)
def test_flags(name: str) -> None:
    accepted(**{name: True})
    accepted(**{name: False})
    for value in (0, 1, None, "true", 1.0):
        assert refusal(**{name: value}).param == name


@pytest.mark.parametrize("wants_text", [{"stop": "a"}, {"regex": "a+"}, {"json_schema": {}}])
def test_what_looks_at_the_text_needs_it(wants_text: dict[str, Any]) -> None:
    assert refusal(detokenize=False, **wants_text).param == "detokenize"
    accepted(detokenize=True, **wants_text)


# --- stop strings ---


@pytest.mark.parametrize("stop", ["ab", ["ab"], ("ab",)])
def test_stop_as_a_string_list_or_tuple(stop: Any) -> None:
    assert accepted(stop=stop).stop == ("ab",)


@pytest.mark.parametrize("stop", [[], ()])
def test_no_stop(stop: Any) -> None:
    assert accepted(stop=stop).stop == ()


def test_the_bounds_of_stop() -> None:
    accepted(stop="x" * MAX_STOP_CHARS)
    accepted(stop=["é" * MAX_STOP_CHARS] * MAX_STOP_STRINGS)
    for stop in ("", ["a", ""], "x" * (MAX_STOP_CHARS + 1), ["a"] * (MAX_STOP_STRINGS + 1)):
        assert refusal(stop=stop).param == "stop"


@pytest.mark.parametrize("stop", [None, 3, b"ab", {"ab"}, {"ab": 1}, ["ab", 3], ["ab", None], [["ab"]], (b"ab",)])
def test_what_is_no_stop(stop: Any) -> None:
    assert refusal(stop=stop).param == "stop"


def test_half_of_a_surrogate_pair_is_no_text() -> None:
    """It could not be sent to the engine."""
    assert refusal(stop=["fine", "a\ud83d"]).param == "stop"
    accepted(stop="a\U0001f600")


# --- token ids ---


def with_ids(field: str, ids: list[Any]) -> dict[str, Any]:
    return {field: dict.fromkeys(ids, 1.0) if field == "logit_bias" else ids}


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias"])
def test_token_ids_lie_in_the_vocabulary(field: str) -> None:
    accepted(VOCAB, **with_ids(field, [0, VOCAB - 1]))
    accepted(None, **with_ids(field, [10**9]))
    for wrong in (-1, VOCAB, HUGE, UNPRINTABLE):
        error = refusal(VOCAB, **with_ids(field, [3, wrong]))
        assert error.param == field
        assert str(VOCAB) in str(error)
    assert refusal(None, **with_ids(field, [-1])).param == field


@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias"])
def test_what_is_no_token_id(field: str) -> None:
    for wrong in (True, 1.0, NAN, "1", None, b"1", (1,)):
        assert refusal(VOCAB, **with_ids(field, [wrong])).param == field


def test_stop_token_ids_as_a_list_or_tuple() -> None:
    assert accepted(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)
    assert accepted(stop_token_ids=(3, 4)).stop_token_ids == (3, 4)
    accepted(stop_token_ids=list(range(MAX_STOP_TOKEN_IDS)))
    assert refusal(stop_token_ids=list(range(MAX_STOP_TOKEN_IDS + 1))).param == "stop_token_ids"
    for wrong in (3, None, "3", {3}, b"3"):
        assert refusal(stop_token_ids=wrong).param == "stop_token_ids"


def test_the_bounds_of_logit_bias() -> None:
    accepted(logit_bias={1: -100, 2: 100.0, 3: 0})
    accepted(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0))
    assert refusal(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 1.0)).param == "logit_bias"
    for wrong in (-100.001, 100.001, NAN, INF, -INF, HUGE, UNPRINTABLE, True, "1", None):
        assert refusal(logit_bias={1: wrong}).param == "logit_bias"
    for wrong in (None, [1], [(1, 1.0)], "1", 3):
        assert refusal(logit_bias=wrong).param == "logit_bias"


# --- what follows from the values ---


def test_is_greedy_at_temperature_zero_alone() -> None:
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=5e-324).is_greedy


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_needs_penalties(name: str) -> None:
    assert SamplingParams(**{name: 1.5}).needs_penalties


def test_the_first_wrong_field_is_named() -> None:
    assert refusal(temperature=-1, top_p=7).param == "temperature"


def test_params_are_frozen_and_keyword_only() -> None:
    params = SamplingParams()
    with pytest.raises(AttributeError):
        params.temperature = 0.5  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(5)  # type: ignore[misc]
    with pytest.raises(TypeError):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_two_params_share_no_bias() -> None:
    one, other = SamplingParams(), SamplingParams()
    one.logit_bias[3] = 1.0
    assert other.logit_bias == SamplingParams().logit_bias == {}


def test_what_is_valid_crosses_the_wire() -> None:
    params = accepted(
        VOCAB, max_tokens=None, min_tokens=2, temperature=1, top_p=0.5, top_k=3, min_p=0.1, repetition_penalty=2,
        frequency_penalty=-1, presence_penalty=1, logit_bias={3: 5, 4: -1.5}, stop=["a", "é"], stop_token_ids=[7],
        ignore_eos=True, seed=-(2**63), n=3, logprobs=2, prompt_logprobs=0, skip_special_tokens=False,
        include_stop_str_in_output=True, detokenize=True,
    )  # fmt: skip
    back = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert back == params
    assert back.validate(VOCAB) is back
