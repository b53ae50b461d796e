"""`DecodeRunner`: attention of rows with a single query each, on CUDA, by a kernel with evenly distributed keys.

Once a step, the host distributes the keys (`plan_decode`), and the device lists the slots of all rows. After that, each
layer is a single launch. Launches depend only on the number of rows, so a CUDA graph with static buffers can contain
the listing and the layers:

    arrays = runner.plan(starts, ends)                  # host; then copy them to the device
    rows = runner.place(table_rows, ends, arrays, ...)  # views, no work
    runner.list_slots(rows, req_to_token)               # one launch
    runner.attend(q, pool, rows, scale, out, lse)       # one launch for each layer

`listed` performs the first three for a step without static buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from radixrt.forward_batch.upload import Uploader
from radixrt.messages.wire import I32, Int32Array


@dataclass(frozen=True)
class Sizes:
    """Launch parameters of the kernel.

    Attributes:
        block: positions that a program processes at once.
        num_warps: warps of a program; float8 always has one.
        num_stages: pipeline stages of the program's loop: one, and two for each buffer of keys and values that is
            filled ahead.
        programs: programs on a processor (SM).
    """

    block: int
    num_warps: int
    num_stages: int
    programs: int


def pick_sizes(head_dim: int, kv_itemsize: int) -> Sizes:
    """Return the fastest measured sizes for a head size of 128 (`python -m benchmarks.kernels.decode_attention --sweep`
    with `--fp8` for float8). For other head sizes, return sizes that keep as many bytes in flight without spilling
    registers."""
    if kv_itemsize == 1:
        return Sizes(32 if head_dim <= 128 else 16, 1, 1, 12 if head_dim == 64 else 8)
    if head_dim > 128:
        return Sizes(64, 4, 3, 2)
    return Sizes(64, 2, 3 if head_dim == 128 else 5, 4)


@dataclass(frozen=True)
class DecodePlan:
    """Distribution of a step's keys among the programs of the decode kernel, int32 each.

    The keys of each row are divided into blocks. The blocks of all rows form a list, and each lane processes a
    contiguous range of the list, with a separate program for every kv head. A row is in a single lane or in several
    adjacent lanes, whatever its length, and the numbers of blocks of any two lanes differ by at most one.

    Attributes:
        block_ptr: [B + 1], row i has blocks [block_ptr[i], block_ptr[i + 1]).
        lane_ptr: [lanes + 1], lane i has blocks [lane_ptr[i], lane_ptr[i + 1]); empty lanes are the last ones.
        first_lane, last_lane: [B], the lanes of the row's first and last block.
    """

    block_ptr: Int32Array
    lane_ptr: Int32Array
    first_lane: Int32Array
    last_lane: Int32Array


def plan_decode(lens: Int32Array, lanes: int, block: int) -> DecodePlan:
    """Distribute rows of `lens` keys each (int32 [B], at least 1) in blocks of `block` keys. Pure numpy."""
    block_ptr = np.zeros(len(lens) + 1, I32)
    np.cumsum(-(-lens // block), out=block_ptr[1:])
    total = int(block_ptr[-1])
    used = min(lanes, total)
    # Lane i begins at block i * total // used. In int64, because the product may exceed 2**31.
    lane_ptr = np.minimum(np.arange(lanes + 1, dtype=np.int64), used) * total // max(used, 1)
    first = np.searchsorted(lane_ptr[: used + 1], block_ptr[:-1], side="right") - 1
    last = np.searchsorted(lane_ptr[: used + 1], block_ptr[1:] - 1, side="right") - 1
    return DecodePlan(block_ptr, lane_ptr.astype(I32), first.astype(I32), last.astype(I32))


@dataclass(frozen=True)
class DecodeRows:
    """Rows with one query each, on the device.

    Attributes:
        table_rows: int [B], their rows of req_to_token.
        starts, ends: int [B], row i attends to positions [starts[i], ends[i]).
        block_ptr, lane_ptr, first_lane, last_lane: int32, see `DecodePlan`.
        slots, meta: int32, the list of their slots; see `write_decode_list`.
    """

    table_rows: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    block_ptr: torch.Tensor
    lane_ptr: torch.Tensor
    first_lane: torch.Tensor
    last_lane: torch.Tensor
    slots: torch.Tensor
    meta: torch.Tensor


class DecodeRunner:
    """Launches the decode kernel; see the module's docstring. An instance serves all layers of the same shape in turn.

    Args:
        num_heads, num_kv_heads, head_dim: shape of the layers, on this rank.
        max_rows: maximum number of rows of a step.
        kv_dtype: dtype of the pool.
        dependent_launch: use programmatic dependent launch, see `CudaOps`.
        processors: number of processors (SMs) of the device; None to query it.
        sizes: launch parameters; None for the result of `pick_sizes`.

    Raises:
        ImportError: Triton is not installed.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_rows: int,
        kv_dtype: torch.dtype,
        device: torch.device,
        dependent_launch: bool,
        processors: int | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        from radixrt.kernels.triton.decode_attention import decode_attention, write_decode_list
        from radixrt.kernels.triton.decode_attention_fp8 import decode_attention_fp8

        self._sizes = pick_sizes(head_dim, kv_dtype.itemsize) if sizes is None else sizes
        self._list = write_decode_list
        self._attend: Callable[..., None] = decode_attention_fp8
        if kv_dtype != torch.float8_e4m3fn:
            self._attend = partial(decode_attention, num_warps=self._sizes.num_warps, num_stages=self._sizes.num_stages)
        self._uploader = Uploader(device)
        self._dependent_launch = dependent_launch
        self._device = device
        if processors is None:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._lanes = max(1, processors * self._sizes.programs // num_kv_heads)
        # A lane writes at most two partial results: of a row that began in an earlier lane, and of a row that continues
        # in the next lane.
        self._partial = torch.empty(2 * self._lanes, num_heads, head_dim, dtype=torch.float32, device=device)
        self._partial_lse = torch.empty(2 * self._lanes, num_heads, dtype=torch.float32, device=device)
        self._arrived = torch.zeros(max_rows * num_kv_heads, dtype=torch.int32, device=device)

    def plan(self, starts: Int32Array, ends: Int32Array) -> list[Int32Array]:
        """Return the arrays that `place` needs on the device, for rows that attend to positions [starts, ends), int32
        [B], none of them empty."""
        plan = plan_decode(ends - starts, self._lanes, self._sizes.block)
        return [np.asarray(starts, np.int32), plan.block_ptr, plan.lane_ptr, plan.first_lane, plan.last_lane]

    def list_sizes(self, positions: int, rows: int) -> tuple[int, int]:
        """Return the maximum sizes of `slots` and `meta` for this many positions of this many rows."""
        block = self._sizes.block
        blocks = (positions + rows * (block - 1)) // block
        return blocks * block, blocks + 1

    @staticmethod
    def place(
        table_rows: torch.Tensor,
        ends: torch.Tensor,
        arrays: Sequence[torch.Tensor],
        slots: torch.Tensor,
        meta: torch.Tensor,
    ) -> DecodeRows:
        """Return the rows of a step whose numbers are, or will be, on the device.

        Args:
            arrays: result of `plan`, on the device.
            slots, meta: int32, at least as large as `list_sizes`.
        """
        starts, block_ptr, lane_ptr, first_lane, last_lane = arrays
        return DecodeRows(table_rows, starts, ends, block_ptr, lane_ptr, first_lane, last_lane, slots, meta)

    def list_slots(self, rows: DecodeRows, table: torch.Tensor) -> None:
        """List the slots of all rows, from the current content of req_to_token."""
        block = self._sizes.block
        self._list(table, rows.table_rows, rows.starts, rows.ends, rows.block_ptr, block, rows.slots, rows.meta)

    def listed(
        self,
        table_rows: torch.Tensor,
        starts: Int32Array,
        ends: torch.Tensor,
        ends_cpu: Int32Array,
        table: torch.Tensor,
    ) -> DecodeRows:
        """Plan rows, copy the plan to newly allocated tensors on the device, and list the slots.

        Args:
            table_rows, ends: int64 [B], on the device.
            starts, ends_cpu: int32 [B].
            table: req_to_token.
        """
        arrays = self._uploader.upload(self.plan(starts, ends_cpu))
        sizes = self.list_sizes(int((ends_cpu - starts).sum()), len(ends_cpu))
        slots, meta = (torch.empty(size, dtype=torch.int32, device=self._device) for size in sizes)
        rows = self.place(table_rows, ends, arrays, slots, meta)
        self.list_slots(rows, table)
        return rows

    def launch_all(self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor) -> None:
        """Launch each kernel with every kind of arguments: a row of one token in row 0 of `table`.

        Args:
            q: [1, num_heads, head_dim].
        """
        row = torch.zeros(1, dtype=torch.int64, device=self._device)
        end = torch.ones_like(row)
        rows = self.listed(row, np.zeros(1, np.int32), end, np.ones(1, np.int32), table)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=self._device)
        for wanted in (None, lse):
            self.attend(q, pool, rows, 1.0, out, wanted)

    def attend(
        self,
        q: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor],
        rows: DecodeRows,
        scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """Attend q [B, num_heads, head_dim] to the rows' positions in a layer's pool; see `decode_attention`."""
        self._attend(
            q,
            *pool,
            rows.slots,
            rows.meta,
            rows.lane_ptr,
            rows.first_lane,
            rows.last_lane,
            self._partial,
            self._partial_lse,
            self._arrived,
            out,
            lse,
            scale=scale,
            block=self._sizes.block,
            early=self._dependent_launch,
        )
