"""The HTTP server: OpenAI's routes and radixrt's own, over an `EngineClient`.

Nothing else in radixrt imports Starlette.
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
