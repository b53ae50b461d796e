"""`ImageEncoder`: the encoder pool, and the inputs of a step that come from the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from radixrt.distributed.parallel import TPGroup
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import StepInputs
from radixrt.forward_batch.upload import Uploader
from radixrt.kernels.threads import pick_threads, torch_threads
from radixrt.layers.ops import LayerOps
from radixrt.messages.sections import MEDIA, EncodePiece, MediaSection, decode
from radixrt.messages.wire import unpack_i32
from radixrt.models.model_config import ModelSpec
from radixrt.models.vision.divided import encode_divided
from radixrt.models.vision.load import load_tower
from radixrt.models.vision.parts import CHANNELS
from radixrt.models.vision.together import CALL_PATCHES
from radixrt.models.vision.tower import Encoding, VisionTower
from radixrt.models.vision_spec import VisionSpec
from radixrt.parts.media.runner.encoding_progress import EncodingProgress
from radixrt.parts.media.runner.pixels import PixelReader
from radixrt.parts.media.runner.tower_graphs import CAPTURE_AT, TowerGraphs
from radixrt.parts.media.settings import IMAGES_IN_POOL
from radixrt.runner.runner_config import RunnerConfig

COLUMNS = 5
"""Numbers of a token that a step brings: its index, its row of the pool, and three rotary positions."""


class ImageEncoder:
    """Encodes the images of steps, and keeps their rows. The `InputReader` of a model with a vision tower.

    Args:
        tower: the tower; None on a pipeline stage behind the first, which reads positions alone.
        num_rows: rows of the encoder pool.
        group: the ranks that share the images of a step.
        progress: called before each image, or each block of a tower on a CPU.
        captures: capture the tower in CUDA graphs.
        max_tokens: new tokens of a step.
        threads: of a CPU.
        draws: draw the progress of slow encodings on stderr; otherwise the log has it.

    Attributes:
        flops_per_s: see `InputReader`.
    """

    def __init__(
        self, tower: VisionTower | None, spec: VisionSpec, num_rows: int, group: TPGroup,
        progress: Callable[[], None], *, captures: bool = False, max_tokens: int = 0, threads: int = 1,
        draws: bool = False,
    ) -> None:  # fmt: skip
        self._tower, self._spec, self._group, self._progress = tower, spec, group, progress
        self._threads, self._draws = threads, draws
        self._device = device = group.device
        self._uploader = Uploader(device, COLUMNS * 8 * max_tokens)
        self._graphs: TowerGraphs | None = None
        side = spec.patch * spec.merge
        # The largest image: the only size, or as many tokens as the pool is made for.
        self._side = spec.image_size or side * max(1, int((num_rows / IMAGES_IN_POOL) ** 0.5))
        largest = spec.image_size**2 if spec.image_size else num_rows // IMAGES_IN_POOL * side**2
        self._reader = PixelReader(device, 0 if tower is None else CHANNELS * largest)
        self._pieces: list[EncodePiece] = []  # of the step that is being launched
        self._begun: tuple[int, Encoding] | None = None
        self.flops_per_s = 0.0
        self._pool: torch.Tensor | None = None
        if tower is not None:
            dtype = tower.context.activation_dtype
            self._pool = torch.zeros(num_rows, tower.out_columns, dtype=dtype, device=device)
            if device.type == "cuda" and captures:
                self._graphs = TowerGraphs(tower, device)
                tower.replay = self._graphs.encode

    @staticmethod
    def of(
        config: RunnerConfig, spec: ModelSpec, group: TPGroup, ops: LayerOps, progress: Callable[[], None]
    ) -> ImageEncoder:
        """Load the tower of a model and allocate the encoder pool.

        Raises:
            ModelLoadError: the tower cannot be loaded; the message names the cause.
        """
        assert spec.vision is not None
        tower, device = None, group.device
        if config.stage(spec).is_first:
            tower = load_tower(
                Path(config.folder),
                spec,
                dtype=config.dtype,
                device=device,
                load_format=config.load_format,
                seed=config.random_seed,
                show_progress=config.show_progress,
                ops=ops,
            )
        return ImageEncoder(
            tower, spec.vision, config.image_rows, group, progress,
            captures=config.cuda_graph != "off", max_tokens=config.max_step_tokens,
            threads=pick_threads(config.num_threads, config.rank_info.local_size), draws=config.show_progress,
        )  # fmt: skip

    def of_step(self, sections: dict[str, bytes], batches: BatchBuilder) -> StepInputs | None:
        """As `InputReader.of_step`."""
        section = decode(sections, MEDIA, MediaSection)
        self._pieces = [] if section is None else section.encode
        if section is None:
            return None
        if self._graphs is not None:
            self._graphs.may_capture = not section.is_awaited
        if section.offsets:
            batches.set_offsets(*unpack_i32(section.offsets).reshape(-1, 2).T)
        if not section.places and not section.positions:
            return None
        columns = [
            unpack_i32(column).astype(np.int64) for column in (section.places, section.source, section.positions)
        ]
        places, source, positions = self._uploader.upload(columns)
        on_axes = positions.view(3, -1) if section.positions else None
        return StepInputs(places, source, self._pool, self._spec.out_size, on_axes)

    def compute(self) -> None:
        """As `InputReader.compute`."""
        pieces, self._pieces = self._pieces, []
        if self._tower is None or not pieces:
            return
        if self._device.type == "cuda":
            self._encode(self._tower, pieces)
            return
        # Torch computes the attention of a tower, a third of the work.
        with torch_threads(self._threads):
            self._encode(self._tower, pieces)

    def measure(self) -> None:
        """Encode an image of the most tokens, or as many of the only size as a call has, and measure the speed."""
        if self._tower is None:
            return
        pixels = torch.zeros(self._side, self._side, CHANNELS, dtype=torch.uint8, device=self._device)
        for _ in range(CAPTURE_AT):  # a graph takes memory too
            self._tower.encode(pixels)
        rows, columns = self._spec.grid(self._side, self._side)
        together = CALL_PATCHES // (rows * columns * self._spec.merge**2)
        self._tower.encode_directly(*[pixels] * max(1, together))
        torch.cuda.synchronize(self._device)
        started = time.perf_counter()
        self._tower.encode(pixels)
        torch.cuda.synchronize(self._device)
        self.flops_per_s = self._spec.flops(self._side, self._side) / (time.perf_counter() - started)

    def idle_work(self) -> bool:
        """Capture one more graph of the tower; see `InputReader.idle_work`."""
        return self._graphs is not None and self._graphs.capture_next()

    def reset(self) -> None:
        """As `InputReader.reset`."""
        self._pieces, self._begun = [], None

    def _encode(self, tower: VisionTower, pieces: Sequence[EncodePiece]) -> None:
        """Compute the pieces of a step, and write the rows of images whose last block is among them."""
        # The ranks divide images that a step encodes from the first block to the last. On a CPU, where a block takes
        # long, progress is reported for each.
        whole = [piece for piece in pieces if piece.count == tower.num_blocks and self._device.type == "cuda"]
        if whole:
            self._progress()
            rows = encode_divided(tower, [self._reader.read(piece) for piece in whole], self._group)
            for piece, each in zip(whole, rows, strict=True):
                self._write(piece, each)
        pieces = [piece for piece in pieces if piece not in whole]
        with EncodingProgress(len(pieces), sum(piece.count for piece in pieces), draws=self._draws) as progress:
            for piece in pieces:
                self._compute_piece(tower, piece, progress)

    def _compute_piece(self, tower: VisionTower, piece: EncodePiece, progress: EncodingProgress) -> None:
        """Compute some blocks for one image."""
        if piece.first == 0:
            self._begun = piece.key, tower.begin(self._reader.read(piece))
        assert self._begun is not None
        assert self._begun[0] == piece.key, "pieces of two images are mixed"
        encoding = self._begun[1]
        for block in range(piece.first, piece.first + piece.count):
            self._progress()
            encoding.run(block, 1)
            progress.computed()
        if piece.first + piece.count == tower.num_blocks:
            self._write(piece, encoding.rows())
            self._begun = None

    def _write(self, piece: EncodePiece, rows: torch.Tensor) -> None:
        """Write the rows of an image into the pool."""
        assert self._pool is not None
        self._pool[piece.row : piece.row + len(rows)] = rows
