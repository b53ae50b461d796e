"""The HTTP server: OpenAI's routes and radixrt's own, over an `EngineClient`.

Nothing else in radixrt imports Starlette. From the top down; each folder imports those below it only:

routes/     handlers, the table of routes, and its description for OpenAPI.
http/       bodies, connections, errors, middleware and the limits of connections.
serving/    the state that routes share, and the open requests of the engine.
metrics/, ui/   metrics and traces; the page of operators.
protocol/   types of the bodies of requests, and checks of their fields.
answers/    types of answers and events, and their making from the engine's outputs.
access/     tenants, keys, and checks of paths and hosts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.server.app import create_app
    from radixrt.server.uvicorn_server import serve

__all__ = ["create_app", "serve"]

_HOMES = {"create_app": "radixrt.server.app", "serve": "radixrt.server.uvicorn_server"}


def __getattr__(name: str) -> Any:
    # Imported when first used: programs with tools need no web framework.
    if name not in _HOMES:
        raise AttributeError(f"module 'radixrt.server' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
