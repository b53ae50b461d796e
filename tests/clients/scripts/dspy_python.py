"""DSPy: signatures by each adapter, tools, streams, completions, responses and embeddings."""

from __future__ import annotations

import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import dspy
from dspy.lm15 import AccessPolicy, ModelSupport, OpenAIChatCompat, ProviderDefinition, register_provider
from harness import MODEL, V1, case, main

# Of a model that is not in DSPy's catalogue it believes that it knows neither schemas nor tools, unless it is told.
ENV_KEY = "RADIXRT_API_KEY"
register_provider(
    ProviderDefinition.chat(AccessPolicy("radixrt", env_keys=(ENV_KEY,), base_url=V1), compat=OpenAIChatCompat()),
    supports=ModelSupport(function_calling=True, response_schema=True),
)
SERVER = {"api_base": V1, "api_key": "none", "cache": False, "num_retries": 0, "max_tokens": 96}
lm = dspy.LM(f"radixrt/{MODEL}", **SERVER)
plain = dspy.LM(f"openai/{MODEL}", **SERVER)


class Size(dspy.Signature):
    """Tell how large a city is."""

    city: str = dspy.InputField()
    size: Literal["small", "large"] = dspy.OutputField()


@case
def call():
    assert plain("Name a colour.", max_tokens=8)
    assert plain(messages=[{"role": "user", "content": "Name a colour."}], max_tokens=8, temperature=0.7)


@case
def json_adapter():
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        assert dspy.Predict(Size)(city="Rome").size in ("small", "large")


@case
def chat_adapter():
    """Its format is asked for in words; where the model misses it, DSPy goes on with the JSON adapter."""
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        assert dspy.Predict(Size)(city="Rome").size in ("small", "large")


@case
def native_tools():
    def weather(city: Literal["Rome", "Oslo"]) -> str:
        """The weather in a city."""
        return f"Sunny in {city}."

    class Ask(dspy.Signature):
        """Call a tool."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        outputs: dspy.ToolCalls = dspy.OutputField()

    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        made = dspy.Predict(Ask, tool_choice="required")
        answer = made(question="The weather in Rome?", tools=[dspy.Tool(weather)])
        assert answer.outputs.tool_calls[0].name == "weather"


@case
async def streamify():
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        stream = dspy.streamify(dspy.Predict(Size))(city="Rome")
        parts = [part async for part in stream]
    assert parts[-1].size in ("small", "large")


@case
def text_completions():
    text = dspy.LM(f"text-completion-openai/{MODEL}", **{**SERVER, "max_tokens": 8}, model_type="text")
    assert text("One, two,")


@case
def responses():
    made = dspy.LM(f"openai/{MODEL}", **{**SERVER, "max_tokens": 16}, model_type="responses")
    assert made("Name a colour.")


@case
def embeddings():
    made = dspy.Embedder(f"openai/{MODEL}", api_base=V1, api_key="none", caching=False)
    assert made(["a cat", "a dog"]).shape[0] == 2


main()
