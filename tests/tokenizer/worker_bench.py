"""`Bench`: a TokenizerWorker whose inbox and outboxes the test controls."""

from __future__ import annotations

from typing import Any

from radixrt.channel import LocalChannel
from radixrt.messages.client import ClientRequest, OutputBatch, RequestOutput, ToMain, ToTokenizer
from radixrt.messages.parts import Finish, FinishError, Timings, Usage
from radixrt.messages.request import Request
from radixrt.messages.scheduler import TokenBatch, TokenDelta, ToScheduler
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer.tokenizer import Tokenizer
from radixrt.tokenizer.worker import TokenizerWorker
from tests.client_requests import generating

CONTEXT = 100
TIMINGS = Timings(queue_s=0.1, prefill_s=0.2, decode_s=0.3)


class Bench:
    """A worker with both its sides in hand; every message crosses its wire form."""

    def __init__(self, tokenizer: Tokenizer, **options: Any) -> None:
        self.tokenizer = tokenizer
        self.last_sent: Request | None = None
        self.call: Any = None
        self.inbox: LocalChannel[ToTokenizer] = LocalChannel(ToTokenizer)
        self.scheduler: LocalChannel[ToScheduler] = LocalChannel(ToScheduler)
        self.main: LocalChannel[ToMain] = LocalChannel(ToMain)
        self.worker = TokenizerWorker(
            tokenizer,
            **{"model": "test", "vocab_size": tokenizer.vocab_size, "context_length": CONTEXT, **options},
            to_scheduler=self.scheduler,
            to_main=self.main,
        )

    def handle(self, message: ToTokenizer) -> None:
        self.inbox.send(message)
        received = self.inbox.recv()
        assert received is not None
        self.worker.handle(received)

    def start(self, rid: str = "r", *, stream: bool = True, prompt: str = "hi", **sampling: Any) -> Request:
        self.handle(generating(rid, SamplingParams(**sampling), prompt=prompt, stream=stream))
        sent = self.scheduler.recv()
        assert isinstance(sent, Request)
        return sent

    def tokens(
        self, ids: list[int] | str, *, rid: str = "r", finish: Finish | None = None, **more: Any
    ) -> list[RequestOutput]:
        """The scheduler's new tokens; returns what main gets for them."""
        column = pack_i32(self.tokenizer.encode(ids) if isinstance(ids, str) else ids)
        if finish is not None:
            more = {"usage": Usage(9, 99, 5), "timings": TIMINGS, **more}
        self.handle(TokenBatch([TokenDelta(rid, column, finish, **more)]))
        return self.deltas()

    def deltas(self) -> list[RequestOutput]:
        found: list[RequestOutput] = []
        while (message := self.main.recv()) is not None:
            assert isinstance(message, OutputBatch)
            found += message.outputs
        return found

    def refused(self, message: ClientRequest) -> FinishError:
        """The error of a request that must not reach the scheduler."""
        self.handle(message)
        assert self.scheduler.recv() is None
        (delta,) = self.deltas()
        assert delta.rid == message.rid
        assert delta.finish is not None
        assert delta.finish.reason == "error"
        assert delta.finish.error is not None
        assert self.worker.num_live == 0
        return delta.finish.error
