from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from radixrt.chat.dialect import Dialect, make_dialect, read_dialect
from radixrt.chat.reasoning import REASONING_MARKERS, Thinking
from radixrt.config import make_config
from radixrt.constrained.tags.tool_formats import GENERIC_JSON, HERMES, LLAMA3
from tests.chat import reasoning_templates, templates
from tests.chat.templates import template
from tests.tokenizer.model_templates import LLAMA3 as REAL_LLAMA3
from tests.tokenizer.model_templates import MISTRAL, QWEN


@pytest.mark.parametrize(
    ("source", "form", "renders", "system"),
    [
        (templates.PLAIN, GENERIC_JSON, False, True),
        (templates.NO_SYSTEM, GENERIC_JSON, False, False),
        (templates.HERMES, HERMES, True, True),
        (templates.LLAMA3, LLAMA3, True, True),
        (QWEN, HERMES, True, True),
        (REAL_LLAMA3, LLAMA3, True, True),
        (MISTRAL, GENERIC_JSON, False, True),
        ("{{ raise_exception('never') }}", GENERIC_JSON, False, False),
        ("", GENERIC_JSON, False, True),
    ],
)
def test_tool_format_is_found_by_trying_the_template(source: str, form: object, renders: bool, system: bool) -> None:
    dialect = make_dialect(template(source))
    assert (dialect.tool_format, dialect.renders_tools, dialect.takes_system) == (form, renders, system)


@pytest.mark.parametrize(
    ("source", "shows", "takes"),
    [
        (templates.HERMES_IMAGES, True, True),
        (templates.HERMES, False, False),
        (QWEN, False, False),
        (REAL_LLAMA3, False, False),
        (templates.HARMONY, False, False),
        (templates.PLAIN, False, True),
        ("{{ raise_exception('never') }}", False, True),
    ],
)
def test_images_of_results_are_found_by_trying_the_template(source: str, shows: bool, takes: bool) -> None:
    """A template without tools gets results as messages of the user."""
    dialect = make_dialect(template(source))
    assert (dialect.shows_tool_images, dialect.takes_tool_images) == (shows, takes)


def test_configured_format_wins_and_is_explained_by_us_where_the_template_has_another() -> None:
    dialect = make_dialect(template(templates.HERMES), tool_format="json")
    assert (dialect.tool_format, dialect.renders_tools) == (GENERIC_JSON, False)
    dialect = make_dialect(template(templates.HERMES), tool_format="hermes")
    assert (dialect.tool_format, dialect.renders_tools) == (HERMES, True)


@pytest.mark.parametrize(
    ("source", "variables", "thinking"),
    [
        (templates.PLAIN, {}, Thinking.OFF),
        (templates.PLAIN, {"enable_thinking": True}, Thinking.OFF),
        (templates.HERMES_THINKING, {}, Thinking.FREE),
        (templates.HERMES_THINKING, {"enable_thinking": True}, Thinking.FREE),
        (templates.HERMES_THINKING, {"enable_thinking": False}, Thinking.OFF),
        (templates.BEGINS_THINKING, {}, Thinking.BEGUN),
        (templates.STRIPS_THINKING, {}, Thinking.FREE),
        (templates.STRIPS_THINKING, {"thinking": False}, Thinking.OFF),
        (QWEN, {}, Thinking.FREE),
        (QWEN, {"enable_thinking": False}, Thinking.OFF),
        (REAL_LLAMA3, {}, Thinking.OFF),
    ],
)
def test_thinking_depends_on_the_template_and_its_variables(source: str, variables: dict, thinking: Thinking) -> None:
    dialect = make_dialect(template(source))
    assert dialect.thinking(variables) is thinking
    assert dialect.thinking(variables) is thinking  # remembered


@pytest.mark.parametrize("family", reasoning_templates.TEMPLATES)
def test_reasoning_of_each_family(family: str) -> None:
    source, start, by_default, when_off = reasoning_templates.TEMPLATES[family]
    dialect = make_dialect(template(source))
    assert (dialect.reasons, dialect.reasoning.start) == (True, start)
    assert dialect.thinking({}) is by_default
    assert dialect.thinking({"enable_thinking": False, "thinking": False}) is when_off
    assert dialect.answer_markers[:2] == [start, dialect.reasoning.end]
    assert not make_dialect(template(source), reasoning_parser="none").reasons


def test_a_system_message_replaces_the_templates_request_for_reasoning() -> None:
    dialect = make_dialect(template(reasoning_templates.TEMPLATES["magistral"][0]))

    def thinking(*system: str) -> Thinking:
        messages = [*({"role": "system", "content": one} for one in system), {"role": "user", "content": "[THINK]?"}]
        return dialect.thinking({}, msgspec.json.encode(messages))

    assert thinking() is Thinking.FREE
    assert thinking("Be short.") is Thinking.OFF
    assert thinking("Draft first: [THINK]thoughts[/THINK]") is Thinking.FREE
    always = make_dialect(dialect.template, reasoning_parser="think")
    assert not always.reasons_by_system


