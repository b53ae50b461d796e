"""Pictures of docs/ui.md: the page of a busy server, in a headless Chromium.

Two servers are started one after another, an engine alone and a pair of replicas, with small KV pools and few rows, so
that requests wait; programs of the language and plain chats keep them busy. Prints what the page's console reported,
violations of its content security policy included. `oxipng -o 3 docs/images/*.png` makes the files a third smaller.

Run: python -m benchmarks.serving.pictures [--out docs/images] [--model PATH] [--only replicas] [--every]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

import radixrt as rt
from benchmarks.common.browser import Browser
from benchmarks.common.servers import served_model, started
from radixrt.bench.words import prose

WIDE = (1280, 860)
SIZES = {"wide": WIDE, "tablet": (820, 1100), "phone": (390, 844)}
JUDGES = ("a teacher", "a parent", "an editor")


@rt.function(temperature=0.7)
def judge(s: rt.State, essay: str) -> None:
    """A program whose branches share a prefix, and whose end goes on from it."""
    s += rt.system("You judge essays.") + rt.user(essay)
    notes = s.fork(JUDGES)
    for branch, who in notes.items():
        branch += rt.user(f"Comment on it as {who} would.") + rt.assistant(rt.gen("note", max_tokens=40))
    s += rt.user(rt.join(notes, "note", format="{key}: {value}") + "\nPrint it?")
    s += rt.assistant(rt.select("verdict", ["yes", "no"]))


class Load:
    """Programs and chats that are sent to a server until the end of the block, over a few documents again and again."""

    def __init__(self, url: str, programs: int, chats: int) -> None:
        self._url, self._model = url, served_model(url)
        self._ends = threading.Event()
        rng = random.Random(5)
        self._documents = [prose(rng, 160 + 60 * i) for i in range(5)]
        threads = [(self._program, programs), (self._chat, chats)]
        self._threads = [threading.Thread(target=run, args=(i,)) for run, count in threads for i in range(count)]

    def __enter__(self) -> Load:
        rt.set_default_backend(self._url)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def report(self) -> str:
        """A report of one more program, with its texts."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.html"
            judge.run(self._documents[0]).save_report(str(path))
            return path.read_text()

    def _program(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self._ends.is_set():
            judge.run(rng.choice(self._documents))

    def _chat(self, seed: int) -> None:
        rng = random.Random(100 + seed)
        with httpx.Client(timeout=120.0, trust_env=False) as http:
            while not self._ends.is_set():
                about = f"{rng.choice(self._documents)}\n\n{prose(rng, rng.choice((6, 200)))}?"
                body = {"messages": [{"role": "user", "content": about}], "max_tokens": rng.randint(20, 60)}
                answer = http.post(f"{self._url}/v1/chat/completions", json={**body, "model": self._model})
                answer.raise_for_status()


@contextmanager
def server(model: str | None, programs: int, chats: int, options: str) -> Iterator[tuple[str, Load]]:
    """Start a server, and keep it busy."""
    chosen = "" if model is None else f" --model {model}"
    command = f"{sys.executable} -m radixrt launch --port {{port}} --max-running-requests 8 --num-threads 1{chosen} "
    with ExitStack() as stack:
        log = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "log"
        running = stack.enter_context(started(command + options, log, 180.0, 20.0))
        yield running.url, stack.enter_context(Load(running.url, programs, chats))


class Page:
    """The page of a server.

    Args:
        folder: where pictures go.
        every: take each picture at three sizes, light and dark, with these words in its name.
    """

    def __init__(self, url: str, folder: Path, *, every: bool) -> None:
        self._folder = folder
        self._every = every
        self.browser = Browser(*WIDE)
        self.browser.open(f"{url}/ui")
        self.browser.wait("document.querySelector('#about').textContent.startsWith('live')")

    def tab(self, name: str) -> None:
        self.browser.run(f"document.querySelector('[data-tab={name}]').click()")
        time.sleep(1.5)

    def picture(self, name: str, *, whole: bool = False, dark: bool = False) -> None:
        """Take a picture of what is visible, or of the whole page."""
        if not self._every:
            self._picture(name, WIDE, whole, dark)
            return
        for size, pixels in SIZES.items():
            for dark in (False, True):
                self._picture(f"{name}-{size}{'-dark' if dark else ''}", pixels, True, dark)

    def _picture(self, name: str, pixels: tuple[int, int], whole: bool, dark: bool) -> None:
        browser = self.browser
        browser.resize(*pixels)
        chosen = f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'"
        browser.run(f"{chosen} || document.querySelector('#theme').click()")
        time.sleep(1.5)  # plots are drawn once a second
        browser.screenshot(self._folder / f"{name}.png", whole=whole)

    def close(self) -> None:
        """Close the browser, and print what went wrong in the page."""
        print(f"errors of the page: {self.browser.errors or 'none'}", flush=True)
        self.browser.close()


def one_engine(page: Page, load: Load) -> None:
    browser = page.browser
    page.tab("live")
    page.picture("ui-cache", whole=True)
    page.tab("requests")
    browser.wait("/waits: /.test(document.querySelector('#rows tbody').textContent)")
    page.picture("ui-requests")
    page.tab("programs")
    browser.run("document.querySelectorAll('#programs tbody td.mono')[4].click()")
    browser.run(
        "{ const given = new DataTransfer(), input = document.querySelector('#report-file');"
        f"given.items.add(new File([{json.dumps(load.report())}], 'run.html'));"
        "input.files = given.files; input.dispatchEvent(new Event('change')); }"
    )
    browser.wait("document.querySelectorAll('#report-calls tbody tr').length > 3")
    browser.run("document.querySelectorAll('#report-calls tbody tr')[3].children[0].click()")
    page.picture("ui-programs", whole=True, dark=True)
    page.tab("playground")
    for mode in ("chat", "completion", "json"):
        browser.run(f"document.querySelector('[data-mode={mode}]').click()")
        browser.run("document.querySelector('#temperature').value = '0'; document.querySelector('#send').click()")
        deadline = time.monotonic() + 90.0
        while not browser.run("/output token/.test(document.querySelector('#dialog').textContent)"):
            assert time.monotonic() < deadline, "no answer in the playground"
            time.sleep(0.2)
    browser.run("document.querySelectorAll('#dialog .token')[4].click()")
    page.picture("ui-playground")


def replicas(page: Page) -> None:
    page.tab("requests")
    page.browser.wait("!document.querySelector('#held-section').hidden")
    page.browser.wait("document.querySelectorAll('#held tbody tr').length > 3")
    page.picture("ui-replicas")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--model", help="default: the embedded one")
    parser.add_argument("--warm-up", type=float, default=60.0, help="seconds of load before the first picture")
    parser.add_argument("--only", choices=("engine", "replicas"), help="pictures of one of the two servers")
    parser.add_argument("--every", action="store_true", help="all pictures at three sizes, light and dark")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.only != "replicas":
        with server(args.model, 3, 7, "--kv-cache-tokens 6000") as (url, load):
            page = Page(url, args.out, every=args.every)
            time.sleep(args.warm_up)
            one_engine(page, load)
            page.close()
    if args.only != "engine":
        options = "--kv-cache-tokens 4000 --max-running-requests 3 --replicas 2"
        with server(args.model, 8, 16, options) as (url, _):
            page = Page(url, args.out, every=args.every)
            time.sleep(args.warm_up / 2)
            replicas(page)
            page.close()


if __name__ == "__main__":
    main()
