"""Parts of towers: layer norms, the embedding of patches, blocks of attention and feed-forward, rows of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from radixrt.attention.base import AttentionLayer
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources, replicated, whole_weight
from radixrt.layers.formats.model_formats import ModelFormats
from radixrt.layers.linear import Linear, meta_parameter
from radixrt.layers.ops import LayerOps
from radixrt.models.vision_spec import VisionSpec

CHANNELS = 3


@dataclass(frozen=True)
class TowerContext:
    """Constructor arguments of the parts of a tower.

    Attributes:
        dtype: of the weights of linear layers, and of attention.
        activation_dtype: of everything between linear layers.
        ops: kernels for the device.
        formats: the format of each weight.
    """

    spec: VisionSpec
    dtype: torch.dtype
    activation_dtype: torch.dtype
    ops: LayerOps
    formats: ModelFormats

    def linear(self, names: Sequence[str], outputs: int, inputs: int, *, bias: bool = True) -> Linear:
        """Return a linear layer whose outputs are those of several weights of one shape, one after the other.

        Args:
            names: of the weights, without ".weight".
            outputs: of each weight.
        """
        projections = [whole_weight(name, outputs, inputs) for name in names]
        return Linear(projections, bias, self.dtype, self.formats.linear(projections))


class TowerPart(nn.Module):
    """A module with parameters of its own, beside those of its linear layers.

    Attributes:
        sources: the tensors that fill its own parameters.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sources: ParameterSources = {}


class LayerNorm(TowerPart):
    """A layer norm over the last dimension."""

    def __init__(self, context: TowerContext, name: str, size: int) -> None:
        super().__init__()
        self.norm = meta_parameter(size, dtype=context.activation_dtype)
        self.bias = meta_parameter(size, dtype=context.activation_dtype)
        self.sources = {"norm": replicated(f"{name}.weight", (size,)), "bias": replicated(f"{name}.bias", (size,))}
        self._eps = context.spec.norm_eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.norm.shape, self.norm, self.bias, self._eps)


class PatchEmbedding(TowerPart):
    """The projection of a patch's pixels, a convolution whose stride is its size.

    A still image counts as `frames` equal images in a sequence. So the weights of the frames are added up once, and a
    patch is multiplied by their sum.

    Args:
        name: of the convolution in the checkpoint.
        bias: whether it has one.
    """

    def __init__(self, context: TowerContext, name: str, *, bias: bool) -> None:
        super().__init__()
        spec = context.spec
        shape = (spec.hidden, CHANNELS, spec.frames, spec.patch, spec.patch)
        self.weight: nn.Parameter = meta_parameter(
            spec.hidden, CHANNELS * spec.frames * spec.patch**2, dtype=torch.float32
        )
        self.bias = meta_parameter(spec.hidden, dtype=torch.float32) if bias else None
        weight = CheckpointTensor(f"{name}.weight", shape, 0, range(spec.hidden), spec.hidden, any_ones=True)
        self.sources = {"weight": (weight,)}
        if bias:
            self.sources["bias"] = replicated(f"{name}.bias", (spec.hidden,))
        self._context = context

    def finalize(self) -> None:
        """Add up the frames' weights, and bring them into the tower's dtype. Called once, after loading."""
        spec, dtype = self._context.spec, self._context.dtype
        summed = self.weight.view(spec.hidden, CHANNELS, spec.frames, -1).sum(2).flatten(1)
        self.weight = nn.Parameter(summed.to(dtype), requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.to(dtype), requires_grad=False)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        """[n, 3 * patch * patch] pixels by channel, row and column -> [n, hidden]."""
        return F.linear(patches.to(self.weight.dtype), self.weight, self.bias).to(self._context.activation_dtype)


class Table(TowerPart):
    """Learned rows [count, hidden] of positions, or of a class."""

    def __init__(self, context: TowerContext, name: str, *shape: int) -> None:
        super().__init__()
        self.rows = meta_parameter(*shape, dtype=context.activation_dtype)
        self.sources = {"rows": replicated(name, shape)}


@dataclass(frozen=True)
class BlockNames:
    """Names of a block's parts in a checkpoint; `qkv` one for all three, or one for each."""

    norms: tuple[str, str]
    qkv: tuple[str, ...]
    proj: str
    feed_forward: tuple[str, str]


class Run(NamedTuple):
    """Images of one size, one after the other, in the rows of a tower.

    Attributes:
        images: number of images.
        patches: rows of each image.
    """

    images: int
    patches: int


