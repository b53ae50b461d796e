"""`SamplingParams`: how tokens of a request are sampled, and when its output ends. Frozen; a part of messages."""

from __future__ import annotations

import json
import math
from typing import Any, Literal, get_args

import msgspec

from radixrt.constraint import KINDS, MAX_SOURCE_BYTES, Constraint, StructuredOptions
from radixrt.errors import RequestError, shown

HiddenPositions = Literal["last", "prompt"]
"""Prompt tokens whose final hidden states a generation returns: the last token, or all tokens."""

MAX_HIDDEN_BYTES = 64 * 1024 * 1024
"""Maximum size of the hidden states of a request, and of all completions of an HTTP request."""

MAX_N = 128
MAX_LOGPROBS = 512
MAX_PROMPT_LOGPROBS = 64
"""Fewer than of output tokens, since a prompt may have many more tokens."""

MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1_024
MAX_STOP_TOKEN_IDS = 1_024
MAX_LOGIT_BIAS = 4_096
MAX_CHOICES = 10_000
DEFAULT_MAX_TOKENS = 128


class StopScope(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The free text of an output that may hold tool calls or reasoning: only there are stop strings looked for.

    Attributes:
        until: texts that end the free text; the first occurrence of any text counts.
        at_start: these texts count at the start of the answer only; elsewhere they are free text.
        after: texts that begin the free text again after it has ended. Not beside `at_start`.
        reasoning_end: text up to which the output is reasoning, and no free text; empty: there is no reasoning.
        reasoning_start: text that begins the reasoning, at the start of the output but for whitespace; without it there
            is none. Empty: the output begins inside of the reasoning.
    """

    until: tuple[str, ...] = ()
    at_start: bool = False
    after: tuple[str, ...] = ()
    reasoning_end: str = ""
    reasoning_start: str = ""

    @property
    def is_well_formed(self) -> bool:
        until: Any = self.until
        after: Any = self.after
        if not (isinstance(until, tuple) and isinstance(after, tuple)) or (after and self.at_start):
            return False
        if not all(isinstance(text, str) for text in (*until, *after, self.reasoning_end, self.reasoning_start)):
            return False
        return bool(self.reasoning_end) or (bool(until) and not self.reasoning_start)


NO_FREE_TEXT = StopScope(until=("",), at_start=True)


class DrawParams(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Numbers by which a token is drawn from logits: the runner gets them as the client gave them.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_p, top_k, min_p: nucleus mass in (0, 1], number of candidates (0 or -1: all), and least probability as a
            fraction of the most probable token's, in [0, 1]. Applied in the order top_k, top_p, min_p.
        repetition_penalty: in [0.01, 10], over prompt and output tokens (CTRL, arXiv 1909.05858); 1 is off.
        frequency_penalty, presence_penalty: in [-2, 2], over output tokens, as OpenAI defines them; 0 is off.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def needs_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


class SamplingParams(DrawParams, frozen=True, omit_defaults=True, kw_only=True):
    """Parameters of one request's generation: `DrawParams`, limits, constraint and reports of the output.

    Every field is checked by `validate`, which names the field.

    Attributes:
        max_tokens: most tokens to generate; None means up to the end of the context. 0 is allowed with
            `prompt_logprobs` and `return_hidden_states` (compute the prompt, generate nothing).
        min_tokens: no end-of-sequence or stop token is sampled before this many tokens.
        logit_bias: token id -> value in [-100, 100] added to its logit.
        stop: strings that end the output; not part of the text unless `include_stop_str_in_output`. Beside a regex or
            an EBNF, one of them may follow the text; beside a structural tag they end its free text; inside JSON and
            inside choices they are not looked for, nor before `structured.reasoning_end`.
        stop_scope: the free text beside tool calls, where the structural tag is about these; None: all of the text.
        stop_token_ids: token ids that end the output, besides the model's own. Beside a constraint, only control tokens
            are allowed; they end the output where the constraint allows an end.
        ignore_eos: the model's own end tokens do not end the output (`stop_token_ids` still do).
        seed: 64-bit; the same seed gives the same tokens whatever else runs in the batch. None draws one.
        n: number of independent completions.
        logprobs: None for off, else how many alternatives to report beside each output token (0: only the chosen).
        prompt_logprobs: the same for the prompt's tokens; such a request computes its whole prompt.
        return_hidden_states: "last" for the final hidden state of the prompt's last token, "prompt" for those of all
            its tokens; such a request computes its whole prompt. None for none.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the stop string or stop token in the text.
        detokenize: False leaves the output's text empty, for callers who want its token ids alone. Neither stop strings
            nor a constraint go with that: both look at the text.
        json_schema, regex, ebnf, choices, structural_tag: what the output must be; at most one is set. A schema may be
            given as JSON text, a dict, or a Python type (pydantic model, dataclass, TypedDict, Literal, Enum, ...), a
            structural tag as JSON text or a dict; both are kept as JSON text.
        structured: how that is enforced.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    stop_scope: StopScope | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    json_schema: Any = None
    regex: str | None = None
    ebnf: str | None = None
    choices: tuple[str, ...] | None = None
    structural_tag: Any = None
    structured: StructuredOptions = StructuredOptions()
    return_hidden_states: HiddenPositions | None = None

    def __post_init__(self) -> None:
        # A single string is what most people pass; the wire always carries a tuple.
        stop: Any = self.stop
        if isinstance(stop, (str, list)):
            msgspec.structs.force_setattr(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop))
        ids: Any = self.stop_token_ids
        if isinstance(ids, list):
            msgspec.structs.force_setattr(self, "stop_token_ids", tuple(ids))
        choices: Any = self.choices
        if isinstance(choices, list):
            msgspec.structs.force_setattr(self, "choices", tuple(choices))
        if self.json_schema is not None and not isinstance(self.json_schema, str):
            from radixrt.python_types import schema_text

            msgspec.structs.force_setattr(self, "json_schema", schema_text(self.json_schema))
        if isinstance(self.structural_tag, dict):
            msgspec.structs.force_setattr(self, "structural_tag", json.dumps(self.structural_tag))

    @property
    def constraint(self) -> Constraint | None:
        """Constraint on the output, None if the request has none."""
        for kind in KINDS:
            source = getattr(self, kind)
            if source is not None:
                text = json.dumps(source, ensure_ascii=False) if kind == "choices" else source
                looked_for = self.watched_stops if self.stop_scope is None else ()
                stop = tuple(dict.fromkeys(looked_for))
                return Constraint(kind=kind, source=text, options=self.structured, stop=stop)
        return None

    @property
    def watched_stops(self) -> tuple[str, ...]:
        """Stop strings that are searched in the output's text: none where the output is JSON or one of the choices."""
        return () if self.json_schema is not None or self.choices is not None else self.stop

    def validate(self, vocab_size: int | None = None) -> SamplingParams:
        """Return self if every field is within its bounds.

        Args:
            vocab_size: number of token ids of the model; ids and counts are held against it when given.

        Raises:
            RequestError: naming the first field that is out of bounds and its bounds (`param`).
        """
        _integer(self, "max_tokens", 0, 10_000_000, optional=True)
        if self.max_tokens == 0 and self.prompt_logprobs is None and self.return_hidden_states is None:
            raise RequestError(
                "max_tokens must be at least 1 (0 is only useful with prompt_logprobs or return_hidden_states)",
                param="max_tokens",
            )
        _integer(self, "min_tokens", 0, 10_000_000)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})", param="min_tokens"
            )
        _number(self, "temperature", 0.0, 100.0)
        _number(self, "top_p", 0.0, 1.0, open_low=True)
        _integer(self, "top_k", -1, 2**31 - 1)
        _number(self, "min_p", 0.0, 1.0)
        _number(self, "repetition_penalty", 0.01, 10.0)
        _number(self, "frequency_penalty", -2.0, 2.0)
        _number(self, "presence_penalty", -2.0, 2.0)
        _integer(self, "seed", -(2**63), 2**63 - 1, optional=True)
        _integer(self, "n", 1, MAX_N)
        for name, most in (("logprobs", MAX_LOGPROBS), ("prompt_logprobs", MAX_PROMPT_LOGPROBS)):
            _integer(self, name, 0, most if vocab_size is None else min(most, vocab_size), optional=True)
        if self.return_hidden_states not in (None, *get_args(HiddenPositions)):
            raise RequestError(
                f'return_hidden_states must be "last" or "prompt", not {shown(self.return_hidden_states)}',
                param="return_hidden_states",
            )
        _flag(self, "ignore_eos")
        _flag(self, "skip_special_tokens")
        _flag(self, "include_stop_str_in_output")
        _flag(self, "detokenize")
        self._validate_stops(vocab_size)
        self._validate_logit_bias(vocab_size)
        self._validate_constraint()
        if not self.detokenize and (self.stop or self.constraint is not None):
            wants = "stop strings are" if self.stop else "a constraint is"
            raise RequestError(f"{wants} about the text, so detokenize must be true", param="detokenize")
        return self

    def _validate_stops(self, vocab_size: int | None) -> None:
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) for s in self.stop):
            raise RequestError("stop must be a string or a list of strings", param="stop")
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop holds {len(self.stop)} strings; at most {MAX_STOP_STRINGS} are allowed", param="stop"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARS:
                raise RequestError(f"each stop string must have 1 to {MAX_STOP_CHARS} characters", param="stop")
            if not _is_text(text):
                raise RequestError("stop holds half of a surrogate pair, which is not text", param="stop")
        scope = self.stop_scope
        if scope is not None and not (isinstance(scope, StopScope) and scope.is_well_formed):
            raise RequestError("stop_scope must be a StopScope that names a text", param="stop_scope")
        if not isinstance(self.stop_token_ids, tuple):
            raise RequestError("stop_token_ids must be a list of integers", param="stop_token_ids")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise RequestError(f"stop_token_ids holds more than {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids")
        for token in self.stop_token_ids:
            _token_id(token, "stop_token_ids", vocab_size)

    def _validate_constraint(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) > 1:
            raise RequestError(f"{given[0]} and {given[1]} exclude each other; ask for one", param=given[1])
        if not isinstance(self.structured, StructuredOptions):
            raise RequestError("structured must be a StructuredOptions", param="structured")
        self.structured.validate()
        if not given:
            if self.structured.reasoning_end is not None:
                raise RequestError("reasoning_end needs a constraint that follows it", param="reasoning_end")
            return
        kind = given[0]
        if kind == "choices":
            _check_choices(self.choices)
        source = "".join(self.choices or ()) if kind == "choices" else getattr(self, kind)
        if not isinstance(source, str) or not source:
            raise RequestError(f"{kind} must be a text that is not empty", param=kind)
        if not _is_text(source):
            raise RequestError(f"{kind} holds half of a surrogate pair, which is not text", param=kind)
        size = len(source.encode())
        if size > MAX_SOURCE_BYTES[kind]:
            raise RequestError(f"{kind} has {size} bytes; at most {MAX_SOURCE_BYTES[kind]} are allowed", param=kind)
        if kind == "choices":
            check_stops_of_choices(self.choices or (), self.stop)
        if self.stop and self.min_tokens and kind in ("regex", "ebnf"):
            raise RequestError(
                f"stop strings are not looked for before min_tokens, and {kind} could not be kept to; leave one out",
                param="min_tokens",
            )
        if self.max_tokens == 0:
            raise RequestError(f"{kind} needs max_tokens to be at least 1", param="max_tokens")

    def _validate_logit_bias(self, vocab_size: int | None) -> None:
        if not isinstance(self.logit_bias, dict):
            raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise RequestError(f"logit_bias holds more than {MAX_LOGIT_BIAS} entries", param="logit_bias")
        for token, bias in self.logit_bias.items():
            _token_id(token, "logit_bias", vocab_size)
            if not _is_number(bias) or not -100.0 <= bias <= 100.0:
                raise RequestError("logit_bias values must be numbers between -100 and 100", param="logit_bias")


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, tuple) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise RequestError("choices must be a list of strings that are not empty", param="choices")
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"choices holds {len(choices)} strings; at most {MAX_CHOICES} are allowed", param="choices")


