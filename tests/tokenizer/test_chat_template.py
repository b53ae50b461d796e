"""Chat templates in the style of real models, against transformers' `apply_chat_template`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixrt.errors import ModelLoadError, RequestError
from radixrt.tokenizer.chat_template import ChatTemplate, RenderedTooLong
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.model_templates import CHATML, MISTRAL, TEMPLATES

MakeFolder = Callable[..., Path]

USER: dict[str, Any] = {"role": "user", "content": "What is <b>2 + 2</b>? é🙂\n"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "  Be brief. "}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFour. "}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "reasoning": "look it up",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": "é<"}}}],
}
RESULT: dict[str, Any] = {"role": "tool", "tool_call_id": "call_1", "content": "4"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds <é>", "parameters": {"type": "object"}}}]
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, USER],
    "tools": [USER, CALL, RESULT, USER],
    "open": [USER, ANSWER],
}


@pytest.fixture(scope="module")
def pairs(make_folder: MakeFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ChatTemplate, Any]]:
    """Our template and transformers' tokenizer for each of TEMPLATES."""
    transformers = pytest.importorskip("transformers")
    root, made = tmp_path_factory.mktemp("templates"), {}
    for name, source in TEMPLATES.items():
        folder = make_folder(root / name, bos_token="<|endoftext|>", eos_token="<|im_end|>")
        (folder / "chat_template.jinja").write_text(source)
        ours = Tokenizer.from_folder(folder).chat_template
        assert ours is not None
        made[name] = (ours, transformers.AutoTokenizer.from_pretrained(folder))
    return made


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_agrees_with_transformers(pairs: dict[str, tuple[ChatTemplate, Any]], name: str, conversation: str) -> None:
    ours, theirs = pairs[name]
    messages = CONVERSATIONS[conversation]
    for tools in (None, TOOLS):
        for options in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"continue_final_message": True},
        ):
            for variables in ({}, {"enable_thinking": False, "date_string": "1 May 2026", "bos_token": "<B>"}):
                try:
                    expected = theirs.apply_chat_template(messages, tokenize=False, tools=tools, **options, **variables)
                except Exception:
                    with pytest.raises(RequestError) as caught:
                        ours.render(messages, tools=tools, variables=variables, **options)
                    assert (caught.value.status, caught.value.param) == (400, "messages")
                else:
                    assert ours.render(messages, tools=tools, variables=variables, **options) == expected


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"})


def test_the_template_s_own_words_reach_the_client() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        template(MISTRAL).render([USER, USER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ range(1000000000) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ [0] * 1000000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages | sum }}",
    ],
)
def test_a_template_that_fails_ends_only_its_request(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        template(source).render([USER])
    assert caught.value.param == "messages"


def test_rendering_is_bounded_in_time_and_in_size() -> None:
    with pytest.raises(RequestError, match="seconds"):
        template("{% for i in range(99999) %}{% for j in range(999) %}{{ '' }}{% endfor %}{% endfor %}").render(
            [USER], max_seconds=0.05
        )
    with pytest.raises(RequestError, match="seconds"):
        template("{% for i in range(99999) %}{% set x = range(999) | sum %}{% endfor %}").render(
            [USER], max_seconds=0.05
        )
    with pytest.raises(RenderedTooLong):
        template("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}").render([USER], max_chars=1000)


def test_rendering_goes_on_after_a_failed_one() -> None:
    failing = template("{{ messages[0].content }}{% if messages[0].bad %}{{ raise_exception('no') }}{% endif %}")
    with pytest.raises(RequestError):
        failing.render([{**USER, "bad": True}])
    assert failing.render([USER]) == USER["content"]


def test_messages_are_not_changed() -> None:
    messages = [dict(USER), {"role": "assistant", "content": "open"}]
    copy = json.loads(json.dumps(messages))
    template(CHATML).render(messages, continue_final_message=True)
    assert messages == copy


@pytest.mark.parametrize("messages", [[], "hello", [1], [None], {"role": "user"}])
def test_malformed_conversations(messages: Any) -> None:
    with pytest.raises(RequestError) as caught:
        template(CHATML).render(messages)
    assert caught.value.param == "messages"


def test_variables_cannot_replace_the_messages() -> None:
    with pytest.raises(RequestError) as caught:
        template(CHATML).render([USER], variables={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("last", [{"role": "user"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}])
def test_only_text_can_be_continued(last: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        template(CHATML).render([last], continue_final_message=True)


@pytest.mark.parametrize(
    "content", [["x"], [{"type": "text"}], [{"type": "text", "text": 1}], [None, {"type": "image"}]]
)
def test_malformed_parts_cannot_be_continued(content: list[Any]) -> None:
    chats = ChatTemplate({"default": ONLY_PARTS}, {})
    for render in (chats.render, chats.render_parts):
        with pytest.raises(RequestError, match="continue_final_message needs a last message") as caught:
            render([USER, {"role": "assistant", "content": content}], continue_final_message=True)
        assert caught.value.param == "messages"


def test_continuing_wins_over_a_generation_prompt() -> None:
    text = template(CHATML).render([ANSWER], add_generation_prompt=True, continue_final_message=True)
    assert text == "<|im_start|>assistant\n" + ANSWER["content"]


def test_named_templates(make_folder: MakeFolder, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = make_folder(tmp_path / "list", chat_template=named)
    found = Tokenizer.from_folder(folder).chat_template
    assert found is not None
    assert found.render([USER]) == "plain"
    assert found.render([USER], tools=TOOLS) == "tools"
    only = ChatTemplate({"rag": "x"}, {})
    with pytest.raises(RequestError, match="rag"):
        only.render([USER])


def test_where_templates_come_from(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, chat_template="config")
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("additional")
    (folder / "mine.txt").write_text("mine")

    def rendered(tools: list[dict[str, Any]] | None = None, **options: Any) -> str:
        found = Tokenizer.from_folder(folder, **options).chat_template
        assert found is not None
        return found.render([USER], tools=tools)

    assert rendered() == "file"
    assert rendered(TOOLS) == "additional"
    assert rendered(chat_template_file=str(folder / "mine.txt")) == "mine"
    (folder / "chat_template.jinja").unlink()
    (folder / "additional_chat_templates" / "tool_use.jinja").unlink()
    assert rendered() == "config"
    with pytest.raises(ModelLoadError, match="nothing"):
        rendered(chat_template_file=str(folder / "nothing.txt"))


ONLY_PARTS = (
    "{% for message in messages %}{{ message['role'] }}:{% for line in message['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}<image>{% endif %}{% endfor %};"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
"""In the manner of SmolVLM's: contents that are texts are left out."""


def test_texts_are_parts_for_a_template_that_renders_parts_only() -> None:
    template = ChatTemplate({"default": ONLY_PARTS}, {})
    messages = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "image"}]}]
    assert template.render(messages) == "user:Hi;user:<image>;assistant:"
    parts = template.render_parts(messages)
    assert "".join(part if isinstance(part, str) else part.template for part in parts) == template.render(messages)
    assert "Hi" in parts
    opened = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "The"}]
    assert template.render(opened, continue_final_message=True) == "user:Hi;assistant:The"


def test_other_templates_get_texts() -> None:
    source = "{% for message in messages %}{{ message['content'] }}{% endfor %}{# type 'text' #}"
    assert ChatTemplate({"default": source}, {}).render([{"role": "user", "content": "Hi"}]) == "Hi"
