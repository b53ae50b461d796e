"""Structured output and tools on the real server, as OpenAI's own client sees them.

The model is small and its answers make little sense. The tests check that every answer satisfies the requested
structure, cut or not, whole or streamed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

QUESTION = [{"role": "user", "content": "What is the weather in Paris today?"}]


class Weather(BaseModel):
    city: str = Field(max_length=20)
    kind: Literal["sun", "rain"]
    degrees: int = Field(ge=-50, le=60)


class Report(BaseModel):
    text: str


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
        "size": {"type": "number", "minimum": 0, "maximum": 10},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 10}, "unit": {"enum": ["c", "f"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
ZONE = {"type": "object", "properties": {"zone": {"type": "string", "maxLength": 10}}, "required": ["zone"]}
ARGUMENTS = {"get_weather": CITY, "get_time": ZONE}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": CITY}},
    {"type": "function", "function": {"name": "get_time", "parameters": ZONE, "strict": True}},
]


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def chat(client: openai.OpenAI, model_name: str) -> Callable[..., Any]:
    def ask(**fields: Any) -> Any:
        fields = {"model": model_name, "messages": QUESTION, "max_tokens": 100, "temperature": 0, **fields}
        return client.chat.completions.create(**fields)

    return ask


def json_schema(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}


def check_calls(choice: Any) -> list[str]:
    """The names of a choice's calls, whose arguments are valid."""
    names = []
    for call in choice.message.tool_calls or []:
        assert call.id.startswith("call_")
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), ARGUMENTS[call.function.name])
        names.append(call.function.name)
    return names


def check_finish(choice: Any) -> None:
    """Check the finish reason of a choice with calls. The limit may also be reached after a complete call."""
    if choice.model_extra["radixrt"]["forced_close"]:
        assert choice.finish_reason == "length"
    else:
        assert choice.finish_reason in ("tool_calls", "length")


# --- schemas ---


def test_parse_with_a_pydantic_model(client: openai.OpenAI, model_name: str) -> None:
    answer = client.chat.completions.parse(
        model=model_name, messages=QUESTION, response_format=Weather, temperature=0, max_tokens=100
    )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Weather)
    assert list(json.loads(answer.choices[0].message.content or "")) == ["city", "kind", "degrees"]


@pytest.mark.parametrize("max_tokens", [24, 48])
def test_whatever_is_sampled_is_valid_even_if_it_is_cut(chat: Callable, max_tokens: int) -> None:
    answer = chat(response_format=json_schema(SCHEMA), max_tokens=max_tokens, temperature=1.5, n=4, seed=max_tokens)
    for choice in answer.choices:
        jsonschema.validate(json.loads(choice.message.content), SCHEMA)
        enforced = choice.model_extra["radixrt"]
        assert (choice.finish_reason == "length") == enforced["forced_close"]
        assert enforced["backend"] in ("llguidance", "xgrammar")
        assert enforced["ignored"] == []
        assert (enforced["closing_tokens"] > 0) <= enforced["forced_close"]


def test_closing_can_be_told_as_stop_so_that_parse_takes_it(client: openai.OpenAI, model_name: str) -> None:
    fields: dict[str, Any] = {
        "model": model_name, "messages": QUESTION, "response_format": Report, "max_tokens": 10, "temperature": 0
    }  # fmt: skip
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        client.chat.completions.parse(**fields)
    assert Report.model_validate_json(caught.value.completion.choices[0].message.content or "").text
    answer = client.chat.completions.parse(**fields, extra_body={"structured": {"on_length": "stop"}}).choices[0]
    assert isinstance(answer.message.parsed, Report)
    assert answer.finish_reason == "stop"
    assert (answer.model_extra or {})["radixrt"]["forced_close"]


