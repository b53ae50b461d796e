"""`EncodingProgress`: tells people how far the images of a step are, where a large picture takes many seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType

from tqdm import tqdm

logger = logging.getLogger(__name__)

AFTER_S = 2.0
"""Seconds after which progress is shown, and seconds between two lines of the log."""


class EncodingProgress:
    """Progress of one step: a bar on stderr, or lines of the log. A context manager, which removes the bar.

    Args:
        images, blocks: numbers of images, and of blocks of the tower, that the step computes.
        draws: draw a bar.
        clock: returns the time in seconds.
    """

    def __init__(self, images: int, blocks: int, *, draws: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._images, self._blocks, self._done, self._clock = images, blocks, 0, clock
        what = f"encoding images ({images})"
        self._bar = tqdm(total=blocks, desc=what, unit="block", delay=AFTER_S, leave=False) if draws else None
        self._begun = self._told = clock()

    def __enter__(self) -> EncodingProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def computed(self) -> None:
        """Note that a block was computed."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
            return
        now = self._clock()
        if self._done < self._blocks and now - self._told >= AFTER_S:
            self._told = now
            left_s = (now - self._begun) / self._done * (self._blocks - self._done)
            share = 100 * self._done // self._blocks
            logger.info("encoding images (%d): %d %%, about %.0f s left", self._images, share, left_s)
