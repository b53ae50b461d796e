"""`Engine`, the offline API: prompts of every kind in, completions in their order out; its start and its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from radixrt.config import make_config
from radixrt.engine.engine import Engine
from radixrt.engine.in_process import InProcessEngine
from radixrt.engine.settings import resolve_settings
from radixrt.errors import EngineError
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from tests.client_requests import generating
from tests.engine.helpers import (
    GREEDY,
    LONG,
    OPTIONS,
    SEEDED,
    TEXT,
    WAIT_S,
    assert_at_rest,
    assert_eventually,
    assert_same_logprobs,
    ids_of,
    many,
    one,
    refusal,
    start,
)

# --- prompts and results ---


def test_one_prompt(engine: Engine, tokenizer: tokenizers.Tokenizer) -> None:
    c = one(engine, TEXT, GREEDY)
    assert c.prompt_token_ids == tokenizer.encode(TEXT).ids
    assert len(c.token_ids) == 12
    assert c.text == tokenizer.decode(c.token_ids)
    assert (c.finish_reason, c.matched_stop) == ("length", None)
    assert (c.usage.prompt_tokens, c.usage.completion_tokens) == (len(c.prompt_token_ids), 12)
    assert c.timings.prefill_s > 0
    assert c.timings.decode_s > 0
    assert c.logprobs is c.prompt_logprobs is None


def test_token_ids_as_a_prompt(engine: Engine, tokenizer: tokenizers.Tokenizer) -> None:
    expected = one(engine, TEXT, GREEDY)
    ids = tokenizer.encode(TEXT).ids
    for prompt in (ids, tuple(ids), np.array(ids), np.array(ids, np.uint16)):
        c = one(engine, prompt, GREEDY)
        assert (c.token_ids, c.text, c.prompt_token_ids) == (expected.token_ids, expected.text, ids)


def test_a_list_of_prompts_comes_back_in_its_order(engine: Engine) -> None:
    prompts = ["Numbers 0 1 2", [5, 6, 7], "Once upon a time", np.array([[8, 9]])[0], "Numbers 0 1 2 3"]
    params = [{**GREEDY, "max_tokens": n} for n in (9, 3, 6, 1, 5)]
    together = many(engine, prompts, params)
    apart = [one(engine, prompt, p) for prompt, p in zip(prompts, params, strict=True)]
    assert ids_of(together) == ids_of(apart)
    assert [len(c.token_ids) for c in together] == [9, 3, 6, 1, 5]
    assert len({c.text for c in together}) == 5


def test_a_prompt_is_on_its_way_before_the_next_is_read(engine: Engine) -> None:
    open_then = []

    class Ids:
        def __len__(self) -> int:
            return 3

        def __array__(self, *_: Any, **__: Any) -> Any:
            open_then.append(engine.client.open_requests)
            return np.array([5, 6, 7])

    prompts = [Ids() for _ in range(3)]
    params = {**GREEDY, "max_tokens": 40}
    assert ids_of(many(engine, prompts, params)) == ids_of(many(engine, [[5, 6, 7]] * 3, params))
    assert open_then == [0, 1, 2]


def test_a_list_of_one_is_a_list(engine: Engine) -> None:
    assert len(many(engine, [TEXT], GREEDY)) == 1
    assert len(many(engine, [[3, 4, 5]], GREEDY)) == 1
    assert many(engine, [], GREEDY) == []


def test_prompts_may_come_from_an_iterator(engine: Engine) -> None:
    prompts = ["a b c", "d e f"]
    assert ids_of(many(engine, iter(prompts), GREEDY)) == ids_of(many(engine, prompts, GREEDY))


def test_params_as_a_dict_or_an_object_or_none(engine: Engine) -> None:
    assert one(engine, TEXT, GREEDY).token_ids == one(engine, TEXT, SamplingParams(**GREEDY)).token_ids
    assert one(engine, TEXT).usage.completion_tokens <= SamplingParams().max_tokens  # type: ignore[operator]


def test_one_set_of_params_serves_all_prompts(engine: Engine) -> None:
    assert [len(c.token_ids) for c in many(engine, ["a", "b", "c"], SamplingParams(**GREEDY))] == [12, 12, 12]


def test_params_for_each_prompt_of_any_kind(engine: Engine) -> None:
    params = (SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), {**GREEDY, "max_tokens": 3})
    assert [len(c.token_ids) for c in many(engine, ["a", "b"], params)] == [2, 3]


def test_n_completions_of_each_prompt(engine: Engine) -> None:
    params = {"n": 3, "seed": 11, "max_tokens": 8, "ignore_eos": True}
    out = many(engine, [TEXT, "Once upon"], params)
    assert len(out) == 6
    assert [len(c.prompt_token_ids) for c in out] == [len(c.prompt_token_ids) for c in (out[:1] * 3 + out[3:4] * 3)]
    assert out[0].prompt_token_ids != out[3].prompt_token_ids
    assert len({tuple(c.token_ids) for c in out[:3]}) == 3
    assert ids_of(many(engine, TEXT, params)) == ids_of(out[:3])


def test_n_without_a_seed_gives_different_completions(engine: Engine) -> None:
    out = many(engine, TEXT, {"n": 4, "max_tokens": 8, "ignore_eos": True})
    assert len({tuple(c.token_ids) for c in out}) == 4


@pytest.mark.parametrize(("running", "queued"), [(2, 2), (8, 3), (1, 1)])
async def test_a_list_may_be_longer_than_the_queue(
    tiny_model: Callable[[str], Path], running: int, queued: int
) -> None:
    prompts = [f"Numbers {i}" for i in range(24)]
    params = [{**GREEDY, "max_tokens": 1 + i % 3} for i in range(24)]
    with start(tiny_model("llama"), max_running_requests=running, max_queued_requests=queued) as engine:
        expected = [one(engine, prompt, p).token_ids for prompt, p in zip(prompts, params, strict=True)]
        assert ids_of(many(engine, prompts, params)) == expected
        out = await engine.async_generate(prompts, params)
        assert isinstance(out, list)
        assert ids_of(out) == expected
        assert_at_rest(engine)


def test_a_progress_bar_only_when_asked_for(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    many(engine, ["a", "b"], GREEDY)
    one(engine, "a", GREEDY)
    assert capfd.readouterr() == ("", "")
    many(engine, ["a", "b"], GREEDY, progress=True)
    assert "2/2" in capfd.readouterr().err


# --- the end ---


@pytest.mark.parametrize("terminal", [False, True])
def test_loading_draws_a_bar_on_a_terminal_alone(
    terminal: bool, tiny_model: Callable[[str], Path], capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    with Engine(str(tiny_model("llama")), executor="uni", num_threads=1, kv_cache_tokens=256):
        pass
    assert ("Loading weights" in capfd.readouterr().err) == terminal


def test_after_close_every_call_says_so(tiny_model: Callable[[str], Path]) -> None:
    with start(tiny_model("llama")) as engine:
        assert engine.pids == {}
        one(engine, TEXT, GREEDY)
    engine.close()
    for call in (
        lambda: engine.generate(TEXT),
        lambda: engine.generate(["a", "b"]),
        lambda: next(iter(engine.stream(TEXT))),
        lambda: asyncio.run(engine.async_generate(TEXT)),  # type: ignore[arg-type]
        lambda: asyncio.run(anext(engine.async_stream(TEXT))),  # type: ignore[arg-type]
        engine.flush_cache,
        engine.check_invariants,
    ):
        with pytest.raises(EngineError, match="shut down"):
            call()


def test_the_context_manager_closes_after_an_exception(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ZeroDivisionError), start(tiny_model("llama")) as engine:
        raise ZeroDivisionError
    with pytest.raises(EngineError, match="shut down"):
        engine.generate(TEXT)


def test_closing_ends_what_is_running_with_an_engine_error(tiny_model: Callable[[str], Path]) -> None:
    engine = start(tiny_model("llama"))
    caught: list[BaseException] = []

    def keep(call: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [
        keep(lambda: engine.generate(["a", "b"], LONG)),
        keep(lambda: list(engine.stream("c", LONG))),
        keep(lambda: asyncio.run(engine.async_generate("d", LONG))),  # type: ignore[arg-type]
    ]
    assert_eventually(lambda: engine.client.open_requests == 4)
    engine.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert [type(error) for error in caught] == [EngineError] * 3
    assert all("shut down" in str(error) for error in caught)
    assert engine.client.open_requests == 0


# --- the same over the wire ---


def test_messages_may_cross_their_wire_form(engine: Engine, tiny_model: Callable[[str], Path]) -> None:
    config = make_config(model=str(tiny_model("llama")), **OPTIONS)
    encoded = InProcessEngine(*resolve_settings(config, show_progress=False), encode=True)
    client = encoded.start()
    try:
        params = {**GREEDY, "logprobs": 2, "prompt_logprobs": 1, "repetition_penalty": 1.2, "logit_bias": {9: 1.0}}
        request = generating("r", SamplingParams(**params), input_ids=pack_i32([3, 4, 5]))
        (delta,) = client.stream(request)
    finally:
        encoded.close()
    plain = one(engine, [3, 4, 5], params)
    assert delta.token_ids == plain.token_ids
    assert delta.text == plain.text
    assert_same_logprobs(delta.logprobs, plain.logprobs)
    assert_same_logprobs(delta.prompt_logprobs, plain.prompt_logprobs)


def test_processes_answer_like_one_process(engine: Engine, tiny_model: Callable[[str], Path]) -> None:
    prompts: list[Any] = [TEXT, [3, 4, 5]]
    params = [{**GREEDY, "logprobs": 1}, {**SEEDED, "stop": ["e"]}]
    expected = many(engine, prompts, params)
    with start(tiny_model("llama"), executor="mp") as apart:
        assert set(apart.pids) == {"tokenizer", "scheduler", "ModelRunner"}
        out = many(apart, prompts, params)
        assert [(c.text, c.token_ids, c.matched_stop) for c in out] == [
            (c.text, c.token_ids, c.matched_stop) for c in expected
        ]
        assert_same_logprobs(out[0].logprobs, expected[0].logprobs)
        for wrong in ({"priority": "high"}, {"priority": 2**70}, {"cache_salt": "\ud83d"}, {"timeout_s": "1"}):
            refusal(apart, TEXT, GREEDY, **wrong)
        refusal(apart, "half a pair: \ud83d", GREEDY)
        assert_at_rest(apart)
        assert one(apart, TEXT, GREEDY).token_ids == expected[0].token_ids
