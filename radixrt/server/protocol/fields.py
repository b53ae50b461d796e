"""Fields of request bodies: one msgspec Struct for each generating route, and checks that several routes share.

Unknown fields are ignored, which `receive_json` reports; null means "not given"; numbers are bounded by
`SamplingParams.validate` or here. Fields of `UnsupportedFields` are known and not served: they are refused by name,
never silently ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from radixrt.chat.constraint import ConstraintFields
from radixrt.chat.types import ChatMessage, Conversation, FunctionDefinition, ToolChoice, ToolDefinition, ToolName
from radixrt.chat.unsupported_fields import UnsupportedFields
from radixrt.config import ServerConfig
from radixrt.errors import RequestError, unsupported
from radixrt.messages.client import EngineReady
from radixrt.messages.parts import ProgramHint, TemplateText
from radixrt.messages.request import Envelope
from radixrt.sampling_params import HiddenPositions, SamplingParams
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.parts import TokenReport

MAX_RID_CHARS = 96
"""Less than the engine takes (`radixrt.tokenizer.limits`): tenants and completions lengthen the ids that it gets."""

MAX_SALT_CHARS = 256
MAX_BRANCH_CHARS = 1_024
MAX_PROMPTS = 256
MAX_PARTS = 65_536
MAX_COMPLETIONS = 1_024
"""Largest number of prompts times n."""

MAX_PRIORITY = 2**31 - 1
MAX_TIMEOUT_S = 86_400.0
MAX_TOP_LOGPROBS = 20
COMPLETION_MAX_TOKENS = 16
CPU_MAX_TOKENS, CUDA_MAX_TOKENS = 1_024, 16_384
"""Tokens of an answer to a chat where neither the request nor the option `default_max_tokens` sets a limit: at the
speed of a small model on two cores, half a minute."""


class ProgramFields(msgspec.Struct, kw_only=True):
    """Position of a request in a program of many requests; see `radixrt.messages.parts.ProgramHint`."""

    id: str
    branch: str = ""
    fork_len: int = 0
    siblings: int = 1
    will_continue: bool = False


class RoutingFields(msgspec.Struct, kw_only=True):
    """Fields that control the serving of a request; see `envelope_of`."""

    model: str | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    program: ProgramFields | None = None


class SamplingFields(ConstraintFields, kw_only=True):
    """Fields that become `SamplingParams` fields of the same name; None is that class's default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    seed: int | None = None
    n: int | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None


UNSUPPORTED = UnsupportedFields.__struct_fields__
SAMPLING_FIELDS = tuple(
    name for name in SamplingFields.__struct_fields__ if name not in ConstraintFields.__struct_fields__
)


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class OpenAIFields(SamplingFields, kw_only=True):
    """Fields that the two OpenAI routes share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None


class TokenReportFields(OpenAIFields, kw_only=True):
    """Fields of the OpenAI routes about the tokens of prompt and output, as vLLM and SGLang have them."""

    return_hidden_states: HiddenPositions | bool | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class ChatRequest(TokenReportFields, kw_only=True):
    """POST /v1/chat/completions"""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[FunctionDefinition] | None = None
    function_call: str | ToolName | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    allow_control_tokens: bool | None = None


class CompletionRequest(TokenReportFields, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class NativeSampling(SamplingFields, kw_only=True):
    """`sampling_params` of /generate: `SamplingParams` by its own names; max_new_tokens is max_tokens' other name."""

    max_tokens: int | None = None
    max_new_tokens: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool | None = None
    return_hidden_states: HiddenPositions | None = None


class NativeRequest(UnsupportedFields, kw_only=True):
    """POST /generate. Fields:

    text | input_ids | input_parts
                        exactly one. str or [str]; [int] or [[int]]; or one prompt in parts, each a str (a user's text,
                        in which nothing is a special token), [int] (token ids, as they are) or {"template": str} (text
                        of the chat template). Neighbouring texts are tokenized as one. The model's bos comes before a
                        user's text that begins the prompt, as with `text`
    return_prompt_ids   answer with the prompt's token ids
    sampling_params     object of SamplingParams fields; max_new_tokens is max_tokens' other name. With detokenize
                        false the answer's text is empty and its output_ids are all there is. A constraint and
                        `structured` too, and the other names that the OpenAI routes know for constraints
    stream              events instead of one answer
    return_logprob      log-probabilities of output tokens, with top_logprobs_num alternatives each; from
                        logprob_start_len (not negative) on also the prompt's. The same as sampling_params.logprobs and
                        .prompt_logprobs, which are the alternatives' numbers themselves
    return_hidden_states
                        "last" or "prompt": the final hidden states of the prompt's last token, or of all its tokens,
                        none of which then comes from the cache; also in sampling_params. 64 MiB at most, for all
                        completions together
    encoding_format     of these: "float", or "base64" (float32, little-endian)
    program             where the request stands in a program of many: {"id": str, "branch": str, "fork_len": int,
                        "siblings": int, "will_continue": bool}, all but id optional; see
                        `radixrt.messages.parts.ProgramHint`. POST /release says that a program is done
    model, rid, priority, cache_salt, timeout
    """

    model: str | None = None
    stream: bool | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    timeout: float | None = None
    program: ProgramFields | None = None
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    input_parts: list[str | list[int] | TemplateText] | None = None
    return_prompt_ids: bool | None = None
    sampling_params: NativeSampling | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    return_hidden_states: HiddenPositions | bool | None = None
    encoding_format: Literal["float", "base64"] | None = None


