"""`Service`: what the routes share. Admits requests, merges their streams, knows which are open, measures them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from radixrt.chat.constraint import FieldNames, renamed
from radixrt.chat.dialect import Dialect
from radixrt.client.answers import raise_for_error
from radixrt.client.collector import OutputCollector
from radixrt.client.engine_client import EngineClient
from radixrt.client.validation import Question
from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.messages.client import GenerateReq, RequestOutput
from radixrt.messages.parts import FINISH_ABORT, Finish
from radixrt.server.http.metrics import Metrics

Deltas = AsyncGenerator[tuple[int, RequestOutput], None]
"""Deltas of several requests as they come, each with its request's index."""


class Service:
    """See the module's docstring.

    Attributes:
        created: when this server started, in seconds since 1970.
        open_groups: for each id that a client may abort, the engine's ids behind it.
        dialect: what the model knows of tools and reasoning.
    """

    def __init__(
        self, client: EngineClient, config: ServerConfig, model_name: str, dialect: Dialect | None = None
    ) -> None:
        self.dialect = dialect or Dialect()
        self.client = client
        self.config = config
        self.model_name = model_name
        self.metrics = Metrics(client)
        self.created = int(time.time())
        self.open_groups: dict[str, list[str]] = {}

    # --- generating ---

    async def generate(self, group: str, requests: Sequence[GenerateReq], names: FieldNames) -> Deltas:
        """Run the requests together; yields their deltas with each one's index, as they come, until all have finished.

        Closing the generator, or leaving it with an exception, aborts what has not finished.

        Args:
            group: the id under which a client may abort them all.
            names: the client's names for the engine's fields, which errors name.

        Raises:
            RequestError: the engine refuses a request or ends it with an error; all of them end then.
        """
        if group in self.open_groups:
            raise RequestError(f"request id {group!r} is in use", param="rid")
        self.open_groups[group] = [request.rid for request in requests]
        started = time.perf_counter()
        first_at: dict[int, float] = {}
        unfinished = len(requests)
        try:
            async with aclosing(self._merge(requests)) as deltas:
                async for index, delta in deltas:
                    if index not in first_at:
                        first_at[index] = time.perf_counter()
                    if delta.finish is not None:
                        self.metrics.observe(delta, started, first_at[index] if requests[index].stream else None)
                        self._check_finish(delta.finish, names)
                        unfinished -= 1
                    yield index, delta
                    if not unfinished:
                        break
        finally:
            del self.open_groups[group]

    def _check_finish(self, finish: Finish, names: FieldNames) -> None:
        try:
            raise_for_error(finish)
        except RequestError as error:
            raise renamed(error, names) from None
        if finish.reason == FINISH_ABORT and self.client.draining:
            raise RequestError("the server shut down before the request ended", code="shutting_down", status=503)

    async def _merge(self, requests: Sequence[GenerateReq]) -> Deltas:
        if len(requests) == 1:
            only = self.client.astream(requests[0])
            async with aclosing(only):
                async for delta in only:
                    yield 0, delta
            return
        merged: asyncio.Queue[tuple[int, RequestOutput]] = asyncio.Queue()
        begun: set[str] = set()
        sent: list[str] = []
        pumps: list[asyncio.Task[None]] = []

        async def pump(index: int, rid: str, stream: AsyncIterator[RequestOutput]) -> None:
            begun.add(rid)
            async for delta in stream:
                merged.put_nowait((index, delta))

        try:
            for index, request in enumerate(requests):
                stream = self.client.astream(request)
                sent.append(request.rid)
                pumps.append(asyncio.create_task(pump(index, request.rid, stream)))
            while True:
                yield await merged.get()
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for rid in sent:
                if rid not in begun:  # its iterator has not started, so cancelling it has not aborted the request
                    self.client.abort(rid)

    async def collect(self, group: str, requests: Sequence[GenerateReq], names: FieldNames) -> list[RequestOutput]:
        """`generate` to the end: the whole output of each request."""
        collectors = [OutputCollector() for _ in requests]
        whole: dict[int, RequestOutput] = {}
        async with aclosing(self.generate(group, requests, names)) as increments:
            async for index, increment in increments:
                output = collectors[index].add(increment)
                if output is not None:
                    whole[index] = output
        return [whole[index] for index in range(len(requests))]

    async def ask(self, group: str, questions: Sequence[Question], names: FieldNames) -> list[RequestOutput]:
        """Ask the engine questions together; the one delta that answers each. Ended early, all of them are aborted.

        Args:
            group, names: as for `generate`.

        Raises:
            RequestError: the engine refuses one, or ends it with an error.
        """
        if group in self.open_groups:
            raise RequestError(f"request id {group!r} is in use", param="rid")
        self.open_groups[group] = [question.rid for question in questions]
        tasks = [asyncio.ensure_future(self.client.aask(question)) for question in questions]
        try:
            return await asyncio.gather(*tasks)
        except RequestError as error:
            raise renamed(error, names) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del self.open_groups[group]

    # --- ending ---

    def abort(self, rid: str) -> int:
        """Stop an open group; returns how many of the engine's requests it has, 0 if it is not open."""
        rids = self.open_groups.get(rid, [])
        for each in rids:
            self.client.abort(each)
        return len(rids)

    def abort_all(self) -> int:
        return sum(self.abort(group) for group in list(self.open_groups))
