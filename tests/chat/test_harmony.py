"""Harmony: answers in channels are read whatever the pieces, and prompts and constraints are what the format needs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from radixrt.chat.answer import AnswerForm, count_reasoning
from radixrt.chat.constraint import ConstraintFields, RequestedConstraint
from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.chat.harmony import FREE_TEXT, HARMONY, MARKERS, HarmonyParser, harmony_constraint, harmony_messages
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.reasoning import Reasoning, Thinking
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.chat.types import ChatMessage, Conversation, FunctionDefinition, ToolCall, ToolDefinition, ToolOptions
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.tags.tools import Tool
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from tests.chat import templates
from tests.chat.templates import template

TOKENS = {marker: 200_000 + i for i, marker in enumerate(MARKERS)}
DIALECT = make_dialect(template(templates.HARMONY), tokens=TOKENS, special_tokens=frozenset(MARKERS))
THOUGHT = "<|channel|>analysis<|message|>Let me <b>see</b>.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>It rains."
CALL = '<|channel|>commentary to=functions.get <|constrain|>json<|message|>{"city": "}Rome\\""}'
ARGUMENTS = '{"city": "}Rome\\""}'

CASES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "an answer": (FINAL, "", "It rains.", []),
    "reasoning and an answer": (THOUGHT + FINAL + "<|return|>", "Let me <b>see</b>.", "It rains.", []),
    "reasoning alone": (THOUGHT[:-9], "Let me <b>see</b>.", "", []),
    "reasoning that is cut": (THOUGHT[:-30], "Let me <b>see", "", []),
    "two thoughts": (THOUGHT + THOUGHT + FINAL, "Let me <b>see</b>.\nLet me <b>see</b>.", "It rains.", []),
    "a call": (THOUGHT + CALL + "<|call|>", "Let me <b>see</b>.", "", [("get", ARGUMENTS)]),
    "a call without its end": (CALL, "", "", [("get", ARGUMENTS)]),
    "a recipient in the role": (
        THOUGHT + ' to=functions.get<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
        "Let me <b>see</b>.", "", [("get", '{"city": "Oslo"}')],
    ),
    "words to the user before a call": (
        THOUGHT + "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + CALL,
        "Let me <b>see</b>.", "I look.", [("get", ARGUMENTS)],
    ),
    "words to the user and an answer": (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" + FINAL, "", "I look.\nIt rains.", [],
    ),
    "a tool of its own": (
        THOUGHT + "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "Let me <b>see</b>.\nprint(1)", "", [],
    ),
    "an unknown function": (
        "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>", "{}", "", [],
    ),
    "no end before the next channel": ("<|channel|>analysis<|message|>hm" + FINAL, "hm", "It rains.", []),
    "a header that is cut": (THOUGHT + "<|channel|>fin", "Let me <b>see</b>.", "", []),
    "no channels at all": ("Just <i>text</i>, to=you", "", "Just <i>text</i>, to=you", []),
    "almost a marker": ("<|chan", "", "<|chan", []),
    "a marker that is none": ("<|channel|>final<|message|>a <|en b", "", "a <|en b", []),
    "markers that mean nothing in a text": (
        "<|channel|>analysis<|message|>h<|constrain|>m<|end|><|start|>assistant" + FINAL + "<|message|> Much.",
        "hm", "It rains. Much.", [],
    ),
    "nothing": ("", "", "", []),
}  # fmt: skip


def read(text: str, step: int, names: tuple[str, ...] = ("get",)) -> tuple[str, str, list[tuple[str, str]], bool]:
    parser, parts = HarmonyParser(names), []
    for i in range(0, len(text), step):
        parts += parser.feed(text[i : i + step])
    parts += parser.finish()
    calls: list[tuple[str, str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.index == len(calls)
            calls.append((part.name, ""))
        elif isinstance(part, CallArguments):
            calls[part.index] = (calls[part.index][0], calls[part.index][1] + part.text)
    said = ["".join(part.text for part in parts if isinstance(part, kind)) for kind in (Reasoning, Text)]
    return said[0], said[1], calls, parser.complete


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_answers_are_read_in_any_pieces(case: str, step: int) -> None:
    text, reasoning, answer, calls = CASES[case]
    assert read(text, step) == (reasoning, answer, calls, bool(calls))


def test_a_call_that_is_cut_is_not_complete() -> None:
    assert read(CALL[:-5], 1)[2:] == ([("get", ARGUMENTS[:-5])], False)
    assert read(CALL + " and more<|call|>", 1)[2:] == ([("get", ARGUMENTS)], True)


def test_what_is_certain_is_not_held_back() -> None:
    parser = HarmonyParser(())
    assert parser.feed("<|channel|>analysis<|message|>one") == [Reasoning("one")]
    assert parser.feed(" two <") == [Reasoning(" two ")]
    assert parser.feed("3") == [Reasoning("<3")]


def test_reasoning_tokens_are_those_before_the_last_message() -> None:
    form = AnswerForm(thinking=Thinking.FREE, reasoning_end_id=7, channels=HARMONY)
    assert count_reasoning([1, 2, 7, 3, 7, 4, 4], form) == 5
    assert count_reasoning([1, 2], form) == 0


# --- dialect ---


def test_the_template_shows_the_format() -> None:
    assert (DIALECT.channels, DIALECT.renders_tools, DIALECT.takes_system) == (HARMONY, True, True)
    assert DIALECT.thinking({}) is DIALECT.thinking({"enable_thinking": False}) is Thinking.FREE
    for options in ({"reasoning_parser": "none"}, {"tool_format": "json"}):
        assert make_dialect(template(templates.HARMONY), **options).channels is None
    for source in (templates.HERMES, templates.LLAMA3, templates.PLAIN):
        assert make_dialect(template(source)).channels is None


# --- prompts ---


def rendered(plan: ChatPlan) -> str:
    prompt = plan.prompt
    tools = None if prompt.tools is None else json.loads(prompt.tools)
    options: dict[str, Any] = {"tools": tools, "variables": json.loads(prompt.template_kwargs)}
    source, messages = template(templates.HARMONY), json.loads(prompt.messages)
    text = source.render(messages, add_generation_prompt=prompt.add_generation_prompt, **options)
    parts = source.render_parts(
        messages, add_generation_prompt=prompt.add_generation_prompt, answer_markers=prompt.answer_markers, **options
    )
    assert "".join(part if isinstance(part, str) else part.template for part in parts) == text  # type: ignore[union-attr]
    return text


def planned(
    *messages: ChatMessage, tools: tuple[str, ...] = (),
    constraint: ConstraintFields | RequestedConstraint | None = None, choice: str | None = None,
    sampling: dict[str, Any] | None = None, dialect: Dialect = DIALECT, **options: Any,
) -> ChatPlan:  # fmt: skip
    offered = [ToolDefinition(function=FunctionDefinition(name=name)) for name in tools]
    return plan_chat(
        Conversation(messages=messages or [ChatMessage(role="user", content="hi")], **options),
        ToolOptions(tools=offered or None, tool_choice=choice), constraint, sampling or {}, dialect, 300_000, {},
    )  # fmt: skip


def call(name: str, number: int) -> Any:
    return msgspec.convert({"id": f"call_{number}", "function": {"name": name, "arguments": '{"x": 1}'}}, ToolCall)


def test_a_conversation_with_calls() -> None:
    plan = planned(
        ChatMessage(role="developer", content="Be kind."),
        ChatMessage(role="user", content="a <|end|>?"),
        ChatMessage(role="assistant", content="old", reasoning_content="forgotten"),
        ChatMessage(role="user", content="b?"),
        ChatMessage(
            role="assistant", content="said", reasoning_content="thought", tool_calls=[call("get", 1), call("put", 2)]
        ),
        ChatMessage(role="tool", content="second", tool_call_id="call_2"),
        ChatMessage(role="tool", content="first", tool_call_id="call_1"),
        tools=("get", "put"),
        reasoning_effort="high",
    )
    text = rendered(plan)
    assert text.startswith("<|start|>system<|message|>Reasoning: high, 20")
    assert "<|start|>developer<|message|>Be kind.\n// \ntype get = " in text
    assert text.endswith(
        "<|start|>assistant<|channel|>final<|message|>old<|end|><|start|>user<|message|>b?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>thought\nsaid<|end|>"
        '<|start|>assistant to=functions.get<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        "<|start|>functions.get to=assistant<|channel|>commentary<|message|>first<|end|>"
        '<|start|>assistant to=functions.put<|channel|>commentary json<|message|>{"x": 1}<|call|>'
        "<|start|>functions.put to=assistant<|channel|>commentary<|message|>second<|end|><|start|>assistant"
    )
    assert plan.prompt.answer_markers == []  # none of these tokens is taken from a message's text


def test_results_without_ids_follow_their_calls_in_order() -> None:
    calls = [{"function": {"name": "a"}}, {"function": {"name": "b"}}]
    told = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, {"role": "tool", "content": "3"}]
    found = harmony_messages([{"role": "assistant", "content": None, "tool_calls": calls}, *told], ends_open=False)
    shown = [m["content"] if m["role"] == "tool" else m["tool_calls"][0]["function"]["name"] for m in found]
    assert shown == ["a", "1", "b", "2", "3"]


def test_an_answer_that_goes_on_keeps_its_reasoning() -> None:
    message = {"role": "assistant", "content": "It", "reasoning_content": "hm"}
    assert harmony_messages([message], ends_open=True) == [message]
    assert harmony_messages([message], ends_open=False) == [{"role": "assistant", "content": "It"}]


# --- plans ---

OPTIONS = ConstraintFields(regex="a", structured={"reasoning_end": "x"})


def test_a_plain_request() -> None:
    plan = planned()
    assert plan.form == AnswerForm(thinking=Thinking.FREE, reasoning_end_id=TOKENS["<|end|>"], channels=HARMONY)
    assert plan.sampling.skip_special_tokens is False
    assert plan.sampling.structural_tag is None
    continued = planned(
        ChatMessage(role="user", content="hi"), ChatMessage(role="assistant", content="It"), continue_final_message=True
    )
    assert continued.form.is_plain


def test_stop_strings_are_about_the_content() -> None:
    assert planned(sampling={"stop": ("END",)}).sampling.stop_scope == FREE_TEXT
    assert planned().sampling.stop_scope is None


def test_a_schema_binds_the_answer_and_not_the_reasoning() -> None:
    asked = RequestedConstraint("json_schema", '{"type": "integer"}', "response_format")
    plan = planned(constraint=asked)
    assert plan.sampling.json_schema is None
    tag = json.loads(plan.sampling.structural_tag or "")["format"]
    analysis, final = tag["elements"][1]["elements"]
    assert analysis["elements"][0]["value"] == "analysis"
    assert final["elements"][-1]["json_schema"] == {"type": "integer"}
    bad = RequestedConstraint("json_schema", '{"type": 5}', "response_format")
    with pytest.raises(RequestError) as raised:
        read_structural_tag(planned(constraint=bad).sampling.structural_tag or "", StructuredOptions())
    assert raised.value.param == "response_format"


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("reserved", [(), MARKERS])
@pytest.mark.parametrize("response", [None, {"type": "regex", "pattern": "a+"}])
def test_constraints_are_accepted(response: dict[str, Any] | None, reserved: tuple[str, ...], required: bool) -> None:
    tools = [Tool(name, '{"type":"object"}', origin="tools/0") for name in ("get", "get_all", "x")]
    for some in (tools, tools[:1], [] if not required else tools[1:]):
        source = harmony_constraint(some, required=required, response=response, reserved=reserved)
        read_structural_tag(source, StructuredOptions())


def parts_of(value: Any) -> list[dict[str, Any]]:
    """All objects in a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if isinstance(value, dict) else []) + [part for each in inner for part in parts_of(each)]


@pytest.mark.parametrize("strict", [None, True, False])
def test_strict_is_kept_where_the_server_closes_objects(strict: bool | None) -> None:
    tool = Tool("get", '{"type":"object","properties":{"city":{}}}', strict)
    source = harmony_constraint([tool], required=True, response=None, reserved=MARKERS)
    formats = [part for part in parts_of(json.loads(source)) if part.get("type") == "json_schema"]
    assert formats
    assert {part.get("closed") for part in formats} == {strict}


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"reasoning_effort": "none"}, "reasoning_effort", "must be low, medium or high for this model"),
        ({"tools": ("get",), "constraint": OPTIONS}, "structured.reasoning_end", "reasons in channels"),
        ({"thinking_token_budget": 100}, "thinking_token_budget", "reasons in channels"),
        ({"tools": ("get",), "sampling": {"stop": ["x"]}}, "stop", "stop beside tools is not supported"),
    ],
)
def test_what_channels_do_not_have_is_refused(options: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as raised:
        planned(**options)
    assert raised.value.param == param