class ReleaseRequest(msgspec.Struct, kw_only=True):
    """POST /release: a program, or one branch of it, makes no more calls."""

    program: str
    branch: str | None = None


class ForgetRequest(msgspec.Struct, kw_only=True):
    """POST /forget: the cached prompts of an API key, of a group of keys, or of a client's salt."""

    key: str | None = None
    cache_group: str | None = None
    cache_salt: str | None = None


class AbortRequest(msgspec.Struct, kw_only=True):
    """POST /abort: one request by its id, or all open requests of this server."""

    rid: str | None = None
    abort_all: bool | None = None


chat_decoder = msgspec.json.Decoder(ChatRequest)
completion_decoder = msgspec.json.Decoder(CompletionRequest)
native_decoder = msgspec.json.Decoder(NativeRequest)
release_decoder = msgspec.json.Decoder(ReleaseRequest)
forget_decoder = msgspec.json.Decoder(ForgetRequest)
abort_decoder = msgspec.json.Decoder(AbortRequest)


OFF: dict[str, tuple[Any, ...]] = {"typical_p": (1,), "length_penalty": (1,)}
"""Values with which a field of `UnsupportedFields` changes nothing, where these are not false, 0 or empty."""

_PICTURES = "send pictures as image_url parts of a message in /v1/chat/completions"
INSTEAD = {
    "allowed_token_ids": "regex, choice or logit_bias constrain the output",
    "bad_words": "logit_bias with -100 avoids single tokens",
    "images": _PICTURES,
    "image_data": _PICTURES,
    "multi_modal_data": _PICTURES,
    "chat_template": "start the server with --chat-template",
    "typical_p": "min_p and top_p are similar",
}


def check_supported(request: UnsupportedFields) -> None:
    """Refuse a request that uses a field of `UnsupportedFields`."""
    for name in UNSUPPORTED:
        value = getattr(request, name)
        if value is not None and value not in OFF.get(name, (False, 0, "", [], {})):
            raise unsupported(name, instead=INSTEAD.get(name))


def build_sampling(request: SamplingFields, vocab_size: int | None, **chosen: Any) -> SamplingParams:
    """Build and validate the request's SamplingParams; the arguments and errors are those of `sampling_fields`.

    Raises:
        RequestError: a field is out of bounds.
    """
    return SamplingParams(**sampling_fields(request, **chosen)).validate(vocab_size)


def sampling_fields(request: SamplingFields, **chosen: Any) -> dict[str, Any]:
    """Collect the fields of `SamplingParams` that a request gives.

    Args:
        chosen: values of fields that each route decides in its own way (max_tokens, logprobs, prompt_logprobs, the
            constraint); they come before the request's own.

    Raises:
        RequestError: the request uses a field that is not supported.
    """
    check_supported(request)
    for name in SAMPLING_FIELDS:
        value = getattr(request, name)
        if value is not None:
            chosen.setdefault(name, value)
    return chosen


def answer_limit(asked: int | None, config: ServerConfig, info: EngineReady, *, at_least: int = 0) -> int:
    """Return the most tokens of the answer to a chat: as the request asks, else as the server's option says.

    Args:
        at_least: number of tokens that an answer without a limit of its own may have in any case.
    """
    if asked is not None:
        return asked
    by_device = CPU_MAX_TOKENS if info.device.startswith("cpu") else CUDA_MAX_TOKENS
    return min(max(config.default_max_tokens or by_device, at_least), info.context_length)


def chat_sampling_fields(body: ChatRequest, config: ServerConfig, info: EngineReady) -> dict[str, Any]:
    """`sampling_fields` of a chat request, with OpenAI's names for the limits and log-probabilities of chats.

    Raises:
        RequestError: naming the field.
    """
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", "any modality but text")
    top = body.top_logprobs or 0
    if not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}", param="top_logprobs")
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", param="top_logprobs")
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    return sampling_fields(
        body,
        max_tokens=answer_limit(asked, config, info, at_least=body.min_tokens or 0),
        logprobs=min(top, info.vocab_size) if body.logprobs else None,
        **prompt_reads(body),
    )


def allows_control_tokens(wanted: bool | None, config: ServerConfig) -> bool:
    """Return whether control tokens are recognized in the texts of a request's messages; `wanted` is the request's own
    field, and None leaves it to the option."""
    return config.allow_control_tokens if wanted is None else wanted


