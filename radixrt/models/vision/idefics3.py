"""The tower of Idefics3 and SmolVLM: SigLIP over tiles, whose rows are squares of patches, projected by one matrix."""

from __future__ import annotations

import torch
from torch import nn

from radixrt.layers.ops import LayerOps
from radixrt.models.decoder_spec import TensorNames
from radixrt.models.precision import Precision
from radixrt.models.vision.normalization import Normalization
from radixrt.models.vision.parts import Block, BlockNames, LayerNorm, PatchEmbedding, Rotary, Table, patches_of
from radixrt.models.vision.tower import VisionTower
from radixrt.models.vision_spec import VisionSpec

PREFIX = "model.vision_model"
BLOCK = BlockNames(
    ("layer_norm1", "layer_norm2"),
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.out_proj",
    ("mlp.fc1", "mlp.fc2"),
)


class Idefics3Tower(VisionTower):
    """See the module."""

    names = TensorNames()
    prefixes = (f"{PREFIX}.", "model.connector.")

    def __init__(self, spec: VisionSpec, precision: Precision, ops: LayerOps, normalization: Normalization) -> None:
        super().__init__(spec, precision, ops, normalization)
        context, embeddings = self.context, f"{PREFIX}.embeddings"
        self.patches = PatchEmbedding(context, f"{embeddings}.patch_embedding", bias=True)
        self.table = Table(context, f"{embeddings}.position_embedding.weight", spec.table_side**2, spec.hidden)
        self.blocks = nn.ModuleList(Block(context, f"{PREFIX}.encoder.layers.{i}", BLOCK) for i in range(spec.depth))
        self.last_norm = LayerNorm(context, f"{PREFIX}.post_layernorm", spec.hidden)
        self.proj = context.linear(
            ["model.connector.modality_projection.proj"],
            spec.out_size,
            spec.hidden * spec.merge**2,
            bias=spec.projector_bias,
        )

    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, Rotary | None]:
        x = self.patches(patches_of(pixels, self.spec.patch, 1))
        places = _buckets(self.spec.table_side, pixels.device)
        return x + self.table.rows[(places[:, None] * self.spec.table_side + places).flatten()], None

    def project(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        (rows, columns), side = grid, self.spec.merge
        patches = self.last_norm(x).view(-1, rows, side, columns, side, x.shape[1])
        squares = patches.transpose(2, 3).reshape(-1, side**2 * x.shape[1])
        projected: torch.Tensor = self.proj(squares)
        return projected


def _buckets(side: int, device: torch.device) -> torch.Tensor:
    """Return the learned position int64 [side] of each patch along an axis, as transformers rounds it: where `side` is
    no power of two, fractions in float32 can fall into the bucket before."""
    boundaries = torch.arange(1 / side, 1.0, 1 / side, device=device)
    fractions = torch.arange(side, dtype=torch.float32, device=device) * torch.tensor(1 / side, dtype=torch.float32)
    return torch.bucketize(fractions.clamp(max=1.0 - 1e-6), boundaries, right=True)