class Block(nn.Module):
    """Attention over all patches of an image, then a feed-forward, each behind a layer norm and added to its input."""

    def __init__(self, context: TowerContext, prefix: str, names: BlockNames) -> None:
        super().__init__()
        spec = context.spec
        self._spec, self._dtype, self._ops = spec, context.dtype, context.ops
        self._heads = AttentionLayer(0, spec.heads, spec.heads, spec.head_dim, spec.head_dim**-0.5)
        first, second = (f"{prefix}.{name}" for name in names.norms)
        outer, inner = (f"{prefix}.{name}" for name in names.feed_forward)
        qkv = [f"{prefix}.{name}" for name in names.qkv]
        self.norm1 = LayerNorm(context, first, spec.hidden)
        self.qkv = context.linear(qkv, 3 * spec.hidden // len(qkv), spec.hidden)
        self.proj = context.linear([f"{prefix}.{names.proj}"], spec.hidden, spec.hidden)
        self.norm2 = LayerNorm(context, second, spec.hidden)
        self.fc1 = context.linear([outer], spec.intermediate, spec.hidden)
        self.fc2 = context.linear([inner], spec.hidden, spec.intermediate)

    def forward(self, x: torch.Tensor, rotary: Rotary | None, runs: Sequence[Run]) -> torch.Tensor:
        """[n, hidden] -> [n, hidden].

        Args:
            rotary: of the n patches; None for a tower without a rotary embedding.
            runs: the images of these patches, in order.
        """
        heads, dim = self._spec.heads, self._spec.head_dim
        qkv = self.qkv(self.norm1(x)).view(-1, 3 * heads, dim)
        if rotary is None:
            q, k, v = qkv.split(heads, dim=1)
        else:
            q, k, v = self._rotate(qkv, rotary)
        x = x + self.proj(self._attend(q, k, v, runs).to(x.dtype))
        fed: torch.Tensor = self.fc2(self._activated(self.norm2(x)))
        return x + fed

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, runs: Sequence[Run]) -> torch.Tensor:
        """Return the attention [n, hidden] of each image's patches to those of the same image."""
        mixed, first = [], 0
        for images, patches in runs:
            stop, shape = first + images * patches, (images, patches, *q.shape[1:])
            own = [each[first:stop].to(self._dtype).view(shape).transpose(1, 2) for each in (q, k, v)]
            found = F.scaled_dot_product_attention(own[0], own[1], own[2])
            mixed.append(found.transpose(1, 2).flatten(2).flatten(0, 1))
            first = stop
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _rotate(self, qkv: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v [n, heads, head_dim], of which q and k are rotated in float32."""
        q, k, v = self._ops.prepare_heads(
            qkv, self._heads, rotary.positions, rotary.table, None, None, 0.0, None, rotary.positions
        )
        assert k is not None
        assert v is not None
        return q, k, v

    def _activated(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of the feed-forward's first layer."""
        weight, bias, activation = self.fc1.weight, self.fc1.bias, self._spec.activation
        if activation == "gelu_tanh" and x.is_cuda and weight is not None and bias is not None:
            # One GEMM computes the activation too: its GELU is the tanh form.
            return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
        return activate(self.fc1(x), activation)


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return an activation of `VisionSpec.activation`."""
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


@dataclass(frozen=True)
class Rotary:
    """The rotary embedding of an image's patches.

    Attributes:
        positions: int64 [n], rows of the table: 0, 1, 2 and so on.
        table: float32 [n, 2, head_dim], see `radixrt.layers.rotary.rotary_table`.
    """

    positions: torch.Tensor
    table: torch.Tensor


def joined(rotaries: Sequence[Rotary]) -> Rotary:
    """Return the rotary embedding of the patches of several images, one image after the other."""
    if len(rotaries) == 1:
        return rotaries[0]
    table = torch.cat([each.table for each in rotaries])
    return Rotary(torch.arange(len(table), device=table.device), table)


def rotary_of(rows: torch.Tensor, columns: torch.Tensor, head_dim: int, theta: float) -> Rotary:
    """Return the rotary embedding of patches at integer coordinates [n]: the first half of the frequencies is of rows,
    the second half of columns."""
    exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float32, device=rows.device) / (head_dim // 2)
    frequencies = 1.0 / theta**exponents
    angles = torch.cat([place[:, None].float() * frequencies for place in (rows, columns)], dim=1)
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack((torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)), dim=1)
    return Rotary(torch.arange(len(rows), device=rows.device), table)


def patches_of(pixels: torch.Tensor, patch: int, merge: int) -> torch.Tensor:
    """Cut an image into patches.

    Args:
        pixels: [3, H, W]; rows and columns behind the last whole patch are not read.
        merge: patches of a square of this side stand one after the other, then those of the next square; 1 for rows of
            patches.

    Returns:
        [n, 3 * patch * patch], by channel, row and column.
    """
    rows, columns = (size // patch // merge for size in pixels.shape[1:])
    side = patch * merge
    cut = pixels[:, : rows * side, : columns * side].view(CHANNELS, rows, merge, patch, columns, merge, patch)
    return cut.permute(1, 4, 2, 5, 0, 3, 6).reshape(rows * columns * merge**2, -1)


def coordinates(rows: int, columns: int, merge: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and the column, int64 [n], of each patch of a grid, in the order of `patches_of`."""
    places = torch.arange(rows * columns, device=device).view(rows, columns)
    ordered = places.view(rows // merge, merge, columns // merge, merge).transpose(1, 2).flatten()
    return ordered // columns, ordered % columns