@pytest.mark.parametrize("stream", [False, True])
def test_json_object(chat: Callable, stream: bool) -> None:
    answer = chat(response_format={"type": "json_object"}, stream=stream, max_tokens=40)
    if stream:
        chunks = list(answer)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert chunks[-1].choices[0].model_extra["radixrt"]["backend"]
    else:
        text = answer.choices[0].message.content
    assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "(yes|no), [a-z]{3,9}\\."}, "^(yes|no), [a-z]{3,9}\\.$"),
        ({"guided_regex": "[0-9]{4}"}, "^[0-9]{4}$"),
        ({"response_format": {"type": "regex", "regex": "[ab]+c"}}, "^[ab]+c$"),
        ({"choice": ["red", "green"]}, "^(red|green)$"),
        ({"structured_outputs": {"choice": ["red", "green"]}}, "^(red|green)$"),
        ({"ebnf": 'root ::= "<" [a-z]+ ">"'}, "^<[a-z]+>$"),
        (
            {"structural_tag": {"type": "structural_tag", "format": {
                "type": "tag", "begin": "<b>", "content": {"type": "any_text"}, "end": "</b>"}}},
            "^<b>((?!</b>)(.|\n))*</b>$",
        ),
    ],
)  # fmt: skip
def test_other_constraints(chat: Callable, client: openai.OpenAI, model_name: str, fields: dict, pattern: str) -> None:
    form = fields.pop("response_format", None)
    more = {} if form is None else {"response_format": form}
    answer = chat(max_tokens=30, temperature=1.0, seed=3, extra_body=fields, **more)
    text = answer.choices[0].message.content
    assert jsonschema.Draft202012Validator({"pattern": pattern}).is_valid(text), text
    completion = client.completions.create(
        model=model_name, prompt="Answer:", max_tokens=30, seed=4, extra_body={**fields, **more}
    )
    text = completion.choices[0].text
    assert jsonschema.Draft202012Validator({"pattern": pattern}).is_valid(text), text
    assert completion.choices[0].model_extra["radixrt"]["backend"]


FLAGS = {
    "type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["to", "no"]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"type": "json_schema", "json_schema": FLAGS, "any_order": True, "excludes": ["n"]},
         '^\\{("a":(true|false),"b":"to"|"b":"to","a":(true|false))\\}$'),
        ({"type": "sequence", "elements": [
            {"type": "const_string", "value": "<"}, {"type": "token", "token": 1},
            {"type": "regex", "pattern": "[ab]{2}"}]},
         "^<[ab]{2}$"),
        ({"type": "sequence", "elements": [
            {"type": "any_tokens", "exclude_tokens": [1, 2]}, {"type": "const_string", "value": "END"}]},
         "^((?!END)(.|\n))*END$"),
        ({"type": "qwen_xml_parameter", "json_schema": FLAGS},
         "^<parameter=a>\n(true|false)\n</parameter>\n<parameter=b>\n(to|no)\n</parameter>\n$"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "json_schema", "json_schema": FLAGS}]},
         '\\{"a":(true|false),"b":"(to|no)"\\}$'),
        ({"type": "sequence", "elements": [
            {"type": "grammar", "grammar": 'root ::= "a"+ "b"?'},
            {"type": "grammar", "grammar": 'root ::= "a" root? "c"'}]},
         "^a+b?a+c+$"),
    ],
)  # fmt: skip
def test_structural_tags_as_a_response_format(chat: Callable, form: dict, pattern: str, stream: bool) -> None:
    tag = {"type": "structural_tag", "format": form}
    answer = chat(max_tokens=40, temperature=1.0, seed=6, response_format=tag, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
    assert jsonschema.Draft202012Validator({"pattern": pattern}).is_valid(text), text


def test_refused_structural_tags_name_the_nearest_format(chat: Callable) -> None:
    for form, nearest in (
        ({"type": "token", "token": 1000}, "const_string"),
        ({"type": "any_tokens", "exclude_tokens": [1000]}, "any_text"),
        ({"type": "exclude_token"}, "any_tokens"),
    ):
        with pytest.raises(openai.BadRequestError, match=nearest) as caught:
            chat(response_format={"type": "structural_tag", "format": form})
        assert caught.value.param == "response_format"


LARK = """
start: item ("," item)*
item: NAME "=" NUMBER
NAME: /[a-z]{1,8}/
%import common.INT -> NUMBER
%ignore " "
"""
ITEMS = re.compile(r"[a-z]{1,8} *= *[0-9]+ *(, *[a-z]{1,8} *= *[0-9]+ *)*")


@pytest.mark.parametrize("field", ["guided_grammar", "grammar", "structured_outputs"])
def test_a_lark_grammar_is_kept_to_and_closed(chat: Callable, field: str) -> None:
    value = {"grammar": LARK} if field == "structured_outputs" else LARK
    choice = chat(max_tokens=9, temperature=1.0, seed=5, extra_body={field: value}).choices[0]
    assert ITEMS.fullmatch(choice.message.content)
    assert choice.model_extra["radixrt"]["ignored"] == []
    assert choice.model_extra["radixrt"]["forced_close"] or choice.finish_reason == "stop"


def test_a_lark_grammar_that_is_not_translated_tells_what_is_not_guaranteed(chat: Callable) -> None:
    source = 'start: "<" word ">"\nword[lazy]: /[a-z ]{40,};/'
    choice = chat(max_tokens=6, extra_body={"guided_grammar": source, "structured": {"on_length": "stop"}}).choices[0]
    assert re.fullmatch("<[a-z ]*", choice.message.content)
    assert choice.finish_reason == "length"
    told = choice.model_extra["radixrt"]
    assert not told["forced_close"]
    assert "a complete output when max_tokens is reached" in told["ignored"][0]


def test_native(server_url: str) -> None:
    params = {"json_schema": SCHEMA, "max_new_tokens": 40, "temperature": 1.0, "structured": {"whitespace": 1}}
    answer = httpx.post(f"{server_url}/generate", json={"text": "x", "sampling_params": params}, timeout=60).json()
    jsonschema.validate(json.loads(answer["text"]), SCHEMA)
    assert answer["meta_info"]["radixrt"]["backend"]


def test_the_order_of_keys(chat: Callable, server_url: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abcd"}, "required": ["d"]}
    schema["additionalProperties"] = False
    options = {"key_order": "any"}
    answer = chat(
        response_format=json_schema(schema), n=8, seed=1, temperature=2.0, max_tokens=40,
        extra_body={"structured": options},
    )  # fmt: skip
    orders = [list(json.loads(choice.message.content)) for choice in answer.choices]
    for names in orders:
        jsonschema.validate(dict.fromkeys(names), schema)
    assert any(names != sorted(names) for names in orders)
    params = {"json_schema": schema, "max_new_tokens": 40, "temperature": 2.0, "structured": options}
    native = httpx.post(f"{server_url}/generate", json={"text": "x", "sampling_params": params}, timeout=60).json()
    jsonschema.validate(json.loads(native["text"]), schema)
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format=json_schema(schema), extra_body={"structured": {"key_order": "random"}})
    assert "key_order must be one of schema, any" in caught.value.message
    names = [f"k{number}" for number in range(65)]
    wide = {"type": "object", "properties": dict.fromkeys(names, True), "required": names}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format=json_schema(wide), extra_body={"structured": options})
    assert caught.value.param == "response_format"
    assert "up to 64 required properties" in caught.value.message


