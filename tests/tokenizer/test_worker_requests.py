"""Requests to the worker: valid requests reach the scheduler, and others end with their error."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from radixrt.messages.client import EngineReady
from radixrt.messages.parts import ChatPrompt, Finish
from radixrt.messages.request import Request
from radixrt.messages.scheduler import AbortReq, ControlReply, ControlReq, SchedulerReady
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.info import tokenizer_info
from radixrt.tokenizer.prompt_encoder import max_input_tokens
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.client_requests import generating
from tests.requests import prompt_of
from tests.tokenizer.model_templates import CHATML
from tests.tokenizer.worker_bench import CONTEXT, Bench


def chat(messages: Any, **options: Any) -> ChatPrompt:
    return ChatPrompt(msgspec.json.encode(messages), **options)


def test_a_prompt_is_tokenized_and_passed_on(bench: Bench) -> None:
    sampling = SamplingParams(max_tokens=3, stop=("x",))
    bench.handle(generating("r", sampling, prompt="hi there", priority=3, cache_salt="s", timeout_s=4.0))
    ids = pack_i32(bench.tokenizer.encode("hi there"))
    assert bench.scheduler.recv() == Request.generate("r", ids, sampling, 3, "s", 4.0)
    assert bench.main.recv() is None


def test_ids_are_passed_on_as_they_are(bench: Bench) -> None:
    bench.handle(generating("r", SamplingParams(), input_ids=pack_i32([5, 6, 7])))
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    assert prompt_of(sent) == pack_i32([5, 6, 7])


def test_a_chat_is_rendered_and_its_special_tokens_are_ids_once(loaded: dict[str, Tokenizer], bench: Bench) -> None:
    bench.handle(generating("r", SamplingParams(), chat=chat([{"role": "user", "content": "hi"}])))
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    ids = sent.tokens(0).tolist()
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert bench.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids.count(bench.tokenizer.token_to_id("<|im_start|>")) == 2
    assert bench.tokenizer.decode(ids[: sent.turn_len], skip_special_tokens=False) == text.partition("<|im_start|>a")[0]


def test_a_continued_chat_and_template_variables(bench: Bench) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well"}]
    prompt = chat(messages, continue_final_message=True, template_kwargs=b'{"x": 1}', tools=b"[{}]")
    bench.handle(generating("r", SamplingParams(), chat=prompt))
    sent = bench.scheduler.recv()
    assert isinstance(sent, Request)
    assert bench.tokenizer.decode(sent.tokens(0).tolist()).endswith("assistant\nWell")


OK = SamplingParams()
HI = [{"role": "user", "content": "hi"}]
BAD_REQUESTS = {
    "empty prompt": (generating("r", OK, prompt=""), "prompt"),
    "empty ids": (generating("r", OK, input_ids=b""), "input_ids"),
    "half an id": (generating("r", OK, input_ids=b"abc"), "input_ids"),
    "negative id": (generating("r", OK, input_ids=pack_i32([1, -1])), "input_ids"),
    "id beyond the vocabulary": (generating("r", OK, input_ids=pack_i32([1, 10**6])), "input_ids"),
    "empty chat": (generating("r", OK, chat=chat([])), "messages"),
    "chat of strings": (generating("r", OK, chat=chat(["hi"])), "messages"),
    "chat is an object": (generating("r", OK, chat=chat({})), "messages"),
    "chat is no JSON": (generating("r", OK, chat=ChatPrompt(b"\xff[")), "messages"),
    "chat nested too deep": (generating("r", OK, chat=ChatPrompt(b"[" * 100_000)), "messages"),
    "half a surrogate": (generating("r", OK, chat=ChatPrompt(b'[{"role":"user","content":"\\ud800"}]')), "messages"),
    "content is missing": (generating("r", OK, chat=chat([{"role": "user"}])), "messages"),
    "variables are a list": (generating("r", OK, chat=chat(HI, template_kwargs=b"[]")), "chat_template_kwargs"),
    "variables replace messages": (
        generating("r", OK, chat=chat(HI, template_kwargs=b'{"messages": []}')),
        "chat_template_kwargs",
    ),
    "tools are a string": (generating("r", OK, chat=chat(HI, tools=b'"x"')), "tools"),
    "no rid": (generating("", OK, prompt="a"), "rid"),
    "long rid": (generating("r" * 257, OK, prompt="a"), "rid"),
    "NaN timeout": (generating("r", OK, prompt="a", timeout_s=math.nan), "timeout_s"),
    "timeout in the past": (generating("r", OK, prompt="a", timeout_s=-1.0), "timeout_s"),
    "NaN temperature": (generating("r", SamplingParams(temperature=math.nan), prompt="a"), "temperature"),
    "n": (generating("r", SamplingParams(n=2), prompt="a"), "n"),
    "stop token beyond the vocabulary": (
        generating("r", SamplingParams(stop_token_ids=(10**6,)), prompt="a"),
        "stop_token_ids",
    ),
    "bias beyond the vocabulary": (generating("r", SamplingParams(logit_bias={10**6: 1.0}), prompt="a"), "logit_bias"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_ends_with_its_error(bench: Bench, name: str) -> None:
    message, param = BAD_REQUESTS[name]
    error = bench.refused(message)
    assert (error.param, error.status) == (param, 400)
    assert error.message
    bench.start()  # and the next one is served


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_alternatives_than_a_frame_holds(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radixrt.tokenizer.limits.MAX_ALTERNATIVES", 100)
    ids = pack_i32([5] * 10)
    error = bench.refused(generating("r", SamplingParams(max_tokens=10, **{name: 11}), input_ids=ids))
    assert error.param == name
    assert "at most 10" in error.message
    bench.handle(generating("r", SamplingParams(max_tokens=10, **{name: 10}), input_ids=ids))
    assert isinstance(bench.scheduler.recv(), Request)


def test_a_model_without_chat_template(loaded: dict[str, Tokenizer]) -> None:
    assert "no chat template" in Bench(loaded["gemma_like"]).refused(generating("r", OK, chat=chat(HI))).message


def test_ids_of_the_tokenizer_that_the_model_lacks(tokenizer: Tokenizer) -> None:
    error = Bench(tokenizer, vocab_size=300).refused(generating("r", OK, prompt="<think>"))
    assert error.param == "prompt"
    assert "300" in error.message


def test_the_longest_prompt_is_served_and_one_more_token_is_not(bench: Bench) -> None:
    bench.handle(generating("fits", OK, input_ids=pack_i32([5] * (CONTEXT - 1))))
    assert isinstance(bench.scheduler.recv(), Request)
    bench.handle(generating("r", OK, input_ids=pack_i32([5] * CONTEXT)))
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    error = delta.finish.error
    assert (error.code, error.status, error.param) == ("context_length_exceeded", 400, "input_ids")
    assert f"maximum context length is {CONTEXT} tokens" in error.message
    assert f"resulted in {CONTEXT} tokens" in error.message


def test_a_huge_prompt_is_refused_without_tokenizing_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.tokenizer, "encode", lambda *_: pytest.fail("tokenized"))
    text = "word " * 1_600_000
    for message in (
        generating("r", OK, prompt=text),
        generating("r", OK, chat=chat([{"role": "user", "content": text}])),
    ):
        error = bench.refused(message)
        assert error.code == "context_length_exceeded"
        assert f"more than {CONTEXT - 1} tokens" in error.message


def test_a_failure_of_the_tokenizer_itself_ends_only_that_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench.tokenizer, "encode", lambda *_: 1 / 0)
        assert bench.refused(generating("r", OK, prompt="a")).status == 500
    bench.start()


def test_a_live_rid_is_not_disturbed_by_a_second_request(bench: Bench) -> None:
    bench.start("r")
    bench.handle(generating("r", OK, prompt="again"))
    assert bench.scheduler.recv() is None
    assert bench.deltas() == []
    assert bench.tokens("a")[0].text == "a"
    bench.tokens([], finish=Finish("length"))
    bench.start("r")  # once it has ended, the id is free


def test_what_is_not_its_own_passes_through(bench: Bench) -> None:
    for message in (AbortReq("unknown"), ControlReq("1", "check")):
        bench.handle(message)
        assert bench.scheduler.recv() == message
    bench.handle(ControlReply("1", True))
    assert bench.main.recv() == ControlReply("1", True)


@pytest.mark.parametrize(("num_slots", "longest"), [(1000, CONTEXT - 1), (50, 49), (1, 0)])
def test_ready(bench: Bench, num_slots: int, longest: int) -> None:
    bench.handle(SchedulerReady(num_slots, 8, "cpu", "float32"))
    vocab_size = bench.tokenizer.vocab_size
    special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert bench.main.recv() == EngineReady(
        "test", vocab_size, CONTEXT, longest, num_slots, 8, "cpu", "float32", True, {"default": CHATML}, special,
        tokenizer_info(bench.tokenizer),
    )  # fmt: skip
    assert max_input_tokens(CONTEXT, num_slots) == longest
    message = generating("r", OK, input_ids=pack_i32([5] * (longest + 1)))
    assert bench.refused(message).code == "context_length_exceeded"


def test_a_prompt_that_is_no_text(bench: Bench) -> None:
    bench.worker.handle(generating("r", OK, prompt="half \ud800"))  # cannot cross the wire, but comes from Python
    (delta,) = bench.deltas()
    assert delta.finish is not None
    assert delta.finish.error is not None
    assert delta.finish.error.param == "prompt"
