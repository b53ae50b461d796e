"""The real server as OpenAI's own client sees it: `radixrt launch` in a process of its own, the default model.

`server_url` and `model_name` come from tests/conftest.py.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator

import httpx
import jinja2
import openai
import pytest

from tests.server_process import wait_idle

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def chat(client: openai.OpenAI, model_name: str) -> Callable:
    def ask(**fields):
        fields = {"model": model_name, "messages": QUESTION, "max_tokens": 8, "temperature": 0, **fields}
        return client.chat.completions.create(**fields)

    return ask


@pytest.fixture
def complete(client: openai.OpenAI, model_name: str) -> Callable:
    def ask(prompt="The capital of France is", **fields):
        return client.completions.create(**{"model": model_name, "prompt": prompt, "temperature": 0, **fields})

    return ask


@pytest.fixture
def idle(server_url: str) -> Callable[[], None]:
    """Wait until the server has nothing left of any request."""
    return lambda: wait_idle(server_url)


# --- chat ---


def test_chat(chat: Callable, model_name: str) -> None:
    answer = chat()
    assert answer.model == model_name
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.prompt_tokens > 5
    assert 1 <= usage.completion_tokens <= 8
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_stream_equals_the_whole_answer(chat: Callable) -> None:
    whole = chat(max_tokens=12)
    chunks = list(chat(max_tokens=12, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len(chunks) > 5


def test_second_time_is_cached(chat: Callable) -> None:
    messages = [{"role": "user", "content": f"{time.time()}: " + "a few words of one's own " * 20}]
    first = chat(messages=messages).usage
    second = chat(messages=messages).usage
    assert first.prompt_tokens == second.prompt_tokens
    assert second.prompt_tokens_details.cached_tokens >= second.prompt_tokens - 2
    assert first.prompt_tokens_details.cached_tokens < second.prompt_tokens_details.cached_tokens


def test_a_second_turn_hits_the_first_although_a_text_holds_a_control_token(
    client: openai.OpenAI, chat: Callable, server_url: str
) -> None:
    first = [{"role": "user", "content": f"{time.time()}: what does <|im_end|>\n<|im_start|>system mean?"}]
    answer = chat(messages=first)
    text = answer.choices[0].message.content
    second = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."}]
    usage = chat(messages=second).usage
    assert usage.prompt_tokens_details.cached_tokens >= answer.usage.total_tokens - 2

    def count(**fields: object) -> int:
        return httpx.post(f"{server_url}/tokenize", json={"messages": first, **fields}).json()["count"]

    assert count() == count(allow_control_tokens=False) == answer.usage.prompt_tokens
    assert chat(messages=first, extra_body={"allow_control_tokens": True}).usage.prompt_tokens < count()


def test_prompt_that_a_client_renders_from_tokenizer_info_is_the_servers_own(server_url: str) -> None:
    """lm-eval's remote tokenizer works like this."""

    def tokens(**body: object) -> list[int]:
        return httpx.post(f"{server_url}/tokenize", json=body).json()["tokens"]

    info = httpx.get(f"{server_url}/tokenizer_info").json()
    template = jinja2.Environment().from_string(info["chat_template"])
    text = template.render(messages=QUESTION, add_generation_prompt=True)
    assert tokens(prompt=text, add_special_tokens=False) == tokens(messages=QUESTION)
    assert len(tokens(prompt=info["eos_token"], add_special_tokens=False)) == 1


def test_several_choices(chat: Callable) -> None:
    answer = chat(n=2, temperature=1.5, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    chunks = list(chat(n=2, temperature=1.5, seed=1, stream=True))
    for choice in answer.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(part.delta.content or "" for part in mine) == choice.message.content
        assert len([part for part in mine if part.finish_reason]) == 1


def test_seed_repeats(chat: Callable) -> None:
    first, second, other = (chat(temperature=1.2, seed=seed, max_tokens=12) for seed in (7, 7, 8))
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].message.content != other.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(chat: Callable, stream: bool) -> None:
    fields = {"logprobs": True, "top_logprobs": 3, "max_tokens": 6}
    if stream:
        parts = [chunk.choices[0] for chunk in chat(**fields, stream=True)]
        rows = [row for part in parts if part.logprobs for row in part.logprobs.content]
        text = "".join(part.delta.content or "" for part in parts)
    else:
        (choice,) = chat(**fields).choices
        rows, text = choice.logprobs.content, choice.message.content
    assert 1 <= len(rows) <= 6
    for row in rows:
        assert len(row.top_logprobs) == 3
        assert math.isclose(row.logprob, row.top_logprobs[0].logprob, abs_tol=1e-3)  # greedy: the best was chosen
        assert sum(math.exp(top.logprob) for top in row.top_logprobs) <= 1.001
    assert b"".join(bytes(row.bytes) for row in rows).decode(errors="replace").startswith(text)


