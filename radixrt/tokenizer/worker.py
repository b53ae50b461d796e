"""`TokenizerWorker`: the tokenizer process's work, without its sockets: one message in, messages to its two sides out.

Towards the scheduler it guarantees that a TokenizedReq is valid: parameters within bounds, ids within the vocabulary,
a prompt that is not empty and fits. Towards the client it guarantees exactly one finish for each request.
"""

from __future__ import annotations

import logging
import math
from typing import Any, assert_never

import msgspec
import numpy as np
import numpy.typing as npt

from radixrt.channel import Outbox
from radixrt.errors import RequestError
from radixrt.messages import (
    AbortReq,
    ChatPrompt,
    ControlReply,
    ControlReq,
    EngineReady,
    Finish,
    FinishError,
    GenerateReq,
    PromptPart,
    SchedulerReady,
    SchedulerStats,
    TemplateText,
    TextBatch,
    TextDelta,
    TokenBatch,
    TokenizedReq,
    ToMain,
    ToScheduler,
    ToTokenizer,
    pack_i32,
    unpack_i32,
)
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.chat_template import MAX_RENDER_CHARS, RenderedTooLong
from radixrt.tokenizer.prompt_parts import PartsEncoder
from radixrt.tokenizer.request_output import RequestOutput
from radixrt.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MAX_RID_CHARS = 128
MAX_ALTERNATIVES = 1_000_000
"""Log-probabilities of one request: about 40 MB on the wire, well under `channel.MAX_FRAME_BYTES`."""


def max_input_tokens(context_length: int, num_slots: int) -> int:
    """The longest prompt that can be served: it leaves room for one output token in the context and in the KV pool."""
    return max(min(context_length, num_slots) - 1, 0)


