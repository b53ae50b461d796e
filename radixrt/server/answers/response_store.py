"""`ResponseStore`: responses that clients retrieve, continue, cancel and delete, in memory and within bounds."""

from __future__ import annotations

import asyncio

import msgspec

from radixrt.errors import RequestError, shown
from radixrt.server.access.tenants import Tenant
from radixrt.server.answers.base import encode
from radixrt.server.answers.response_messages import StoredConversation, encode_messages, item_messages
from radixrt.server.answers.response_types import Item, MessageItem, OutputItem
from radixrt.server.answers.responses import QUEUED, ResponseBuilder

OVERHEAD_BYTES = 2_048
"""Memory of a stored response besides its JSON."""

ITEM_OVERHEAD_BYTES = 200
"""Memory of an item of its input besides the JSON."""


class StoredResponse:
    """A response with the conversation that led to it. Its JSON is kept encoded.

    A response holds the whole conversation that it continues, as texts that it shares with the earlier responses, so
    that it can be continued itself when these are gone.

    Args:
        conversation: up to the output of the response; None if it is too long to be continued.
        items: of the request's input.

    Attributes:
        rid: id of the request group that generates it.
        ended: set when the response has ended, or was never begun.
        input: items of the request's input, in order: id, JSON.
        output: items of the output, without log-probabilities: id -> JSON. Empty until the response has ended.
        conversation: up to and including the output; None if it is too long to be continued.
    """

    def __init__(
        self,
        builder: ResponseBuilder,
        tenant: Tenant,
        rid: str,
        conversation: StoredConversation | None,
        items: list[Item],
    ) -> None:
        self.id = builder.response.id
        self.tenant = tenant
        self.rid = rid
        self.ended = asyncio.Event()
        self.input = [(item["id"], encode(item)) for item in items]
        self.output: dict[str, bytes] = {}
        self.conversation = conversation
        self._builder: ResponseBuilder | None = builder
        self._status = QUEUED
        self._body = encode(builder.body())  # counts until the response has ended
        self._input_bytes = sum(len(data) + ITEM_OVERHEAD_BYTES for _, data in self.input)

    @property
    def status(self) -> str:
        return self._status if self._builder is None else self._builder.response.status

    @property
    def is_open(self) -> bool:
        return self._builder is not None

    @property
    def size(self) -> int:
        """Bytes that the response counts for. What it shares with others counts for each."""
        parts = (self._body, *self.output.values(), *(self.conversation or ()))
        return OVERHEAD_BYTES + self._input_bytes + sum(map(len, parts))

    def body(self) -> bytes:
        """Return the response as JSON."""
        return self._body if self._builder is None else encode(self._builder.body())

    def settle(self) -> None:
        """Encode the response, which has ended, and let its builder go."""
        assert self._builder is not None
        self._status = self._builder.response.status
        self._body = encode(self._builder.body())
        items = [_without_logprobs(item) for item in self._builder.response.output]
        self.output = {item.id: encode(item) for item in items}
        if self.conversation is not None:
            self.conversation = (*self.conversation, encode_messages(item_messages(msgspec.to_builtins(items))))
        self._builder = None


def _without_logprobs(item: OutputItem) -> OutputItem:
    """Return an item as a later request repeats it: log-probabilities are no part of a conversation."""
    if not isinstance(item, MessageItem):
        return item
    content = [msgspec.structs.replace(part, logprobs=[]) for part in item.content]
    return msgspec.structs.replace(item, content=content)


class ResponseStore:
    """Responses by id, at most so many and of so many bytes. Only the server's event loop changes it.

    Past a bound, the oldest response is dropped of the tenant that holds the most of what is bounded. Responses that
    are being generated are never dropped.

    Attributes:
        bytes: sum of the sizes of all responses.
        dropped: number of responses that were dropped.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, dict[str, StoredResponse]] = {}
        self._tenant_bytes: dict[str, int] = {}
        self._items: dict[tuple[str, str], StoredResponse] = {}
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_tenant.values()))

    @property
    def stores(self) -> bool:
        return self._max_responses > 0

    def add(self, response: StoredResponse) -> None:
        """Store a response that is about to be generated.

        Raises:
            RequestError: the response is too large alone; 503, the bounds are used up by responses that are being
                generated.
        """
        if response.size > self._max_bytes:
            raise RequestError(
                f"the conversation is {response.size} bytes alone; at most {self._max_bytes} are stored "
                "(--max-stored-response-bytes); send store false", param="store",
            )  # fmt: skip
        self._by_tenant.setdefault(response.tenant.name, {})[response.id] = response
        self._count(response, response.size)
        self._drop_excess()
        if self._exceeded():
            self._remove(response)
            raise RequestError(
                "too many responses are being generated to store another one; send store false, or try again",
                param="store", code="response_store_full", status=503,
            )  # fmt: skip

    def settle(self, response: StoredResponse, builder: ResponseBuilder) -> None:
        """Keep a response as it has ended. One that was not begun is removed, one that was broken off is cancelled."""
        response.ended.set()
        if not builder.has_begun:
            self._remove(response)
            return
        if builder.is_open:
            builder.cancel()
        before = response.size
        response.settle()
        if self._find(response.tenant, response.id) is None:
            return  # deleted meanwhile
        self._count(response, response.size - before)
        for item_id in response.output:
            self._items[response.tenant.name, item_id] = response
        self._drop_excess()

    def get(self, tenant: Tenant, response_id: str, param: str = "response_id") -> StoredResponse:
        """Return a tenant's response.

        Raises:
            RequestError: 404, there is none.
        """
        found = self._find(tenant, response_id)
        if found is None:
            code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
            raise RequestError(
                f"there is no response {shown(response_id)}: it was deleted or made with store false or by another API "
                f"key, or it was dropped as the oldest of more than {self._max_responses} (--max-stored-responses), or "
                f"of more than {self._max_bytes} bytes (--max-stored-response-bytes)",
                param=param, code=code, status=404,
            )  # fmt: skip
        return found

    def item(self, tenant: Tenant, item_id: str) -> bytes | None:
        """Return the JSON of an output item of a tenant's responses, or None."""
        response = self._items.get((tenant.name, item_id))
        return None if response is None else response.output.get(item_id)

    def delete(self, response: StoredResponse) -> None:
        self._remove(response)

    def _find(self, tenant: Tenant, response_id: str) -> StoredResponse | None:
        return self._by_tenant.get(tenant.name, {}).get(response_id)

    def _count(self, response: StoredResponse, size: int) -> None:
        name = response.tenant.name
        self.bytes += size
        self._tenant_bytes[name] = self._tenant_bytes.get(name, 0) + size

    def _remove(self, response: StoredResponse) -> None:
        if self._by_tenant.get(response.tenant.name, {}).pop(response.id, None) is None:
            return
        self._count(response, -response.size)
        for item_id in response.output:
            self._items.pop((response.tenant.name, item_id), None)

    def _exceeded(self) -> bool:
        return len(self) > self._max_responses or self.bytes > self._max_bytes

    def _drop_excess(self) -> None:
        while self._exceeded():
            oldest = self._oldest()
            if oldest is None:
                return
            self._remove(oldest)
            self.dropped += 1

    def _oldest(self) -> StoredResponse | None:
        """Return the oldest ended response of the tenant that holds the most; None if no response has ended."""
        by_number = len(self) > self._max_responses
        held = {name: len(own) if by_number else self._tenant_bytes[name] for name, own in self._by_tenant.items()}
        for name in sorted(held, key=held.__getitem__, reverse=True):
            for response in self._by_tenant[name].values():
                if not response.is_open:
                    return response
        return None
