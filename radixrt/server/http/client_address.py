"""The address of a client: of the connection, or from X-Forwarded-For if the connection is that of a trusted proxy.

uvicorn's own middleware for this header does not serve here: it takes a name that is no address as the client, and a
proxy for the client of its own probes; it does not see that ::ffff:10.0.0.1 is in 10.0.0.0/8; and it also believes
X-Forwarded-Proto.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from radixrt.config import parse_networks
from radixrt.errors import RequestError
from radixrt.server.http.errors import error_response

IPV6_CLIENT_BITS = 64
"""One client usually has all IPv6 addresses of a network of this size."""

UNKNOWN = "unknown"


class TrustedProxies:
    """Proxies whose X-Forwarded-For is believed.

    Args:
        listed: their addresses and networks, as `radixrt.config.parse_networks` takes them.
    """

    def __init__(self, listed: str) -> None:
        self._networks = parse_networks(listed, "trusted_proxies")

    def __contains__(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, forwarded_for: Iterable[str]) -> str | None:
        """Return the client that a trusted proxy names: the last entry that is no trusted proxy itself.

        Earlier entries are what the client itself claims. None if no proxy names a client.

        Args:
            forwarded_for: values of the header, in order.
        """
        entries = [entry.strip() for value in forwarded_for for entry in value.split(",")]
        for entry in reversed(entries):
            if not entry or entry in self:
                continue
            return UNKNOWN if _address(entry) is None else entry
        return None


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an address, with or without a port."""
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def client_name(host: str) -> str:
    """Return the name of the client at an address: the address, or the network of an IPv6 address."""
    address = _address(host)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, IPV6_CLIENT_BITS), strict=False))
    return host if address is None else str(address)


class ClientCounts:
    """Counts connections, or requests behind a proxy, by client.

    Args:
        limit: most for one client.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts: Counter[str] = Counter()

    def enter(self, host: str) -> str | None:
        """Count one more; return the key to `leave` with, or None if the client has as many as it may have."""
        key = client_name(host)
        if self._counts[key] >= self.limit:
            return None
        self._counts[key] += 1
        return key

    def leave(self, key: str) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]

    def refusal(self) -> RequestError:
        return RequestError(
            f"this client has {self.limit} connections or requests already (max_connections_per_client)",
            code="too_many_connections",
            status=429,
        )


class ForwardedClients:
    """ASGI middleware for requests of trusted proxies: sets the address of their client, in `RequestContext` too, and
    bounds each client's requests. The connections of other clients are bounded by `LimitedHttpProtocol`.

    Args:
        limit: requests of one client at a time, at most.
    """

    def __init__(self, app: ASGIApp, proxies: TrustedProxies, limit: int) -> None:
        self.app = app
        self._proxies = proxies
        self._counts = ClientCounts(limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = scope.get("client")
        if scope["type"] != "http" or peer is None or peer[0] not in self._proxies:
            await self.app(scope, receive, send)
            return
        client = self._proxies.client_of(Headers(scope=scope).getlist("x-forwarded-for"))
        if client is None:  # the proxy's own request, such as a probe
            await self.app(scope, receive, send)
            return
        scope["client"] = (client, 0)
        key = self._counts.enter(client)
        if key is None:
            await error_response(self._counts.refusal(), scope)(scope, receive, send)
            return
        state = scope.get("state", {})
        if "context" in state:
            state["context"] = dataclasses.replace(state["context"], address=key)
        try:
            await self.app(scope, receive, send)
        finally:
            self._counts.leave(key)
