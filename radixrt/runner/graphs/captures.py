"""`Captures`: a cache of captured CUDA graphs with the policy of when to capture more, and the handling of failures."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")

CAPTURE_AT_STEP = 3
"""Number of steps that request a missing graph before it is captured, unless the engine idles earlier. A step that is
launched kernel by kernel takes ten milliseconds of host time, a capture fifty."""


def begin_capture(pool: Any) -> torch.cuda.CUDAGraph:
    """Begin to capture the current stream. The caller must call the graph's `capture_end`, even after an exception: a
    stream that stays in capture mode makes all later work fail.

    `torch.cuda.graph` would also collect garbage and empty the allocator's cache at each capture.

    Args:
        pool: memory pool of the graph.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    return graph


class Captures(Generic[K, C]):
    """Cache of captured CUDA graphs, by key. After one capture fails, the cache stops capturing and returns no graph.

    Steps run without graphs then, which is slower.

    Args:
        what: name of the steps, for the warning after a failure.
        describe: returns a description of a key.
        beside_at_step: number of steps that request a missing graph and use a larger graph before the missing graph is
            captured. Every row waits for a capture, so the padding of these steps should cost about as much time.
        alone: no other ranks share the model. With other ranks a failure raises, because the other ranks would replay
            the graph.
    """

    def __init__(self, what: str, describe: Callable[[K], str], *, beside_at_step: int, alone: bool) -> None:
        self._what, self._describe, self._alone = what, describe, alone
        self._beside_at_step = beside_at_step
        self._made: dict[K, C] = {}
        self._wanted: Counter[K] = Counter()
        self.failed = False

    def get(self, key: K) -> C | None:
        return None if self.failed else self._made.get(key)

    def find(self, key: K, larger: Sequence[K]) -> C | None:
        """Return the graph of this key, else of the first of `larger` that is captured."""
        return next((made for each in (key, *larger) if (made := self.get(each)) is not None), None)

    def get_or_make(self, key: K, larger: Sequence[K], capture: Callable[[K], C]) -> C | None:
        """Return a graph for a step that requests a key; None if there is no graph.

        The graph of the key is captured once enough steps have requested the key. Until then the first captured graph
        of `larger` is returned.
        """
        found = self.find(key, larger)
        if self.failed or key in self._made:
            return found
        self._wanted[key] += 1
        if self._wanted[key] >= (CAPTURE_AT_STEP if found is None else self._beside_at_step):
            return self.make(key, capture)
        return found

    def make(self, key: K, capture: Callable[[K], C]) -> C | None:
        """Capture this key; return None after a failure.

        Args:
            capture: raises RuntimeError or torch.OutOfMemoryError on failure. The cache does not store this function,
                which refers to the cache's owner: the reference cycle would keep the graphs alive until garbage
                collection.

        Raises:
            RuntimeError: the capture failed, and there are other ranks.
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
        """Capture the first missing key: first among the keys that steps have requested, then among `keys`. Return
        False if no key is missing or a capture has failed."""
        missing = next((key for key in [*self._wanted, *keys] if key not in self._made), None)
        return missing is not None and self.make(missing, capture) is not None
