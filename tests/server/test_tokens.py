"""/tokenize, /detokenize and /chat_template."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from radixrt.config import ServerConfig
from radixrt.messages.parts import TemplateText
from radixrt.messages.wire import pack_i32
from tests.client_requests import detokenizing, tokenizing
from tests.server.fake_engine import FakeEngine, info
from tests.server.helpers import Caller, check_error


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"prompt": "hi"}, {"prompt": "hi"}),
        ({"prompt": "hi", "add_special_tokens": False}, {"parts": [TemplateText("hi")]}),
        ({"input_parts": ["a", [1], {"template": "t"}]}, {"parts": ["a", [1], TemplateText("t")]}),
    ],
)
def test_tokenize(caller: Caller, body: dict[str, Any], sent: dict[str, Any]) -> None:
    answer = caller.post("/tokenize", body).json()
    assert answer == {"tokens": list(range(10)), "count": 10, "max_model_len": 520}
    (question,) = caller.engine.questions
    assert question.request == tokenizing(question.rid, **sent)


@pytest.mark.parametrize("field", ["messages", "prompt"])  # lm-eval sends messages as the prompt
def test_tokenize_a_conversation(caller: Caller, field: str) -> None:
    body = {field: [{"role": "user", "content": "hi"}], "add_generation_prompt": False}
    assert caller.post("/tokenize", body).json()["count"] == 10
    (question,) = caller.engine.questions
    assert question.chat.messages == b'[{"role":"user","content":"hi"}]'
    assert not question.chat.add_generation_prompt


@pytest.mark.parametrize("by_default", [False, True])
def test_control_tokens_are_allowed_by_the_request_or_by_the_option(engine: FakeEngine, by_default: bool) -> None:
    caller = Caller(engine, ServerConfig(allow_control_tokens=by_default))
    messages = [{"role": "user", "content": "hi"}]
    question = {"type": "predicate", "name": "n", "instructions": "Is it?"}
    for wanted in (None, True, False):
        field = {} if wanted is None else {"allow_control_tokens": wanted}
        assert caller.post("/tokenize", {"messages": messages, **field}).status_code == 200
        assert caller.post("/v1/chat/completions", {"messages": messages, **field}).status_code == 200
        caller.post("/v1/decisions", {"messages": messages, "choices": ["a", "b"], **field})
        caller.post("/v1/decisions", {"input": messages, "questions": [question], **field})
        sent = [*engine.questions[-3:], engine.requests[-1]]
        assert [each.chat.allow_control_tokens for each in sent] == [by_default if wanted is None else wanted] * 4
        assert all(each.chat.answer_markers == ["<think>", "</think>"] for each in sent)


def test_detokenize(caller: Caller) -> None:
    assert caller.post("/detokenize", {"tokens": [1, 2]}).json() == {"prompt": "text"}
    assert caller.post("/detokenize", {"tokens": [], "skip_special_tokens": True}).json() == {"prompt": "text"}
    assert [q.request for q in caller.engine.questions] == [
        detokenizing(caller.engine.questions[0].rid, pack_i32([1, 2]), False),
        detokenizing(caller.engine.questions[1].rid, b"", True),
    ]


def test_chat_template(engine: FakeEngine, caller: Caller) -> None:
    answer = caller.get("/chat_template").json()
    assert answer == {"templates": {"default": "{{ messages }}"}, "special_tokens": {"bos_token": "<s>"}}
    engine.deliver(msgspec.structs.replace(info(), chat_templates={}))
    assert caller.get("/chat_template").json() is None


def test_tokenizer_info(engine: FakeEngine, caller: Caller) -> None:
    assert caller.get("/tokenizer_info").json() == {"eos_token": "</s>"}
    engine.deliver(msgspec.structs.replace(info(), tokenizer_info=b""))
    assert "--skip-tokenizer-init" in check_error(caller.get("/tokenizer_info"), 404, code="no_tokenizer")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "input_parts": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"input_parts": [[1000]]}, "input_parts[0]"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**40]}, "tokens"),
    ],
)
def test_bad_bodies(caller: Caller, path: str, body: dict[str, Any], param: str) -> None:
    check_error(caller.post(path, body), 400, param)
