"""The HTTP server: OpenAI's routes and radixrt's own, over an `EngineClient`.

Nothing else in radixrt imports FastAPI.
"""

from radixrt.server.app import create_app
from radixrt.server.run import serve

__all__ = ["create_app", "serve"]
