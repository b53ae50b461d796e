"""Access: which paths and actions need a key, and which an admin's, once the server has keys; and checks of Host and
Origin on the routes of operators, which pages of other sites must not reach through a browser.

A page can have a domain of its own that resolves to 127.0.0.1 (DNS rebinding). The browser then takes this server for
the page's own origin, and lets it read answers. But it sends the domain as Host. So on a server without API keys these
routes answer only to names that no stranger can register: IP addresses, localhost, names of a private network, and
those that the operator lists. With keys, the page has none.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from radixrt.errors import RequestError, shown
from radixrt.server.access.tenants import EVERYONE, NOBODY, Tenant

OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json", "/docs", "/docs/page.js", "/docs/page.css", "/ui"})
"""Paths served without a key, which probes and the address line of a browser do not have. The description of the routes
says nothing that is not in radixrt's source, and the page has no data."""

OPEN_FILES = "/ui/"
"""Beginning of the paths of the page's files, which hold no data; other paths with it are those of admins."""

REPLICA_PATHS = ("/replicas", "/replicas/add", "/replicas/drain", "/replicas/remove")

ADMIN_PATHS = frozenset({"/metrics", "/flush_cache", "/ui/events", "/ui/text", *REPLICA_PATHS})
"""Paths that show or change what concerns all tenants; they need the key of an admin."""

PRIVATE = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".svc")
"""Ends of names that are not in the public DNS; names without a dot, such as those of containers, are not either."""

CHECKED_PATHS = frozenset({"/abort", "/flush_cache", "/metrics", *REPLICA_PATHS})
UI = "/ui"


def check_access(path: str, tenant: Tenant) -> None:
    """Refuse a path that the tenant may not use: 401 without a valid key, 403 without an admin's.

    Raises:
        RequestError: says what is needed.
    """
    if path in OPEN_PATHS or (path.startswith(OPEN_FILES) and path not in ADMIN_PATHS):
        return
    check_key(tenant)
    if path in ADMIN_PATHS:
        check_admin(tenant, path)


def check_key(tenant: Tenant) -> None:
    """Refuse a client without a valid key.

    Raises:
        RequestError: 401.
    """
    if tenant == NOBODY:
        raise RequestError(
            "a valid API key is needed: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            code="invalid_api_key",
            status=401,
        )


def check_admin(tenant: Tenant, action: str) -> None:
    """Refuse an action of operators to other tenants.

    Raises:
        RequestError: 403; names the action.
    """
    if not tenant.is_admin:
        raise RequestError(
            f"{action} needs an admin key; the key {tenant.name!r} is none", code="admin_key_required", status=403
        )


class HostCheck:
    """The names under which the routes of operators are served.

    Args:
        host: address or name that the server listens on.
        allowed_hosts: comma-separated names, without ports.
        cors_origins: comma-separated origins that may call from a browser.
    """

    def __init__(self, host: str, allowed_hosts: str, cors_origins: str) -> None:
        self._names = {"localhost", host.lower(), *(name.lower() for name in listed(allowed_hosts))}
        self._origins = set(listed(cors_origins))

    def check(self, path: str, headers: Headers, tenant: Tenant) -> None:
        """Refuse a request for a route of operators by a foreign name, or from a page of a foreign origin.

        Raises:
            RequestError: 403; names the header and the option.
        """
        if path not in CHECKED_PATHS and path != UI and not path.startswith(f"{UI}/"):
            return
        host = headers.get("host", "")
        if tenant == EVERYONE and not self._is_own(host):
            raise RequestError(
                f"{path} is not served as {shown(host)}: use an IP address or localhost, or list the name with "
                "--allowed-hosts",
                param="Host", code="host_not_allowed", status=403,
            )  # fmt: skip
        origin = headers.get("origin")
        foreign = origin is not None and origin not in self._origins and not _is_of(origin, host)
        # Browsers send no Origin with every GET; following a link to the page itself is harmless.
        crossed = headers.get("sec-fetch-site") in ("cross-site", "same-site") and origin is None
        if foreign or (crossed and headers.get("sec-fetch-mode") != "navigate"):
            raise RequestError(
                f"{path} is not served to pages of other origins; list them with --cors-origins",
                param="Origin", code="origin_not_allowed", status=403,
            )  # fmt: skip

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names or name.endswith(PRIVATE) or (name and "." not in name and ":" not in name):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _is_of(origin: str, host: str) -> bool:
    """Return whether an Origin header is that of pages which are served under a Host header."""
    try:
        return urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def listed(text: str) -> list[str]:
    """Return the entries of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]
