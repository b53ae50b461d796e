"""Access: which paths and actions need a key, and which an admin's, once the server has keys; and checks of Host and
Origin, because pages of other sites must not reach the server through a browser.

A page can have a domain of its own that resolves to 127.0.0.1 (DNS rebinding). The browser then takes this server for
the page's own origin, and lets it send requests and read answers. But it sends the domain as Host. So a server without
API keys answers only to names that no stranger can register: IP addresses, localhost, names of a private network, and
those that the operator lists. With keys, the page has none, and only the routes of operators check Origin.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from radixrt.errors import RequestError, shown
from radixrt.server.access.tenants import EVERYONE, NOBODY, Tenant

PROBES = {
    "/": "/docs",
    "/ping": "/health",
    "/healthz": "/health",
    "/livez": "/health",
    "/readyz": "/ready",
    "/health_generate": "/health?deep=1",
}
"""Redirects of GET and HEAD, from the paths that probes of other servers ask for."""

OPEN_PATHS = frozenset(
    {"/health", "/ready", "/openapi.json", "/docs", "/docs/page.js", "/docs/page.css", "/ui", *PROBES}
)
"""Paths served without a key, which probes and the address line of a browser do not have. The description of the routes
says nothing that is not in radixrt's source, and the page has no data. `PROBES` are redirects to these paths."""

OPEN_FILES = "/ui/"
"""Beginning of the paths of the page's files, which hold no data; other paths with it are those of admins."""

REPLICA_PATHS = ("/replicas", "/replicas/add", "/replicas/drain", "/replicas/remove")

ADMIN_PATHS = frozenset({"/metrics", "/flush_cache", "/forget", "/ui/events", "/ui/node", "/ui/text", *REPLICA_PATHS})
"""Paths that show or change what concerns all tenants; they need the key of an admin."""

PRIVATE = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".svc")
"""Ends of names that are not in the public DNS; names without a dot, such as those of containers, are not either."""

_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]+))(?::[0-9]{0,5})?")
"""A Host header: a name or an address, perhaps a port, and nothing else, so no user before an @."""

CHECKED_PATHS = frozenset({"/abort", "/flush_cache", "/forget", "/metrics", *REPLICA_PATHS})
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
    """The names under which a server without API keys is served, and the origins whose pages may use it.

    Args:
        host: address or name that the server listens on.
        allowed_hosts: comma-separated names, without ports; * for all.
        cors_origins: comma-separated origins that may call from a browser; * for all, except for routes of operators.
    """

    def __init__(self, host: str, allowed_hosts: str, cors_origins: str) -> None:
        self._names = {"localhost", host.lower(), *(name.lower() for name in listed(allowed_hosts))}
        self._origins = set(listed(cors_origins))

    def check(self, path: str, headers: Headers, tenant: Tenant) -> None:
        """Refuse a request by a foreign name, or from a page of a foreign origin.

        Raises:
            RequestError: 403, names the header and the option; 400 for several Host headers.
        """
        hosts = headers.getlist("host")
        if len(hosts) > 1:
            raise RequestError("the request has several Host headers; send one", param="Host", status=400)
        for_operators = path in CHECKED_PATHS or path == UI or path.startswith(f"{UI}/")
        if tenant == EVERYONE:
            # Every browser sends Host. Probes that speak HTTP/1.0 do not.
            if hosts and not self._is_own(hosts[0]):
                raise RequestError(
                    f"{path} is not served as {shown(hosts[0])}: use an IP address or localhost, list the name with "
                    "--allowed-hosts, or start the server with an --api-key",
                    param="Host", code="host_not_allowed", status=403,
                )  # fmt: skip
        elif not for_operators:
            return
        if "*" in self._origins and not for_operators:
            return
        if self._is_foreign(headers):
            raise RequestError(
                f"{path} is not served to pages of other origins; list them with --cors-origins",
                param="Origin", code="origin_not_allowed", status=403,
            )  # fmt: skip

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a browser sends the request for a page of another origin that is not listed."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None:
            # Browsers send no Origin with every GET; following a link to a page is harmless.
            return site in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate"
        # A proxy may change Host, so that the origin of the server's own pages differs.
        return origin not in self._origins and site != "same-origin" and not _is_of(origin, headers.get("host", ""))

    def _is_own(self, host: str) -> bool:
        if "*" in self._names:
            return True
        found = _HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found["name"] or ""
        if name:
            return name in self._names or name.endswith(PRIVATE) or "." not in name or _is_address(name)
        return _is_address(found["ipv6"])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
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
