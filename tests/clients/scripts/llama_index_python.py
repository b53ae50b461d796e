"""LlamaIndex: OpenAILike on chats and completions, structured prediction, tools, embeddings, an index."""

# No `from __future__ import annotations`: FunctionTool reads the annotations as they are.
from typing import Literal

from harness import MODEL, V1, case, main
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.core.output_parsers import PydanticOutputParser
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel, Field

SERVER = {"model": MODEL, "api_base": V1, "api_key": "none", "max_retries": 0, "timeout": 300, "context_window": 2048}
llm = OpenAILike(**SERVER, is_chat_model=True, is_function_calling_model=True, max_tokens=64)
schemas = OpenAILike(**SERVER, is_chat_model=True, should_use_structured_outputs=True, max_tokens=64)
embedder = OpenAILikeEmbedding(model_name=MODEL, api_base=V1, api_key="none", max_retries=0)
PROMPT = PromptTemplate("A {kind} city.")


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    size: Literal["small", "large"]


def weather(city: Literal["Rome", "Oslo"]) -> str:
    """The weather in a city."""
    return f"Sunny in {city}."


TOOL = FunctionTool.from_defaults(weather)


@case
def chat():
    turns = [ChatMessage(role="system", content="You are brief."), ChatMessage(role="user", content="Name a colour.")]
    assert llm.chat(turns, max_tokens=8).message.content
    assert [part.delta for part in llm.stream_chat(turns, max_tokens=8)]


@case
async def chat_async():
    assert (await llm.achat([ChatMessage(role="user", content="Hello")], max_tokens=4)).message.content


@case
def complete():
    model = OpenAILike(**SERVER, is_chat_model=False, max_tokens=4)
    assert model.complete("One, two,").text
    assert list(model.stream_complete("One, two,"))


@case
def structured_by_schema():
    assert isinstance(schemas.structured_predict(City, PROMPT, kind="large"), City)
    assert list(schemas.stream_structured_predict(City, PROMPT, kind="large"))


@case
def structured_by_tool():
    assert isinstance(llm.structured_predict(City, PROMPT, kind="large"), City)
    assert isinstance(llm.as_structured_llm(City).complete("A city.").raw, City)


@case
def structured_by_prompt():
    """The program asks for JSON in words alone, so the form comes from response_format here."""
    model = OpenAILike(
        **SERVER, is_chat_model=True, max_tokens=64,
        additional_kwargs={"extra_body": {"json_schema": City.model_json_schema()}},
    )  # fmt: skip
    program = LLMTextCompletionProgram.from_defaults(
        PydanticOutputParser(City), prompt_template_str="A city.", llm=model
    )
    assert isinstance(program(), City)


@case
def tools():
    answer = llm.chat_with_tools([TOOL], "The weather in Rome?", tool_required=True)
    calls = llm.get_tool_calls_from_response(answer)
    assert calls[0].tool_name == "weather"
    results = [
        ChatMessage(role="tool", content="Sunny.", additional_kwargs={"tool_call_id": call.tool_id}) for call in calls
    ]
    history = [ChatMessage(role="user", content="The weather in Rome?"), answer.message, *results]
    assert llm.chat(history, max_tokens=8).message.content is not None
    assert list(llm.stream_chat_with_tools([TOOL], "The weather in Rome?", tool_required=True))


@case
def predict_and_call():
    answer = llm.predict_and_call([TOOL], "The weather in Rome?", tool_required=True)
    assert "Sunny in" in str(answer)


@case
def embeddings():
    assert len(embedder.get_text_embedding_batch(["a cat", "a dog"])) == 2
    assert len(embedder.get_query_embedding("a cat")) > 100


@case
def index_query():
    index = VectorStoreIndex.from_documents([Document(text="The sky is blue.")], embed_model=embedder)
    assert str(index.as_query_engine(llm=llm).query("What is the sky?"))


@case
def responses():
    model = OpenAILikeResponses(**SERVER, is_function_calling_model=True, max_output_tokens=32)
    assert model.chat([ChatMessage(role="user", content="Name a colour.")]).message.content
    assert list(model.stream_chat([ChatMessage(role="user", content="Name a colour.")]))


main()
