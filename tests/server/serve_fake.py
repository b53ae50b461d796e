"""A process that serves the scripted engine, for `test_run`: prints the URL, then what became of it.

python -m tests.server.serve_fake GRACE_S
"""

from __future__ import annotations

import sys

from radixrt.config import ServerConfig
from radixrt.server import serve
from tests.server.fake_engine import MODEL, FakeEngine, speak


def main() -> None:
    engine = FakeEngine()
    # As many words as asked for, one every 50 ms.
    engine.script = lambda request: speak(request, ["x"] * ((request.sampling.max_tokens or 0) + 1), pause=0.05)
    config = ServerConfig(port=0, grace_s=float(sys.argv[1]))
    serve(engine.client, config, MODEL, lambda url: print(url, flush=True))
    print(f"ended, {len(engine.aborted)} aborted, {engine.client.open_requests} open", flush=True)


if __name__ == "__main__":
    main()
