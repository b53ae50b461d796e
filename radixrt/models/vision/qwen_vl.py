"""The tower of Qwen3-VL and Qwen3.5: images of any size, a rotary embedding, rows of 2 x 2 patches, deepstack."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.layers.ops import LayerOps
from radixrt.models.decoder_spec import TensorNames
from radixrt.models.precision import Precision
from radixrt.models.vision.normalization import Normalization
from radixrt.models.vision.parts import (
    Block,
    BlockNames,
    LayerNorm,
    PatchEmbedding,
    Rotary,
    Table,
    TowerContext,
    coordinates,
    patches_of,
    rotary_of,
)
from radixrt.models.vision.tower import VisionTower
from radixrt.models.vision_spec import VisionSpec

PREFIX = "model.visual"
BLOCK = BlockNames(("norm1", "norm2"), ("attn.qkv",), "attn.proj", ("mlp.linear_fc1", "mlp.linear_fc2"))


class Merger(nn.Module):
    """Two linear layers with a GELU between them, from the patches of a square to a row.

    Args:
        name: in the checkpoint.
        joined: whether the layer norm is over all patches of a square together, as behind deepstack blocks.
    """

    def __init__(self, context: TowerContext, name: str, *, joined: bool) -> None:
        super().__init__()
        spec = context.spec
        self._width, self._joined = spec.hidden * spec.merge**2, joined
        self.norm = LayerNorm(context, f"{name}.norm", self._width if joined else spec.hidden)
        self.fc1 = context.linear([f"{name}.linear_fc1"], self._width, self._width)
        self.fc2 = context.linear([f"{name}.linear_fc2"], spec.out_size, self._width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[P, hidden] -> [P / merge², out_size]."""
        x = self.norm(x.view(-1, self._width)) if self._joined else self.norm(x).view(-1, self._width)
        rows: torch.Tensor = self.fc2(F.gelu(self.fc1(x)))
        return rows


class QwenTower(VisionTower):
    """See the module. The patches of a square that becomes one row stand one after the other."""

    names = TensorNames(renamed=(("visual.", "model.visual."),))
    prefixes = (f"{PREFIX}.",)

    def __init__(self, spec: VisionSpec, precision: Precision, ops: LayerOps, normalization: Normalization) -> None:
        super().__init__(spec, precision, ops, normalization)
        context = self.context
        self.patches = PatchEmbedding(context, f"{PREFIX}.patch_embed.proj", bias=True)
        self.table = Table(context, f"{PREFIX}.pos_embed.weight", spec.table_side**2, spec.hidden)
        self.blocks = nn.ModuleList(Block(context, f"{PREFIX}.blocks.{i}", BLOCK) for i in range(spec.depth))
        self.merger = Merger(context, f"{PREFIX}.merger", joined=False)
        self.deepstack_mergers = nn.ModuleList(
            Merger(context, f"{PREFIX}.deepstack_merger_list.{i}", joined=True) for i in range(len(spec.deepstack))
        )

    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, Rotary]:
        spec = self.spec
        height, width = (size // spec.patch for size in pixels.shape[1:])
        rows, columns = coordinates(height, width, spec.merge, pixels.device)
        x = self.patches(patches_of(pixels, spec.patch, spec.merge))
        x = x + resampled(self.table.rows, spec.table_side, (rows, height), (columns, width)).to(x.dtype)
        assert spec.rotary_theta is not None
        return x, rotary_of(rows, columns, spec.head_dim, spec.rotary_theta)

    def project(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        rows: torch.Tensor = self.merger(x)
        return rows

    def deepstack(self, index: int, x: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.deepstack_mergers[index](x)
        return rows


def resampled(
    table: torch.Tensor, side: int, rows: tuple[torch.Tensor, int], columns: tuple[torch.Tensor, int]
) -> torch.Tensor:
    """Return float32 [n, hidden]: the table of positions [side * side, hidden] at the places of patches, interpolated
    bilinearly. The first and the last patch along an axis are at the first and the last position of the table.

    Args:
        rows, columns: coordinates [n] of the patches, and the number of patches along the axis.
    """
    (top, bottom, down), (left, right, across) = (_taps(place, size, side) for place, size in (rows, columns))
    upper = torch.lerp(table[top * side + left].float(), table[top * side + right].float(), across)
    lower = torch.lerp(table[bottom * side + left].float(), table[bottom * side + right].float(), across)
    return torch.lerp(upper, lower, down)


def _taps(place: torch.Tensor, size: int, side: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the positions of the table before and behind each place, and the share [n, 1] of the latter."""
    exact = place.float() * (side - 1) / max(size - 1, 1)
    before = exact.floor()
    first = before.long()
    return first, (first + 1).clamp(max=side - 1), (exact - before)[:, None]
