"""GET /openapi.json: the description of all routes; GET /docs: the same as a page, which needs no other server."""

from __future__ import annotations

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import RequestError, shown
from radixrt.server.serving.service import Service

PAGE = Path(__file__).parents[1] / "docs_page"
FILES = {"page.js": "text/javascript", "page.css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


async def openapi(service: Service, request: Request) -> Response:
    """Return the description, which is made once, when first asked for."""
    app = request.app
    if not hasattr(app.state, "openapi"):
        app.state.openapi = msgspec.json.encode(app.state.describe())
    return Response(app.state.openapi, media_type="application/json")


async def docs(service: Service, request: Request) -> Response:
    """Return the page."""
    return Response((PAGE / "page.html").read_text(), headers=HEADERS, media_type="text/html")


async def docs_file(service: Service, request: Request) -> Response:
    """Return the page's script or style.

    Raises:
        RequestError: 404 for any other file.
    """
    name = request.path_params["file"]
    if name not in FILES:
        raise RequestError(f"the page has no file {shown(name)}", code="not_found", status=404)
    return Response((PAGE / name).read_text(), headers=HEADERS, media_type=FILES[name])
