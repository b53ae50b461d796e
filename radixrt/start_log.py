"""`StartLog`: log lines about the phases of a process's start and their durations."""

from __future__ import annotations

import logging
import threading
import time

from radixrt.os_process import own_age_s

logger = logging.getLogger(__name__)

NOTICE_S = 5.0
"""A phase is announced in the log after this many seconds, before its end."""


class StartLog:
    """Log of the consecutive phases of a process's start. A phase ends when the next phase begins. The first phase
    begins with the process and covers loading Python and modules.

    Args:
        first: name of the first phase; None for no phase yet, in a process that has done other work before.
    """

    def __init__(self, first: str | None = "Python") -> None:
        self._phases: list[tuple[str, float]] = []
        self._phase, self._since = first, time.monotonic() - (0.0 if first is None else own_age_s())
        self._notice: threading.Timer | None = None

    def begin(self, phase: str) -> None:
        """End the current phase and begin another one.

        Args:
            phase: name of the phase, a noun phrase without commas.
        """
        self.end()
        self._phase = phase
        self._notice = threading.Timer(NOTICE_S, logger.info, ("starting: %s ...", phase))
        self._notice.daemon = True
        self._notice.start()

    def ready(self) -> None:
        """End the last phase, and log the seconds of each."""
        self.end()
        total = sum(seconds for _, seconds in self._phases)
        each = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in self._phases)
        logger.info("ready after %.2f s: %s", total, each)

    def end(self) -> None:
        """End the current phase."""
        if self._notice is not None:
            self._notice.cancel()
            self._notice = None
        now = time.monotonic()
        if self._phase is not None:
            self._phases.append((self._phase, now - self._since))
        self._phase, self._since = None, now
