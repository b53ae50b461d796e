"""`Captures`: which CUDA graphs there are, which steps have asked for others, and what happens if one cannot be had."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, TypeVar

import torch

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")

CAPTURE_AT_STEP = 3
"""Steps that ask for a graph in vain before it is captured, unless the engine idles before. A step that is launched
kernel by kernel takes ten milliseconds of the host, a capture fifty."""


def begin_capture(pool: Any) -> torch.cuda.CUDAGraph:
    """Capture what is launched into the current stream from here until the graph's `capture_end`, which must come, for
    a stream that went on capturing would end all work.

    Not `torch.cuda.graph`: it also collects garbage and empties the allocator's cache, at each capture.

    Args:
        pool: of the graph's memory.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    return graph


class Captures(Generic[K, C]):
    """What has been captured, by key. After a failure nothing more is, and nothing that there is is given out.

    Without graphs everything still works, only slower: better than no answers at all.

    Args:
        what: that go without graphs after a failure, for its warning.
        describe: a key, in words.
        alone: no other ranks share the model. With others a failure is raised: they go on with the graph.
    """

    def __init__(self, what: str, describe: Callable[[K], str], *, alone: bool) -> None:
        self._what, self._describe, self._alone = what, describe, alone
        self._made: dict[K, C] = {}
        self._wanted: Counter[K] = Counter()
        self.failed = False

    def get(self, key: K) -> C | None:
        return None if self.failed else self._made.get(key)

    def want(self, key: K) -> int:
        """A step has asked for it; returns how many have."""
        self._wanted[key] += 1
        return self._wanted[key]

    def make(self, key: K, capture: Callable[[K], C]) -> C | None:
        """Capture it; None after a failure.

        Args:
            capture: raises RuntimeError or torch.OutOfMemoryError if it cannot. It is not kept: whoever owns this would
                own itself then, and its graphs would outlive it until garbage is collected.

        Raises:
            RuntimeError: it failed, and there are other ranks.
        """
        if self.failed:
            return None
        started = time.perf_counter()
        try:
            made = self._made[key] = capture(key)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            problem = f"capturing {self._describe(key)} failed: {error}"
            if not self._alone:
                raise RuntimeError(f"{problem}; cuda_graph=off does without") from error
            self.failed = True
            logger.warning("%s run without CUDA graphs: %s", self._what, problem)
            return None
        logger.debug("captured %s in %.2f s", self._describe(key), time.perf_counter() - started)
        return made

    def make_next(self, keys: Iterable[K], capture: Callable[[K], C]) -> bool:
        """Capture one more, first of those that steps have asked for, then of `keys`, in order; False if all are there
        or one has failed."""
        missing = next((key for key in [*self._wanted, *keys] if key not in self._made), None)
        return missing is not None and self.make(missing, capture) is not None
