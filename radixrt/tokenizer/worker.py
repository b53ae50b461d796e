"""`TokenizerWorker`: the tokenizer process without its sockets: handles a message, and sends messages to the scheduler
and to the client.

Every `Request` sent to the scheduler is valid: its parameters are within bounds, its token ids are within the
vocabulary, and no prompt is empty or too long. Every request gets exactly one finish. Requests with texts reach the
scheduler in the order of their arrival; outputs, and requests of token ids, overtake requests with texts
(`PromptQueue`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import assert_never

from radixrt.channel import Outbox
from radixrt.errors import RequestError
from radixrt.messages.cache_events import FromWatched, PageWatch, PageWatched, ToWatched
from radixrt.messages.client import (
    ClientRequest,
    EmbeddingInfo,
    EngineReady,
    InputRow,
    OutputBatch,
    PairInput,
    RequestOutput,
    TextInput,
    TokenInput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.fleet import FromRouter
from radixrt.messages.parts import FINISH_ABORT, FINISH_STOP, Finish, FinishError, Timings, Usage
from radixrt.messages.reads import check_prompt_reads
from radixrt.messages.request import Request, Row
from radixrt.messages.scheduler import (
    AbortReq,
    ControlReply,
    ControlReq,
    ReleaseReq,
    SchedulerReady,
    TokenBatch,
    TokenDelta,
    ToScheduler,
)
from radixrt.messages.scheduler_stats import SchedulerStats
from radixrt.messages.wire import pack_i32
from radixrt.models.model_tasks import ModelTasks
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.fill_in import find_fill_in_tokens
from radixrt.tokenizer.info import tokenizer_info
from radixrt.tokenizer.limits import check_envelope, check_logprobs
from radixrt.tokenizer.pairs import PairEncoder
from radixrt.tokenizer.prompt_encoder import PromptEncoder, max_input_tokens, needs_encoding
from radixrt.tokenizer.prompt_queue import EVERYTHING, Prepare, PromptQueue, Slices, Start
from radixrt.tokenizer.reads import ReadState, read_continuations, read_row
from radixrt.tokenizer.request_state import RequestState, unpack_ids
from radixrt.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

State = RequestState | ReadState
"""State of a live request."""


class TokenizerWorker:
    """Tokenizes requests for the scheduler and detokenizes their outputs for the client.

    Args:
        model: model name that clients use.
        vocab_size: token ids of prompts must be below this.
        context_length: longest sequence of the model, in tokens.
        tasks: tasks of the model besides generating.
        queue: encodes the prompts; default: `handle` encodes each prompt at once.

    Attributes:
        queue: requests whose prompts are not encoded yet.

    Raises:
        ModelLoadError: a reranker lacks a template, or the tokens of its answers.
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
        tasks: ModelTasks | None = None,
        queue: PromptQueue | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.queue = queue or PromptQueue(threaded=False)
        self._prompts = PromptEncoder(
            tokenizer, vocab_size=vocab_size, context_length=context_length, announce=self.queue.announce
        )
        self._model = model
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._tasks = tasks or ModelTasks()
        self._pairs = PairEncoder(self._prompts, self._tasks.relevance, tokenizer)
        self._to_scheduler = to_scheduler
        self._to_main = to_main
        self._live: dict[str, State] = {}

    @property
    def num_live(self) -> int:
        """Number of requests that the scheduler has not finished yet."""
        return len(self._live)

    def handle(self, message: ToTokenizer) -> None:
        """Handle a message. The content of a request never makes this method raise."""
        if isinstance(message, TokenBatch):
            self._detokenize(message)
        elif isinstance(message, ClientRequest):
            hint = message.envelope.program
            encodes = any(needs_encoding(row.input) or row.continuations is not None for row in message.rows)
            self._submit(
                message.rid,
                partial(self._prepare, message),
                encodes=encodes or not message.computes,
                program=EVERYTHING if hint is None or message.sampling is None else hint.program,
                client=message.envelope.client,
            )
        elif isinstance(message, AbortReq):
            self._abort(message)
        elif isinstance(message, (ReleaseReq, ControlReq)):
            program = message.program if isinstance(message, ReleaseReq) else EVERYTHING
            self.queue.submit_action(partial(self._to_scheduler.send, message), program)
        elif isinstance(message, ControlReply | SchedulerStats | FromRouter | FromWatched | PageWatched):
            self._to_main.send(message)
        elif isinstance(message, ToWatched | PageWatch):
            self._to_scheduler.send(message)
        elif isinstance(message, SchedulerReady):
            self._to_main.send(self._ready(message))
        else:
            assert_never(message)
        self.poll()

    # --- from the client ---

    def poll(self) -> None:
        """Start the requests whose prompts have been encoded since the last call; see `PromptQueue.take`."""
        for rid, result in self.queue.take():
            try:
                if isinstance(result, Exception):
                    raise result
                result()
            except RequestError as error:
                self._refuse(rid, FinishError(error.message, error.param, error.code, error.status))
            except Exception as error:
                self._live.pop(rid, None)
                logger.exception("request %s failed in the tokenizer", rid)
                self._refuse(rid, FinishError(f"the request failed in the tokenizer: {error!r:.300}"))

    def _submit(self, rid: str, prepare: Prepare, *, encodes: bool, program: str, client: str) -> None:
        """Queue a request. An exception of `prepare`, or of the function that `prepare` returns, ends only this
        request."""
        if rid in self._live or rid in self.queue:
            # The client still waits for the older request with this id, which an answer would end.
            logger.error("dropped a request: its id %.128r is that of a live one", rid)
            return
        self.queue.submit(rid, prepare, encodes=encodes, program=program, client=client)

    def _prepare(self, req: ClientRequest) -> Slices:
        """Encode the rows of a request, and yield between two rows; raises RequestError naming the field."""
        check_envelope(req.envelope)
        row = req.rows[0]
        if req.sampling is not None:
            return self._generate(req, row, req.sampling)
        if not req.computes:
            return self._answer(req, row)
        if row.targets or row.continuations is not None:
            self._check_generates()
        if row.continuations is not None:
            bos = self._prompts.begins_text() if row.continuations.unconditional else None
            tokens = self._prompts.choices(row.input, row.continuations.texts)
            state, rows, prefixes = read_continuations(req.rid, tokens, bos)
        else:
            state, prefixes = ReadState(req.rid), []
            rows = [self._read_row(req, row)]
            for each in req.rows[1:]:
                yield
                rows.append(self._read_row(req, each))
        return lambda: self._begin(state, Request(req.envelope, rows, prefixes))

    def _read_row(self, req: ClientRequest, row: InputRow) -> Row:
        self._prompts.check_targets(row.targets)
        return read_row(self._input_ids(req, row), row)

    def _input_ids(self, req: ClientRequest, row: InputRow) -> bytes:
        """Return the prompt of a row as an int32 column; raises RequestError naming the prompt."""
        given, texts = row.input, req.texts
        if isinstance(given, PairInput):
            told = None if given.instruction < 0 else texts[given.instruction].text
            return self._pairs.encode(texts[given.query], texts[given.document], told)
        before = texts[given.before].text if isinstance(given, TextInput) and given.before >= 0 else ""
        return self._prompts.input_ids(given, before, row.keep_last)

    def _generate(self, req: ClientRequest, row: InputRow, sampling: SamplingParams) -> Start:
        self._check_generates()
        sampling.validate(self._vocab_size)
        if sampling.n != 1:
            raise RequestError("n must be 1 for a request in the engine; send one for each completion", param="n")
        if sampling.stop:
            self._prompts.check_text("stop")
        if sampling.constraint is not None:
            self._prompts.check_text(sampling.constraint.kind)
        ids = self._input_ids(req, row)
        check_logprobs(sampling, len(ids) // 4, self._context_length)
        check_prompt_reads(sampling, len(ids) // 4, self._tasks.embedding.size)
        state = RequestState(
            req.rid,
            sampling,
            ids,
            stream=req.stream,
            tokenizer=self._tokenizer,
            return_prompt_ids=req.return_prompt_ids,
        )
        turn_len = self._prompts.turn_len(row.input, ids)
        tokenized = Request.continue_prompt(req.envelope, ids, sampling, turn_len)
        return lambda: self._begin(state, tokenized)

    def _begin(self, state: State, tokenized: Request) -> None:
        self._live[tokenized.rid] = state
        self._to_scheduler.send(tokenized)

    def _check_generates(self) -> None:
        if not self._tasks.embedding.generates:
            classifies = self._tasks.classifier is not None
            does = "classifies (/classify, Engine.classify)" if classifies else "embeds (/v1/embeddings, Engine.embed)"
            raise RequestError(
                f"{self._model} has no output head, so that it neither generates nor scores choices; it {does}",
                param="model", code="model_only_classifies" if classifies else "model_only_embeds",
            )  # fmt: skip

    def _answer(self, req: ClientRequest, row: InputRow) -> Start:
        """Answer a request that needs no forward pass, with the token ids of its prompt or with their text."""
        if row.decode is None:
            output = RequestOutput(req.rid, finish=Finish(FINISH_STOP), prompt_ids=self._input_ids(req, row))
        else:
            self._prompts.check_text("tokens")
            empty = isinstance(row.input, TokenInput) and not row.input.ids
            ids = unpack_ids(b"" if empty else self._input_ids(req, row))
            text = self._tokenizer.decode(list(ids), skip_special_tokens=row.decode)
            output = RequestOutput(req.rid, text, finish=Finish(FINISH_STOP))
        return lambda: self._to_main.send(OutputBatch([output]))

    def _abort(self, req: AbortReq) -> None:
        if self.queue.cancel(req.rid):
            output = RequestOutput(req.rid, finish=Finish(FINISH_ABORT), usage=Usage(), timings=Timings())
            self._to_main.send(OutputBatch([output]))
        else:
            self._to_scheduler.send(req)

    def _refuse(self, rid: str, error: FinishError) -> None:
        self._to_main.send(OutputBatch([RequestOutput(rid, finish=Finish("error", error=error))]))

    # --- from the scheduler ---

    def _detokenize(self, batch: TokenBatch) -> None:
        outputs: list[RequestOutput] = []
        for delta in batch.deltas:
            self._take(delta, outputs)
        live = self._live
        for rid, token_id in zip(batch.rids, unpack_ids(batch.token_ids), strict=True):
            state = live.get(rid)
            if type(state) is not RequestState or not state.takes_plain:
                self._take(TokenDelta(rid, pack_i32([token_id])), outputs)
                continue
            try:
                sent = state.push(token_id)
            except Exception as error:
                sent = self._failed(rid, state, error)
                self._to_scheduler.send(AbortReq(rid))
            if sent is not None:
                outputs.append(sent)
        if outputs:
            self._to_main.send(OutputBatch(outputs))

    def _take(self, delta: TokenDelta, outputs: list[RequestOutput]) -> None:
        """Pass a delta to its request; append the output to send to the client, if any, to `outputs`."""
        state = self._live.get(delta.rid)
        if state is None:
            logger.debug("tokens of %s, which is not live", delta.rid)
            return
        had_stop = state.stop_found
        try:
            sent = state.take(delta)
        except Exception as error:
            sent = self._failed(delta.rid, state, error)
            if delta.finish is None:
                self._to_scheduler.send(AbortReq(delta.rid))
        if sent is not None:
            outputs.append(sent)
        if delta.finish is not None:
            del self._live[delta.rid]
        elif state.stop_found and not had_stop:
            self._to_scheduler.send(AbortReq(delta.rid, "stop"))

    @staticmethod
    def _failed(rid: str, state: State, error: Exception) -> RequestOutput:
        """Return the last output of a request whose detokenizing raised an exception. Called in the exception's
        handler."""
        logger.exception("detokenizing for request %s failed", rid)
        return state.fail(f"the output could not be detokenized: {error!r:.300}")

    def _ready(self, ready: SchedulerReady) -> EngineReady:
        self._prompts.max_input_tokens = max_input_tokens(self._context_length, ready.num_slots)
        template, embedding = self._tokenizer.chat_template, self._tasks.embedding
        return EngineReady(
            model=self._model,
            vocab_size=self._vocab_size,
            context_length=self._context_length,
            max_input_tokens=self._prompts.max_input_tokens,
            num_slots=ready.num_slots,
            max_running_requests=ready.max_running_requests,
            device=ready.device,
            dtype=ready.dtype,
            has_chat_template=template is not None,
            chat_templates={} if template is None else template.sources,
            special_tokens=self._tokenizer.special_tokens,
            tokenizer_info=tokenizer_info(self._tokenizer),
            epoch=ready.epoch,
            generates=self._tasks.embedding.generates,
            labels=() if self._tasks.classifier is None else self._tasks.classifier.labels,
            num_states=ready.num_states,
            kv_cache_dtype=ready.kv_cache_dtype,
            fill_in=find_fill_in_tokens(self._tokenizer.control_tokens),
            embedding=EmbeddingInfo(
                embedding.pooling,
                embedding.normalize,
                embedding.size,
                dict(embedding.prompts.by_name),
                embedding.prompts.default,
            ),
            activation="none" if self._tasks.classifier is None else self._tasks.classifier.activation,
            relevance=self._pairs.info,
            weights=ready.weights,
        )