def test_what_was_ignored_is_told(chat: Callable) -> None:
    schema = {"type": "object", "properties": {"a": {"pattern": r"^(a+)\1$"}}, "required": ["a"]}
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format=json_schema(schema))
    assert caught.value.param == "response_format"
    assert "'/properties/a'" in caught.value.message
    assert "'pattern'" in caught.value.message
    fields = {"max_tokens": 12, "extra_body": {"structured": {"on_unsupported": "ignore"}}}
    answer = chat(response_format=json_schema(schema), **fields)
    assert answer.choices[0].model_extra["radixrt"]["ignored"] == ["/properties/a: pattern"]


# --- tools ---


@pytest.mark.parametrize("parallel", [True, False])
def test_required(chat: Callable, parallel: bool) -> None:
    answer = chat(
        tools=TOOLS, tool_choice="required", parallel_tool_calls=parallel, temperature=1.2, n=2, seed=1, max_tokens=60
    )
    for choice in answer.choices:
        names = check_calls(choice)
        assert names
        assert parallel or len(names) == 1
        assert choice.message.content is None
        check_finish(choice)


def test_named(chat: Callable) -> None:
    choice = chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "get_time"}}).choices[0]
    assert check_calls(choice) == ["get_time"]
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_text_is_still_allowed(chat: Callable, choice: str) -> None:
    answer = chat(tools=TOOLS, tool_choice=choice, max_tokens=20).choices[0]
    assert answer.message.content
    assert answer.message.tool_calls is None
    assert answer.finish_reason in ("stop", "length")


