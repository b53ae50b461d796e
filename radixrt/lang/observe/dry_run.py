"""`Rehearsal`: a backend that answers every call with a placeholder, and counts prompts as the real one would."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from radixrt.lang.backends.base import (
    Backend,
    Call,
    Decision,
    Delta,
    Hint,
    Part,
    Prompt,
    Result,
    SelectMethod,
    TemplateText,
)
from radixrt.lang.observe.placeholders import Variant, placeholder
from radixrt.messages.parts import Usage

PREFIX = "rehearsal "
"""Names of such backends begin with it, so that observers of real runs can pass them over."""

ROLES = {
    "templates": {"default": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                             "{% if add_generation_prompt %}assistant: {% endif %}"},
    "special_tokens": {},
}  # fmt: skip
"""Stands for the chat template of a backend that does not tell its own."""


MAX_CALLS = 5_000
MAX_CALLS_OF_A_BRANCH = 200


class TooManyCalls(Exception):
    """The program goes on calling: more than MAX_CALLS, or MAX_CALLS_OF_A_BRANCH one after another."""


class Rehearsal(Backend):
    """See the module's docstring.

    Args:
        inner: the backend that a real run would use; asked for its template and its tokens, never for an answer.
        variant: which placeholder is answered.

    Attributes:
        unit: what prompts are counted in: "tokens", or "characters" where the backend knows no tokens.
    """

    tokens = True

    def __init__(self, inner: Backend, variant: Variant) -> None:
        self.name = PREFIX + uuid.uuid4().hex
        self.unit = "tokens" if inner.tokens else "characters"
        self._inner = inner
        self._variant = variant
        self._calls: Counter[str] = Counter()

    async def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        self._count(call.hint)
        text = placeholder(call.sampling, self._variant)
        prompt_ids = await self.tokenize(call.prompt.parts)
        token_ids = await self.tokenize([TemplateText(text)])
        usage = Usage(len(prompt_ids), len(token_ids))
        yield Delta(text, token_ids, Result(text, token_ids, prompt_ids, "stop", usage, kept=len(token_ids)))

    async def select(self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: Hint | None) -> Decision:
        self._count(hint)
        chosen = -self._variant % len(choices)
        prompt_ids = await self.tokenize(prompt.parts)
        token_ids = [await self.tokenize([TemplateText(choice)]) for choice in choices]
        even = [1 / len(choices)] * len(choices)
        usage = Usage(len(prompt_ids), sum(map(len, token_ids)))
        return Decision(chosen, even, even, even, token_ids, len(prompt_ids), prompt_ids, usage)

    async def chat_template(self) -> Mapping[str, Any] | None:
        return await self._inner.chat_template() if self._inner.tokens else ROLES

    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        if self._inner.tokens:
            return await self._inner.tokenize(parts)
        ids: list[int] = []
        for part in parts:
            text = part.template if isinstance(part, TemplateText) else part
            ids += [ord(char) for char in text] if isinstance(text, str) else text
        return ids

    async def release(self, program: str, branch: str | None = None) -> None:
        """Nothing was kept."""

    async def aclose(self) -> None:
        """The inner backend is its owner's."""

    def _count(self, hint: Hint | None) -> None:
        branch = "" if hint is None else hint.branch
        self._calls[branch] += 1
        if self._calls[branch] > MAX_CALLS_OF_A_BRANCH or self._calls.total() > MAX_CALLS:
            raise TooManyCalls
