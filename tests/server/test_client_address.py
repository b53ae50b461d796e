"""Whose turn a request takes: the address in its context, of the connection or from a trusted proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixrt.server.access.request_context import RequestIds
from radixrt.server.access.tenants import EVERYONE
from radixrt.server.http.client_address import ForwardedClients, TrustedProxies, client_name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8::5:1", "2001:db8::/64"),
        ("pipe", "pipe"),
    ],
)
def test_a_client_has_one_name(host: str, name: str) -> None:
    assert client_name(host) == name


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [("10.1.2.3", b"192.0.2.9", "192.0.2.9"), ("10.1.2.3", b"", "10.1.2.3"), ("192.0.2.1", b"192.0.2.9", "192.0.2.1")],
)
def test_the_context_of_a_request_names_the_client_behind_a_trusted_proxy(
    peer: str, forwarded: bytes, expected: str
) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["state"]["context"].address)

    context = RequestIds().context("", EVERYONE, client_name(peer))
    headers = [(b"x-forwarded-for", forwarded)] if forwarded else []
    scope = {"type": "http", "client": (peer, 1), "headers": headers, "state": {"context": context}}
    asyncio.run(ForwardedClients(app, TrustedProxies("10.1.0.0/16"), 4)(scope, None, None))  # type: ignore[arg-type]
    assert seen == [expected]