def past_call(city: str) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "c"})}
    return [
        {"role": "user", "content": f"The weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": city, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": city, "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_in_auto_mode_the_model_calls_if_it_wants_to(chat: Callable, stream: bool) -> None:
    """After two examples, even this model wants to."""
    messages = [*past_call("Rome"), *past_call("Oslo"), {"role": "user", "content": "The weather in Paris?"}]
    answer = chat(messages=messages, tools=TOOLS, parallel_tool_calls=False, stream=stream)
    if stream:
        calls = [call for chunk in answer for call in chunk.choices[0].delta.tool_calls or []]
        assert calls[0].function.name == "get_weather"
        arguments = "".join(call.function.arguments for call in calls)
    else:
        (choice,) = answer.choices
        assert check_calls(choice) == ["get_weather"]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        arguments = choice.message.tool_calls[0].function.arguments
    assert json.loads(arguments)["city"] == "Paris"


def test_streamed_calls(chat: Callable) -> None:
    chunks = list(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True))
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    first, *rest = calls
    assert (first.index, first.type, first.function.arguments) == (0, "function", "")
    assert first.id.startswith("call_")
    assert all(call.index == 0 and call.id is None and call.function.name is None for call in rest)
    arguments = json.loads("".join(call.function.arguments for call in rest))
    jsonschema.validate(arguments, ARGUMENTS[first.function.name])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]
    assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_stream_helper_of_the_client(client: openai.OpenAI, model_name: str) -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)]
    with client.chat.completions.stream(
        model=model_name, messages=QUESTION, tools=tools, tool_choice="required", temperature=0, max_tokens=100,
        parallel_tool_calls=False,
    ) as stream:  # fmt: skip
        answer = stream.get_final_completion()
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


@pytest.mark.parametrize("max_tokens", [22, 26, 45])
def test_a_call_is_never_cut(chat: Callable, max_tokens: int) -> None:
    answer = chat(tools=TOOLS, tool_choice="required", max_tokens=max_tokens, temperature=1.5, n=3, seed=max_tokens)
    for choice in answer.choices:
        assert check_calls(choice)
        check_finish(choice)
    stopped = chat(
        tools=TOOLS, tool_choice="required", max_tokens=22, temperature=1.5, seed=1,
        extra_body={"structured": {"on_length": "stop"}},
    )  # fmt: skip
    assert check_calls(stopped.choices[0])
    assert stopped.choices[0].finish_reason == "tool_calls"


def test_calls_or_a_response_schema(chat: Callable) -> None:
    answer = chat(tools=TOOLS, response_format=json_schema(SCHEMA), temperature=1.5, n=4, seed=5, max_tokens=50)
    for choice in answer.choices:
        if not check_calls(choice):
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_text_beside_tools(chat: Callable, stream: bool) -> None:
    whole = chat(tools=TOOLS, max_tokens=20)
    text = whole.choices[0].message.content
    word = text.split()[3]
    if not stream:
        answer = chat(tools=TOOLS, max_tokens=20, stop=[word, '"city"'])
        (choice,) = answer.choices
        found, finish, usage = choice.message.content, choice.finish_reason, answer.usage
        assert choice.model_extra["stop_reason"] == word
    else:
        chunks = list(chat(tools=TOOLS, max_tokens=20, stop=word, stream=True, stream_options={"include_usage": True}))
        found = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        finish, usage = chunks[-2].choices[0].finish_reason, chunks[-1].usage
    assert (found, finish) == (text[: text.index(word)], "stop")
    assert 0 < usage.completion_tokens < whole.usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_neither_calls_nor_json(chat: Callable, stream: bool) -> None:
    stops = ["{", '"', "e", "</tool_call>"]
    chosen = {"type": "function", "function": {"name": "get_weather"}}
    called = chat(tools=TOOLS, tool_choice=chosen, stop=stops, stream=stream)
    written = chat(response_format=json_schema(CITY), stop=stops, stream=stream)
    if stream:
        deltas = [chunk.choices[0].delta for chunk in called]
        arguments = "".join(call.function.arguments for delta in deltas for call in delta.tool_calls or [])
        jsonschema.validate(json.loads(arguments), CITY)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in written)
    else:
        assert check_calls(called.choices[0]) == ["get_weather"]
        text = written.choices[0].message.content
    jsonschema.validate(json.loads(text), CITY)


def test_results_of_calls_go_back(chat: Callable) -> None:
    first = chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).choices[0].message
    call = first.tool_calls[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "18 degrees"}
    answer = chat(messages=[*QUESTION, first.model_dump(exclude_none=True), result], tools=TOOLS, max_tokens=15)
    assert answer.choices[0].message.content


def test_older_functions(chat: Callable) -> None:
    functions = [{"name": "get_time", "parameters": ZONE}]
    choice = chat(functions=functions, function_call={"name": "get_time"}).choices[0]
    jsonschema.validate(json.loads(choice.message.function_call.arguments), ZONE)
    assert choice.finish_reason == "function_call"


