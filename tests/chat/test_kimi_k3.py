"""Kimi-K3: answers in blocks are read whatever the pieces, and prompts and constraints are what the format needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixrt.chat.answer import AnswerForm, AnswerParser, count_reasoning
from radixrt.chat.channels import ChannelTools
from radixrt.chat.constraint import ConstraintFields, RequestedConstraint
from radixrt.chat.dialect import make_dialect
from radixrt.chat.kimi_k3 import FORMAT, KIMI_K3, MESSAGE_END, RESPONSE, RESPONSE_END, SEP, THINK_END
from radixrt.chat.plan import ChatPlan, plan_chat
from radixrt.chat.prompt import chat_prompt
from radixrt.chat.reasoning import Reasoning, Thinking
from radixrt.chat.tool_parser import CallArguments, CallBegin, Text
from radixrt.chat.tools import offer_tools
from radixrt.chat.types import ChatMessage, Conversation, FunctionDefinition, ToolDefinition, ToolOptions
from radixrt.constrained.recognizer import Recognizer
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constrained.tags.tools import Tool
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from tests.chat import templates
from tests.chat.templates import template
from tests.chat.test_tool_templates import CALLS, CODE, DEFINITIONS, GOLDEN, conversation

TOKENS = {marker: 90 + i for i, marker in enumerate(FORMAT.markers)}
DIALECT = make_dialect(template(templates.KIMI_K3), tokens=TOKENS, special_tokens=frozenset(TOKENS))
TOOLS = [Tool(d["function"]["name"], json.dumps(d["function"]["parameters"])) for d in DEFINITIONS]
CALLED = FORMAT.write(CALLS)
THOUGHT = f"Hm <b> m{THINK_END}{RESPONSE}"

CASES: dict[str, tuple[str, Thinking, str, str, int]] = {
    "an answer": (f"It rains.{RESPONSE_END}{MESSAGE_END}", Thinking.OFF, "", "It rains.", 0),
    "an answer that is cut": ("It <|clos", Thinking.OFF, "", "It <|clos", 0),
    "reasoning": (f"{THOUGHT}It rains.{RESPONSE_END}{MESSAGE_END}", Thinking.BEGUN, "Hm <b> m", "It rains.", 0),
    "reasoning that is cut": ("Hm <b", Thinking.BEGUN, "Hm <b", "", 0),
    "calls": (f"{RESPONSE_END}{CALLED}{MESSAGE_END}", Thinking.OFF, "", "", 2),
    "everything": (f"{THOUGHT}I write.{RESPONSE_END}{CALLED}{MESSAGE_END}", Thinking.BEGUN, "Hm <b> m", "I write.", 2),
    "text outside of the blocks": (f"a{RESPONSE_END}b", Thinking.OFF, "", "ab", 0),
    "nothing": ("", Thinking.OFF, "", "", 0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_answers_are_read_in_any_pieces(case: str, step: int) -> None:
    text, thinking, reasoning, said, calls = CASES[case]
    parser = AnswerParser(AnswerForm(channels=KIMI_K3, tools=tuple(TOOLS), thinking=thinking))
    parts = [part for i in range(0, len(text), step) for part in parser.feed(text[i : i + step])]
    parts += parser.finish()
    assert "".join(part.text for part in parts if isinstance(part, Reasoning)) == reasoning
    assert "".join(part.text for part in parts if isinstance(part, Text)) == said
    names = [part.name for part in parts if isinstance(part, CallBegin)]
    found = ["".join(p.text for p in parts if isinstance(p, CallArguments) and p.index == i) for i in range(len(names))]
    assert list(zip(names, map(json.loads, found), strict=True)) == CALLS[:calls]
    assert parser.has_calls == bool(calls)


def test_reasoning_tokens_are_those_of_the_first_block() -> None:
    form = AnswerForm(channels=KIMI_K3, thinking=Thinking.BEGUN, reasoning_end_id=7)
    assert count_reasoning([1, 2, 6, 3, 7, 5, 4, 7, 9], form) == 5


def test_the_template_shows_the_blocks() -> None:
    assert (DIALECT.channels, DIALECT.renders_tools, DIALECT.format_name) == (KIMI_K3, True, "kimi_k3")
    assert DIALECT.thinking({}) is Thinking.BEGUN
    assert DIALECT.thinking({"thinking": False}) is Thinking.OFF
    for options in ({"reasoning_parser": "none"}, {"tool_format": "json"}):
        assert make_dialect(template(templates.KIMI_K3), **options).channels is None


def rendered() -> str:
    prompt = chat_prompt(conversation(CALLS), offer_tools(DEFINITIONS, "auto"), DIALECT)
    source = template(templates.KIMI_K3)
    return source.render(json.loads(prompt.messages), tools=json.loads(prompt.tools or b"[]"))


def test_a_conversation_with_calls() -> None:
    assert rendered() == (GOLDEN / "kimi_k3_channels.txt").read_text()
    assert CALLED in rendered()
    assert CODE in rendered()


def planned(sampling: dict[str, Any] | None = None, effort: str | None = None, **options: Any) -> ChatPlan:
    tools = [ToolDefinition(function=FunctionDefinition(name="get"))] if options.pop("tools", False) else None
    return plan_chat(
        Conversation(messages=[ChatMessage(role="user", content="hi")], reasoning_effort=effort),
        ToolOptions(tools=tools, tool_choice=options.pop("choice", None)),
        options.pop("constraint", None),
        sampling or {},
        DIALECT,
        300_000,
        {},
    )


def test_plans() -> None:
    plan = planned()
    assert plan.form == AnswerForm(thinking=Thinking.BEGUN, reasoning_end_id=TOKENS[SEP], channels=KIMI_K3)
    assert plan.sampling.skip_special_tokens is False
    assert plan.sampling.structural_tag is None
    off = planned(effort="none")
    assert (off.form.thinking, off.form.is_plain) == (Thinking.OFF, False)
    scope = planned({"stop": ("END",)}).sampling.stop_scope
    assert scope is not None
    assert (scope.until, scope.reasoning_end, scope.is_well_formed) == ((RESPONSE_END,), RESPONSE, True)
    with pytest.raises(RequestError, match="none, low, medium, high or max"):
        planned(effort="minimal")
    asked = RequestedConstraint("json_schema", '{"type": "integer"}', "response_format")
    tag = planned(constraint=asked).sampling.structural_tag or ""
    assert '"json_schema":{"type": "integer"}' in tag
    with pytest.raises(RequestError, match="stop beside tools"):
        planned({"stop": ("END",)}, tools=True)
    with pytest.raises(RequestError, match=r"structured\.reasoning_budget"):
        planned(constraint=ConstraintFields(regex="a", structured={"reasoning_budget": 5}))


INTEGER: dict[str, Any] = {"type": "json_schema", "json_schema": {"type": "integer"}}


@pytest.mark.parametrize("tokens", [(), FORMAT.markers])
@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.BEGUN])
def test_constraints_hold_what_follows_the_reasoning(tokens: tuple[str, ...], thinking: Thinking) -> None:
    one = FORMAT.write(CALLS[:1])
    sentences = {
        "text": f"It rains.{RESPONSE_END}{MESSAGE_END}",
        "no text": f"{RESPONSE_END}{MESSAGE_END}",
        "integer": f"12{RESPONSE_END}{MESSAGE_END}",
        "call": f"{RESPONSE_END}{one}{MESSAGE_END}",
        "calls": f"{RESPONSE_END}{CALLED}{MESSAGE_END}",
        "text and calls": f"I write.{RESPONSE_END}{CALLED}{MESSAGE_END}",
        "cut": f"{RESPONSE_END}{CALLED}",
    }
    cases: list[tuple[ChannelTools, dict[str, Any] | None, set[str]]] = [
        (ChannelTools(TOOLS), None, {"text", "no text", "integer", "call", "calls", "text and calls"}),
        (ChannelTools(TOOLS, parallel=False), None, {"text", "no text", "integer", "call"}),
        (ChannelTools(TOOLS, required=True), None, {"call", "calls"}),
        (ChannelTools(TOOLS[:1], required=True, parallel=False), None, {"call"}),
        (ChannelTools(), INTEGER, {"integer"}),
        (ChannelTools(TOOLS), INTEGER, {"integer", "call", "calls"}),
    ]
    for calls, response, allowed in cases:
        source = KIMI_K3.constraint(calls, response, tokens, thinking)
        productions = read_structural_tag(source, StructuredOptions())[0].prune()
        recognizer = Recognizer(productions, {marker: 90 + i for i, marker in enumerate(tokens)})
        for name, sentence in sentences.items():
            text = sentence if thinking is Thinking.OFF else THOUGHT + sentence
            assert accepts(recognizer, text, tokens) == (name in allowed), (name, calls.required, response)


def accepts(recognizer: Recognizer, text: str, tokens: tuple[str, ...]) -> bool:
    state = recognizer.start()
    while text:
        token = next((one for one in tokens if text.startswith(one)), None)
        after = recognizer.advance_special(state, token) if token else recognizer.advance(state, text[0])
        if after is None:
            return False
        state, text = after, text[len(token or " ") :]
    return recognizer.is_complete(state)


if __name__ == "__main__":
    Path(GOLDEN / "kimi_k3_channels.txt").write_text(rendered())