@pytest.mark.parametrize("family", reasoning_templates.TEMPLATES)
def test_most_families_reason_whatever_the_system_message_says(family: str) -> None:
    dialect = make_dialect(template(reasoning_templates.TEMPLATES[family][0]))
    assert dialect.reasons_by_system == (family == "magistral")


def test_markers_are_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "structured_output.md").read_text().replace("\\|", "|")
    for markers in REASONING_MARKERS:
        assert f"| `{markers.start}` | `{markers.end}` |" in text
        assert all(f"`{one}`" in text for one in markers.texts)


def test_reasoning_parser_can_be_set() -> None:
    assert make_dialect(template(templates.BEGINS_THINKING), reasoning_parser="none").thinking({}) is Thinking.OFF
    assert make_dialect(template(templates.PLAIN), reasoning_parser="think").thinking({}) is Thinking.FREE


def test_variables_that_break_the_template_mean_no_harm() -> None:
    dialect = make_dialect(template(templates.BEGINS_THINKING + "{{ 1 / x }}"), reasoning_parser="think")
    assert dialect.thinking({"x": 1}) is Thinking.BEGUN
    assert dialect.thinking({"x": 0}) is Thinking.FREE
    assert dialect.thinking({"messages": "x"}) is Thinking.FREE


def test_large_variables_are_neither_tried_nor_cached() -> None:
    dialect = make_dialect(template(templates.BEGINS_THINKING + "{% for y in x or [] %}{{ y }}{% endfor %}"))
    for i in range(1000):
        assert dialect.thinking({"x": [i] * 10_000, "y": "z" * 10_000}) is Thinking.BEGUN
        dialect.thinking({"i": i})
    assert len(dialect._cached) <= 256
    assert max(map(len, dialect._cached)) < 100


def test_a_model_without_a_template_knows_nothing() -> None:
    assert make_dialect(None) == Dialect()
    assert Dialect().thinking({}) is Thinking.OFF


def test_tokens_are_read_from_the_folder(tmp_path: Path) -> None:
    added = [
        {"id": 5, "content": "<tool_call>", "special": False},
        {"id": 6, "content": "<think>", "special": True},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {"vocab": {"a": 0}}}))
    config = {"chat_template": templates.HERMES, "added_tokens_decoder": {"7": {"content": "</think>"}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    dialect = read_dialect(make_config(), str(tmp_path))
    assert dialect.tokens == {"<tool_call>": 5, "<think>": 6, "</think>": 7}
    assert dialect.special_tokens == {"<think>"}
    assert dialect.tool_format is HERMES


@pytest.mark.parametrize("text", ["", "{", "[]", '{"added_tokens": 5}'])
def test_a_folder_that_cannot_be_read_is_left_to_the_tokenizer(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    (tmp_path / "tokenizer_config.json").write_text(text)
    assert read_dialect(make_config(), str(tmp_path)) == Dialect()


SHOWS_REASONING = """{% for m in messages %}{{ m.role }}: {{ m.reasoning_content or "" }}{{ m.content }}
{% endfor %}"""
SHOWS_REASONING_OF_CALLS = (
    """{% for m in messages %}{% if m.tool_calls %}{{ m.reasoning_content }}{% endif %}{% endfor %}"""
)
SHOWS_REASONING_IF_ASKED = """{% for m in messages %}{% if keep %}{{ m.reasoning_content }}{% endif %}{% endfor %}"""
SHOWS_REASONING_OF_THE_TURN = (
    """{% for m in messages %}{% if loop.last %}{{ m.reasoning_content }}{% endif %}{% endfor %}"""
)


@pytest.mark.parametrize(
    ("source", "variables", "keeps"),
    [
        (templates.PLAIN, {}, False),
        (templates.HERMES_THINKING, {}, False),
        (templates.HARMONY, {}, True),  # of a call that no answer follows
        (SHOWS_REASONING, {}, True),
        (SHOWS_REASONING_OF_CALLS, {}, True),
        (SHOWS_REASONING_IF_ASKED, {}, False),
        (SHOWS_REASONING_IF_ASKED, {"keep": True}, True),
        (SHOWS_REASONING_OF_THE_TURN, {}, False),
        ("{{ raise_exception('never') }}", {}, True),
    ],
)
def test_reasoning_of_earlier_turns(source: str, variables: dict[str, object], keeps: bool) -> None:
    dialect = make_dialect(template(source))
    assert [dialect.keeps_reasoning(variables) for _ in range(2)] == [keeps, keeps]