class ConversationFields(Protocol):
    """Fields about the chat template that several routes share."""

    chat_template_kwargs: dict[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    allow_control_tokens: bool | None


def read_conversation(messages: Sequence[ChatMessage], body: ConversationFields, config: ServerConfig) -> Conversation:
    """Return the conversation of a request that asks for no answer of the assistant."""
    return Conversation(
        messages=messages,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        allow_control_tokens=allows_control_tokens(body.allow_control_tokens, config),
    )


def prompt_reads(body: TokenReportFields) -> dict[str, Any]:
    """Return the sampling parameters that ask for values of the prompt.

    Raises:
        RequestError: the request streams; such values are in whole answers only.
    """
    asked = {
        "prompt_logprobs": body.prompt_logprobs,
        "return_hidden_states": hidden_positions(body.return_hidden_states),
    }
    for name, value in asked.items():
        if value is not None and body.stream:
            raise RequestError(f"{name} is in whole answers only; leave stream out", param=name)
    return asked


def native_prompt_reads(body: NativeRequest, given: NativeSampling) -> dict[str, Any]:
    """Return the sampling parameters of /generate that ask for values of the prompt, from both places of a body."""
    return {
        "prompt_logprobs": given.prompt_logprobs,
        "return_hidden_states": hidden_positions(body.return_hidden_states) or given.return_hidden_states,
    }


def hidden_positions(given: HiddenPositions | bool | None) -> HiddenPositions | None:
    """Return the value of return_hidden_states; SGLang's false, which its router sends with each request, is None."""
    if given is True:
        raise RequestError('return_hidden_states must be "last" or "prompt"', param="return_hidden_states")
    return given or None


def token_report(body: TokenReportFields) -> TokenReport:
    """Return what the answer reports about tokens."""
    return TokenReport(
        ids=bool(body.return_token_ids),
        as_ids=bool(body.return_tokens_as_token_ids),
        of_prompt=body.prompt_logprobs is not None,
    )


def kept_prompt_tokens(body: TokenReportFields, info: EngineReady) -> int | None:
    """Return the number of tokens that stay of a longer prompt, its last ones; None for all. -1 asks for the most."""
    most = info.max_input_tokens
    given = body.truncate_prompt_tokens
    if given is None or 1 <= given <= most:
        return given
    if given == -1:
        return most
    raise RequestError(f"truncate_prompt_tokens must be -1 or between 1 and {most}", param="truncate_prompt_tokens")


def check_stream_options(options: StreamOptions | None, stream: bool) -> bool:
    """Return whether the client asks for a usage chunk."""
    if options is not None and not stream:
        raise RequestError("stream_options is only allowed with stream", param="stream_options")
    return options is not None and bool(options.include_usage)


def envelope_of(request: OpenAIFields | NativeRequest | RoutingFields, context: RequestContext) -> Envelope:
    """Check and return a request's envelope; a request without `rid` gets that of its context."""
    envelope = Envelope(
        context.rid if request.rid is None else request.rid,
        request.priority or 0,
        request.cache_salt or "",
        request.timeout,
        None if isinstance(request, OpenAIFields) else _program_hint(request.program),
    )
    check_envelope(envelope)
    return envelope


def check_envelope(envelope: Envelope) -> None:
    """Hold the fields that every request has to the server's limits; raises RequestError naming the field."""
    if not (1 <= len(envelope.rid) <= MAX_RID_CHARS and envelope.rid.isascii() and envelope.rid.isprintable()):
        raise RequestError(f"rid must be 1 to {MAX_RID_CHARS} printable ASCII characters", param="rid")
    if abs(envelope.priority) > MAX_PRIORITY:
        raise RequestError(f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}", param="priority")
    if len(envelope.cache_salt) > MAX_SALT_CHARS:
        raise RequestError(f"cache_salt must have at most {MAX_SALT_CHARS} characters", param="cache_salt")
    if envelope.timeout_s is not None and not 0.0 < envelope.timeout_s <= MAX_TIMEOUT_S:
        raise RequestError(f"timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds", param="timeout")
    program = envelope.program
    if program is None:
        return
    if not 1 <= len(program.program) <= MAX_RID_CHARS:
        raise RequestError(f"program.id must have 1 to {MAX_RID_CHARS} characters", param="program.id")
    if len(program.branch) > MAX_BRANCH_CHARS:
        raise RequestError(f"program.branch must have at most {MAX_BRANCH_CHARS} characters", param="program.branch")
    for name in ("fork_len", "siblings"):
        value = getattr(program, name)
        if not 0 <= value < 2**31:
            raise RequestError(f"program.{name} must be between 0 and 2147483647", param=f"program.{name}")


def _program_hint(given: ProgramFields | None) -> ProgramHint | None:
    if given is None:
        return None
    return ProgramHint(given.id, given.branch, given.fork_len, given.siblings, given.will_continue)
