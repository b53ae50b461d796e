"""`TokenizerWorker`: the tokenizer process without its sockets: handles a message, and sends messages to the scheduler
and to the client.

Every `Request` sent to the scheduler is valid: its parameters are within bounds, its token ids are within the
vocabulary, and no prompt is empty or too long. Every request gets exactly one finish. Requests with texts reach the
scheduler in the order of their arrival, and so do requests with pictures; outputs, and requests of token ids alone,
overtake them (`PromptQueue`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import assert_never

import msgspec

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
    PartsInput,
    RequestOutput,
    TextInput,
    TokenInput,
    ToMain,
    ToTokenizer,
)
from radixrt.messages.fleet import FromRouter
from radixrt.messages.parts import (
    FINISH_ABORT,
    FINISH_STOP,
    Finish,
    FinishError,
    Timings,
    Usage,
)
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
from radixrt.models.vision_spec import VisionSpec
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.fill_in import find_fill_in_tokens
from radixrt.tokenizer.image_prompt import ImagePrompt
from radixrt.tokenizer.image_reader import ImageJob, ImageReader, Picture
from radixrt.tokenizer.info import tokenizer_info
from radixrt.tokenizer.limits import check_envelope, check_logprobs
from radixrt.tokenizer.pairs import PairEncoder
from radixrt.tokenizer.prompt_encoder import PromptEncoder, max_input_tokens, needs_encoding
from radixrt.tokenizer.prompt_queue import EVERYTHING, PromptQueue, Slices, Start
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
        vision: tower of the model; None for a model that reads no images.
        images: decodes the pictures of prompts, if there is a tower.

    Attributes:
        queue: requests whose prompts are not encoded yet.
        images: see above.

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
        vision: VisionSpec | None = None,
        images: ImageReader | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.queue = queue or PromptQueue(threaded=False)
        self.images = images
        self._image_prompt = None if vision is None else ImagePrompt(vision, tokenizer)
        self._prompts = PromptEncoder(
            tokenizer,
            vocab_size=vocab_size,
            context_length=context_length,
            announce=self.queue.announce,
            images=self._image_prompt,
        )
        self._model = model
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._tasks = tasks or ModelTasks()
        self._pairs = PairEncoder(self._prompts, self._tasks.relevance, tokenizer)
        self._to_scheduler = to_scheduler
        self._to_main = to_main
        self._live: dict[str, State] = {}
        self._jobs: dict[str, ImageJob] = {}  # pictures of requests, by rid, until the request has ended

    @property
    def num_live(self) -> int:
        """Number of requests that the scheduler has not finished yet."""
        return len(self._live)

    def is_overdue(self) -> bool:
        """Return whether encoding a text, or decoding a picture, takes longer than any does."""
        return self.queue.is_overdue() or (self.images is not None and self.images.is_overdue())

    def handle(self, message: ToTokenizer) -> None:
        """Handle a message. The content of a request never makes this method raise."""
        if isinstance(message, TokenBatch):
            self._detokenize(message)
        elif isinstance(message, ClientRequest):
            self._submit(message)
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
                self._release_images(rid)
                self._refuse(rid, FinishError(error.message, error.param, error.code, error.status))
            except Exception as error:
                self._live.pop(rid, None)
                self._release_images(rid)
                logger.exception("request %s failed in the tokenizer", rid)
                self._refuse(rid, FinishError(f"the request failed in the tokenizer: {error!r:.300}"))

    def _submit(self, req: ClientRequest) -> None:
        """Queue a request. An exception of `_prepare`, or of the function that it returns, ends only this request."""
        if req.rid in self._live or req.rid in self.queue:
            # The client still waits for the older request with this id, which an answer would end.
            logger.error("dropped a request: its id %.128r is that of a live one", req.rid)
            return
        hint = req.envelope.program
        # Pictures are waited for, even where the prompt is token ids alone.
        encodes = any(needs_encoding(row.input) or row.images or row.continuations is not None for row in req.rows)
        self.queue.submit(
            req.rid,
            partial(self._prepare, req, self._begin_images(req)),
            encodes=encodes or not req.computes,
            program=EVERYTHING if hint is None or req.sampling is None else hint.program,
            client=req.envelope.client,
        )

    def _begin_images(self, req: ClientRequest) -> ImageJob | Exception | None:
        """Begin to decode the pictures of a request; return None without any, or the error of one of them."""
        images = [image for row in req.rows for image in row.images]
        if not images:
            return None
        param = images[0].param
        if self.images is None:
            return RequestError(f"{param}: {self._model} reads no images; send text alone", param=param)
        try:
            of = req.envelope
            job = self.images.begin(images, of.client, of.cache_salt, self._prompts.max_input_tokens)
        except Exception as error:
            return error
        self._jobs[req.rid] = job
        return job

    def _release_images(self, rid: str) -> None:
        job = self._jobs.pop(rid, None)
        if job is not None:
            job.release()

    def _prepare(self, req: ClientRequest, job: ImageJob | Exception | None) -> Slices:
        """Encode the rows of a request, and yield between two rows; raises RequestError naming the field."""
        check_envelope(req.envelope)
        if isinstance(job, Exception):
            raise job
        found = [] if job is None else (yield from job.wait())
        pictures = [[found.pop(0) for _ in row.images] for row in req.rows] if found else [[]] * len(req.rows)
        row = req.rows[0]
        if req.sampling is not None:
            return self._generate(req, row, req.sampling, pictures[0])
        if not req.computes:
            return self._answer(req, row, pictures[0])
        if row.targets or row.continuations is not None:
            self._check_generates()
        if row.continuations is not None:
            bos = self._prompts.begins_text() if row.continuations.unconditional else None
            tokens = self._prompts.choices(row.input, row.continuations.texts, pictures[0])
            reported = self._reported(row, pack_i32(tokens.prompt_ids), pictures[0])
            state, rows, prefixes = read_continuations(req.rid, tokens, bos, reported)
            if pictures[0]:
                assert self._image_prompt is not None
                keyed = [self._image_prompt.keyed(each, prefixes[0], pictures[0]) for each in rows if not each.prefix]
                rows = [*(each for each, _ in keyed), *(each for each in rows if each.prefix)]
                prefixes[0] = keyed[0][1]
        else:
            state, prefixes = ReadState(req.rid), []
            rows = [self._read_row(req, row, pictures[0])]
            for each, shown in zip(req.rows[1:], pictures[1:], strict=True):
                yield None
                rows.append(self._read_row(req, each, shown))
        return lambda: self._begin(state, Request(req.envelope, rows, prefixes))

    def _read_row(self, req: ClientRequest, row: InputRow, pictures: list[Picture]) -> Row:
        self._prompts.check_targets(row.targets)
        return self._keyed(read_row(self._input_ids(req, row, pictures), row), pictures)

    def _keyed(self, row: Row, pictures: list[Picture]) -> Row:
        """Return a row without a prefix, with the keys of its images."""
        if not pictures:
            return row
        assert self._image_prompt is not None
        return self._image_prompt.keyed(row, b"", pictures)[0]

    def _reported(self, row: InputRow, ids: bytes, pictures: list[Picture]) -> bytes:
        """Return the prompt ids that an output carries: the keys of images stand in a prompt in parts, so that parts of
        a later prompt can be these ids."""
        return self._keyed(Row(ids), pictures).ids if isinstance(row.input, PartsInput) else ids

    def _input_ids(self, req: ClientRequest, row: InputRow, pictures: list[Picture]) -> bytes:
        """Return the prompt of a row as an int32 column, with image tokens at the positions of images; raises
        RequestError naming the prompt."""
        given, texts = row.input, req.texts
        if isinstance(given, PairInput):
            told = None if given.instruction < 0 else texts[given.instruction].text
            return self._pairs.encode(texts[given.query], texts[given.document], told)
        before = texts[given.before].text if isinstance(given, TextInput) and given.before >= 0 else ""
        return self._prompts.input_ids(given, before, row.keep_last, pictures)

    def _generate(self, req: ClientRequest, row: InputRow, sampling: SamplingParams, pictures: list[Picture]) -> Start:
        self._check_generates()
        sampling.validate(self._vocab_size)
        if sampling.n != 1:
            raise RequestError("n must be 1 for a request in the engine; send one for each completion", param="n")
        if sampling.stop:
            self._prompts.check_text("stop")
        if sampling.constraint is not None:
            self._prompts.check_text(sampling.constraint.kind)
        ids = self._input_ids(req, row, pictures)
        check_logprobs(sampling, len(ids) // 4, self._context_length)
        check_prompt_reads(sampling, len(ids) // 4, self._tasks.embedding.size)
        state = RequestState(
            req.rid,
            sampling,
            ids,
            stream=req.stream,
            tokenizer=self._tokenizer,
            return_prompt_ids=req.return_prompt_ids,
            reported_ids=self._reported(row, ids, pictures),
        )
        turn_len = self._prompts.turn_len(row.input, ids)
        tokenized = Request.continue_prompt(req.envelope, ids, sampling, turn_len)
        if pictures:
            tokenized = msgspec.structs.replace(tokenized, rows=[self._keyed(tokenized.rows[0], pictures)])
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

    def _answer(self, req: ClientRequest, row: InputRow, pictures: list[Picture]) -> Start:
        """Answer a request that needs no forward pass, with the token ids of its prompt or with their text."""
        if row.decode is None:
            ids = self._reported(row, self._input_ids(req, row, pictures), pictures)
            output = RequestOutput(req.rid, finish=Finish(FINISH_STOP), prompt_ids=ids)
        else:
            self._prompts.check_text("tokens")
            empty = isinstance(row.input, TokenInput) and not row.input.ids
            tokens = unpack_ids(b"" if empty else self._input_ids(req, row, pictures))
            text = self._tokenizer.decode(list(tokens), skip_special_tokens=row.decode)
            output = RequestOutput(req.rid, text, finish=Finish(FINISH_STOP))

        def answer() -> None:
            self._release_images(req.rid)
            self._to_main.send(OutputBatch([output]))

        return answer

    def _abort(self, req: AbortReq) -> None:
        if self.queue.cancel(req.rid):
            self._release_images(req.rid)
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
            self._release_images(delta.rid)
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
            max_images=0 if self.images is None else self.images.limits.max_images,
            image_token="" if self.images is None or self._image_prompt is None else self._image_prompt.token,
        )
