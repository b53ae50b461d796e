"""The server's listening socket: bound before the model loads, listening once requests can be answered."""

from __future__ import annotations

import errno
import socket

from radixrt.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that holds the address and refuses connections until `listen`.

    Raises:
        ConfigError: the address cannot be had; says why and what to change.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a former server's connections do not count
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect.

    Raises:
        ConfigError: another process that was started at the same time listens on the port by now.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _refused(host, port, error) from None


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return the URL that clients connect to; the port is the real one, if it was given as 0."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _refused(host: str, port: int, error: OSError) -> ConfigError:
    where = f"cannot listen on {host} port {port}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"{where}: the port is in use; stop the process that has it, or choose another --port")
    if error.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(f"{where}: {error.strerror}; choose a --port above 1023")
    return ConfigError(f"{where}: {error.strerror or error}; choose another --host")
