"""`VisionTower`: encodes images, several together or, if need be, one in pieces of blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import groupby

import torch
from torch import nn

from radixrt.layers.formats.checkpoint import ParameterSources
from radixrt.layers.formats.model_formats import ModelFormats
from radixrt.layers.linear import Linear
from radixrt.layers.ops import LayerOps
from radixrt.models.decoder_spec import TensorNames
from radixrt.models.precision import Precision, torch_dtype
from radixrt.models.vision.normalization import Normalization
from radixrt.models.vision.parts import Block, PatchEmbedding, Rotary, Run, TowerContext, TowerPart, joined
from radixrt.models.vision_spec import VisionSpec


class VisionTower(nn.Module, ABC):
    """A tower. Parameters start on the meta device; `radixrt.models.vision.load` sets them.

    Nothing waits for the device. An image's rows depend on its pixels alone, and on the images that are encoded with it
    by no more than rounding.

    Args:
        precision: dtypes of the computation.
        ops: kernels for the device.
        normalization: of pixels.

    Attributes:
        blocks: the blocks, in order; made by subclasses.
        names: how the tensors of a checkpoint are named.
        prefixes: beginnings of the names of the tower's tensors.
        replay: encodes images of one size from a captured graph; returns None for images without a graph.
    """

    names: TensorNames
    prefixes: tuple[str, ...]
    blocks: nn.ModuleList
    patches: PatchEmbedding

    def __init__(self, spec: VisionSpec, precision: Precision, ops: LayerOps, normalization: Normalization) -> None:
        super().__init__()
        dtype, activation_dtype = torch_dtype(precision.dtype), torch_dtype(precision.activations)
        self.spec = spec
        self.context = TowerContext(spec, dtype, activation_dtype, ops, ModelFormats(None, ops))
        self.replay: Callable[[Sequence[torch.Tensor]], torch.Tensor | None] | None = None
        self._normalization = normalization
        self._scale: torch.Tensor
        self._shift: torch.Tensor

    @property
    def num_blocks(self) -> int:
        """Number of blocks that `Encoding.run` computes."""
        return len(self.blocks)

    @property
    def out_columns(self) -> int:
        """Numbers of a row of an image, see `VisionSpec.out_columns`."""
        return self.spec.out_columns

    @torch.inference_mode()
    def begin(self, *images: torch.Tensor) -> Encoding:
        """Begin to encode images together.

        Args:
            images: uint8 [H, W, 3] on the tower's device, processed for this model.

        Raises:
            ValueError: the model has no images of such a size.
        """
        return Encoding(self, [self._normal(pixels) for pixels in images])

    def _normal(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the normalized pixels of an image, float32 [3, H, W]."""
        height, width, _ = pixels.shape
        size, side = self.spec.image_size, self.spec.patch * self.spec.merge
        fits = height % side == width % side == 0 if size is None else height == width == size
        if not fits or min(height, width) < side:
            wanted = f"{size} x {size}" if size else f"multiples of {side}"
            raise ValueError(f"an image has {height} x {width} pixels; the tower encodes {wanted}")
        return pixels.permute(2, 0, 1).float() * self._scale + self._shift

    def encode(self, *images: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, out_columns] of images, one image after the other; images as of `begin`."""
        rows = None if self.replay is None else self.replay(images)
        return self.encode_directly(*images) if rows is None else rows

    def encode_directly(self, *images: torch.Tensor) -> torch.Tensor:
        """As `encode`, kernel by kernel."""
        encoding = self.begin(*images)
        encoding.run(0, self.num_blocks)
        return encoding.rows()

    @abstractmethod
    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, Rotary | None]:
        """Return the input [P, hidden] of the first block, and the rotary embedding of its rows.

        Args:
            pixels: float32 [3, H, W], normalized.
        """

    @abstractmethod
    def project(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the rows [n, out_size] of the last block's output [P, hidden], of images of one size.

        Args:
            grid: rows and columns of the positions of each image.
        """

    def deepstack(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, out_size] that the block `spec.deepstack[index]` gives, from its output [P, hidden]."""
        raise NotImplementedError(f"a tower of kind {self.spec.kind} has no deepstack")

    def unused(self, name: str) -> bool:
        """Return True for a tensor of the tower in a checkpoint that no result depends on."""
        return False

    def finalize(self) -> None:
        """Compute what is derived from parameters and configuration. Called once, after loading."""
        self.patches.finalize()
        device = self.patches.weight.device
        scale, shift = self._normalization.factors()
        self._scale = torch.tensor(scale, dtype=torch.float32, device=device).view(3, 1, 1)
        self._shift = torch.tensor(shift, dtype=torch.float32, device=device).view(3, 1, 1)

    def checkpoint_tensors(self) -> ParameterSources:
        """Sources of all parameters."""
        return {
            f"{path}.{name}": tensors
            for path, module in self.named_modules()
            if isinstance(module, (Linear, TowerPart))
            for name, tensors in module.sources.items()
        }


class Encoding:
    """Images that are being encoded: the output of the last block that has run, and the deepstack rows so far."""

    def __init__(self, tower: VisionTower, images: Sequence[torch.Tensor]) -> None:
        self._tower, self._done = tower, 0
        xs, rotaries = zip(*(tower.embed(pixels) for pixels in images), strict=True)
        self._x = torch.cat(xs) if len(xs) > 1 else xs[0]
        self._rotary = None if rotaries[0] is None else joined(rotaries)
        self._runs: list[Run] = []
        self._grids: list[tuple[int, int]] = []  # of the images of each run
        sizes = ((tuple(pixels.shape[1:]), len(x)) for pixels, x in zip(images, xs, strict=True))
        for (size, patches), run in groupby(sizes):
            self._runs.append(Run(len(list(run)), patches))
            self._grids.append(tower.spec.grid(*size))
        self._deepstack: list[torch.Tensor] = []

    @torch.inference_mode()
    def run(self, first: int, count: int) -> None:
        """Run blocks [first, first + count); each block runs once, in order."""
        if first != self._done or count < 0 or first + count > self._tower.num_blocks:
            raise ValueError(f"blocks {first} to {first + count} cannot follow block {self._done}")
        taken = self._tower.spec.deepstack
        for i in range(first, first + count):
            block = self._tower.blocks[i]
            assert isinstance(block, Block)
            self._x = block(self._x, self._rotary, self._runs)
            if i in taken:
                self._deepstack.append(self._tower.deepstack(taken.index(i), self._x))
        self._done += count

    @torch.inference_mode()
    def rows(self) -> torch.Tensor:
        """Return the images' rows [n, out_columns], after the last block: of each position the row that replaces its
        embedding, then its deepstack rows."""
        if self._done != self._tower.num_blocks:
            raise ValueError(f"{self._done} of {self._tower.num_blocks} blocks have run")
        xs = self._x.split([images * patches for images, patches in self._runs])
        rows = [self._tower.project(x, grid) for x, grid in zip(xs, self._grids, strict=True)]
        return torch.cat((torch.cat(rows) if len(rows) > 1 else rows[0], *self._deepstack), dim=1)
