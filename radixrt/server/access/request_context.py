"""`RequestContext`: the ids of an HTTP request, and who sent it."""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixrt.server.access.tenants import Tenant

if TYPE_CHECKING:
    from opentelemetry.trace import Span

MAX_REQUEST_ID_CHARS = 96
"""Longest id that a client may choose: the ids of the engine's requests, which begin with it, are bounded too."""

_VALID_ID = re.compile(rf"[A-Za-z0-9._:/+=@-]{{1,{MAX_REQUEST_ID_CHARS}}}")


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Identity of one HTTP request; the middleware puts it into the request's state as `context`.

    Attributes:
        request_id: id in the header x-request-id and in log lines; the client's own, which need not be unique, if that
            is valid.
        rid: unique in this server, and begins with the request id. The ids of the engine's requests begin with it, and
            it is the request's `rid` if the body names none.
        tenant: whose API key the request carries.
        span: of the request, if the server sends traces.
        address: of the client, all addresses of an IPv6 network being one; "" if unknown.
    """

    request_id: str
    rid: str
    tenant: Tenant
    span: Span | None = None
    address: str = ""


class RequestIds:
    """Makes the ids of one server's HTTP requests."""

    def __init__(self) -> None:
        self._serial: Iterator[int] = itertools.count(1)

    def context(self, given: str, tenant: Tenant, address: str = "") -> RequestContext:
        """Create the context of a request of `tenant` at `address`, who sent the x-request-id `given` ("" for none)."""
        if not _VALID_ID.fullmatch(given):
            fresh = uuid.uuid4().hex
            return RequestContext(fresh, fresh, tenant, address=address)
        return RequestContext(given, f"{given}.{next(self._serial)}", tenant, address=address)
