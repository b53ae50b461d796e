"""Constrained generation: every output satisfies its constraint, cut or not, and does not depend on engine options.

The random-weight model writes nonsense, and so goes where a good model never does; the real one, a twentieth as often,
where a random one never comes. RADIXRT_TEST_RUNS scales the number of runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import radixrt
from radixrt.constraint import StructuredOptions
from radixrt.engine.engine import Completion
from radixrt.errors import RequestError
from radixrt.messages.parts import TemplateText
from radixrt.sampling_params import SamplingParams
from tests.equivalence.constraints import EBNFS, REGEXES, SCHEMAS
from tests.equivalence.test_tiny_models import engine

RUNS = int(os.environ.get("RADIXRT_TEST_RUNS", "60"))
"""For each schema."""
TEMPERATURES = (0.0, 0.7, 1.3, 3.0)

PROMPTS = ("Answer in JSON.", "Write a list of names, cities and numbers.", "def main():", "¿Qué es esto? 日本", "")


@pytest.fixture(scope="module")
def tiny(tiny_model: Callable[[str], Path]) -> Iterator[radixrt.Engine]:
    with engine(tiny_model("llama"), kv_cache_tokens=8192, max_running_requests=32) as made:
        yield made


@pytest.fixture(scope="module")
def smollm2() -> Iterator[radixrt.Engine]:
    with radixrt.Engine(show_progress=False, kv_cache_tokens=8192, num_threads=1, executor="uni") as made:
        yield made


def minimum(made: radixrt.Engine, **constraint: Any) -> int:
    """Tokens of the shortest output, as the refusal of a smaller budget says."""
    with contextlib.suppress(RequestError):
        made.generate("x", SamplingParams(max_tokens=1, temperature=0, **constraint))
        return 1
    with pytest.raises(RequestError, match=r"has (\d+) tokens") as refused:
        made.generate("x", SamplingParams(max_tokens=1, temperature=0, **constraint))
    assert refused.value.param == "max_tokens"
    found = re.search(r"has (\d+) tokens", refused.value.message)
    assert found is not None
    return int(found.group(1))


def check(schema: Any, result: Completion, max_tokens: int) -> None:
    value = json.loads(result.text)
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(value)
    assert json.loads(json.dumps(value)) == value
    assert len(result.token_ids) <= max_tokens
    assert result.finish_reason in ("stop", "length")


def budgets(rng: random.Random, least: int, runs: int) -> list[int]:
    """From the minimum up, near it more often."""
    return [least + min(int(rng.expovariate(0.06)), 150) for _ in range(runs - 2)] + [least, least + 1]


def _any_params(rng: random.Random, seed: int, most: int, schema: Any) -> SamplingParams:
    options = StructuredOptions(
        jump_forward=rng.random() < 0.7,
        whitespace=rng.choice([0, 0, 2]),
        on_length=rng.choice(["length", "stop"]),
    )
    return SamplingParams(
        json_schema=schema,
        structured=options,
        max_tokens=most,
        min_tokens=rng.choice([0, 0, min(5, most)]),
        temperature=rng.choice(TEMPERATURES),
        frequency_penalty=rng.choice([0.0, 0.0, 1.0]),
        logit_bias={rng.randrange(500): rng.choice([-100.0, 50.0])} if rng.random() < 0.3 else {},
        seed=seed,
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_output_validates(name: str, tiny: radixrt.Engine) -> None:
    schema = SCHEMAS[name]
    rng = random.Random(name)
    limits = budgets(rng, minimum(tiny, json_schema=schema), RUNS)
    params = [_any_params(rng, seed, most, schema) for seed, most in enumerate(limits)]
    results = tiny.generate([f"{seed}" for seed in range(len(params))], params)
    for result, most in zip(results, limits, strict=True):
        check(schema, result, most)


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_output_of_the_real_model_validates(name: str, smollm2: radixrt.Engine) -> None:
    schema = SCHEMAS[name]
    rng = random.Random(f"real {name}")
    limits = budgets(rng, minimum(smollm2, json_schema=schema), max(RUNS // 20, 3))
    params = [_any_params(rng, seed, most, schema) for seed, most in enumerate(limits)]
    prompts = [f"{rng.choice(PROMPTS)} ({seed})\n" for seed in range(len(params))]
    for result, most in zip(smollm2.generate(prompts, params), limits, strict=True):
        check(schema, result, most)


@pytest.mark.parametrize("regex", REGEXES)
def test_every_output_matches_its_regex(regex: str, tiny: radixrt.Engine) -> None:
    rng = random.Random(regex)
    limits = budgets(rng, minimum(tiny, regex=regex), RUNS // 3 + 3)
    params = [
        SamplingParams(regex=regex, max_tokens=m, temperature=rng.choice(TEMPERATURES), seed=s)
        for s, m in enumerate(limits)
    ]
    for result in tiny.generate(["go"] * len(params), params):
        assert re.fullmatch(regex, result.text), result.text


STOPPED = {"[0-9]+": ("\n",), "[^.]*": (".", "!"), "(?:ab|cd)*ef": ("fe", "efab"), "[a-z ]{2,}": ("ee", "e", " t")}


@pytest.mark.parametrize("regex", STOPPED)
def test_what_stands_before_a_stop_string_matches_the_regex(regex: str, tiny: radixrt.Engine) -> None:
    rng = random.Random(regex)
    stop = STOPPED[regex]
    limits = budgets(rng, minimum(tiny, regex=regex, stop=stop), RUNS // 3 + 3)
    params = [
        SamplingParams(regex=regex, stop=stop, max_tokens=m, temperature=rng.choice(TEMPERATURES), seed=s)
        for s, m in enumerate(limits)
    ]
    results = tiny.generate(["go"] * len(params), params)
    for result, most in zip(results, limits, strict=True):
        assert re.fullmatch(regex, result.text), result.text
        assert not any(one in result.text for one in stop)
        assert len(result.token_ids) <= most


@pytest.mark.parametrize("ebnf", EBNFS)
def test_outputs_follow_their_ebnf(ebnf: str, tiny: radixrt.Engine) -> None:
    limits = budgets(random.Random(1), minimum(tiny, ebnf=ebnf), 24)
    params = [SamplingParams(ebnf=ebnf, max_tokens=m, temperature=1.0, seed=s) for s, m in enumerate(limits)]
    for result in tiny.generate(["go"] * len(params), params):
        if ebnf is EBNFS[0]:
            assert re.fullmatch(r"[0-9()+-]+", result.text)
            compile(re.sub(r"\b0+(?=[0-9])", "", result.text), "sum", "eval")
        else:
            assert re.fullmatch(r"select [a-z]{1,8}(, [a-z]{1,8})* from [a-z]{1,8}", result.text)


def test_choices(tiny: radixrt.Engine) -> None:
    choices = ("red", "rose", "roses", "日本", 'a "quoted" one')
    params = [SamplingParams(choices=choices, max_tokens=60, temperature=2.0, seed=s) for s in range(40)]
    seen = {r.text for r in tiny.generate(["pick"] * 40, params)}
    assert seen <= set(choices)
    assert len(seen) > 2


VARIANTS: dict[str, dict[str, Any]] = {
    "depth-1": {"max_inflight_steps": 1},
    "no-cache": {"prefix_cache": False},
    "page-16": {"page_size": 16},
    "chunk-8": {"chunked_prefill_size": 8},
    "one-at-a-time": {"max_running_requests": 1},
    "retracting": {"kv_cache_tokens": 400, "schedule_conservativeness": 0.0, "max_running_requests": 8},
}


def _mixed(made: radixrt.Engine, jump_forward: bool) -> list[list[int]]:
    """Constrained and free requests side by side."""
    params = []
    for i, schema in enumerate(SCHEMAS.values()):
        options = StructuredOptions(jump_forward=jump_forward)
        temperature = (0.0, 1.0)[i % 2]
        params.append(
            SamplingParams(json_schema=schema, max_tokens=120, temperature=temperature, seed=i, structured=options)
        )
        params.append(SamplingParams(max_tokens=12, temperature=1.0, seed=i, ignore_eos=True))
    prompts = [[5 + i % 7, 6, 7, 8, 9, 10 + i // 4] for i in range(len(params))]
    return [r.token_ids for r in made.generate(prompts, params)]


@pytest.fixture(scope="module")
def usual(tiny: radixrt.Engine) -> dict[bool, list[list[int]]]:
    """Outputs of the engine with default options, with and without jump_forward."""
    return {jump_forward: _mixed(tiny, jump_forward) for jump_forward in (True, False)}


@pytest.mark.parametrize("jump_forward", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_how_it_is_computed_changes_no_token(
    variant: str, jump_forward: bool, usual: dict[bool, list[list[int]]], tiny_model: Callable[[str], Path]
) -> None:
    with engine(tiny_model("llama"), **VARIANTS[variant]) as other:
        assert _mixed(other, jump_forward) == usual[jump_forward]
        if jump_forward:
            assert _mixed(other, jump_forward) == usual[jump_forward]  # now from the cache


@pytest.mark.parametrize("name", ["person", "strings", "nested", "conditional", "union"])
def test_the_real_model_with_and_without_jump_forward(name: str, smollm2: radixrt.Engine) -> None:
    schema = SCHEMAS[name]
    prompt = f"Answer in JSON. Describe Ada Lovelace ({name}).\n"
    for temperature in (0.0, 0.9):
        results = smollm2.generate(
            [prompt] * 2,
            [
                SamplingParams(
                    json_schema=schema, max_tokens=96, temperature=temperature, seed=3,
                    structured=StructuredOptions(jump_forward=jump),
                )
                for jump in (True, False)
            ],
        )  # fmt: skip
        for result in results:
            check(schema, result, 96)


def test_a_stop_token_ends_a_constrained_output_only_where_it_may_end(smollm2: radixrt.Engine) -> None:
    (end,) = smollm2.tokenize([TemplateText("<|im_start|>")])
    params = SamplingParams(
        regex="[a-z]{4,9}( [a-z]{4,9}){2,}",
        stop_token_ids=(end,),
        logit_bias={end: 100.0},
        temperature=0,
        max_tokens=60,
    )
    result = smollm2.generate("Three words:", params)
    assert re.fullmatch(r"[a-z]{4,9}( [a-z]{4,9}){2}", result.text)
    assert (result.finish_reason, result.matched_stop, result.forced_close) == ("stop", end, False)
    (letter,) = smollm2.tokenize("a")
    with pytest.raises(RequestError, match="is text") as refused:
        smollm2.generate("Three words:", SamplingParams(regex="[a-z]+", stop_token_ids=(letter,), max_tokens=9))
    assert refused.value.param == "stop_token_ids"


def test_the_cache_holds_what_a_later_prompt_with_the_text_looks_for(smollm2: radixrt.Engine) -> None:
    """Radix keys stay canonical: prompt and output, tokenized again as one text, are found up to the last token."""
    schema = SCHEMAS["strings"]
    prompt = "Fill in the form.\n"
    result = smollm2.generate(prompt, SamplingParams(json_schema=schema, max_tokens=200, temperature=0))
    again = smollm2.generate(prompt + result.text + "\nNext:", SamplingParams(max_tokens=1, temperature=0))
    assert again.usage.cached_tokens >= len(result.prompt_token_ids) + len(result.token_ids) // 2
