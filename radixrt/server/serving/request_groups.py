"""`RequestGroups`: the requests of the engine that answer one HTTP request, from sending them to their end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from radixrt.chat.constraint import FieldNames, renamed
from radixrt.client.answers import raise_for_error
from radixrt.client.collector import OutputCollector
from radixrt.client.engine_client import EngineClient
from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, RequestOutput
from radixrt.messages.parts import FINISH_ABORT, Finish
from radixrt.messages.reads import check_total
from radixrt.server.access.request_context import RequestContext
from radixrt.server.access.tenants import Account, Accounts, Tenant
from radixrt.server.metrics.requests import GroupRecord, RequestMetrics, RequestRecord
from radixrt.server.serving.image_urls import with_fetched_images
from radixrt.tasks.generate import expand_n
from radixrt.tasks.run import TaskCall
from radixrt.vision.fetch import ImageFetcher

if TYPE_CHECKING:
    from radixrt.server.metrics.spans import Tracing

A = TypeVar("A")

Stream = AsyncGenerator[RequestOutput, None]
"""Outputs of one request of the engine."""

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]
"""Outputs of several completions as they arrive, each with the index of its completion."""


MAX_COPIES_BYTES = 64 * 1024 * 1024
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Requests of the engine that answer one HTTP request.

    Attributes:
        context: context of the HTTP request.
        rid: the id under which a client may abort the group; the requests' own ids begin with it.
        requests: each stands for `sampling.n` completions; completion j of request i has the index i * n + j.
        names: the client's names for the engine's fields, for errors.
    """

    context: RequestContext
    rid: str
    requests: Sequence[ClientRequest]
    names: FieldNames


class RequestGroups:
    """The open groups of requests: sends them, merges and measures their outputs, and aborts them.

    Attributes:
        open: tenant's name and group id -> ids of the engine's requests.

    Args:
        accounts: what each tenant uses; each request is counted there.
        metrics: metrics of requests; each is observed when it ends.
        fetcher: fetches the pictures that requests name by URLs.
    """

    def __init__(
        self, client: EngineClient, accounts: Accounts, metrics: RequestMetrics, model_name: str,
        tracing: Tracing | None, fetcher: ImageFetcher,
    ) -> None:  # fmt: skip
        self._client = client
        self._fetcher = fetcher
        self._accounts = accounts
        self._metrics = metrics
        self._model_name = model_name
        self._tracing = tracing
        self.open: dict[tuple[str, str], list[str]] = {}

    # --- generating ---

    async def generate(self, group: RequestGroup) -> Outputs:
        """Send the requests of a group and yield their outputs as they arrive, until all requests have finished.

        Closing the generator, or leaving it with an exception, aborts the requests that have not finished.

        Raises:
            RequestError: the engine refuses a request or ends it with an error; all requests of the group end then.
        """
        requests, info = group.requests, self._client.info
        if any(map(_has_images, requests)):
            if info is not None and info.max_images:
                requests = await with_fetched_images(requests, self._fetcher, info.max_images)
            _check_image_copies(requests)
        _check_copies(requests)
        prompt_bytes = 0
        with self._sent(group.context, group.rid, requests) as (streams, begun, records):
            unfinished = len(streams)
            async with aclosing(_merge(streams, begun)) as outputs:
                async for index, output in outputs:
                    if output.prompt_values is not None:
                        prompt_bytes += output.prompt_values.num_bytes
                        check_total(prompt_bytes)
                    if records[index].first_at is None:
                        records[index].first_at = time.monotonic()
                    if output.finish is not None:
                        self._check_finish(output.finish, group.names)
                        unfinished -= 1
                    yield index, output
                    if not unfinished:
                        break

    @contextmanager
    def _sent(
        self, context: RequestContext, rid: str, requests: Sequence[ClientRequest]
    ) -> Iterator[tuple[list[Stream], set[int], list[RequestRecord]]]:
        """Send the completions of a group for their tenant. At the end, those whose stream was not begun are aborted.

        Yields:
            The stream of each completion; the set of indices of those that were begun, to be kept by the caller; the
            record of each, whose `first_at` the caller sets.

        Raises:
            RequestError: the rid is in use, a limit of the tenant is reached, or the engine refuses a request.
        """
        tenant, key = context.tenant, (context.tenant.name, rid)
        if key in self.open:
            raise RequestError(f"request id {rid!r} is in use", param="rid")
        completions = [
            (one, i == 0)  # the first one's usage counts the prompt
            for request in requests
            for i, one in enumerate(expand_n(request))
        ]
        account = self._accounts.of(tenant)
        account.admit(tenant, len(completions))
        self.open[key] = sent = []
        streams: list[Stream] = []
        begun: set[int] = set()
        together = GroupRecord(len(completions), len(completions))
        records: list[RequestRecord] = []
        try:
            for one, counts_prompt in completions:
                own = tenant.own(one, context.rid + one.rid.removeprefix(rid), context.address)
                record = RequestRecord(own, together, time.monotonic())
                on_end = partial(self._ended, record, account, context, counts_prompt=counts_prompt)
                streams.append(self._client.astream(own, on_end))
                sent.append(own.rid)
                records.append(record)
            yield streams, begun, records
        finally:
            account.withdraw(len(completions) - len(streams))
            for index, each in enumerate(sent):
                if index not in begun:  # closing an iterator that has not started does not abort its request
                    self._client.abort(each)
            del self.open[key]

    def _ended(
        self, record: RequestRecord, account: Account, context: RequestContext, last: RequestOutput, *,
        counts_prompt: bool,
    ) -> None:  # fmt: skip
        """Count a request of the engine that has just ended, also if nobody waits for its output any more."""
        account.end(context.tenant, last, counts_prompt=counts_prompt)
        self._metrics.observe(record, last)
        if self._tracing is not None and context.span is not None:
            self._tracing.record(context.span, record, last, self._model_name)

    def _check_finish(self, finish: Finish, names: FieldNames) -> None:
        try:
            raise_for_error(finish)
        except RequestError as error:
            raise renamed(error, names) from None
        if finish.reason == FINISH_ABORT and self._client.draining:
            raise RequestError("the server shut down before the request ended", code="shutting_down", status=503)

    async def collect(self, group: RequestGroup) -> list[RequestOutput]:
        """Run `generate` to the end; return the whole output of each completion, in order."""
        collectors: dict[int, OutputCollector] = {}
        whole: dict[int, RequestOutput] = {}
        async with aclosing(self.generate(group)) as increments:
            async for index, increment in increments:
                if index not in collectors:
                    collectors[index] = OutputCollector()
                output = collectors[index].add(increment)
                if output is not None:
                    whole[index] = output
        return [whole[index] for index in range(len(whole))]

    async def run(self, context: RequestContext, call: TaskCall[A], names: FieldNames) -> A:
        """Send the requests of a task and return its answer; raises as `generate` and `TaskCall.answer` do."""
        return call.answer(await self.collect(RequestGroup(context, call.requests[0].rid, call.requests, names)))

    # --- ending ---

    def abort(self, tenant: Tenant, rid: str) -> int:
        """Abort a tenant's open group; an admin's abort reaches the other tenants' if there is none of its own.

        Returns:
            The number of its requests, 0 if the group is not open.
        """
        keys = [(tenant.name, rid)]
        if tenant.is_admin and keys[0] not in self.open:
            keys = [key for key in self.open if key[1] == rid]
        return sum(self._abort(key) for key in keys)

    def _abort(self, key: tuple[str, str]) -> int:
        rids = self.open.get(key, [])
        for each in rids:
            self._client.abort(each)
        return len(rids)

    def abort_all(self) -> int:
        return sum(self._abort(key) for key in list(self.open))