def check_stops_of_choices(choices: tuple[str, ...], stops: tuple[str, ...]) -> None:
    """Raise `RequestError` if one of the choices holds a stop string."""
    for stop in stops:
        held = next((choice for choice in choices if stop in choice), None)
        if held is not None:
            raise RequestError(
                f"stop: the choice {shown(held)} holds {shown(stop)}, which would cut it; leave one of them out",
                param="stop",
            )


def _is_number(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _integer(params: SamplingParams, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if not ((optional and value is None) or (_is_integer(value) and low <= value <= high)):
        raise RequestError(f"{name} must be an integer between {low} and {high}, not {shown(value)}", param=name)


def _number(params: SamplingParams, name: str, low: float, high: float, *, open_low: bool = False) -> None:
    value = getattr(params, name)
    if not (_is_number(value) and (low < value if open_low else low <= value) and value <= high):
        bounds = f"{'above' if open_low else 'from'} {low:g} up to {high:g}"
        raise RequestError(f"{name} must be a number {bounds}, not {shown(value)}", param=name)


def _flag(params: SamplingParams, name: str) -> None:
    value = getattr(params, name)
    if not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, not {shown(value)}", param=name)


def _token_id(token: Any, param: str, vocab_size: int | None) -> None:
    if not _is_integer(token) or token < 0 or (vocab_size is not None and token >= vocab_size):
        limit = "" if vocab_size is None else f" below {vocab_size} (the vocabulary)"
        raise RequestError(f"{param} holds {shown(token)}, which is not a token id{limit}", param=param)