# --- mistakes ---


BAD_TYPE = {"properties": {"a": {"type": "strin"}}}
BACK_REFERENCE = {"properties": {"a": {"pattern": r"^(a+)\1$"}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": json_schema(BAD_TYPE)}, "response_format", "/properties/a/type"),
        ({"response_format": json_schema({"type": "string", "pattern": "("})}, "response_format", "pattern"),
        ({"response_format": json_schema({"$ref": "https://example.com/x"})}, "response_format", "example.com"),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"regex": "a"}}, "regex", "response_format"),
        ({"extra_body": {"regex": "(a"}}, "regex", ""),
        ({"extra_body": {"ebnf": "root ::= x"}}, "ebnf", "x"),
        ({"extra_body": {"structural_tag": {"format": {"type": "x"}}}}, "structural_tag", "/format"),
        ({"response_format": json_schema(SCHEMA), "max_tokens": 2}, "max_tokens", "at least"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": BACK_REFERENCE}}]},
            "tools",
            "/0/function/parameters/properties/a",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice.function.name",
            "g",
        ),
    ],
)
def test_mistakes_are_named(chat: Callable, fields: dict, param: str, words: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(**fields, stream=stream)
    assert caught.value.param == param
    assert words in caught.value.message


# --- keys ---

COUNTS = {"type": "object", "additionalProperties": {"type": "integer", "maximum": 9}, "minProperties": 3}
FORMATS: dict[str, dict[str, Any]] = {
    "any object": {"type": "json_object"},
    "counts": {"type": "json_schema", "json_schema": {"name": "counts", "schema": COUNTS}},
}


def without_repeated_keys(text: str) -> dict[str, Any]:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), text
        return dict(pairs)

    return json.loads(text, object_pairs_hook=members)


@pytest.mark.parametrize("name", FORMATS)
def test_no_object_repeats_a_key_whole_streamed_or_one_of_several(
    name: str, client: openai.OpenAI, model_name: str
) -> None:
    question = [{"role": "user", "content": "Count the words: a b a b a b c. Write the word before each number."}]
    common = {"model": model_name, "messages": question, "max_tokens": 60, "temperature": 1.0}
    common["response_format"] = FORMATS[name]

    def whole(seed: int) -> str:
        return client.chat.completions.create(**common, seed=seed).choices[0].message.content

    def streamed(seed: int) -> str:
        chunks = client.chat.completions.create(**common, seed=seed, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    seeds = range(12)
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(whole, seeds))
        in_streams = list(pool.map(streamed, seeds))
    several = client.chat.completions.create(**common, seed=3, n=4)
    for text in [*together, *in_streams, *(choice.message.content for choice in several.choices)]:
        value = without_repeated_keys(text)
        assert name == "any object" or len(value) >= 3


class Inventory(BaseModel):
    """The items of a list."""

    names: set[Annotated[str, Field(max_length=8)]] = Field(min_length=2)
    counts: dict[str, int] = Field(min_length=2)


def test_arguments_repeat_no_key_and_no_item_of_a_set(client: openai.OpenAI, model_name: str) -> None:
    question: Any = [{"role": "user", "content": "Take stock: a b a b a b c. Write each word and its number."}]
    tool: Any = openai.pydantic_function_tool(Inventory)
    fields: Any = {"model": model_name, "temperature": 1.0, "tool_choice": "required"}

    def in_chat(seed: int) -> str:
        answer = client.chat.completions.create(**fields, messages=question, tools=[tool], max_tokens=90, seed=seed)
        return answer.choices[0].message.tool_calls[0].function.arguments

    def in_stream(seed: int) -> str:
        chunks = client.chat.completions.create(
            **fields, messages=question, tools=[tool], max_tokens=90, seed=seed, stream=True, parallel_tool_calls=False
        )
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        return "".join(call.function.arguments or "" for call in calls)

    def in_response(seed: int) -> str:
        flat = {"type": "function", **tool["function"]}
        answer = client.responses.create(
            **fields, input=question, tools=[flat], max_output_tokens=90, extra_body={"seed": seed}
        )
        return next(item.arguments for item in answer.output if item.type == "function_call")

    ways = (in_chat, in_stream, in_response)
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda number: ways[number % 3](number), range(18)))
    for text in found:
        value = without_repeated_keys(text)
        assert len(value["names"]) == len(set(value["names"])) >= 2
        assert len(value["counts"]) >= 2
        Inventory.model_validate_json(text)
