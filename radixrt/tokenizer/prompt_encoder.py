"""`PromptEncoder`: converts a request's prompt, in any of its forms, to token ids that the engine can serve."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.errors import RequestError
from radixrt.messages.client import Input, PartsInput, TextInput, TokenInput
from radixrt.messages.parts import ChatPrompt, PromptPart, TemplateText
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.sampling_params import MAX_CHOICES
from radixrt.tokenizer.chat_template import MAX_RENDER_CHARS, ChatTemplate, RenderedTooLong
from radixrt.tokenizer.choices import ChoiceTokens, encode_choices
from radixrt.tokenizer.generation_prompt import GenerationPrompts
from radixrt.tokenizer.image_prompt import ImagePrompt
from radixrt.tokenizer.image_reader import Picture
from radixrt.tokenizer.prompt_parts import INPUT_PARTS, PartsEncoder
from radixrt.tokenizer.template_trace import strings
from radixrt.tokenizer.tokenizer import Tokenizer


def needs_encoding(given: Input) -> bool:
    """Return whether a prompt has a text; otherwise it is token ids."""
    if isinstance(given, PartsInput):
        return any(not isinstance(part, list) for part in given.parts)
    return not isinstance(given, TokenInput)


def max_input_tokens(context_length: int, num_slots: int) -> int:
    """Return the length of the longest prompt that can be served: the context and the KV pool must also hold an output
    token."""
    return max(min(context_length, num_slots) - 1, 0)


class PromptEncoder:
    """Encodes and checks prompts.

    Args:
        vocab_size: token ids of prompts must be below this.
        context_length: longest sequence of the model, in tokens.
        announce: called before a text is encoded, with its number of characters.
        images: places the pictures of prompts; None for a model that reads none.

    Attributes:
        max_input_tokens: length of the longest prompt; lowered once the size of the KV pool is known.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        context_length: int,
        announce: Callable[[int], None] = lambda chars: None,
        images: ImagePrompt | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._announce = announce
        self._images = images
        self._parts = PartsEncoder(tokenizer, announce=announce)
        self._chats: dict[tuple[str, ...], PartsEncoder] = {}  # by the answer markers, of which a model has few
        template = tokenizer.chat_template
        self._generation_prompts = None if template is None else GenerationPrompts(template)
        self._vocab_size = vocab_size
        self._context_length = context_length
        self.max_input_tokens = max_input_tokens(context_length, context_length)

    def input_ids(
        self, given: Input, before: str = "", keep_last: int | None = None, pictures: Sequence[Picture] = ()
    ) -> bytes:
        """Encode a prompt, other than a pair, as an int32 column.

        Args:
            before: written before a text.
            keep_last: maximum number of tokens; a longer prompt is cut to its last `keep_last` tokens. None: never cut.
            pictures: of the prompt; an image token stands at each position of their images.

        Raises:
            RequestError: the prompt is not valid; the error names the prompt.
        """
        self._check_tokenizer(given)
        if pictures:
            ids, param = self._with_images(given, pictures)
            if keep_last is not None and len(ids) > 4 * keep_last:
                raise RequestError("a prompt with images cannot be cut to its last tokens; shorten it", param=param)
        else:
            ids, param = self._encoded(given, before)
        return self._checked(ids if keep_last is None else ids[-4 * keep_last :], param)

    def _with_images(self, given: Input, pictures: Sequence[Picture]) -> tuple[bytes, str]:
        """Return a prompt with pictures as an int32 column, and the client's name for it."""
        assert self._images is not None
        begin, parts, repeats, param = self._scored_parts(given, pictures)
        encoder = self._chat_encoder(given) if isinstance(given, ChatPrompt) else self._parts
        return pack_i32(self._images.expand([*begin, *encoder.encode(parts, param)], repeats)), param

    def turn_len(self, chat: Input, input_ids: bytes) -> int:
        """Return the number of tokens of an encoded conversation up to the end of its last message; 0 if unknown."""
        if not isinstance(chat, ChatPrompt) or self._generation_prompts is None:
            return 0
        encoder = self._chat_encoder(chat)
        return self._generation_prompts.turn_len(
            chat, unpack_i32(input_ids), lambda text: encoder.encode([TemplateText(text)], "messages")
        )

    def _encoded(self, given: Input, before: str) -> tuple[bytes, str]:
        """Return the prompt as an int32 column, and the client's name for it."""
        if isinstance(given, TokenInput):
            return given.ids, given.param
        if isinstance(given, ChatPrompt):
            return self._chat(given), "messages"
        if isinstance(given, PartsInput):
            self._check_parts(given.parts)
            return pack_i32([*self._begin(given.parts), *self._parts.encode(given.parts, INPUT_PARTS)]), INPUT_PARTS
        assert isinstance(given, TextInput)
        return pack_i32(self._encode(before + given.text, given.param)), given.param

    def pair(self, first: str, first_name: str, second: str, second_name: str) -> bytes:
        """Encode two texts as the tokenizer encodes a pair; raises RequestError naming a text."""
        self._check_length(_num_bytes(first, first_name), first_name)
        self._check_length(_num_bytes(second, second_name), second_name)
        self._announce(len(first) + len(second))
        return self._checked(pack_i32(self._tokenizer.encode_pair(first, second)), second_name)

    def rendered(self, chat: ChatPrompt, template: ChatTemplate, param: str) -> bytes:
        """Encode messages as a template renders them, as an int32 column.

        Raises:
            RequestError: a message is not valid; the error has the given `param`.
        """
        try:
            return self._checked(self._chat(chat, template), param)
        except RequestError as error:
            raise RequestError(error.message, param=param, code=error.code, status=error.status) from error

    def choices(self, given: Input, choices: list[str], pictures: Sequence[Picture] = ()) -> ChoiceTokens:
        """Encode a prompt, other than a pair, and the choices after it; raises RequestError naming the field.

        Args:
            pictures: as for `input_ids`.
        """
        self._check_tokenizer(given)
        self.check_text("choices")
        self._check_choices(choices)
        prefix, parts, repeats, param = self._scored_parts(given, pictures)
        encoder = self._chat_encoder(given) if isinstance(given, ChatPrompt) else self._parts
        tokens = encode_choices(encoder, prefix, parts, param, choices)
        if pictures:
            assert self._images is not None
            expanded = self._images.expand(tokens.prompt_ids, repeats).tolist()
            # Images are before every choice: control tokens end a run of text that is tokenized with a choice.
            kept = tokens.kept + len(expanded) - len(tokens.prompt_ids)
            tokens = ChoiceTokens(expanded, kept, tokens.token_ids)
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
        """Return the token ids that begin a text: the tokenizer's prefix, else the bos token, else an end token."""
        if self._tokenizer.prefix_ids:
            return self._tokenizer.prefix_ids
        named = self._tokenizer.special_tokens.get("bos_token")
        bos = None if named is None else self._tokenizer.token_to_id(named)
        if bos is not None:
            return (bos,)
        if not self._tokenizer.eos_ids:
            raise RequestError("this model has no token that begins a text; use another method", param="method")
        return self._tokenizer.eos_ids[:1]

    def check_targets(self, targets: list[int]) -> None:
        """Refuse token ids outside the vocabulary; raises RequestError."""
        self._check_ids(np.asarray(targets, np.int64), "targets")

    def check_text(self, param: str) -> None:
        """Refuse a field that needs a tokenizer if there is none."""
        if self._tokenizer.is_none:
            raise RequestError(
                f"{param} needs a tokenizer, and the engine was started without one (skip_tokenizer_init); send token "
                "ids",
                param=param,
            )

    def _check_tokenizer(self, given: Input) -> None:
        """Refuse a prompt that needs a tokenizer if there is none."""
        if isinstance(given, PartsInput):
            for i, part in enumerate(given.parts):
                if not isinstance(part, list):
                    self.check_text(f"{INPUT_PARTS}[{i}]")
        elif isinstance(given, TextInput):
            self.check_text(given.param.partition("[")[0])
        elif isinstance(given, ChatPrompt):
            self.check_text("messages")

    def _scored_parts(
        self, given: Input, pictures: Sequence[Picture]
    ) -> tuple[tuple[int, ...], list[PromptPart], list[int], str]:
        """Return the token ids before the parts, the parts, the positions of each image token in them (see
        `ImagePrompt.write`), and the client's name for the parts."""
        if isinstance(given, TokenInput):
            return (), [unpack_i32(self._checked(given.ids, given.param)).tolist()], [], given.param
        if isinstance(given, TextInput):
            self._check_length(len(given.text), given.param)
            return self._tokenizer.prefix_ids, [TemplateText(given.text)], [], given.param
        assert isinstance(given, (ChatPrompt, PartsInput))
        is_chat, repeats = isinstance(given, ChatPrompt), list[int]()
        parts = self._chat_parts(given) if isinstance(given, ChatPrompt) else given.parts
        begin = () if is_chat else self._begin(parts)
        if pictures:
            assert self._images is not None
            parts, repeats = self._images.write(parts, pictures)
        if not is_chat:
            self._check_parts(parts)
        return begin, parts, repeats, "messages" if is_chat else INPUT_PARTS

    def _begin(self, parts: list[PromptPart]) -> tuple[int, ...]:
        """Return the token ids before a prompt in parts: the tokenizer's prefix (bos) if the first part is a user's
        text, otherwise none."""
        return self._tokenizer.prefix_ids if parts and isinstance(parts[0], str) else ()

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
                self._check_ids(np.asarray(part, np.int64), f"{INPUT_PARTS}[{i}]")
        texts = (part.template if isinstance(part, TemplateText) else part for part in parts)
        self._check_length(sum(len(text) for text in texts if isinstance(text, str)), INPUT_PARTS)

    def _chat_encoder(self, chat: ChatPrompt) -> PartsEncoder:
        markers = tuple(chat.answer_markers)
        if markers not in self._chats:
            controls = self._tokenizer.control_tokens.keys() - set(markers)
            self._chats[markers] = PartsEncoder(self._tokenizer, controls, self._announce)
        return self._chats[markers]

    def _chat(self, chat: ChatPrompt, template: ChatTemplate | None = None) -> bytes:
        """Encode a conversation as an int32 column, by the model's own template unless another is given."""
        return pack_i32(self._chat_encoder(chat).encode(self._chat_parts(chat, template), "messages"))

    def _chat_parts(self, chat: ChatPrompt, template: ChatTemplate | None = None) -> list[PromptPart]:
        """Render a conversation to texts of the template and texts of the request."""
        template = template or self._tokenizer.chat_template
        if template is None:
            raise RequestError(
                "the model has no chat template; send a prompt, or start with chat_template", param="messages"
            )
        per_token = self._tokenizer.max_bytes_per_token
        bound = MAX_RENDER_CHARS if per_token is None else per_token * self.max_input_tokens
        options: dict[str, Any] = {
            "messages": _decode_json(chat.messages, list[dict[str, Any]], "messages"),
            "add_generation_prompt": chat.add_generation_prompt,
            "continue_final_message": chat.continue_final_message,
            "tools": None if chat.tools is None else _decode_json(chat.tools, list[dict[str, Any]], "tools"),
            "variables": _decode_json(chat.template_kwargs, dict[str, Any], "chat_template_kwargs"),
        }
        try:
            text = template.render(**options, max_chars=bound)
        except RenderedTooLong as error:
            raise self._too_long(f"more than {self.max_input_tokens}", "messages") from error
        self._check_length(_num_bytes(text, "messages"), "messages")
        if chat.allow_control_tokens:
            return [TemplateText(text)]
        self._announce(len(text))
        parts: list[PromptPart] | None = None
        with contextlib.suppress(RequestError):
            parts = template.render_parts(**options, answer_markers=chat.answer_markers)
        if parts is None or _joined(parts) != text:
            # The template tests or changes texts that it has concatenated, so its output cannot be divided into parts.
            if not self._has_control_token(options):
                return [TemplateText(text)]
            if parts is None:
                raise RequestError(
                    "messages hold the text of a control token, and the chat template does not let it be told from "
                    "the template's own; leave it out, or set allow_control_tokens",
                    param="messages",
                )
        return parts

    def _has_control_token(self, value: Any) -> bool:
        """Return whether a string within a JSON value contains the text of any control token, answer markers too."""
        has_control_token = self._chat_encoder(ChatPrompt(b"")).has_control_token
        return any(map(has_control_token, strings(value)))

    def _encode(self, text: str, param: str) -> list[int]:
        self._check_length(_num_bytes(text, param), param)
        self._announce(len(text))
        return self._tokenizer.encode(text)

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


def _num_bytes(text: str, param: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestError(f"{param} holds half of a surrogate pair, which is not text", param=param) from error


def _joined(parts: list[PromptPart]) -> str:
    texts = (part.template if isinstance(part, TemplateText) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))


def _decode_json(data: bytes, kind: Any, param: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{param} is not the JSON it should be: {error}", param=param) from error
