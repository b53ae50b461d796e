"""Requests of a soak: every kind that the server answers, ever new in text, length, constraint and namespace.

A request that is answered wrongly raises `BrokenAnswer`; one that the server may refuse returns its status.
"""

import json
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

import radixrt as rt
from radixrt.bench.words import WORDS, prose

Json = dict[str, Any]
Send = Callable[[httpx.AsyncClient, random.Random], Awaitable[int]]
"""Sends one request and returns the HTTP status of its answer."""


class BrokenAnswer(Exception):
    """An answer that is no answer to its request: not understood, cut off, or with an error where none belongs."""


def prompt(rng: random.Random) -> str:
    """A text of 1 to 300 tokens, half of the time behind one of three long prefixes that many requests share."""
    shared = prose(random.Random(rng.randrange(3)), 120) if rng.random() < 0.5 else ""
    return shared + prose(rng, rng.choice((1, 8, 40, rng.randrange(1, 300))))


def sampling(rng: random.Random) -> Json:
    """Sampling fields, sometimes a new namespace of the cache, penalties or a stop string."""
    fields: Json = {"max_tokens": rng.randrange(1, 64), "temperature": rng.choice((0.0, 0.7, 1.0))}
    if rng.random() < 0.2:
        fields["cache_salt"] = f"tenant-{rng.randrange(10_000)}"
    if rng.random() < 0.2:
        fields |= {"presence_penalty": 0.5, "frequency_penalty": 0.2, "seed": rng.randrange(1000)}
    if rng.random() < 0.2:
        fields |= {"top_p": 0.9, "stop": [rng.choice(WORDS)]}
    return fields


async def _post(client: httpx.AsyncClient, path: str, body: Json) -> tuple[int, Json]:
    answer = await client.post(path, json=body)
    try:
        content = answer.json()
    except ValueError:
        raise BrokenAnswer(f"{path}: {answer.status_code} without JSON") from None
    if answer.status_code == 200 and not content.get("choices") and "choice" not in content:
        raise BrokenAnswer(f"{path}: 200 without choices")
    return answer.status_code, content


async def plain(client: httpx.AsyncClient, rng: random.Random) -> int:
    body = {"prompt": prompt(rng), "logprobs": rng.choice((None, 3)), **sampling(rng)}
    return (await _post(client, "/v1/completions", body))[0]


async def several(client: httpx.AsyncClient, rng: random.Random) -> int:
    n = rng.randrange(2, 5)
    body = {"messages": [{"role": "user", "content": prompt(rng)}], "n": n, **sampling(rng)}
    status, content = await _post(client, "/v1/chat/completions", body)
    if status == 200 and len(content["choices"]) != n:
        raise BrokenAnswer(f"{len(content['choices'])} choices for n={n}")
    return status


async def scored(client: httpx.AsyncClient, rng: random.Random) -> int:
    choices = [f" {word}" for word in rng.sample(WORDS, 4)]
    return (await _post(client, "/v1/decisions", {"text": prompt(rng), "choices": choices}))[0]


async def streamed(client: httpx.AsyncClient, rng: random.Random) -> int:
    """A streamed chat; a third of the clients leave in the middle."""
    body = {"messages": [{"role": "user", "content": prompt(rng)}], "stream": True, **sampling(rng)}
    leaves_after = rng.randrange(1, 30) if rng.random() < 1 / 3 else None
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        last, lines = "", 0
        async for line in answer.aiter_lines():
            if line:
                last, lines = line, lines + 1
            if lines == leaves_after:
                return 499
    if answer.status_code == 200 and last != "data: [DONE]":
        raise BrokenAnswer(f"a stream that ended with {last:.80}")
    return answer.status_code


def schema(rng: random.Random) -> Json:
    """One of 20 schemas that come again, or a new one."""
    number = rng.randrange(20) if rng.random() < 0.7 else rng.randrange(10**9)
    fields = {
        f"{WORDS[number % len(WORDS)]}_{number}": {"type": "string", "maxLength": 12},
        "count": {"type": "integer"},
    }
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


async def constrained(client: httpx.AsyncClient, rng: random.Random) -> int:
    wanted = schema(rng)
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted, "strict": True}}
    body = {"messages": [{"role": "user", "content": prompt(rng)}], "response_format": shape, "max_tokens": 60}
    status, content = await _post(client, "/v1/chat/completions", body)
    if status == 200:
        _check(content["choices"][0]["message"]["content"], wanted)
    return status


async def tools(client: httpx.AsyncClient, rng: random.Random) -> int:
    parameters = schema(rng)
    tool = {"type": "function", "function": {"name": "look_up", "parameters": parameters, "strict": True}}
    body = {"messages": [{"role": "user", "content": prompt(rng)}], "tools": [tool], "max_tokens": 80}
    status, content = await _post(client, "/v1/chat/completions", {**body, "tool_choice": "required"})
    if status == 200:
        for call in content["choices"][0]["message"]["tool_calls"]:
            _check(call["function"]["arguments"], parameters)
    return status


def _check(text: str, wanted: Mapping[str, Any]) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        raise BrokenAnswer(f"no JSON: {text:.80}") from None
    if list(value) != list(wanted["properties"]):
        raise BrokenAnswer(f"not of its schema: {text:.80}")


BAD: tuple[tuple[str, bytes], ...] = (
    ("/v1/completions", b"{"),
    ("/v1/completions", b"\xff\xfe"),
    ("/v1/completions", b'{"prompt": "x", "max_tokens": -1}'),
    ("/v1/completions", b'{"prompt": "x", "temperature": 1e999}'),
    ("/v1/completions", b'{"prompt": [1, 2, 99999999]}'),
    ("/v1/completions", b'{"prompt": "' + b"word " * 40_000 + b'"}'),
    ("/v1/completions", b'{"prompt": "x", "regex": "(((["}'),
    ("/v1/completions", b'{"prompt": "x", "regex": "' + b"(a?){9}" * 30 + b'"}'),
    ("/v1/completions", b'{"prompt": "x", "json_schema": {"$ref": "#/nowhere"}}'),
    ("/v1/chat/completions", b'{"messages": []}'),
    ("/v1/chat/completions", b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}"),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": 5}]}'),
    ("/v1/decisions", b'{"text": "x", "choices": []}'),
    ("/no/such/route", b"{}"),
)


async def bad(client: httpx.AsyncClient, rng: random.Random) -> int:
    path, body = rng.choice(BAD)
    answer = await client.post(path, content=body, headers={"content-type": "application/json"})
    if answer.status_code >= 500:
        raise BrokenAnswer(f"{answer.status_code} for bad input {body[:60]!r}")
    return answer.status_code


@rt.function
def compare(s: Any, subject: str, topics: list[str]) -> None:
    """A program with a fork, a join and a selection."""
    s += rt.system("You compare things.") + rt.user(subject)
    views = s.fork(topics)
    for view, topic in views.items():
        view += rt.user(f"Say something about its {topic}.") + rt.assistant(rt.gen("note", max_tokens=16))
    s += rt.user("Notes:\n" + rt.join(views, "note")) + rt.assistant(rt.select("grade", ["good", "bad"]))


KINDS: dict[str, tuple[int, Send]] = {
    "plain": (6, plain),
    "n > 1": (2, several),
    "streamed": (6, streamed),
    "constrained": (3, constrained),
    "tools": (2, tools),
    "scored": (2, scored),
    "bad input": (3, bad),
}
"""Kinds by name, with the weights by which they are chosen. Programs run apart, on threads of their own."""
