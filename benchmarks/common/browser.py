"""A headless Chromium with one page, driven by Playwright."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser as Chromium
from playwright.sync_api import ConsoleMessage, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
"""The system's browser, which Playwright drives in place of one that it downloads."""
LIMIT_S = 20.0


class Browser:
    """One browser with one page; close it.

    Playwright runs an event loop in this thread until then, so `asyncio.run` needs another thread, and a second browser
    is a page with cookies and storage of its own in the first browser.

    Args:
        beside: the first browser, which is closed later.

    Attributes:
        page: the page, by Playwright.
        errors: exceptions and error lines of the page's console, violations of its content security policy included.
    """

    def __init__(
        self, width: int = 1360, height: int = 900, *, dark: bool = False, beside: Browser | None = None
    ) -> None:
        self._closing = ExitStack()
        self._chromium: Chromium = self._launch() if beside is None else beside._chromium
        self.page = self._chromium.new_page()
        self._closing.callback(self.page.close)
        self.page.set_default_timeout(LIMIT_S * 1000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._note)
        self.resize(width, height, dark=dark)

    def _launch(self) -> Chromium:
        assert BROWSER is not None
        playwright = self._closing.enter_context(sync_playwright())
        return self._closing.enter_context(playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"]))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} {message.location.get('url', '')}")

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")

    def open(self, url: str) -> None:
        self.page.goto(url)

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression, awaited if it is a promise."""
        return self.page.evaluate(script)

    def wait(self, script: str) -> Any:
        """Wait until a JavaScript expression is true, and return its value.

        A content security policy without unsafe-eval forbids `Page.wait_for_function`, but not `Page.evaluate`.
        """
        deadline = time.monotonic() + LIMIT_S
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}; errors: {self.errors}"
            self.page.wait_for_timeout(30)
        return value

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of what is visible, or of the whole page, as PNG."""
        self.page.screenshot(path=path, full_page=whole)

    def close(self) -> None:
        self._closing.close()
