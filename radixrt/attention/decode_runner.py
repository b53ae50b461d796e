"""`DecodeRunner`: attention of rows with one query each, on CUDA, by a kernel that shares their keys out evenly.

Once a step the host plans (`plan_decode`), and the device lists the slots of all rows; then each layer is one launch.
What is launched depends on nothing but the number of rows, so both can be part of a CUDA graph whose tensors stay:

    arrays = runner.plan(starts, ends)              # host; then take them to the device
    rows = runner.place(places, ends, arrays, ...)  # views, no work
    runner.list_slots(rows, req_to_token)           # one launch
    runner.attend(q, pool, rows, scale, out, lse)   # one launch, for each layer

`listed` is the first three for a step with tensors of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixrt.forward_batch.upload import Uploader
from radixrt.messages.wire import I32, Int32Array


@dataclass(frozen=True)
class Sizes:
    """Of the kernel: positions that a program takes at once, its warps, stages of its loop (two for each buffer of keys
    and values that is filled ahead, and one), and programs on a processor."""

    block: int
    num_warps: int
    num_stages: int
    programs: int


def pick_sizes(head_dim: int, kv_itemsize: int) -> Sizes:
    """The sizes that measure best for a head size of 128 in bfloat16
    (`python -m benchmarks.kernels.decode_attention --sweep`); for the others, those that keep as many bytes in flight
    without spilling registers."""
    if head_dim > 128:
        return Sizes(64, 4, 3, 2)
    if kv_itemsize == 1:
        return Sizes(64, 4, 5, 4)
    return Sizes(64, 2, 3 if head_dim == 128 else 5, 4)


@dataclass(frozen=True)
class DecodePlan:
    """One step's shares, int32 each.

    Attributes:
        block_ptr: [B + 1], row i has blocks [block_ptr[i], block_ptr[i + 1]).
        lane_ptr: [lanes + 1], lane i has blocks [lane_ptr[i], lane_ptr[i + 1]); lanes without any stand last.
        first_lane, last_lane: [B], the lanes that have the row's first and its last block.
    """

    block_ptr: Int32Array
    lane_ptr: Int32Array
    first_lane: Int32Array
    last_lane: Int32Array


def plan_decode(lens: Int32Array, lanes: int, block: int) -> DecodePlan:
    """Share out rows of `lens` keys each (int32 [B], at least 1) in blocks of `block` keys."""
    block_ptr = np.zeros(len(lens) + 1, I32)
    np.cumsum(-(-lens // block), out=block_ptr[1:])
    total = int(block_ptr[-1])
    used = min(lanes, total)
    # In int64: the product may be larger than 2**31.
    lane_ptr = np.minimum(np.arange(lanes + 1, dtype=np.int64), used) * total // max(used, 1)
    first = np.searchsorted(lane_ptr[: used + 1], block_ptr[:-1], side="right") - 1
    last = np.searchsorted(lane_ptr[: used + 1], block_ptr[1:] - 1, side="right") - 1
    return DecodePlan(block_ptr, lane_ptr.astype(I32), first.astype(I32), last.astype(I32))


@dataclass(frozen=True)
class DecodeRows:
    """Rows with one query each, on the device.

    Attributes:
        places: int [B], their rows of req_to_token.
        starts, ends: int [B], row i attends to positions [starts[i], ends[i]).
        block_ptr, lane_ptr, first_lane, last_lane: int32, see `DecodePlan`.
        slots, meta: int32, for the list of their slots; see `write_decode_list`.
    """

    places: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    block_ptr: torch.Tensor
    lane_ptr: torch.Tensor
    first_lane: torch.Tensor
    last_lane: torch.Tensor
    slots: torch.Tensor
    meta: torch.Tensor


class DecodeRunner:
    """See the module's docstring. One instance serves all layers of one shape, one after the other.

    Args:
        num_heads, num_kv_heads, head_dim: of the layers, on this rank.
        max_rows: rows of a step.
        kv_dtype: of the pool.
        early: see `CudaOps`.
        processors: of the device; None asks it.
        sizes: of the kernel; None for those of `pick_sizes`.

    Raises:
        ImportError: Triton is not installed.
    """

    def __init__(
        self, *, num_heads: int, num_kv_heads: int, head_dim: int, max_rows: int, kv_dtype: torch.dtype,
        device: torch.device, early: bool, processors: int | None = None, sizes: Sizes | None = None,
    ) -> None:  # fmt: skip
        from radixrt.kernels.triton.decode_attention import decode_attention, write_decode_list

        self._attend, self._list = decode_attention, write_decode_list
        self._sizes = pick_sizes(head_dim, kv_dtype.itemsize) if sizes is None else sizes
        self._uploader = Uploader(device)
        self._early = early
        self._device = device
        if processors is None:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._lanes = max(1, processors * self._sizes.programs // num_kv_heads)
        # A lane has at most one part of a row that began before, and one of a row that goes on.
        self._partial = torch.empty(2 * self._lanes, num_heads, head_dim, dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(2 * self._lanes, num_heads, dtype=torch.float32, device=device)
        self._arrived = torch.zeros(max_rows * num_kv_heads, dtype=torch.int32, device=device)

    def plan(self, starts: Int32Array, ends: Int32Array) -> list[Int32Array]:
        """What `place` wants on the device, for rows that attend to positions [starts, ends), int32 [B], none empty."""
        plan = plan_decode(ends - starts, self._lanes, self._sizes.block)
        return [np.asarray(starts, np.int32), plan.block_ptr, plan.lane_ptr, plan.first_lane, plan.last_lane]

    def list_sizes(self, positions: int, rows: int) -> tuple[int, int]:
        """int32 numbers of `slots` and `meta` that this many positions of this many rows need at most."""
        block = self._sizes.block
        blocks = (positions + rows * (block - 1)) // block
        return blocks * block, blocks + 1

    @staticmethod
    def place(
        places: torch.Tensor, ends: torch.Tensor, arrays: Sequence[torch.Tensor], slots: torch.Tensor,
        meta: torch.Tensor,
    ) -> DecodeRows:  # fmt: skip
        """The rows of a step whose numbers are, or will be, on the device.

        Args:
            arrays: of `plan`, there.
            slots, meta: int32, at least of `list_sizes`.
        """
        starts, block_ptr, lane_ptr, first_lane, last_lane = arrays
        return DecodeRows(places, starts, ends, block_ptr, lane_ptr, first_lane, last_lane, slots, meta)

    def list_slots(self, rows: DecodeRows, table: torch.Tensor) -> None:
        """List the slots of all rows, from req_to_token as it is now."""
        block = self._sizes.block
        self._list(table, rows.places, rows.starts, rows.ends, rows.block_ptr, block, rows.slots, rows.meta)

    def listed(
        self, places: torch.Tensor, starts: Int32Array, ends: torch.Tensor, ends_cpu: Int32Array, table: torch.Tensor
    ) -> DecodeRows:
        """Rows that are planned, on the device and listed, in tensors of their own.

        Args:
            places, ends: int64 [B], on the device.
            starts, ends_cpu: int32 [B].
            table: req_to_token.
        """
        arrays = self._uploader.upload(self.plan(starts, ends_cpu))
        sizes = self.list_sizes(int((ends_cpu - starts).sum()), len(ends_cpu))
        slots, meta = (torch.empty(size, dtype=torch.int32, device=self._device) for size in sizes)
        rows = self.place(places, ends, arrays, slots, meta)
        self.list_slots(rows, table)
        return rows

    def attend(
        self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], rows: DecodeRows, scale: float,
        out: torch.Tensor, lse: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Attend q [B, num_heads, head_dim] to the rows' positions in a layer's pool; see `decode_attention`."""
        self._attend(
            q, *pool, rows.slots, rows.meta, rows.lane_ptr, rows.first_lane, rows.last_lane, self._partial,
            self._partial_lse, self._arrived, out, lse, scale=scale, block=self._sizes.block,
            num_warps=self._sizes.num_warps, num_stages=self._sizes.num_stages, early=self._early,
        )  # fmt: skip
