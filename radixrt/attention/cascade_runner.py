"""`CascadeRunner`: the shared part of decode attention on CUDA, and its merge with what each row has for itself.

The first two on the host, the others for each layer and, with static tensors, within a CUDA graph:

    plan = runner.plan(batch.shared, req_pool_idx)  # None: compute the whole step without sharing
    placed = runner.upload(plan)                    # or copy plan.packed to where runner.place(buffer) reads it
    own, own_lse = ...                              # each row's positions from plan.ends[i] on
    runner.attend_shared(q, keys, values, req_to_token, scale, plan.tile, placed)
    runner.merge(own, own_lse, out, placed)

What is launched depends on the number of rows and on the plan's tile alone, all else is read from device memory: one
graph for each of `CascadeLimits.tiles` and each bucket of rows is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixrt.attention.cascade_plan import TILES, CascadeLimits, CascadePlan, Tile, plan_cascade
from radixrt.forward_batch.shared_groups import SharedGroups
from radixrt.forward_batch.upload import Uploader
from radixrt.messages.wire import Int32Array

PARTIALS_PER_ROW = 6
"""Partial results for each row of the largest step: levels of the tree times splits."""
MIN_PARTIALS = 1024


@dataclass(frozen=True)
class PlacedPlan:
    """Views of a plan in device memory, see `CascadePlan.packed`."""

    lane_ptr: torch.Tensor
    row_ptr: torch.Tensor
    members: torch.Tensor
    items: torch.Tensor


class CascadeRunner:
    """See the module's docstring. One instance serves all layers of one shape, one after the other.

    Args:
        num_heads, num_kv_heads, head_dim: of the layers, on this rank.
        max_rows: rows of a step.
        dtype: of queries; partial results are kept in it.
        processors: of the device; None asks it.
        tiles: sizes of the kernel.

    Attributes:
        limits: what a plan must keep within; `limits.packed_size` is its size.

    Raises:
        ImportError: Triton is not installed.
        ValueError: a shape that the kernels do not take; says which.
    """

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int, max_rows: int, device: torch.device,
        dtype: torch.dtype, processors: int | None = None, tiles: tuple[Tile, ...] = TILES,
    ) -> None:  # fmt: skip
        if head_dim not in (16, 32, 64, 128, 256):
            raise ValueError(f"shared attention takes head dims of 16, 32, 64, 128 and 256, not {head_dim}")
        if num_heads // num_kv_heads > max(tile.block_m for tile in tiles):
            raise ValueError(f"{num_heads} heads on {num_kv_heads} kv heads are too many for one tile")
        from radixrt.kernels.triton.merge import merge
        from radixrt.kernels.triton.shared_attention import shared_attention

        self._merge, self._attend = merge, shared_attention
        self._device = device
        if processors is None:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        partials = max(MIN_PARTIALS, PARTIALS_PER_ROW * max_rows)
        self.limits = CascadeLimits(
            num_heads, num_kv_heads, processors, max_rows, max_partials=partials, max_items=max(256, 2 * max_rows),
            tiles=tiles,
        )  # fmt: skip
        self._partial = torch.empty(partials, num_heads, head_dim, dtype=dtype, device=device)
        self._partial_lse = torch.empty(partials, num_heads, dtype=torch.float32, device=device)
        self._last: tuple[bytes, CascadePlan | None] | None = None

    def plan(self, shared: SharedGroups, req_pool_idx: Int32Array) -> CascadePlan | None:
        """Plan a step (int32 [B] places in req_to_token); None if it does not fit. No device work.

        While groups and rows stay the same, so does the object, and a copy of it on the device is still right.
        """
        key = shared.segments.tobytes() + shared.rows.tobytes() + req_pool_idx.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = (key, plan_cascade(shared, req_pool_idx, self.limits))
        return self._last[1]

    def place(self, buffer: torch.Tensor) -> PlacedPlan:
        """Where the kernels read a plan that the caller copies to `buffer`.

        Args:
            buffer: int32 [packed_size] on the device; may be part of a larger one. All zeros is a plan without work.

        Raises:
            ValueError: the buffer has another size or dtype.
        """
        size = self.limits.packed_size
        if buffer.shape != (size,) or buffer.dtype != torch.int32:
            raise ValueError(f"the buffer of a plan must be int32 [{size}], not {buffer.dtype} {list(buffer.shape)}")
        return PlacedPlan(*torch.split(buffer, list(self.limits.sections)))

    def upload(self, plan: CascadePlan) -> PlacedPlan:
        """Copy a plan to the device, for steps without static buffers."""
        return self.place(torch.from_numpy(plan.packed).to(self._device))

    def attend_shared(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, req_to_token: torch.Tensor, scale: float,
        tile: Tile, plan: PlacedPlan,
    ) -> None:  # fmt: skip
        """Attend to what the plan says that rows share; `merge` takes the result.

        Args:
            q: [B, num_heads, head_dim]; a view of a fused projection will do.
            keys, values: the layer's pool, [slots, num_kv_heads, head_dim], contiguous; also float8_e4m3fn.
            req_to_token: int32 [rows, positions], on the device.
            tile: that the plan is for.
        """
        self._attend(
            q, keys, values, req_to_token, plan.lane_ptr, plan.items, plan.members, self._partial, self._partial_lse,
            scale=scale, lanes=self.limits.lanes(tile), block_m=tile.block_m,
        )  # fmt: skip

    def merge(self, own: torch.Tensor, own_lse: torch.Tensor, out: torch.Tensor, plan: PlacedPlan) -> None:
        """out = each row's own part merged with its shared ones; that of a row that shares nothing is its own part.

        Args:
            own: [B, num_heads, head_dim], contiguous.
            own_lse: float32 [B, num_heads]: log2 of the sum of exp(score), which is what FlashInfer returns; -inf for
                an empty part.
            out: [B, num_heads * head_dim], contiguous, written; may be the same memory as own.
        """
        self._merge(own, own_lse, plan.row_ptr, self._partial, self._partial_lse, out)


class CascadeStep:
    """A runner of shared parts, with one place on the device for the plan of the step that is being computed."""

    def __init__(self, runner: CascadeRunner, device: torch.device) -> None:
        self.runner = runner
        self._buffer = torch.zeros(runner.limits.packed_size, dtype=torch.int32, device=device)
        self._placed: PlacedPlan = runner.place(self._buffer)
        self._uploader = Uploader(device)
        self._there: CascadePlan | None = None

    def upload(self, plan: CascadePlan) -> None:
        """The same object lies there already while groups and rows stay the same."""
        if plan is not self._there:
            self._uploader.upload_into(self._buffer.view(torch.uint8), [plan.packed], [0])
            self._there = plan

    def finish(
        self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor, scale: float, tile: Tile,
        own: torch.Tensor, lse: torch.Tensor,
    ) -> None:  # fmt: skip
        """Merge what rows share into what each has for itself (`own` and its log-sum-exp), in place."""
        self.runner.attend_shared(q, *pool, table, scale, tile, self._placed)
        self.runner.merge(own, lse, own.view(own.shape[0], -1), self._placed)
