"""`radixrt generate`: one answer, streamed to the terminal."""

from __future__ import annotations

import json
import sys
from typing import Any

from radixrt.client.engine_client import new_rid, raise_for_error
from radixrt.engine.engine import Engine
from radixrt.messages.client import GenerateReq
from radixrt.messages.parts import ChatPrompt
from radixrt.sampling_params import SamplingParams


def answer(
    prompt: str, *, options: dict[str, Any], raw: bool, system: str | None, max_tokens: int, temperature: float
) -> int:
    """Print the answer to stdout as it comes, and what it cost to stderr; returns the exit code."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature).validate()
    with Engine(**options) as engine:
        info = engine.client.info
        if raw or info is None or not info.has_chat_template:
            request = GenerateReq(new_rid(), sampling, prompt=prompt, stream=True)
        else:
            messages = [{"role": "system", "content": system}] if system else []
            messages.append({"role": "user", "content": prompt})
            request = GenerateReq(new_rid(), sampling, chat=ChatPrompt(json.dumps(messages).encode()), stream=True)
        for delta in engine.client.stream(request):
            print(delta.text, end="", flush=True)
            if delta.finish is not None:
                raise_for_error(delta.finish)
                usage = delta.usage
        print()
        if usage is not None and sys.stderr.isatty():
            print(f"[{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated]", file=sys.stderr)
    return 0
