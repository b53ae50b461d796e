"""A process that serves the scripted engine, for `test_run`: prints its URL, then how many requests were aborted.

    python -m tests.server.serve_fake OPTIONS

OPTIONS is JSON with fields of ServerConfig. Beside the URL stands the number of objects that are excluded from garbage
collection.

Each completion is max_tokens words, one every 10 ms; the last word waits for an empty line on stdin. The line "gaps"
is answered with the longest gaps of the event loop since the last such line (`tests.server.loop_watch`), in seconds.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from collections.abc import Iterator

from radixrt.config import ServerConfig
from radixrt.server import serve
from tests.server.fake_engine import MODEL, FakeEngine, Sent, speak
from tests.server.loop_watch import LoopWatch


def main() -> None:
    engine = FakeEngine()
    released = threading.Event()

    watches: list[LoopWatch] = []

    def read_commands() -> None:
        for line in sys.stdin:
            if line.strip() == "gaps":
                print(watches[0].loop_s, watches[0].process_s, flush=True)
                watches[0].reset()
            else:
                released.set()

    def script(request: Sent) -> Iterator[object]:
        count = request.sampling.max_tokens or 0
        for i, word in enumerate(speak(request, ["x"] * (count + 1))):
            yield 0.01
            if i == count - 1:
                released.wait()
            yield word

    threading.Thread(target=read_commands, daemon=True).start()
    engine.script = script  # type: ignore[assignment]
    config = ServerConfig(port=0, **json.loads(sys.argv[1]))

    def ready(url: str) -> None:
        watches.append(LoopWatch(asyncio.get_running_loop()))
        print(url, gc.get_freeze_count() if gc.isenabled() else "does not collect", flush=True)

    gc.disable()  # as `launch` does while it loads
    serve(engine.client, config, MODEL, ready)
    print(f"ended, {len(engine.aborted)} aborted, {engine.client.open_requests} open", flush=True)


if __name__ == "__main__":
    main()
