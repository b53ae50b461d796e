"""Tools: the model's calls are valid, the program answers them, and the conversation continues from the same tokens."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic import Field

import radixrt as rt
from radixrt.chat.dialect import Dialect
from radixrt.chat.prompt import chat_prompt
from radixrt.chat.types import ChatMessage, Conversation
from radixrt.errors import RequestError
from radixrt.lang.core.tools import define
from tests.engine.helpers import start
from tests.tiny_models import CHAT_TEMPLATE
from tests.tokenizer.model_templates import QWEN

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
LOOK_UP = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["word", "n"],
            "additionalProperties": False,
        },
    },
}
ADD = {"type": "function", "function": {"name": "add"}}


@pytest.fixture(scope="module", params=["qwen", "chatml"])
def shared(request: Any, tiny_model: Callable[[str], Path], tmp_path_factory: Any) -> Iterator[rt.Engine]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(QWEN.replace("\\n", "\n") if request.param == "qwen" else CHAT_TEMPLATE)
    with start(tiny_model("llama"), chat_template=str(template), kv_cache_tokens=8192) as engine:
        yield engine


@rt.function(**GREEDY)
def agent(s: rt.State, question: str) -> list[Any]:
    s += rt.system("S") + rt.user(question)
    s += rt.assistant(rt.gen("said", tools=[LOOK_UP], tool_choice="required"))
    calls = s.meta["said"].tool_calls
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        s += rt.role("tool", f"{arguments['word']} is an animal")
    s += rt.assistant(rt.gen("answer", max_tokens=5))
    return calls


def test_calls_are_made_and_answered(engine: rt.Engine) -> None:
    state = agent.run("What is a cat?", backend=engine)
    assert len(state.returned) >= 1
    for call in state.returned:
        assert call["function"]["name"] == "look_up"
        assert set(json.loads(call["function"]["arguments"])) == {"word", "n"}
        assert call["id"].startswith("call_")
    assert state["said"] == ""
    first, second = state.log.calls
    assert "Looks a word up." in first.prompt_text
    assert first.prompt_ids is not None
    assert second.prompt_ids is not None
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    # One of the templates puts empty reasoning before what was said last, which is seen and rendered.
    assert second.rerendered == ("<think>" in second.prompt_text)
    assert first.text in second.prompt_text
    messages = state.messages()
    assert messages[2]["tool_calls"] == state.returned
    assert messages[3]["role"] == "tool"
    assert messages[3]["tool_call_id"] == state.returned[0]["id"]


def capital(country: Literal["Norway", "Peru"]) -> dict[str, str]:
    """Tells a capital."""
    return {"capital": {"Norway": "Oslo", "Peru": "Lima"}[country]}


@rt.function(**GREEDY)
def asks_twice(s: rt.State) -> list[Any]:
    s += rt.user("Which?") + rt.assistant(rt.gen("said", tools=[capital], tool_choice="required"))
    results = s.run_tools("said") + s.run_tools("said")  # a call may be run again; only the first results answer it
    s += rt.assistant(rt.gen("answer", max_tokens=5))
    return results


def test_results_are_in_the_prompt_as_in_that_of_a_chat_request(engine: rt.Engine) -> None:
    state = asks_twice.run(backend=engine)
    results, messages = state.returned, state.messages()
    assert len(results) >= 2
    assert {result["capital"] for result in results} <= {"Oslo", "Lima"}
    answers = [message for message in messages if message["role"] == "tool"]
    assert [json.loads(message["content"]) for message in answers] == results
    read = msgspec.convert(messages[:-1], list[ChatMessage])
    prompt = chat_prompt(Conversation(messages=read), None, Dialect())
    told = [m["content"] for m in json.loads(prompt.messages) if m["role"] == "user"][1:]
    text = state.log.calls[-1].prompt_text
    if "<tool_response>" not in text:  # the template knows no results
        assert len(told) == 1
        assert told[0].startswith('capital returned: {"capital":')
        assert told[0] in text


def test_the_text_beside_calls_is_checked(engine: rt.Engine) -> None:
    def check(said: str) -> None:
        raise ValueError(f"{said!r} is refused")

    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += rt.user("Which?") + rt.assistant(rt.gen("said", tools=[capital], tool_choice="required", check=check))

    with pytest.raises(rt.CallError, match="'' is refused") as raised:
        program.run(backend=engine)
    assert raised.value.state.log.calls[0].error == "ValueError: '' is refused"


def test_run_tools_without_calls_and_with_what_it_cannot_run(engine: rt.Engine) -> None:
    def broken(country: Literal["Norway"]) -> str:
        raise ValueError(f"no data on {country}")

    async def slow(country: Literal["Norway"]) -> str:
        return country.lower()

    def ask(tool: Any, on_error: Any = "raise", choice: str = "required") -> rt.State:
        @rt.function(**GREEDY)
        def program(s: rt.State) -> list[Any]:
            s += rt.user("Which?") + rt.assistant(rt.gen("said", tools=[tool], tool_choice=choice))
            return s.run_tools("said", on_error=on_error)

        return program.run(backend=engine)

    assert ask(broken, "tell").messages()[-1]["content"] == "error: ValueError: no data on Norway"
    with pytest.raises(ValueError, match="no data on Norway"):
        ask(broken)
    with pytest.raises(rt.ProgramError, match="given as a definition"):
        ask(LOOK_UP)
    with pytest.raises(rt.ProgramError, match=r"await state\.async_run_tools"):
        ask(slow)
    with pytest.raises(rt.ProgramError, match="on_error must be raise or tell, not 'ignore'"):
        ask(broken, "ignore")

    @rt.function(**GREEDY)
    async def waits(s: rt.State) -> list[Any]:
        s += rt.user("Which?") + rt.assistant(rt.gen("said", tools=[slow, capital], tool_choice="required"))
        s += rt.assistant(rt.gen("plain", max_tokens=1))
        assert await s.async_run_tools("plain") == []
        return await s.async_run_tools("said")

    for result in asyncio.run(waits.async_run(backend=engine)).returned:
        assert result in ("norway", {"capital": "Oslo"}, {"capital": "Lima"})


def test_one_tool_by_name_and_several_answers(engine: rt.Engine) -> None:
    @rt.function(temperature=1.0, max_tokens=80)
    def program(s: rt.State) -> None:
        s += rt.user("Go") + rt.assistant(rt.gen("x", n=2, seed=1, tools=[LOOK_UP, ADD], tool_choice="add"))

    metas = program.run(backend=engine).meta["x"]
    assert [[call["function"]["name"] for call in meta.tool_calls] for meta in metas] == [["add"], ["add"]]


def test_tools_offered_late_change_the_prompt_once(engine: rt.Engine) -> None:
    @rt.function(temperature=0, max_tokens=4)
    def program(s: rt.State) -> None:
        s += rt.user("a") + rt.assistant(rt.gen("x"))
        s += rt.user("b") + rt.assistant(rt.gen("y", tools=[LOOK_UP], max_tokens=60))
        s += rt.user("c") + rt.assistant(rt.gen("z"))

    assert [call.rerendered for call in program.run(backend=engine).log.calls] == [False, True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [{"type": "function"}]}, r"tools\[0\]\.function"),
        ({"tools": ["look_up"]}, "not as in the OpenAI API"),
        ({"tools": [LOOK_UP], "tool_choice": "other"}, "no tool of the name 'other'"),
        ({"tools": [LOOK_UP], "tool_choice": "none"}, "tool"),
        ({"tools": [LOOK_UP], "T": int}, "a gen of its own"),
        ({"tools": [LOOK_UP], "stop": "x"}, "without stop strings"),
    ],
)
def test_wrong_tools_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rt.RequestError, match=message):
        rt.gen("x", **options)


def weather(city: Literal["Oslo", "Rome"], days: Annotated[int, Field(ge=1, le=9)] = 1, *, exact: bool = False) -> str:
    """Tells the weather
    of a city.

    A second paragraph, which the model does not see.
    """
    return f"{city} {days} {exact}"


def test_a_python_function_is_a_tool(shared: rt.Engine) -> None:
    """Its calls are valid arguments of it."""

    @rt.function(**GREEDY)
    def ask(s: rt.State) -> None:
        s += rt.user("Weather?") + rt.assistant(rt.gen("said", tools=[weather], tool_choice="required"))

    calls = ask.run(backend=shared).meta["said"].tool_calls
    assert calls
    for call in calls:
        assert call["function"]["name"] == "weather"
        arguments = json.loads(call["function"]["arguments"])
        assert weather(**arguments).startswith(arguments["city"])


def test_the_definition_of_a_python_function() -> None:
    function = define(weather, "tools[0]")["function"]
    assert function["name"] == "weather"
    assert function["description"] == "Tells the weather of a city."
    schema = function["parameters"]
    assert list(schema["properties"]) == ["city", "days", "exact"]
    assert schema["properties"]["city"]["enum"] == ["Oslo", "Rome"]
    assert (schema["required"], schema["additionalProperties"]) == (["city"], False)


def test_functions_that_cannot_be_tools_are_refused_by_parameter() -> None:
    def untyped(city): ...  # type: ignore[no-untyped-def]

    def open_ended(*cities: str) -> None: ...

    def of_a_socket(link: socket.socket) -> None: ...

    for function, reason in (
        (untyped, "parameter 'city' of untyped has no type; write city: str"),
        (open_ended, "open_ended takes .cities; a tool's parameters have names"),
        (of_a_socket, "field link of of_a_socket cannot be expressed as a JSON Schema"),
    ):
        with pytest.raises(RequestError, match=rf"tools\[1\]: .*{reason}"):
            rt.gen("x", tools=[LOOK_UP, function])