class TokenizerWorker:
    """Tokenizes requests on their way in, and detokenizes outputs on their way out.

    Args:
        model: the name that clients use.
        vocab_size, context_length: the model's; ids are below the first, sequences no longer than the second.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        model: str,
        vocab_size: int,
        context_length: int,
        to_scheduler: Outbox[ToScheduler],
        to_main: Outbox[ToMain],
    ) -> None:
        self._tokenizer = tokenizer
        self._parts = PartsEncoder(tokenizer)
        self._model = model
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._max_input_tokens = max_input_tokens(context_length, context_length)  # the KV pool's size comes later
        self._to_scheduler = to_scheduler
        self._to_main = to_main
        self._live: dict[str, RequestOutput] = {}

    @property
    def num_live(self) -> int:
        """Requests that the scheduler has not finished yet."""
        return len(self._live)

    def handle(self, message: ToTokenizer) -> None:
        """Do what one message asks. Never raises because of what a request holds."""
        if isinstance(message, TokenBatch):
            self._detokenize(message)
        elif isinstance(message, GenerateReq):
            self._generate(message)
        elif isinstance(message, (AbortReq, ControlReq)):
            self._to_scheduler.send(message)
        elif isinstance(message, (ControlReply, SchedulerStats)):
            self._to_main.send(message)
        elif isinstance(message, SchedulerReady):
            self._to_main.send(self._ready(message))
        else:
            assert_never(message)

    # --- in -----------------------------------------------------------------------------------------------------

    def _generate(self, req: GenerateReq) -> None:
        if req.rid in self._live:
            # Its client waits for the older request of this id too, so an answer could only confuse it.
            logger.error("dropped a request: its id %.128r is that of a live one", req.rid)
            return
        try:
            input_ids = self._prepare(req)
            output = RequestOutput(req.rid, req.sampling, input_ids, stream=req.stream, tokenizer=self._tokenizer)
        except RequestError as error:
            self._refuse(req.rid, FinishError(error.message, error.param, error.code, error.status))
            return
        except Exception as error:
            logger.exception("request %s failed in the tokenizer", req.rid)
            self._refuse(req.rid, FinishError(f"the request failed in the tokenizer: {error!r:.300}"))
            return
        self._live[req.rid] = output
        self._to_scheduler.send(
            TokenizedReq(req.rid, input_ids, req.sampling, req.priority, req.cache_salt, req.timeout_s)
        )

    def _refuse(self, rid: str, error: FinishError) -> None:
        self._to_main.send(TextBatch([TextDelta(rid, finish=Finish("error", error=error))]))

    def _prepare(self, req: GenerateReq) -> bytes:
        """Check everything and return the prompt's ids as a column; raises RequestError."""
        if not 1 <= len(req.rid) <= MAX_RID_CHARS:
            raise RequestError(f"rid must have 1 to {MAX_RID_CHARS} characters", param="rid")
        if req.timeout_s is not None and not (math.isfinite(req.timeout_s) and req.timeout_s > 0):
            raise RequestError(f"timeout_s must be a number above 0, not {req.timeout_s}", param="timeout_s")
        req.sampling.validate(self._vocab_size)
        if req.sampling.n != 1:
            raise RequestError("n must be 1 for a request in the engine; send one for each completion", param="n")
        if [req.prompt, req.input_ids, req.chat, req.parts].count(None) != 3:
            raise RequestError(
                "exactly one of prompt, input_ids, messages and input_parts must be given", param="prompt"
            )
        ids = self._input_ids(req)
        self._check_logprobs(req.sampling, len(ids) // 4)
        return ids

    def _check_logprobs(self, sampling: SamplingParams, prompt_tokens: int) -> None:
        """All alternatives of a request travel in one frame at its end, unless it streams; that frame has a limit."""
        room = self._context_length - prompt_tokens
        output_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        for name, tokens in (("prompt_logprobs", prompt_tokens), ("logprobs", output_tokens)):
            wanted = getattr(sampling, name)
            if wanted is not None and tokens * wanted > MAX_ALTERNATIVES:
                raise RequestError(
                    f"{name}={wanted} for {tokens} tokens makes more than {MAX_ALTERNATIVES} alternatives; "
                    f"ask for at most {MAX_ALTERNATIVES // tokens} of each",
                    param=name,
                )

    def _input_ids(self, req: GenerateReq) -> bytes:
        """The int32 column of the prompt, however it was given."""
        if req.input_ids is not None:
            return self._checked(req.input_ids, "input_ids")
        if req.chat is not None:
            ids = self._encode(self._render(req.chat), "messages", add_special_tokens=False)
            return self._checked(ids, "messages")
        if req.parts is not None:
            return self._parts_ids(req.parts)
        assert req.prompt is not None
        return self._checked(self._encode(req.prompt, "prompt", add_special_tokens=True), "prompt")

    def _parts_ids(self, parts: list[PromptPart]) -> bytes:
        for i, part in enumerate(parts):
            if isinstance(part, list):
                self._check_ids(np.asarray(part, np.int64), f"input_parts[{i}]")
        texts = (part.template if isinstance(part, TemplateText) else part for part in parts)
        self._check_length(sum(len(text) for text in texts if isinstance(text, str)), "input_parts")
        return self._checked(pack_i32(self._parts.encode(parts, "input_parts")), "input_parts")

    def _render(self, chat: ChatPrompt) -> str:
        template = self._tokenizer.chat_template
        if template is None:
            raise RequestError(
                "the model has no chat template; send a prompt, or start with chat_template", param="messages"
            )
        per_token = self._tokenizer.max_bytes_per_token
        bound = MAX_RENDER_CHARS if per_token is None else per_token * self._max_input_tokens
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
            raise self._too_long(f"more than {self._max_input_tokens}", "messages") from error

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> bytes:
        try:
            num_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"{param} holds half of a surrogate pair, which is not text", param=param) from error
        self._check_length(num_bytes, param)
        return pack_i32(self._tokenizer.encode(text, add_special_tokens))

    def _check_length(self, num_bytes: int, param: str) -> None:
        """Refuse what is far too long: it is not worth the seconds that tokenizing it would take from everyone else."""
        per_token = self._tokenizer.max_bytes_per_token
        if per_token is not None and num_bytes > per_token * self._max_input_tokens:
            raise self._too_long(f"more than {self._max_input_tokens}", param)

    def _checked(self, input_ids: bytes, param: str) -> bytes:
        if len(input_ids) % 4:
            raise RequestError(f"{param} must be a column of 32-bit integers", param=param)
        ids = unpack_i32(input_ids)
        if not len(ids):
            raise RequestError(f"{param} must hold at least one token", param=param)
        if len(ids) > self._max_input_tokens:
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
            f"{self._max_input_tokens}. However, your {name} resulted in {tokens} tokens. Please reduce its length.",
            param=param,
            code="context_length_exceeded",
        )

    # --- out ----------------------------------------------------------------------------------------------------

    def _detokenize(self, batch: TokenBatch) -> None:
        texts: list[TextDelta] = []
        live = self._live
        for delta in batch.deltas:
            output = live.get(delta.rid)
            if output is None:
                logger.debug("tokens of %s, which is not live", delta.rid)
                continue
            had_stop = output.stop_found
            try:
                text = output.take(delta)
            except Exception as error:
                logger.exception("detokenizing for request %s failed", delta.rid)
                text = output.fail(f"the output could not be detokenized: {error!r:.300}")
                if delta.finish is None:
                    self._to_scheduler.send(AbortReq(delta.rid))
            if text is not None:
                texts.append(text)
            if delta.finish is not None:
                del live[delta.rid]
            elif output.stop_found and not had_stop:
                self._to_scheduler.send(AbortReq(delta.rid, "stop"))
        if texts:
            self._to_main.send(TextBatch(texts))

    def _ready(self, ready: SchedulerReady) -> EngineReady:
        self._max_input_tokens = max_input_tokens(self._context_length, ready.num_slots)
        return EngineReady(
            model=self._model,
            vocab_size=self._vocab_size,
            context_length=self._context_length,
            max_input_tokens=self._max_input_tokens,
            num_slots=ready.num_slots,
            max_running_requests=ready.max_running_requests,
            device=ready.device,
            dtype=ready.dtype,
            has_chat_template=self._tokenizer.chat_template is not None,
        )


def _decode_json(data: bytes, kind: Any, param: str) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"{param} is not the JSON it should be: {error}", param=param) from error
