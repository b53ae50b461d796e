"""Access: which paths and actions need a key, and which an admin's, once the server has keys."""

from __future__ import annotations

from radixrt.errors import RequestError
from radixrt.server.tenants import NOBODY, Tenant

OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json", "/docs", "/docs/page.js", "/docs/page.css", "/ui"})
"""Paths served without a key, which probes and the address line of a browser do not have. The description of the routes
says nothing that is not in radixrt's source, and the page has no data."""

OPEN_FILES = "/ui/"
"""Beginning of the paths of the page's files, which hold no data; other paths with it are those of admins."""

REPLICA_PATHS = ("/replicas", "/replicas/add", "/replicas/drain", "/replicas/remove")

ADMIN_PATHS = frozenset({"/metrics", "/flush_cache", "/ui/events", "/ui/text", *REPLICA_PATHS})
"""Paths that show or change what concerns all tenants; they need the key of an admin."""


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
