"""Table "The page" of docs/ui.md: times of /ui in a headless Chromium, with a large tree and many requests.

A real scheduler with a tree of `--nodes` nodes and 256 running and 64 waiting requests is behind a real server, and
makes 20 steps a second; the page is opened at 1360 x 900. "snapshot" is the time from opening the page to its first
picture of the whole tree; the others are the time of one frame's script, with the number of frames.

Run: python -m benchmarks.serving.page [--nodes 100000]
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from typing import Any

import uvicorn

from benchmarks.common.browser import Browser
from benchmarks.common.synthetic_scheduler import SyntheticScheduler
from benchmarks.common.tables import table
from radixrt.bench.result import percentile
from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig
from radixrt.messages.cache_events import ToWatched
from radixrt.messages.client import EngineReady
from radixrt.server import create_app

STEPS_PER_S = 20


class Served:
    """The scheduler, in a thread, behind a server, in another one."""

    def __init__(self, scheduler: SyntheticScheduler) -> None:
        self.scheduler = scheduler
        self.lock = threading.Lock()
        self.client = EngineClient(self)
        slots = scheduler.scheduler.kv.allocator.num_slots
        self.client.dispatch(
            EngineReady("synthetic", 1000, 16384, 16384, slots, 256, "none", "none", has_chat_template=True)
        )
        app = create_app(self.client, ServerConfig(access_log=False), "synthetic")
        self.ui = app.state.service.ui
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        self.stopping = False
        threading.Thread(target=self.server.run, args=([listener],), daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, message: Any) -> None:
        """Take what the client sends to the engine."""
        if isinstance(message, ToWatched):
            with self.lock:
                answers = self.scheduler.handle(message)
            for answer in answers:
                self.client.dispatch(answer)

    def close(self) -> None:
        self.stopping = True

    def _run(self) -> None:
        due = time.monotonic()
        while not self.stopping:
            with self.lock:
                if time.monotonic() >= due:
                    self.scheduler.step()
                    due += 1 / STEPS_PER_S
                messages = self.scheduler.turn()
            self.client.stats = self.scheduler.stats(time.monotonic())
            self.ui.samples.tick()
            for message in messages:
                self.client.dispatch(message)
            if not self.scheduler.stream.is_busy:
                time.sleep(0.005)


def frames(browser: Browser, name: str) -> list[float]:
    """Milliseconds of each frame of one kind since the last call."""
    found: list[float] = browser.run(f"performance.getEntriesByName('{name}').map((entry) => entry.detail.ms)")
    browser.run(f"performance.clearMarks('{name}')")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    args = parser.parse_args()
    served = Served(SyntheticScheduler(args.nodes, 256, 64))
    browser = Browser()
    started = time.monotonic()
    browser.open(f"{served.url}/ui")
    browser.wait("performance.getEntriesByName('icicle').some((entry) => entry.detail.nodes > 0)")
    rows = [["snapshot", f"{time.monotonic() - started:.2f} s", "", "", ""]]

    def measure(what: str, script: str, mark: str = "draw") -> None:
        browser.run(script)
        time.sleep(0.5)
        frames(browser, mark)
        time.sleep(args.seconds)
        times = frames(browser, mark)
        numbers = [f"{value:.1f} ms" for value in (percentile(times, 50), percentile(times, 95), max(times))]
        rows.append([what, *numbers, str(len(times))])

    def colour(mode: str) -> str:
        chosen = "document.querySelector('#color')"
        return f"{chosen}.value = '{mode}'; {chosen}.dispatchEvent(new Event('change'))"

    measure("the tree by last use", colour("age"))
    measure("the tree by eviction order", colour("eviction"))
    measure("requests: 256 running, 64 waiting", "document.querySelector('[data-tab=requests]').click()")
    measure("programs", "document.querySelector('[data-tab=programs]').click()")
    nodes = browser.run("performance.getEntriesByName('icicle').at(-1)?.detail.nodes ?? 0")
    print(table([f"{nodes or args.nodes:,} nodes", "median", "p95", "longest", "frames"], rows))
    print(f"\nerrors of the page: {browser.errors or 'none'}")
    browser.close()
    served.close()
    served.server.should_exit = True


if __name__ == "__main__":
    main()
