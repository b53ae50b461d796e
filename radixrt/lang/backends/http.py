"""`HttpClient`: HTTP/1.1 over asyncio's streams, as much of it as talking to a model server takes.

Connections are kept and belong to the event loop that opened them; one client serves any number of loops. A response
that is not read to its end takes its connection with it, which is how a server learns that nobody waits any more.
Proxies and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from radixrt.errors import ConfigError, EngineError

CONNECT_TIMEOUT_S = 10.0
MAX_CONNECTIONS = 512
MAX_LINE_BYTES = 64 * 1024
MAX_HEADERS = 256
READ_BYTES = 64 * 1024


class _Stale(Exception):
    """A kept connection was closed by the server before any of the answer came: the request was not read."""


@dataclass
class Response:
    """A response whose head has been read.

    Attributes:
        headers: names in lower case; the last of several with one name.
    """

    status: int
    headers: dict[str, str]
    _connection: _Connection

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, never empty pieces.

        Raises:
            EngineError: the connection ended before the body did.
        """
        connection, headers = self._connection, self.headers
        if self.status in (204, 304):
            pass
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            while size := await connection.chunk_size():
                while size > 0:
                    data = await connection.some(min(size, READ_BYTES))
                    size -= len(data)
                    yield data
                await connection.line()
            while await connection.line():  # trailers, and the empty line behind them
                pass
        elif "content-length" in headers:
            left = int(headers["content-length"])
            while left > 0:
                data = await connection.some(min(left, READ_BYTES))
                left -= len(data)
                yield data
        else:
            connection.keep = False
            while data := await connection.reader.read(READ_BYTES):
                yield data
        connection.complete = True

    async def read(self) -> bytes:
        """The whole body."""
        return b"".join([data async for data in self.chunks()])

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The data of each server-sent event, one per `data:` line."""
        rest = b""
        async for data in self.chunks():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()
        if rest.startswith(b"data:"):
            yield rest[5:].strip()


@dataclass
class _Connection:
    """One connection. `keep`: it may serve another request after this one. `complete`: its response was read to the
    end."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    where: str
    used: bool = False
    keep: bool = True
    complete: bool = False

    async def send(self, head: bytes, body: bytes) -> Response:
        """Write a request and read the head of its answer."""
        self.complete = False
        try:
            self.writer.write(head + body)
            await self.writer.drain()
            first = await self.reader.readline()
        except (OSError, ValueError) as error:
            if self.used:
                raise _Stale from error
            raise self._broken(str(error) or type(error).__name__) from error
        if not first:
            if self.used:
                raise _Stale
            raise self._broken("closed without an answer")
        self.used = True
        return await self._head(first)

    async def _head(self, first: bytes) -> Response:
        while True:
            version, _, rest = first.decode("latin-1").strip().partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise self._broken("the answer is not HTTP/1.1")
            headers: dict[str, str] = {}
            while line := await self.line():
                name, _, value = line.decode("latin-1").partition(":")
                headers[name.strip().lower()] = value.strip()
                if len(headers) > MAX_HEADERS:
                    raise self._broken(f"the answer has more than {MAX_HEADERS} headers")
            status = int(rest[:3])
            if status >= 200:
                break
            first = await self.line()  # 100 Continue and the like come before the answer
        closes = "close" in headers.get("connection", "").lower()
        self.keep = version == "HTTP/1.1" and not closes
        return Response(status, headers, self)

    async def line(self) -> bytes:
        try:
            data = await self.reader.readline()
        except (OSError, ValueError) as error:
            raise self._broken(str(error) or type(error).__name__) from error
        if not data.endswith(b"\n"):
            raise self._broken("closed in the middle of an answer")
        return data.rstrip(b"\r\n")

    async def chunk_size(self) -> int:
        line = await self.line()
        try:
            return int(line.partition(b";")[0], 16)
        except ValueError:
            raise self._broken("a chunk of the answer has no size") from None

    async def some(self, most: int) -> bytes:
        try:
            data = await self.reader.read(most)
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error
        if not data:
            raise self._broken("closed in the middle of an answer")
        return data

    def _broken(self, reason: str) -> EngineError:
        return EngineError(f"the connection to {self.where} broke: {reason}")

    def close(self) -> None:
        self.writer.close()


@dataclass
class _Pool:
    """The connections of one event loop: how many may be open, and those that wait for their next request."""

    slots: asyncio.Semaphore
    idle: list[_Connection] = field(default_factory=list)


class HttpClient:
    """See the module's docstring.

    Args:
        base_url: "http://host:port", optionally with a path that all requests' paths are appended to.
        headers: sent with each request.
        max_connections: open at once per event loop; further requests wait for one.

    Raises:
        ConfigError: base_url is not an http or https URL.
    """

    def __init__(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        url = _parsed(base_url)
        self.base_url = base_url.rstrip("/")
        self._host, self._port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._path = url.path.rstrip("/")
        fixed = {"Host": url.netloc.rpartition("@")[2], "Accept-Encoding": "identity", **(headers or {})}
        for name, value in fixed.items():
            if any(c in name + value for c in "\r\n") or not (name + value).isascii():
                raise ConfigError(f"the header {name} holds a line break or characters that are not ASCII")
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in fixed.items())
        self._max_connections = max_connections
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

    @asynccontextmanager
    async def request(self, method: str, path: str, body: bytes | None = None) -> AsyncIterator[Response]:
        """Send a request (JSON, if it has a body) and hand out its response; leaving early closes the connection.

        Raises:
            EngineError: the server cannot be reached, or the connection broke.
        """
        data = body or b""
        content = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{content}\r\n".encode()
        pool = self._pool()
        async with pool.slots:
            connection, response = await self._send(pool, head, data)
            try:
                yield response
            finally:
                if connection.complete and connection.keep:
                    pool.idle.append(connection)
                else:
                    connection.close()

    async def aclose(self) -> None:
        """Close the kept connections of the running loop; those of other loops went with them."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        for connection in pool.idle if pool is not None else ():
            connection.close()

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            for ended in [other for other in self._pools if other.is_closed()]:
                del self._pools[ended]
            self._pools[loop] = _Pool(asyncio.Semaphore(self._max_connections))
        return self._pools[loop]

    async def _send(self, pool: _Pool, head: bytes, body: bytes) -> tuple[_Connection, Response]:
        while True:
            connection = pool.idle.pop() if pool.idle else await self._connect()
            try:
                return connection, await connection.send(head, body)
            except _Stale:
                connection.close()
            except BaseException:
                connection.close()
                raise

    async def _connect(self) -> _Connection:
        where = f"{self._host}:{self._port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._tls, limit=MAX_LINE_BYTES
                )
        except TimeoutError:
            raise EngineError(f"{where} did not accept a connection within {CONNECT_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise EngineError(f"cannot connect to {where}: {error.strerror or error}; is the server running?") from None
        return _Connection(reader, writer, where)


def _parsed(base_url: str) -> SplitResult:
    try:
        url = urlsplit(base_url)
        port = url.port
    except ValueError as error:
        raise ConfigError(f"base_url {base_url!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or url.query or url.fragment:
        raise ConfigError(f"base_url must be like http://127.0.0.1:8000, not {base_url!r}")
    return url