def _has_images(request: ClientRequest) -> bool:
    return any(row.images for row in request.rows)


def _check_image_copies(requests: Sequence[ClientRequest]) -> None:
    """Refuse many copies of large pictures: each question is sent to the engine with its pictures, and with each of
    them as often as it stands in the question."""
    images = [image for request in requests for row in request.rows for image in row.images]
    size = sum(len(image.data) for image in images)
    if size > MAX_COPIES_BYTES:
        param = images[0].param
        raise RequestError(
            f"{param}: {len(images)} images are sent for {len(requests)} questions, {size} bytes in all; at most "
            f"{MAX_COPIES_BYTES} are served at a time; send smaller images, or fewer questions in a request",
            param=param,
            code="images_too_large",
        )


def _check_copies(requests: Sequence[ClientRequest]) -> None:
    """Refuse many completions of a large request, since each is sent to the engine with a copy of the prompt."""
    copies = ((request, request.sampling.n) for request in requests if request.sampling is not None)
    size = sum(len(_encode(request)) * n for request, n in copies if n > 1)
    if size > MAX_COPIES_BYTES:
        raise RequestError(
            f"n copies of this request are {size} bytes; at most {MAX_COPIES_BYTES} are served at a time", param="n"
        )


async def _merge(streams: Sequence[Stream], begun: set[int]) -> Outputs:
    """Yield the outputs of all streams as they arrive.

    Args:
        begun: receives the indices of the streams whose iteration has started.
    """
    if len(streams) == 1:
        begun.add(0)
        async with aclosing(streams[0]) as only:
            async for output in only:
                yield 0, output
        return
    merged: asyncio.Queue[tuple[int, RequestOutput]] = asyncio.Queue()

    async def pump(index: int, stream: Stream) -> None:
        begun.add(index)
        async for output in stream:
            merged.put_nowait((index, output))

    pumps = [asyncio.create_task(pump(index, stream)) for index, stream in enumerate(streams)]
    try:
        while True:
            yield await merged.get()
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
