"""`TowerGraphs`: CUDA graphs of whole encodings. A tower has hundreds of short kernels, which take the host longer to
launch than a GPU to compute for an image of a megapixel."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import torch

from radixrt.models.vision.tower import VisionTower
from radixrt.runner.graphs.captures import begin_capture

logger = logging.getLogger(__name__)

CAPTURE_AT = 2
"""Number of the call for which its size is captured: many programs show pictures of one size."""
MAX_GRAPHS = 8
MAX_FLOPS = 8e12
"""Calls of more operations take the device longer than the host."""

Size = tuple[int, int, int]
"""Height and width of an image in pixels, and the number of images."""


class _Graph(NamedTuple):
    graph: torch.cuda.CUDAGraph
    pixels: torch.Tensor
    rows: torch.Tensor


class TowerGraphs:
    """See the module's docstring. The graphs share their memory, because only one runs at a time.

    Args:
        tower: a tower on a CUDA device.

    Attributes:
        may_capture: a missing graph may be captured at once, because no decode row waits. Otherwise the image is
            encoded kernel by kernel, and `capture_next` captures the graph.
    """

    def __init__(self, tower: VisionTower, device: torch.device) -> None:
        self._tower, self._device = tower, device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: OrderedDict[Size, _Graph] = OrderedDict()
        self._seen: Counter[Size] = Counter()
        self._failed = False
        self.may_capture = True

    def encode(self, images: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Return the rows of images of one size as `VisionTower.encode`; None if the caller must compute them.

        Args:
            images: see `VisionTower.begin`.
        """
        height, width, _ = images[0].shape
        size = height, width, len(images)
        if self._failed or len(images) * self._tower.spec.flops(height, width) > MAX_FLOPS:
            return None
        if size not in self._graphs:
            self._seen[size] += 1
            if self._seen[size] < CAPTURE_AT or not self.may_capture or not self._capture(size):
                return None
        self._graphs.move_to_end(size)
        found = self._graphs[size]
        for target, pixels in zip(found.pixels, images, strict=True):
            target.copy_(pixels)
        found.graph.replay()
        return found.rows.clone()

    def capture_next(self) -> bool:
        """Capture one more graph that images have asked for; return False if there is none."""
        wanted = [size for size, count in self._seen.items() if count >= CAPTURE_AT and size not in self._graphs]
        return bool(wanted) and not self._failed and self._capture(wanted[0])

    def _capture(self, size: Size) -> bool:
        """Capture the encoding of images of a size; return False if that fails."""
        stream, (height, width, count) = self._stream, size
        try:
            static = torch.zeros(count, height, width, 3, dtype=torch.uint8, device=self._device)
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                self._tower.encode_directly(*static)  # kernels are loaded, and tables of the size are made
            torch.cuda.synchronize(self._device)
            with torch.cuda.stream(stream):
                graph = begin_capture(self._pool)
                try:
                    rows = self._tower.encode_directly(*static)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            logger.warning("images are encoded without CUDA graphs, which is slower: %s", error)
            self._failed = True
            return False
        torch.cuda.current_stream(self._device).wait_stream(stream)
        self._graphs[size] = _Graph(graph, static, rows)
        if len(self._graphs) > MAX_GRAPHS:
            oldest, _ = self._graphs.popitem(last=False)
            self._seen.pop(oldest)
        return True
