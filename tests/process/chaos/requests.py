"""Requests of the mixed load: plain, streamed, sampled, constrained, with tools, scored, embedded, and programs.

Each has one right answer, whatever else the server computes: it is greedy or has a seed, or it is checked by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

import radixrt as rt
from radixrt.errors import EngineError, RequestError
from radixrt.lang.errors import CallError
from tests.server_process import LIMIT_S

MODEL = "tiny"
GREEDY = {"temperature": 0, "max_tokens": 96, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 7, "max_tokens": 64, "ignore_eos": True}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": PERSON, "strict": True}}]
LIST = 'root ::= "[" item ("," item){3,6} "]"\nitem ::= [a-z]{2,5}'


class RequestEnded(Exception):
    """A request ended with an error of the server."""


class BrokenAnswer(Exception):
    """An answer that no failure excuses: cut off, ended twice, or not what was asked for."""


@dataclass(frozen=True)
class Kind:
    """One kind of request.

    Attributes:
        send: sends the request and returns its answer; the argument is the number of the request.
        fixed: the answer is the same each time; otherwise `send` has checked it.
    """

    name: str
    send: Callable[[httpx.Client, int], Any]
    fixed: bool = True


def _post(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = client.post(path, json=body)
    content = response.json()
    if response.status_code != 200:
        raise RequestEnded(f"{response.status_code}: {content['error']['message']}")
    return content


def _choices(content: Any) -> list[Any]:
    """Return the finish reason and the content of each choice, in order."""
    choices = sorted(content["choices"], key=lambda choice: choice["index"])
    return [[choice["finish_reason"], choice.get("text"), _said(choice.get("message"))] for choice in choices]


def _said(message: Any) -> Any:
    if message is None or not message.get("tool_calls"):
        return message and message["content"]
    return [[call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"]]


def completion(**fields: Any) -> Callable[[httpx.Client, int], Any]:
    return lambda client, number: _choices(_post(client, "/v1/completions", fields))


def chat(content: str, **fields: Any) -> Callable[[httpx.Client, int], Any]:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return lambda client, number: _choices(_post(client, "/v1/chat/completions", body))


def streamed(**fields: Any) -> Callable[[httpx.Client, int], Any]:
    """A streamed completion, whose every choice ends once, and which ends with [DONE] or with one error."""

    def send(client: httpx.Client, number: int) -> list[Any]:
        texts: dict[int, str] = {}
        reasons: dict[int, str] = {}
        done = False
        with client.stream("POST", "/v1/completions", json={**fields, "stream": True}) as response:
            if response.status_code != 200:
                response.read()
                raise RequestEnded(f"{response.status_code}: {response.json()['error']['message']}")
            for line in filter(None, response.iter_lines()):
                if done:
                    raise BrokenAnswer(f"an event after the end: {line}")
                event = line.removeprefix("data: ")
                done = event == "[DONE]"
                content = {"choices": []} if done else json.loads(event)
                if "error" in content:
                    raise RequestEnded(f"in the stream: {content['error']['message']}")
                for choice in content["choices"]:
                    index, reason = choice["index"], choice["finish_reason"]
                    if index in reasons:
                        raise BrokenAnswer(f"completion {index} goes on after its end")
                    texts[index] = texts.get(index, "") + (choice["text"] or "")
                    if reason is not None:
                        reasons[index] = reason
        if not done or set(reasons) != set(texts):
            raise BrokenAnswer(f"the stream was cut off; ended: {reasons}")
        return [[reasons[index], texts[index]] for index in sorted(texts)]

    return send


def native(**fields: Any) -> Callable[[httpx.Client, int], Any]:
    def send(client: httpx.Client, number: int) -> Any:
        answer = _post(client, "/generate", fields)
        return answer["text"], answer["output_ids"], answer["meta_info"]["finish_reason"]

    return send


def score(client: httpx.Client, number: int) -> Any:
    answer = _post(
        client, "/v1/decisions", {"text": "The best fruit is the", "choices": [" apple", " pear", " quince"]}
    )
    return answer["choice"], answer["token_ids"], [round(value, 2) for value in answer["logprobs"]]


def embed(client: httpx.Client, number: int) -> Any:
    """The first numbers of each vector; a restarted server computes the same ones."""
    texts = ["Once upon a time " * 20, "Once upon a time " * 30, "apple"]
    answer = _post(client, "/v1/embeddings", {"input": texts, "dimensions": 8})
    return [[round(value, 1) for value in each["embedding"]] for each in answer["data"]]


def fresh_constraint(client: httpx.Client, number: int) -> None:
    """A constraint that was never compiled before; the answer is checked against it."""
    pattern = f"[a-f]{{4,12}}-{number}-[0-9]{{3}}"
    body = {"prompt": "A code: ", "regex": pattern, "temperature": 0, "max_tokens": 40}
    text = _post(client, "/v1/completions", body)["choices"][0]["text"]
    if not re.fullmatch(pattern, text):
        raise BrokenAnswer(f"{text!r} does not match {pattern}")


@rt.function
def compare(s: Any, subject: str) -> None:
    s += rt.system("You compare things.") + rt.user(subject)
    views = s.fork(["size", "price"])
    for view, topic in views.items():
        view += rt.user(f"Say something about its {topic}.") + rt.assistant(rt.gen("note", max_tokens=24))
    s += rt.user("Notes:\n" + rt.join(views, "note"))
    s += rt.assistant(rt.select("grade", ["good", "bad"]))


def program(client: httpx.Client, number: int) -> Any:
    """A program with a fork and a selection, on the server's native routes."""
    try:
        state = compare.run("a boat", backend=str(client.base_url), sampling={"temperature": 0, "ignore_eos": True})
        return state["grade"], state.text()
    except (EngineError, RequestError, CallError) as error:
        raise RequestEnded(str(error)) from None


KINDS = (
    Kind("plain", completion(prompt="The capital of France", **GREEDY)),
    Kind("plain, long", completion(prompt="Once upon a time " * 30, **{**GREEDY, "max_tokens": 160})),
    Kind("penalties", completion(prompt="The lazy dog", frequency_penalty=0.8, repetition_penalty=1.2, **GREEDY)),
    Kind("n = 3, seed", chat("Tell me a story.", n=3, **SEEDED)),
    Kind("streamed", streamed(prompt="Once upon a time", **GREEDY)),
    Kind("streamed, n = 2, seed", streamed(prompt="A tale of two", n=2, **SEEDED)),
    Kind("logprobs", completion(prompt="Ada is", logprobs=2, presence_penalty=0.5, **SEEDED)),
    Kind("stop string", native(text="The quick brown", sampling_params={**GREEDY, "stop": ["e"], "min_tokens": 8})),
    Kind("token ids", native(input_ids=list(range(20, 60)), sampling_params=GREEDY)),
    Kind("schema", completion(prompt="A person: ", json_schema=PERSON, temperature=0, max_tokens=120)),
    Kind("schema, stream", streamed(prompt="A person: ", json_schema=PERSON, temperature=0, max_tokens=120)),
    Kind("grammar, seed", completion(prompt="A list: ", ebnf=LIST, temperature=1.0, seed=3, max_tokens=80)),
    Kind("new constraint", fresh_constraint, fixed=False),
    Kind("tools", chat("Who is Ada?", tools=TOOLS, tool_choice="required", temperature=0, max_tokens=160)),
    Kind("scores", score),
    Kind("embeddings", embed),
    Kind("program", program),
)  # fmt: skip


def make_client(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=LIMIT_S)
