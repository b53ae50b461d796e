"""`Times`: processor time of the parts of one thread's work, so that other work on the machine does not count."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any


class Times:
    """Seconds of this thread's processor time by part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def of(self, part: str) -> Iterator[None]:
        started = time.thread_time()
        try:
            yield
        finally:
            self.seconds[part] += time.thread_time() - started

    def book(self, part: str, owner: Any, name: str) -> None:
        """Book the time of a method of one object to a part, from now on."""
        work, seconds = getattr(owner, name), self.seconds

        def call(*args: Any, **options: Any) -> Any:
            started = time.thread_time()
            try:
                return work(*args, **options)
            finally:
                seconds[part] += time.thread_time() - started

        setattr(owner, name, call)

    def clear(self) -> None:
        self.seconds.clear()