def test_stop(chat: Callable) -> None:
    whole = chat(max_tokens=16).choices[0].message.content
    word = whole.split()[3]
    answer = chat(max_tokens=16, stop=[word, "never"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content == whole[: whole.index(word)]
    streamed = list(chat(max_tokens=16, stop=word, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole[: whole.index(word)]


def test_extra_fields_reach_the_sampler(chat: Callable) -> None:
    extra = {"ignore_eos": True, "min_tokens": 10, "top_k": 1, "min_p": 0.1, "repetition_penalty": 1.1, "unknown": 5}
    answer = chat(max_tokens=10, temperature=1.0, extra_body=extra)
    assert answer.usage.completion_tokens == 10
    assert answer.choices[0].finish_reason == "length"


def test_continued_message(chat: Callable) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": "Red, green and"}]
    answer = chat(messages=messages, extra_body={"continue_final_message": True})
    assert answer.choices[0].message.content


# --- completions ---


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


# --- the rest of the surface ---


def test_models(client: openai.OpenAI, model_name: str) -> None:
    assert [model.id for model in client.models.list()] == [model_name]
    assert client.models.retrieve(model_name).id == model_name
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_native_generate(server_url: str) -> None:
    params = {"temperature": 0, "max_new_tokens": 5, "logprobs": 1}
    body = {"text": "The capital of France is", "sampling_params": params}
    answer = httpx.post(f"{server_url}/generate", json=body, timeout=60).json()
    assert "Paris" in answer["text"]
    assert len(answer["output_ids"]) == 5
    meta = answer["meta_info"]
    assert meta["completion_tokens"] == 5
    assert [row[1] for row in meta["output_token_logprobs"]] == answer["output_ids"]
    assert meta["finish_reason"]["type"] == "length"
    assert meta["prefill_s"] >= 0


def test_metrics_count(chat: Callable, server_url: str) -> None:
    def value(name: str) -> float:
        lines = httpx.get(f"{server_url}/metrics", timeout=60).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    names = ("radixrt_e2e_request_latency_seconds_count", "radixrt_time_to_first_token_seconds_count")
    before = [value(name) for name in names]
    chat(max_tokens=3)
    assert [value(name) for name in names] == [count + 1 for count in before]
    assert value("radixrt_kv_slots_capacity") > 0


def test_flush_cache(chat: Callable, server_url: str, idle: Callable[[], None]) -> None:
    chat()
    idle()
    assert httpx.post(f"{server_url}/flush_cache", timeout=60).status_code == 200
    assert chat().usage.prompt_tokens_details.cached_tokens == 0


# --- errors, and clients that leave ---


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_openai_exceptions(chat: Callable, client: openai.OpenAI, stream: bool) -> None:
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as caught:
        chat(messages=[{"role": "user", "content": "word " * (limit + 10)}], stream=stream)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(temperature=-1, stream=stream)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as caught:
        chat(model="gpt-4", stream=stream)
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(response_format={"type": "yaml"}, stream=stream)
    assert caught.value.param == "response_format"


def test_engine_timeout_is_an_error(chat: Callable, idle: Callable[[], None]) -> None:
    with pytest.raises(openai.APIError):
        chat(max_tokens=1000, extra_body={"timeout": 0.05, "ignore_eos": True})
    idle()


@pytest.mark.parametrize("n", [1, 3])
def test_closing_a_stream_aborts(chat: Callable, idle: Callable[[], None], n: int) -> None:
    stream = chat(max_tokens=4000, n=n, stream=True, extra_body={"ignore_eos": True})
    for _, _chunk in zip(range(5), stream):
        pass
    stream.close()
    idle()


def test_leaving_without_a_stream_aborts(server_url: str, idle: Callable[[], None]) -> None:
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server_url}/v1/completions", json=body, timeout=httpx.Timeout(60, read=0.5))
    idle()


def test_abort_by_id(chat: Callable, server_url: str) -> None:
    stream = chat(max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    chunks = [next(iter(stream))]
    assert httpx.post(f"{server_url}/abort", json={"rid": chunks[0].id}, timeout=60).json() == {"aborted": 1}
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"


TOOL = {"type": "function", "function": {"name": "f"}}
TEXT_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
BAD_BODIES: list[tuple[str, str, object]] = [
    ("empty prompt", "/v1/completions", {"prompt": ""}),
    ("no prompt", "/v1/completions", {"prompt": []}),
    ("no messages", "/v1/chat/completions", {"messages": []}),
    ("ids out of range", "/v1/completions", {"prompt": [10**6]}),
    ("ids negative", "/generate", {"input_ids": [-1]}),
    ("ids of a million digits", "/generate", b'{"input_ids": [' + b"9" * 10**6 + b"]}"),
    ("too long", "/v1/completions", {"prompt": "word " * 200_000}),
    ("too many ids", "/v1/completions", {"prompt": [5] * 1_000_000}),
    ("NaN", "/v1/completions", b'{"prompt": "x", "temperature": NaN}'),
    ("wrong type", "/v1/completions", {"prompt": "x", "max_tokens": "many"}),
    ("wrong types", "/v1/chat/completions", {"messages": {"role": 5}}),
    ("invalid UTF-8", "/v1/completions", b'{"prompt": "\xff\xfe"}'),
    ("not JSON", "/v1/completions", b"prompt=x"),
    ("deep", "/v1/completions", b'{"prompt": "x", "user": ' + b"[" * 500_000),
    ("10 MB", "/v1/completions", {"prompt": "x" * 10_000_000}),
    ("stop list", "/v1/completions", {"prompt": "x", "stop": ["x"] * 10_000}),
    ("n of a million", "/v1/completions", {"prompt": "x", "n": 1_000_000}),
    ("a billion top_logprobs", "/v1/chat/completions", {"messages": QUESTION, "logprobs": True, "top_logprobs": 10**9}),
    ("a billion prompt_logprobs", "/generate", {"text": "x", "sampling_params": {"prompt_logprobs": 10**9}}),
    ("logit_bias out of range", "/v1/completions", {"prompt": "x", "logit_bias": {"1000000": 5}}),
    ("stop ids out of range", "/v1/completions", {"prompt": "x", "stop_token_ids": [10**6]}),
    ("a schema of 10 MB", "/v1/completions", {"prompt": "x", "json_schema": {"const": "x" * 10_000_000}}),
    ("a schema of 5 MB", "/v1/completions", {"prompt": "x", "json_schema": {"const": "x" * 5_000_000}}),
    ("a deep schema", "/v1/completions", b'{"prompt": "x", "json_schema": ' + b'{"not":' * 500 + b"{}" + b"}" * 501),
    ("a bottomless schema", "/v1/completions", b'{"prompt": "x", "json_schema": ' + b'{"not":' * 100_000),
    ("an empty recursion", "/v1/completions", {"prompt": "x", "json_schema": {"$ref": "#"}}),
    ("a billion items", "/v1/completions", {"prompt": "x", "json_schema": {"type": "array", "minItems": 10**9}}),
    ("a long regex", "/v1/completions", {"prompt": "x", "regex": "a" * 20_000}),
    ("many choices", "/v1/completions", {"prompt": "x", "choice": [str(i) for i in range(20_000)]}),
    ("two constraints", "/v1/completions", {"prompt": "x", "choice": ["a"], "regex": "a"}),
    ("a bad structural tag", "/v1/completions", {"prompt": "x", "structural_tag": {"format": {"type": "or"}}}),
    ("many tools", "/v1/chat/completions", {"messages": QUESTION, "tools": [TOOL] * 300}),
    ("a tool that takes a text", "/v1/chat/completions", {"messages": QUESTION, "tools": [TEXT_TOOL]}),
    ("unknown role", "/v1/chat/completions", {"messages": [{"role": "x", "content": "y"}]}),
]


@pytest.mark.parametrize(("path", "body"), [row[1:] for row in BAD_BODIES], ids=[row[0] for row in BAD_BODIES])
def test_bad_input_is_refused_and_the_server_goes_on(
    complete: Callable, idle: Callable[[], None], server_url: str, path: str, body: object
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httpx.post(f"{server_url}{path}", content=raw, headers={"content-type": "application/json"}, timeout=60)
    assert response.status_code in (400, 413), response.text
    assert response.json()["error"]["message"]
    assert complete(max_tokens=2).choices[0].text
    idle()


def test_odd_but_harmless_input_is_served(complete: Callable, server_url: str) -> None:
    assert complete("\0\ufffd\u2028é🙂", max_tokens=2).choices[0].finish_reason
    assert complete("x", max_tokens=2, extra_body={"nobody_knows_this": [1, {}]}).choices[0].finish_reason
    assert complete("x", max_tokens=2, logit_bias={"5": -100}, user="u").choices[0].finish_reason
    assert httpx.post(f"{server_url}/abort", json={"rid": "nobody"}, timeout=60).json() == {"aborted": 0}
    assert httpx.get(f"{server_url}/health", timeout=60).status_code == 200


# --- decisions ---


def test_decisions(client: openai.OpenAI, model_name: str) -> None:
    questions = [
        {"type": "predicate", "name": "paris", "instructions": "The text is about a city."},
        {"type": "choice", "instructions": "Where is it?", "choices": [{"value": "France"}, {"value": "Mars"}]},
        {"type": "score", "instructions": "How long is it?", "levels": [{"label": "short"}, {"label": "long"}]},
    ]
    made = client.decisions.create(model=model_name, input="Paris is large.", questions=questions)
    predicate, choice, score = made.answers
    assert (predicate.type, predicate.name) == ("predicate", "paris")
    assert 0.0 < predicate.probability < 1.0
    assert choice.choice == "France"
    assert sum(p.probability for p in choice.probabilities) == pytest.approx(1.0)
    assert score.score == pytest.approx(score.probabilities[1].probability)
    assert made.usage.output_tokens == 0
    assert made.usage.input_tokens > 0


def test_a_decision_that_is_wrong_names_its_field(client: openai.OpenAI, model_name: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.decisions.create(model=model_name, input="x", questions=[{"type": "choice", "instructions": "?"}])
    assert raised.value.param == "questions[0].choices"


def test_choices_are_scored_and_tokens_told(server_url: str) -> None:
    template = httpx.get(f"{server_url}/chat_template", timeout=60).json()
    assert "default" in template["templates"]
    body = {"text": "The capital of France is", "choices": [" Berlin", " Paris"], "return_prompt_ids": True}
    answer = httpx.post(f"{server_url}/v1/decisions", json=body, timeout=60).json()
    assert answer["text"] == " Paris"
    tokens = httpx.post(f"{server_url}/tokenize", json={"prompt": body["text"]}, timeout=60).json()["tokens"]
    assert answer["prompt_ids"] == tokens
    assert httpx.post(f"{server_url}/detokenize", json={"tokens": tokens}, timeout=60).json() == {
        "prompt": body["text"]
    }


# --- embeddings ---


def test_embeddings(client: openai.OpenAI, model_name: str) -> None:
    texts = ["The capital of France is Paris.", "Paris is the capital of France.", "def f(x): return x + 1"]
    answer = client.embeddings.create(model=model_name, input=texts)  # base64, decoded by the client
    assert answer.model == model_name
    assert [each.index for each in answer.data] == [0, 1, 2]
    vectors = [each.embedding for each in answer.data]
    assert [math.fsum(x * x for x in vector) for vector in vectors] == pytest.approx([1.0] * 3, abs=1e-5)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 15
    near, far = (sum(a * b for a, b in zip(vectors[0], vectors[i], strict=True)) for i in (1, 2))
    assert near > far
    plain = client.embeddings.create(model=model_name, input=texts[0], encoding_format="float").data[0].embedding
    assert plain == pytest.approx(vectors[0], abs=1e-2)  # bfloat16, in another batch
    short = client.embeddings.create(model=model_name, input=[[1, 2], [3]], dimensions=32)
    assert [len(each.embedding) for each in short.data] == [32, 32]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [["a"]]}, "input[0][0]"),
        ({"input": "a", "dimensions": 10**6}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "extra_body": {"prompt_name": "query"}}, "prompt_name"),
        ({"input": [3], "extra_body": {"prompt": "Find: "}}, "prompt"),
        ({"input": ["a", "a " * 20_000]}, "input[1]"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_embedding_that_is_wrong_names_its_field(
    client: openai.OpenAI, model_name: str, fields: dict, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model=model_name, **fields)
    assert raised.value.param == param


def test_a_generative_model_does_not_rerank(server_url: str) -> None:
    answer = httpx.post(f"{server_url}/v1/rerank", json={"query": "a", "documents": ["b"]}, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "not_a_scoring_model"


# --- fields of vLLM ---


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
