"""Conversations with tools through a template of each family: the format is found, and the prompt shows calls so.

`python -m tests.chat.test_tool_templates` writes the golden prompts again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixrt.chat.dialect import Dialect, make_dialect
from radixrt.chat.prompt import chat_prompt
from radixrt.chat.tool_parser import read_tool_calls
from radixrt.chat.tools import OfferedTools, offer_tools
from radixrt.chat.types import ChatMessage, Conversation
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS
from tests.chat.templates import PLAIN, template
from tests.chat.tool_templates import TEMPLATES

GOLDEN = Path(__file__).parent / "golden"
CODE = 'def area(r):\n    # <b> & "quotes"\n    return 3.14 * r ** 2\n'
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "code": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["path"],
}
DEFINITIONS = [
    {"type": "function", "function": {"name": name, "description": "d", "parameters": PARAMETERS}}
    for name in ("write", "write_all")
]
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write", {"path": "a.py", "code": CODE, "line": 7}),
    ("write_all", {"path": "12"}),
]


def conversation(calls: list[tuple[str, dict[str, Any]]]) -> Conversation:
    """A question, calls, their results and another question, as a client sends them."""
    sent = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": f"done {i}"} for i in range(len(calls))]
    messages = [
        {"role": "user", "content": "Write it."},
        {"role": "assistant", "content": None, "tool_calls": sent},
        *results,
        {"role": "user", "content": "Again."},
    ]
    return Conversation(messages=msgspec.convert(messages, list[ChatMessage]))


def calls_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    return CALLS if TOOL_FORMATS[name].several else CALLS[:1]


def rendered(name: str) -> tuple[Dialect, OfferedTools, str]:
    source = template(TEMPLATES[name])
    dialect, offered = make_dialect(source), offer_tools(DEFINITIONS, "auto")
    prompt = chat_prompt(conversation(calls_of(name)), offered, dialect)
    text = source.render(json.loads(prompt.messages), tools=json.loads(prompt.tools or b"[]"))
    return dialect, offered, text


def test_every_format_has_a_template() -> None:
    assert set(TEMPLATES) == set(TOOL_FORMATS) - {"json"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_with_calls_round_trips(name: str) -> None:
    form = TOOL_FORMATS[name]
    dialect, offered, text = rendered(name)
    assert dialect.tool_format is form
    assert dialect.renders_tools
    assert text == (GOLDEN / f"{name}.txt").read_text()
    calls = calls_of(name)
    if not form.arguments.is_json:  # JSON has spaces in templates
        assert form.write(calls) in text
    # The calls in the prompt are read back as the same calls, code of several lines included.
    shown = text.partition("<|im_start|>assistant\n")[2].partition("<|im_end|>")[0]
    said, found = read_tool_calls(shown, form, offered.tools)
    assert said == ""
    assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in found] == calls


def test_ids_and_texts_of_arguments_follow_the_template() -> None:
    _, _, text = rendered("kimi")
    assert "functions.write:0<|tool_call_argument_begin|>" in text
    assert "## Return of functions.write_all:1\ndone 1" in text
    assert [name for name in TEMPLATES if make_dialect(template(TEMPLATES[name])).arguments_as_text] == [
        "deepseek_r1", "deepseek_v3_1",
    ]  # fmt: skip


def test_the_architecture_decides_where_the_template_shows_no_calls() -> None:
    tokens = {"｜DSML｜": 5}
    dialect = make_dialect(template(PLAIN), tokens=tokens, architectures=["DeepseekV32ForCausalLM"])
    assert (dialect.tool_format.name, dialect.renders_tools) == ("deepseek_v3_2", False)
    assert make_dialect(template(PLAIN), architectures=["DeepseekV32ForCausalLM"]).tool_format.name == "json"
    prompt = chat_prompt(conversation(CALLS), offer_tools(DEFINITIONS, "auto"), dialect)
    system, _, assistant, *_ = json.loads(prompt.messages)
    assert '<｜DSML｜parameter name="<parameter>" string="true"><value></｜DSML｜parameter>' in system["content"]
    assert assistant["content"] == dialect.tool_format.write(CALLS)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in TEMPLATES:
        (GOLDEN / f"{each}.txt").write_text(rendered(each)[2])
