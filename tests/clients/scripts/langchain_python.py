"""LangChain: ChatOpenAI on chats and on responses, ChatAnthropic, OpenAIEmbeddings, OpenAI's completions, an agent."""

from __future__ import annotations

from typing import Literal

from harness import MODEL, URL, V1, case, main
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.chat_models import init_chat_model
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

SERVER = {"base_url": V1, "api_key": "none", "model": MODEL, "max_retries": 0}
# With a base_url of its own, ChatOpenAI asks streams for their usage only if it is told to.
chat = ChatOpenAI(**SERVER, max_tokens=64, stream_usage=True)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


@tool
def weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


@case
def invoke():
    answer = chat.invoke([SystemMessage("You are brief."), HumanMessage("Name a colour.")], max_tokens=8)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] <= 8


@case
def stream():
    chunks = list(chat.stream("Name a colour.", max_tokens=8))
    assert "".join(chunk.content for chunk in chunks)
    assert any(chunk.usage_metadata for chunk in chunks)


@case
def chain_batch():
    chain = ChatPromptTemplate.from_template("Name a {thing}.") | chat.bind(max_tokens=4) | StrOutputParser()
    assert len(chain.batch([{"thing": "colour"}, {"thing": "city"}], config={"max_concurrency": 1})) == 2


@case
def structured_json_schema():
    assert isinstance(chat.with_structured_output(City).invoke("A city."), City)
    strict = chat.with_structured_output(City, method="json_schema", strict=True)
    assert isinstance(strict.invoke("A city."), City)
    assert list(strict.stream("A city."))


@case
def structured_function_calling():
    assert isinstance(chat.with_structured_output(City, method="function_calling").invoke("A city."), City)
    with_raw = chat.with_structured_output(City, method="function_calling", include_raw=True, strict=True)
    assert with_raw.invoke("A city.")["parsing_error"] is None


@case
def structured_json_mode():
    # The client throws away an answer that max_tokens has closed, unless its finish reason is "stop".
    closed = ChatOpenAI(**SERVER, max_tokens=32, extra_body={"structured": {"on_length": "stop"}})
    assert closed.bind(response_format={"type": "json_object"}).invoke("A JSON object.").content.startswith("{")
    json_mode = closed.with_structured_output(None, method="json_mode")
    assert isinstance(json_mode.invoke("A JSON object."), dict)


@case
def tools():
    bound = chat.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    question = HumanMessage("The weather in Rome?")
    answer = bound.invoke([question])
    (call,) = answer.tool_calls
    turns = [question, answer, weather.invoke(call)]
    assert isinstance(turns[-1], ToolMessage)
    assert chat.bind_tools([weather], tool_choice="none").invoke(turns, max_tokens=8).tool_calls == []


@case
def tools_stream():
    chunks = list(chat.bind_tools([weather], tool_choice="required").stream("The weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls[0]["name"] == "weather"


@case
def tools_auto():
    assert chat.bind_tools([weather]).invoke("Say hello.", max_tokens=16) is not None


@case
def agent_structured():
    for strategy in (ProviderStrategy(City), ToolStrategy(City)):
        # Else the object may have members that the class does not mention, and a small model writes some.
        closed = ChatOpenAI(**SERVER, max_tokens=64, extra_body={"structured": {"closed": True}})
        agent = create_agent(closed, tools=[], response_format=strategy)
        state = agent.invoke({"messages": [HumanMessage("A city.")]})
        assert isinstance(state["structured_response"], City)


@case
def logprobs():
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke("Name a colour.", max_tokens=4)
    assert answer.response_metadata["logprobs"]["content"]


@case
def init_model():
    made = init_chat_model(MODEL, model_provider="openai", base_url=V1, api_key="none", max_tokens=4)
    assert made.invoke("Hello").content


@case
def completions():
    model = OpenAI(**SERVER, max_tokens=4)
    assert model.invoke("One, two,")
    assert list(model.stream("One, two,"))


@case
def embeddings():
    # Without this option LangChain sends ids of OpenAI's tokenizer, which mean other words here.
    model = OpenAIEmbeddings(base_url=V1, api_key="none", model=MODEL, check_embedding_ctx_length=False)
    assert len(model.embed_documents(["a cat", "a dog"])) == 2
    assert len(model.embed_query("a cat")) > 100


@case
def responses():
    model = ChatOpenAI(**SERVER, max_tokens=64, use_responses_api=True)
    assert model.invoke("Name a colour.", max_tokens=16).text
    assert list(model.stream("Name a colour.", max_tokens=16))
    assert isinstance(model.with_structured_output(City).invoke("A city."), City)


@case
def responses_tools():
    model = ChatOpenAI(**SERVER, max_tokens=64, use_responses_api=True)
    question = HumanMessage("The weather in Rome?")
    answer = model.bind_tools([weather], tool_choice="weather").invoke([question])
    turns = [question, answer, *(weather.invoke(call) for call in answer.tool_calls)]
    assert model.bind_tools([weather], tool_choice="none").invoke(turns, max_tokens=16).tool_calls == []


@case
def responses_continued():
    model = ChatOpenAI(**SERVER, max_tokens=16, use_previous_response_id=True)
    first = model.invoke("Name a colour.")
    assert model.invoke([HumanMessage("Name a colour."), first, HumanMessage("Another.")]).text


class Unbounded(BaseModel):
    """A city. Anthropic's client moves bounds from the schema into descriptions."""

    size: Literal["small", "large"]


@case
def anthropic():
    model = ChatAnthropic(base_url=URL, api_key="none", model=MODEL, max_tokens=64, max_retries=0)
    assert model.invoke("Name a colour.", max_tokens=8).text
    assert list(model.stream("Name a colour.", max_tokens=8))
    assert isinstance(model.with_structured_output(City).invoke("A city."), City)
    by_schema = model.with_structured_output(Unbounded, method="json_schema")
    assert isinstance(by_schema.invoke("A city."), Unbounded)
    assert model.bind_tools([weather], tool_choice="weather").invoke("The weather?").tool_calls


main()
