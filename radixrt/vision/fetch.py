"""Bytes of a picture from the URL in a request: from a data: URL, or over https from hosts that the operator lists.

A server that fetches URLs of its clients can be made to fetch from its own network. So nothing is fetched unless the
operator lists the host; the host's name is resolved once, all of its addresses must be public, and the connection goes
to one of the addresses that were verified; redirects are not followed; and the request carries nothing of the client's.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import httpcore

from radixrt.errors import RequestError

FETCH_S = 5.0
"""Longest time of a fetch: name, connection, and all bytes."""

DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(;[\w.+-]+=[^;,]*)*;base64,", re.ASCII | re.IGNORECASE)
HTTPS_URL = re.compile(r"https://([A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}))(?::(\d{1,5}))?([/?][!-~]*)?", re.ASCII)
"""Host, port and target. No user names, no addresses in brackets, no escapes in the host: parsers disagree on them."""

MAX_URL_CHARS = 8_192

_HEADERS = (
    ("Accept", "image/png, image/jpeg, image/webp"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", "radixrt"),
)
_TRANSLATED = (ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48"))
"""Addresses of IPv6 that stand for one of IPv4 behind a translator, which may be private."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


def decode_base64(text: str, param: str, max_bytes: int) -> bytes:
    """Decode the base64 form of an encoded picture; raises RequestError, before decoding if the picture is too large.

    Args:
        param: the client's name of the field.
    """
    size = len(text) // 4 * 3
    if size > max_bytes + 2:
        raise _too_large(param, max_bytes)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(f"{param}: the image is not valid base64", param=param, code="invalid_image") from None


def is_data_url(url: str) -> bool:
    """Return whether a URL holds the picture itself."""
    return url[:5].lower() == "data:"


def decode_data_url(url: str, param: str, max_bytes: int) -> bytes:
    """Return the bytes of a data: URL; raises RequestError as `decode_base64`."""
    match = DATA_URL.match(url)
    if match is None:
        raise RequestError(
            f"{param}: the data: URL must have the form data:image/png;base64,...", param=param, code="invalid_image"
        )
    return decode_base64(url[match.end() :], param, max_bytes)


class ImageFetcher:
    """Fetches pictures over https.

    Args:
        hosts: names of hosts that pictures may come from, as "name" or "name:port"; the port is 443 by default.
        max_bytes: largest picture.
        resolve: returns the addresses of a host; default: the system's resolver.
        is_public: whether an address may be connected to.
        tls: verifies the host's certificate; default: by the system's authorities.
    """

    def __init__(
        self,
        hosts: Collection[str],
        max_bytes: int,
        *,
        resolve: Resolve | None = None,
        is_public: Callable[[str], bool] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._resolve = resolve or _resolve
        self._is_public = is_public or is_public_address
        self._tls = tls

    def check(self, url: str, param: str) -> tuple[str, int, str]:
        """Return host, port and target of a URL that may be fetched; raises RequestError for any other."""
        match = HTTPS_URL.fullmatch(url) if len(url) <= MAX_URL_CHARS else None
        if match is None:
            raise _refused(
                param, "the image must be a data: URL" + (", or an https URL with a host's name" if self._hosts else "")
            )
        host, port = match[1].lower(), int(match[2] or 443)
        if (host if port == 443 else f"{host}:{port}") not in self._hosts:
            where = "; this server fetches images from listed hosts only (--image-hosts)"
            raise _refused(param, f"images are not fetched from {match[1]:.100}; send a data: URL" + where)
        target = match[3] or "/"
        return host, port, target if target.startswith("/") else "/" + target

    async def fetch(self, url: str, param: str) -> bytes:
        """Return the body of the answer to a GET request.

        Args:
            param: the client's name of the URL.

        Raises:
            RequestError: the URL may not be fetched, or the host did not answer with a picture of at most `max_bytes`
                within `FETCH_S`.
        """
        host, port, target = self.check(url, param)
        try:
            async with asyncio.timeout(FETCH_S):
                addresses = await self._resolve(host, port)
                if not addresses or not all(map(self._is_public, addresses)):
                    raise _refused(param, f"{host:.100} has no public address, and images come from such only")
                found = httpcore.URL(scheme="https", host=host, port=port, target=target)
                return await self._get(found, host, addresses[0], param)
        except TimeoutError:
            raise _refused(param, f"the image did not come from {host:.100} within {FETCH_S:g} s") from None
        except (OSError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            raise _refused(param, f"the image cannot be fetched from {host:.100}") from None

    async def _get(self, url: httpcore.URL, host: str, address: str, param: str) -> bytes:
        tls = self._tls or _default_tls()
        async with (
            httpcore.AsyncConnectionPool(tls, network_backend=_PinnedBackend(address)) as pool,
            pool.stream("GET", url, headers=_HEADERS) as response,
        ):
            if response.status != 200:
                moved = "; redirects are not followed" if 300 <= response.status < 400 else ""
                raise _refused(param, f"{host:.100} answered with status {response.status}{moved}")
            length = {name.lower(): value for name, value in response.headers}.get(b"content-length", b"")
            if length.isdigit() and int(length) > self._max_bytes:
                raise _too_large(param, self._max_bytes)
            body = bytearray()
            async for chunk in response.aiter_stream():
                body += chunk
                if len(body) > self._max_bytes:
                    raise _too_large(param, self._max_bytes)
            return bytes(body)


class _PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to one verified address, whatever the name of the host. TLS still verifies the name."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return await self._backend.connect_tcp(self._address, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


@functools.cache
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public_address(text: str) -> bool:
    """Return whether an address is one of the public internet: not private, loopback, link-local, multicast or
    reserved, and not such an address of IPv4 inside one of IPv6."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public_address(str(inner))
        if address.teredo is not None or any(address in network for network in _TRANSLATED):
            return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _refused(param: str, reason: str) -> RequestError:
    return RequestError(f"{param}: {reason}", param=param, code="invalid_image_url")


def _too_large(param: str, max_bytes: int) -> RequestError:
    return RequestError(
        f"{param}: the image may have {max_bytes} bytes; send it smaller, or as JPEG or WEBP",
        param=param,
        code="image_too_large",
    )
