"""`Endpoint`: runs programs on a radixrt server, over its native routes.

Prompts go as parts and come back as token ids, as with an `Engine` in this process, so that a program's outputs are the
same on both.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec

from radixrt.errors import EngineError, RequestError
from radixrt.lang.backends.base import Backend, Call, Decision, Delta, Hint, Part, Prompt, SelectMethod
from radixrt.lang.backends.endpoint_answers import Reading, decoded, error_of, refusal_of, usage_of
from radixrt.lang.backends.http import HttpClient, events
from radixrt.messages.parts import TemplateText
from radixrt.sampling_params import SamplingParams

DEFAULT_TIMEOUT_S = 600.0
DEAD = ("engine_dead", "engine_error", "shutting_down")
"""Codes of errors that are about the server, not about the request."""

FULL_WAIT_S = 0.25
"""After a 429 without Retry-After; and the spread of all waits, so that the refused do not all return at once."""


class Endpoint(Backend):
    """See the module's docstring.

    Args:
        base_url: "http://host:port" of a radixrt server, with or without "/v1".
        api_key: as given to the server, if it asks for one.
        timeout_s: the longest that one call may take, unless it has a limit of its own. A call that the server's full
            queue refuses is sent again until then.
        model: refuse to run on a server of any other model; None takes the one that is served.

    Raises:
        ConfigError: base_url is not an http or https URL.
    """

    tokens = True

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        model: str | None = None,
    ) -> None:
        url = base_url.rstrip("/").removesuffix("/v1")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = HttpClient(url, headers=headers)
        self._timeout_s = timeout_s
        self._model = model
        self._context: int | None = None
        self.name = f"Endpoint {self._http.base_url}"

    # --- calls ---

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        """See `Backend.generate`."""
        body: dict[str, Any] = {
            "input_parts": _wire_parts(call.prompt.parts),
            "sampling_params": await self._sampling(call.sampling),
            "stream": call.stream,
            "return_prompt_ids": True,
            **self._common(call.hint, call.timeout_s),
        }
        reading = Reading()
        async with self._post("/generate", body, call.timeout_s) as response:
            if not call.stream:
                reading.add(decoded(await response.aread()))
            else:
                async with aclosing(events(response)) as answers:
                    async for data in answers:
                        if data == b"[DONE]":
                            continue  # the body ends behind it, and a connection read to its end is kept
                        answer = decoded(data)
                        if "error" in answer:
                            raise error_of(answer["error"], 500)
                        reading.add(answer)
                        if reading.finish is None:
                            yield reading.delta()
        if reading.finish is None:
            raise EngineError(f"{self.name} ended its answer before it was finished")
        yield replace(reading.delta(), result=reading.result())

    async def select(self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: Hint | None) -> Decision:
        """See `Backend.select`."""
        body = {
            "input_parts": _wire_parts(prompt.parts),
            "choices": list(choices),
            "method": method,
            "return_prompt_ids": True,
            **self._common(hint, None),
        }
        answer = await self._json("POST", "/v1/decisions", body)
        return Decision(
            choice=answer["choice"],
            logprobs=answer["logprobs"],
            scores=answer["scores"],
            probabilities=answer["probabilities"],
            token_ids=answer["token_ids"],
            kept=answer["kept"],
            prompt_ids=answer["prompt_ids"],
            usage=usage_of(answer["meta_info"]),
        )

    async def chat_template(self) -> Mapping[str, Any] | None:
        template: Mapping[str, Any] | None = await self._json("GET", "/chat_template")
        return template

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        answer = await self._json("POST", "/tokenize", {"input_parts": _wire_parts(parts)})
        return list(answer["tokens"])

    async def release(self, program: str, branch: str | None = None) -> None:
        await self._json("POST", "/release", {"program": program, "branch": branch})

    async def aclose(self) -> None:
        await self._http.aclose()

    # --- requests ---

    def _common(self, hint: Hint | None, timeout_s: float | None) -> dict[str, Any]:
        fields: dict[str, Any] = {"timeout": self._timeout_s if timeout_s is None else timeout_s}
        if self._model is not None:
            fields["model"] = self._model
        if hint is not None:
            fields["program"] = _wire_hint(hint)
        return fields

    async def _sampling(self, sampling: SamplingParams) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(sampling)
        if sampling.max_tokens is None:  # which the wire has no word for; the context ends it first
            fields["max_tokens"] = await self._context_length()
        return fields

    async def _context_length(self) -> int:
        if self._context is None:
            models = await self._json("GET", "/v1/models")
            self._context = int(models["data"][0]["max_model_len"])
        return self._context

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        async with self._post(path, body, None, method=method) as response:
            return decoded(await response.aread())

    @asynccontextmanager
    async def _post(
        self, path: str, body: Any, timeout_s: float | None, *, method: str = "POST"
    ) -> AsyncGenerator[httpx.Response, None]:
        """A response with status 200; anything else is raised, but for a full queue, which is waited for."""
        data = None if body is None else msgspec.json.encode(body)
        limit = self._timeout_s if timeout_s is None else timeout_s
        deadline = asyncio.get_running_loop().time() + limit
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    async with self._http.stream(method, path, data) as response:
                        if response.status_code == 200:
                            yield response
                            return
                        error = refusal_of(response.status_code, await response.aread(), path)
                        wait = _wait(response.headers.get("retry-after"))
                    if error.status != 429 or asyncio.get_running_loop().time() + wait > deadline:
                        break
                    await asyncio.sleep(wait)
        except TimeoutError:
            raise RequestError(
                f"{self.name} did not answer within {limit:g} s", param="timeout_s", code="timeout", status=408
            ) from None
        if error.code in DEAD:
            raise EngineError(f"{self.name}: {error.message}")
        raise error


# --- what is sent ---


def _wire_parts(parts: Sequence[Part]) -> list[Any]:
    """Strings, lists of ids and {"template": text}."""
    return [part if isinstance(part, str) else _wire_part(part) for part in parts]


def _wire_part(part: Sequence[int] | TemplateText) -> Any:
    return part if isinstance(part, TemplateText) else list(part)


def _wire_hint(hint: Hint) -> dict[str, Any]:
    return {
        "id": hint.program,
        "branch": hint.branch,
        "fork_len": hint.fork_len,
        "siblings": hint.siblings,
        "will_continue": hint.will_continue,
    }


def _wait(retry_after: str | None) -> float:
    """Seconds until a call that was refused by a full queue is sent again."""
    try:
        least = float(retry_after or FULL_WAIT_S)
    except ValueError:
        least = FULL_WAIT_S
    return least + random.uniform(0.0, FULL_WAIT_S)
