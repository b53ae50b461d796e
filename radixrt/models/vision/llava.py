"""The towers of LLaVA: CLIP, or SigLIP, over one square image, and two linear layers with a GELU for each patch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.layers.ops import LayerOps
from radixrt.models.decoder_spec import TensorNames
from radixrt.models.precision import Precision
from radixrt.models.vision.idefics3 import BLOCK
from radixrt.models.vision.normalization import Normalization
from radixrt.models.vision.parts import Block, LayerNorm, PatchEmbedding, Rotary, Table, patches_of
from radixrt.models.vision.tower import VisionTower
from radixrt.models.vision_spec import VisionSpec

PREFIX, PROJECTOR = "vision_tower", "multi_modal_projector"
UNUSED = (f"{PREFIX}.post_layernorm.", f"{PREFIX}.head.", f"{PREFIX}.embeddings.position_ids")
"""Beginnings of the names of tensors behind the last block, and of buffers."""
LAYERS = f"{PREFIX}.encoder.layers."


class LlavaTower(VisionTower):
    """See the module. With a row of the class, which comes first, that row is dropped behind the blocks."""

    names = TensorNames(
        renamed=(
            ("model.vision_tower.vision_model.", f"{PREFIX}."),
            ("model.vision_tower.", f"{PREFIX}."),
            ("vision_tower.vision_model.", f"{PREFIX}."),
            ("model.multi_modal_projector.", f"{PROJECTOR}."),
        )
    )
    prefixes = (f"{PREFIX}.", f"{PROJECTOR}.")

    def __init__(self, spec: VisionSpec, precision: Precision, ops: LayerOps, normalization: Normalization) -> None:
        super().__init__(spec, precision, ops, normalization)
        context, embeddings = self.context, f"{PREFIX}.embeddings"
        count, clip = spec.table_side**2, spec.class_token
        self.patches = PatchEmbedding(context, f"{embeddings}.patch_embedding", bias=not clip)
        self.table = Table(context, f"{embeddings}.position_embedding.weight", count + clip, spec.hidden)
        self.class_row = Table(context, f"{embeddings}.class_embedding", spec.hidden) if clip else None
        self.first_norm = LayerNorm(context, f"{PREFIX}.pre_layrnorm", spec.hidden) if clip else None
        self.blocks = nn.ModuleList(Block(context, f"{LAYERS}{i}", BLOCK) for i in range(spec.depth))
        out, bias = spec.out_size, spec.projector_bias
        self.fc1 = context.linear([f"{PROJECTOR}.linear_1"], out, spec.hidden, bias=bias)
        self.fc2 = context.linear([f"{PROJECTOR}.linear_2"], out, out, bias=bias)

    def embed(self, pixels: torch.Tensor) -> tuple[torch.Tensor, Rotary | None]:
        x = self.patches(patches_of(pixels, self.spec.patch, 1))
        if self.class_row is None or self.first_norm is None:
            return x + self.table.rows, None
        x = torch.cat((self.class_row.rows[None], x)) + self.table.rows
        return self.first_norm(x), None

    def project(self, x: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        if self.class_row is not None:
            x = x.view(-1, 1 + grid[0] * grid[1], x.shape[1])[:, 1:].flatten(0, 1)
        rows: torch.Tensor = self.fc2(F.gelu(self.fc1(x)))
        return rows

    def unused(self, name: str) -> bool:
        block = name.removeprefix(LAYERS).partition(".")[0]
        behind = name.startswith(LAYERS) and block.isdecimal() and int(block) >= self.spec.depth
        return behind or name.startswith(UNUSED)
