"""`PromptEncoder`: converts a request's prompt, in any of its forms, to token ids that the engine can serve."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.errors import RequestError
from radixrt.messages.client import GenerateReq, ScoreReq, TokenizeReq
from radixrt.messages.parts import ChatPrompt, PromptPart, TemplateText
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.tokenizer.chat_template import MAX_RENDER_CHARS, RenderedTooLong
from radixrt.tokenizer.choices import ChoiceTokens, encode_choices
from radixrt.tokenizer.prompt_parts import PartsEncoder
from radixrt.tokenizer.tokenizer import Tokenizer

MAX_CHOICES = 10_000
"""Largest number of choices in one scoring request."""


def max_input_tokens(context_length: int, num_slots: int) -> int:
    """Length of the longest prompt that can be served: one output token must fit in the context and in the KV pool."""
    return max(min(context_length, num_slots) - 1, 0)


class PromptEncoder:
    """Encodes and checks prompts.

    Args:
        vocab_size: token ids of prompts must be below this.
        context_length: longest sequence of the model, in tokens.

    Attributes:
        max_input_tokens: length of the longest prompt; lowered once the size of the KV pool is known.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._parts = PartsEncoder(tokenizer)
        self._vocab_size = vocab_size
        self._context_length = context_length
        self.max_input_tokens = max_input_tokens(context_length, context_length)

    def input_ids(self, req: GenerateReq | TokenizeReq) -> bytes:
        """Encode a prompt as an int32 column; raises RequestError naming the field."""
        _check_one(req)
        if req.input_ids is not None:
            return self._checked(req.input_ids, "input_ids")
        if req.chat is not None:
            ids = self._encode(self._render(req.chat), "messages", add_special_tokens=False)
            return self._checked(ids, "messages")
        if req.parts is not None:
            self._check_parts(req.parts)
            return self._checked(pack_i32(self._parts.encode(req.parts, "input_parts")), "input_parts")
        assert req.prompt is not None
        return self._checked(self._encode(req.prompt, "prompt", add_special_tokens=True), "prompt")

    def choices(self, req: ScoreReq) -> ChoiceTokens:
        """Encode a prompt and the choices after it; raises RequestError naming the field."""
        _check_one(req)
        self._check_choices(req.choices)
        prefix, parts, param = self._scored_parts(req)
        tokens = encode_choices(self._parts, prefix, parts, param, req.choices)
        self._checked(pack_i32(tokens.prompt_ids), param)
        if tokens.kept == 0:
            raise RequestError(
                "no token of the prompt stays in front of all choices, so that there is nothing to score them after; "
                "begin the prompt with the model's bos token or with some text",
                param=param,
            )
        for i, ids in enumerate(tokens.token_ids):
            self._check_ids(np.asarray(ids, np.int64), f"choices[{i}]")
            if tokens.kept + len(ids) > self.max_input_tokens:
                raise self._too_long(str(tokens.kept + len(ids)), f"choices[{i}]")
        return tokens

    def begins_text(self) -> tuple[int, ...]:
        """Token ids that begin a text: the tokenizer's prefix, or the bos token, or an end token."""
        if self._tokenizer.prefix_ids:
            return self._tokenizer.prefix_ids
        named = self._tokenizer.special_tokens.get("bos_token")
        bos = None if named is None else self._tokenizer.token_to_id(named)
        if bos is not None:
            return (bos,)
        if not self._tokenizer.eos_ids:
            raise RequestError("this model has no token that begins a text; use another method", param="method")
        return self._tokenizer.eos_ids[:1]

    def checked_ids(self, token_ids: bytes) -> Int32Array:
        """Check token ids that are to be detokenized; raises RequestError."""
        return unpack_i32(self._checked(token_ids, "tokens")) if token_ids else np.empty(0, np.int32)

    def _scored_parts(self, req: ScoreReq) -> tuple[tuple[int, ...], list[PromptPart], str]:
        """Return the token ids before the parts, the parts, and the client's name for the parts."""
        if req.parts is not None:
            self._check_parts(req.parts)
            begins = bool(req.parts) and isinstance(req.parts[0], str)
            return self._tokenizer.prefix_ids if begins else (), req.parts, "input_parts"
        if req.input_ids is not None:
            return (), [unpack_i32(self._checked(req.input_ids, "input_ids")).tolist()], "input_ids"
        if req.chat is not None:
            return (), [TemplateText(self._render(req.chat))], "messages"
        assert req.prompt is not None
        self._check_length(len(req.prompt), "prompt")
        return self._tokenizer.prefix_ids, [TemplateText(req.prompt)], "prompt"

    def _check_choices(self, choices: list[str]) -> None:
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise RequestError(f"choices must hold 1 to {MAX_CHOICES} texts, not {len(choices)}", param="choices")
        first: dict[str, int] = {}
        for i, text in enumerate(choices):
            name = f"choices[{i}]"
            if not text:
                raise RequestError(f"{name} must not be empty", param=name)
            if first.setdefault(text, i) != i:
                raise RequestError(f"{name} is the same as choices[{first[text]}]", param=name)
            self._check_length(len(text), name)

    def _check_parts(self, parts: list[PromptPart]) -> None:
        for i, part in enumerate(parts):
            if isinstance(part, list):
                self._check_ids(np.asarray(part, np.int64), f"input_parts[{i}]")
        texts = (part.template if isinstance(part, TemplateText) else part for part in parts)
        self._check_length(sum(len(text) for text in texts if isinstance(text, str)), "input_parts")

    def _render(self, chat: ChatPrompt) -> str:
        template = self._tokenizer.chat_template
        if template is None:
            raise RequestError(
                "the model has no chat template; send a prompt, or start with chat_template", param="messages"
            )
        per_token = self._tokenizer.max_bytes_per_token
        bound = MAX_RENDER_CHARS if per_token is None else per_token * self.max_input_tokens
        try:
            return template.render(
                _decode_json(chat.messages, list[dict[str, Any]], "messages"),
                add_generation_prompt=chat.add_generation_prompt,
                continue_final_message=chat.continue_final_message,
                tools=None if chat.tools is None else _decode_json(chat.tools, list[dict[str, Any]], "tools"),
                variables=_decode_json(chat.template_kwargs, dict[str, Any], "chat_template_kwargs"),
                max_chars=bound,
            )
        except RenderedTooLong as error:
            raise self._too_long(f"more than {self.max_input_tokens}", "messages") from error

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> bytes:
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"{param} holds half of a surrogate pair, which is not text", param=param) from error
        self._check_length(num_bytes, param)
        return pack_i32(self._tokenizer.encode(text, add_special_tokens))

    def _check_length(self, num_bytes: int, param: str) -> None:
        """Refuse a text that is certainly too long before seconds are spent on tokenizing it."""
        per_token = self._tokenizer.max_bytes_per_token
        if per_token is not None and num_bytes > per_token * self.max_input_tokens:
            raise self._too_long(f"more than {self.max_input_tokens}", param)

    def _checked(self, input_ids: bytes, param: str) -> bytes:
        if len(input_ids) % 4:
            raise RequestError(f"{param} must be a column of 32-bit integers", param=param)
        ids = unpack_i32(input_ids)
        if not len(ids):
            raise RequestError(f"{param} must hold at least one token", param=param)
        if len(ids) > self.max_input_tokens:
            raise self._too_long(str(len(ids)), param)
        self._check_ids(ids, param)
        return input_ids

    def _check_ids(self, ids: npt.NDArray[np.integer], param: str) -> None:
        wrong = np.flatnonzero((ids < 0) | (ids >= self._vocab_size))
        if len(wrong):
            at = int(wrong[0])
            raise RequestError(
                f"{param} holds {ids[at]} at position {at}; token ids are below {self._vocab_size}",
                param=param,
            )

    def _too_long(self, tokens: str, param: str) -> RequestError:
        name = "messages" if param == "messages" else "prompt"
        return RequestError(
            f"This model's maximum context length is {self._context_length} tokens, of which the {name} may take up to "
            f"{self.max_input_tokens}. However, your {name} resulted in {tokens} tokens. Please reduce its length.",
            param=param,
            code="context_length_exceeded",
        )


def _check_one(req: GenerateReq | ScoreReq | TokenizeReq) -> None:
    if [req.prompt, req.input_ids, req.chat, req.parts].count(None) != 3:
        raise RequestError("exactly one of prompt, input_ids, messages and input_parts must be given", param="prompt")


def _decode_json(data: bytes, kind: Any, param: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{param} is not the JSON it should be: {error}", param=param) from error
