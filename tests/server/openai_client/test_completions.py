"""Completions, as OpenAI's client sees them, and the fields of vLLM in them and in chats."""

from __future__ import annotations

import math
from collections.abc import Callable

import openai
import pytest


def test_completion(complete: Callable) -> None:
    answer = complete(max_tokens=8)
    assert "Paris" in answer.choices[0].text
    assert answer.usage.completion_tokens == 8


def test_completion_echo_with_logprobs(complete: Callable) -> None:
    (choice,) = complete("One, two, three,", max_tokens=3, echo=True, logprobs=2).choices
    logprobs = choice.logprobs
    assert choice.text.startswith("One, two, three,")
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert [choice.text[offset:][: len(token)] for offset, token in zip(logprobs.text_offset, logprobs.tokens)] == (
        logprobs.tokens
    )


def test_scoring_agrees_with_generating(complete: Callable) -> None:
    """The prompt's log-probabilities are those that the same tokens had when they were generated."""
    prompt = "One, two, three,"
    (made,) = complete(prompt, max_tokens=6, logprobs=0).choices
    (scored,) = complete(prompt + made.text, max_tokens=0, logprobs=0, echo=True).choices
    assert scored.text == prompt + made.text
    n = len(made.logprobs.tokens)
    assert scored.logprobs.tokens[-n:] == made.logprobs.tokens
    for ours, theirs in zip(scored.logprobs.token_logprobs[-n:], made.logprobs.token_logprobs):
        assert math.isclose(ours, theirs, abs_tol=1e-3)  # float32, other batch shapes


def test_completion_of_several_prompts(complete: Callable) -> None:
    prompts = ["The capital of France is", "The capital of Italy is"]
    together = complete(prompts, n=2, max_tokens=5)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert together.choices[0].text == together.choices[1].text
    assert "Paris" in together.choices[0].text
    assert "Rome" in together.choices[2].text
    ids = complete([[504, 3575, 282, 4649, 314], [504]], max_tokens=2)
    assert len(ids.choices) == 2


def test_completion_stream(complete: Callable) -> None:
    whole = complete(max_tokens=10).choices[0].text
    chunks = list(complete(max_tokens=10, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason


def test_token_ids_and_prompt_logprobs(complete: Callable) -> None:
    fields = {"return_token_ids": True, "prompt_logprobs": 1, "return_tokens_as_token_ids": True}
    answer = complete(max_tokens=4, logprobs=0, extra_body=fields)
    (choice,) = answer.choices
    prompt, output = choice.model_extra["prompt_token_ids"], choice.model_extra["token_ids"]
    assert len(prompt) == answer.usage.prompt_tokens
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in output]
    rows = choice.model_extra["prompt_logprobs"]
    assert rows[0] is None
    assert all(str(token) in row for token, row in zip(prompt[1:], rows[1:], strict=True))


def test_hidden_states(chat: Callable, complete: Callable) -> None:
    answer = chat(max_tokens=2, extra_body={"return_hidden_states": "prompt"})
    states = answer.model_extra["hidden_states"]
    assert len(states) == answer.usage.prompt_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    (choice,) = complete(max_tokens=2, extra_body={"return_hidden_states": "last"}).choices
    assert [len(row) for row in choice.model_extra["hidden_states"]] == [len(states[0])]
    with pytest.raises(openai.BadRequestError) as raised:
        chat(extra_body={"return_hidden_states": True})
    assert raised.value.param == "return_hidden_states"


def test_a_truncated_prompt_is_its_last_tokens(complete: Callable, chat: Callable) -> None:
    fields = {"return_token_ids": True, "truncate_prompt_tokens": 3}
    whole = complete("one two three four five", max_tokens=4, extra_body={"return_token_ids": True})
    cut = complete("one two three four five", max_tokens=4, extra_body=fields)
    ids = whole.choices[0].model_extra["prompt_token_ids"]
    assert cut.choices[0].model_extra["prompt_token_ids"] == ids[-3:]
    assert cut.usage.prompt_tokens == 3
    assert (
        chat(extra_body=fields).model_extra["prompt_token_ids"]
        == chat(extra_body={"return_token_ids": True}).model_extra["prompt_token_ids"][-3:]
    )
    assert complete(ids, max_tokens=4, extra_body=fields).choices[0].text == cut.choices[0].text


def test_a_refused_field_is_a_bad_request(complete: Callable) -> None:
    with pytest.raises(openai.BadRequestError, match="allowed_token_ids"):
        complete(extra_body={"allowed_token_ids": [5]})
