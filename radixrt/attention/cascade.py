"""Attention of decode rows over shared prefixes on CUDA: a plan of the work, made on the host, and `CascadeRunner`.

A work item is a tile of a group's rows over a range of the group's positions, for every kv head. Items are assigned to
lanes; a program of the kernel executes a lane for a kv head. Long groups are split into several items, so that all
processors of the device have work, and every split writes a separate partial result. The decode kernel computes the
suffix of each row, and a merge by log-sum-exp combines the suffix with the partial results:

    plan = runner.plan(batch.shared, req_pool_idx)  # host; None: compute the whole step without sharing
    placed = runner.upload(plan)                    # or copy plan.packed to the buffer given to runner.place
    suffix, suffix_lse = ...                        # each row's positions from plan.ends[i] on
    runner.attend_shared(q, keys, values, req_to_token, scale, plan.tile, placed)
    runner.merge(suffix, suffix_lse, out, placed)

Kernel launches depend only on the number of rows and on the plan's tile; everything else is read from device memory.
Therefore a CUDA graph for each of `CascadeLimits.tiles` and each bucket of rows is enough.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.forward_batch.forward_batch import COUNT, FIRST, LENGTH, START, SharedGroups
from radixrt.forward_batch.upload import Uploader
from radixrt.messages.wire import I32, Int32Array

SPLIT_STEP = 64
"""Splits are multiples of this many positions, the kernel's block, except for a group's last split."""
MIN_SPLIT = 256
ITEM_POSITIONS = 96
"""Fixed cost of an item, in positions: loading queries and writing partial results."""
LOAD_ROWS = 64
"""Number of query rows whose computation with a block takes as long as loading its keys and values."""
ROUNDS = (1, 2, 3, 4)
"""Splits that are tried: a lane's share of all positions divided by each of these numbers."""


@dataclass(frozen=True)
class Tile:
    """A launch variant of the kernel: query rows (rows times heads on a kv head) of an item, and programs on a
    processor."""

    block_m: int
    programs: int


TILES = (Tile(64, 2), Tile(128, 1))


@dataclass(frozen=True)
class CascadeLimits:
    """Capacity of the device's buffers, and its parallelism.

    Attributes:
        heads, kv_heads: heads of one rank.
        processors: processors (SMs) of the device.
        max_rows: maximum number of rows of a step.
        max_partials: maximum number of partial results, [heads, dim] each.
        max_items: maximum number of items of a step.
        tiles: launch variants to choose from.
    """

    heads: int
    kv_heads: int
    processors: int
    max_rows: int
    max_partials: int
    max_items: int
    tiles: tuple[Tile, ...] = TILES

    @property
    def group(self) -> int:
        """Number of query heads on a kv head."""
        return self.heads // self.kv_heads

    def lanes(self, tile: Tile) -> int:
        return max(1, self.processors * tile.programs // self.kv_heads)

    @property
    def sections(self) -> tuple[int, int, int, int]:
        """Sizes of the sections of `CascadePlan.packed`, in int32 numbers.

        Each section begins at a multiple of 16 bytes, so that the kernels are compiled once for all addresses.
        """
        lanes = max(self.lanes(tile) for tile in self.tiles)
        return _up(lanes + 1, 4), _up(self.max_rows + 1, 4), _up(2 * self.max_partials, 4), 6 * self.max_items

    @property
    def packed_size(self) -> int:
        """Size of a plan, in int32 numbers."""
        return sum(self.sections)


@dataclass(frozen=True)
class CascadePlan:
    """Work items of one step.

    Attributes:
        tile: launch variant that the items are made for.
        lanes: programs for each kv head.
        num_items, num_partials: numbers of items and partial results.
        ends: int32 [B], the position at which each row's suffix begins; see `SharedGroups.ends`.
        packed: int32 [packed_size], the plan in device memory: the sections of `CascadeLimits.sections`, concatenated:
            lane_ptr: lane i executes items [lane_ptr[i], lane_ptr[i + 1]).
            row_ptr: row i of the step has partial results [row_ptr[i], row_ptr[i + 1]).
            members [:, 2]: a row of the step, and the index of its partial result.
            items [:, 6]: row of req_to_token, first position, positions, first member, members, 0.
    """

    tile: Tile
    lanes: int
    num_items: int
    num_partials: int
    ends: Int32Array
    packed: Int32Array


def plan_cascade(shared: SharedGroups, req_pool_idx: Int32Array, limits: CascadeLimits) -> CascadePlan | None:
    """Divide a step's groups into items; return None if they do not fit into the device's buffers.

    Args:
        req_pool_idx: int32 [B], row of each sequence in req_to_token.
    """
    # Choose the tile by the total work, then the split length by the time of the last lane.
    if len(req_pool_idx) > limits.max_rows:
        return None
    tile = _pick_tile(shared, limits)
    tile_rows = tile.block_m // limits.group
    split = _pick_split(shared, tile_rows, limits.lanes(tile), limits)
    if split is None:
        return None
    # The kernel reads the items lane by lane, so they are stored in the order of the lanes.
    lanes = _assign(_item_lengths(shared, tile_rows, split), limits.lanes(tile))[1]
    items, members = _make_items(shared, req_pool_idx, tile_rows, split)
    order = np.array([item for lane in lanes for item in lane], np.int64)
    lane_ptr = np.cumsum([0] + [len(lane) for lane in lanes])
    # The partial results of a row are contiguous, in the order of the items.
    partial = np.empty(len(members), I32)
    partial[np.argsort(members, kind="stable")] = np.arange(len(members), dtype=I32)
    row_ptr = np.searchsorted(np.sort(members), np.arange(limits.sections[1]))
    # All sections are copied to the device at once.
    parts: list[npt.NDArray[Any]] = [lane_ptr, row_ptr, np.stack([members, partial], axis=1), items[order]]
    packed = np.zeros(limits.packed_size, I32)
    start = 0
    for part, size in zip(parts, limits.sections, strict=True):
        packed[start : start + part.size] = part.reshape(-1)
        start += size
    # The section has room for the lanes of any tile. The lanes that this tile does not use are empty.
    packed[len(lane_ptr) : limits.sections[0]] = lane_ptr[-1]
    return CascadePlan(tile, limits.lanes(tile), len(items), len(members), shared.ends(len(req_pool_idx)), packed)


def _pick_tile(shared: SharedGroups, limits: CascadeLimits) -> Tile:
    """Return the tile with the least work. Large tiles load keys and values less often, small tiles are less padded."""
    lengths, counts = shared.segments[:, LENGTH].astype(np.int64), shared.segments[:, COUNT].astype(np.int64)

    def cost(tile: Tile) -> int:
        tiles = -(-counts // (tile.block_m // limits.group))
        return int((tiles * lengths).sum()) * (tile.block_m + LOAD_ROWS)

    return min((t for t in limits.tiles if t.block_m >= limits.group), key=cost)


def _pick_split(shared: SharedGroups, tile_rows: int, lanes: int, limits: CascadeLimits) -> int | None:
    """Return the maximum length of an item's range for which the last lane ends first; None if no length fits into the
    device's buffers."""
    lengths, counts = shared.segments[:, LENGTH].astype(np.int64), shared.segments[:, COUNT].astype(np.int64)
    tiles = -(-counts // tile_rows)
    share = -(-int((tiles * lengths).sum()) // lanes)
    longest = int(lengths.max())
    tried = {max(MIN_SPLIT, -(-share // rounds)) for rounds in ROUNDS} | {longest}
    best, best_end = None, 0
    for split in sorted({min(_up(size, SPLIT_STEP), longest) for size in tried}, reverse=True):
        splits = -(-lengths // split)
        if (tiles * splits).sum() > limits.max_items or (counts * splits).sum() > limits.max_partials:
            continue
        end = _assign(_item_lengths(shared, tile_rows, split), lanes)[0]
        if best is None or end < best_end:
            best, best_end = split, end
    return best


def _ranges(length: int, split: int) -> list[tuple[int, int]]:
    """Return (first, positions) of a group's items: as few as possible, of equal length except for the last."""
    count = -(-length // split)
    size = -(-length // count)
    size = _up(size, SPLIT_STEP)
    return [(first, min(size, length - first)) for first in range(0, length, size)]


def _item_lengths(shared: SharedGroups, tile_rows: int, split: int) -> list[int]:
    """Return the number of positions of each item, in the order of `_make_items`."""
    return [
        positions
        for length, count in shared.segments[:, [LENGTH, COUNT]].tolist()
        for _, positions in _ranges(length, split)
        for _ in range(0, count, tile_rows)
    ]


def _assign(lengths: list[int], lanes: int) -> tuple[int, list[list[int]]]:
    """Assign items to lanes: the longest item first, each to the least loaded lane. Return the end time of the last
    lane and the items of each lane."""
    assigned: list[list[int]] = [[] for _ in range(lanes)]
    heap = [(0, lane) for lane in range(lanes)]
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        done, lane = heap[0]
        assigned[lane].append(item)
        heapq.heapreplace(heap, (done + lengths[item] + ITEM_POSITIONS, lane))
    return max(done for done, _ in heap), assigned


def _make_items(
    shared: SharedGroups, req_pool_idx: Int32Array, tile_rows: int, split: int
) -> tuple[Int32Array, Int32Array]:
    """Return the items, int32 [n, 6], and the rows of each item, concatenated."""
    items, members, first_member = [], [], 0
    for segment in shared.segments.tolist():
        rows = shared.rows[segment[FIRST] : segment[FIRST] + segment[COUNT]]
        table_row = int(req_pool_idx[rows[0]])
        for first, positions in _ranges(segment[LENGTH], split):
            for at in range(0, len(rows), tile_rows):
                tile = rows[at : at + tile_rows]
                items.append((table_row, segment[START] + first, positions, first_member, len(tile), 0))
                members.append(tile)
                first_member += len(tile)
    return np.array(items, I32), np.concatenate(members)


def _up(value: int, step: int) -> int:
    """Round up to a multiple of `step`."""
    return -(-value // step) * step


# --- on the device ---

PARTIALS_PER_ROW = 6
"""Partial results for each row of the largest step: levels of the prefix tree times splits."""
MIN_PARTIALS = 1024


@dataclass(frozen=True)
class PlacedPlan:
    """Views of a plan in device memory; see `CascadePlan.packed`."""

    lane_ptr: torch.Tensor
    row_ptr: torch.Tensor
    members: torch.Tensor
    items: torch.Tensor


class CascadeRunner:
    """Launches the kernels for shared prefixes; see the module's docstring. An instance serves all layers of the same
    shape.

    Args:
        num_heads, num_kv_heads, head_dim: shape of the layers, on this rank.
        max_rows: maximum number of rows of a step.
        dtype: dtype of queries and of partial results.
        processors: number of processors (SMs) of the device; None to query it.
        tiles: launch variants.

    Attributes:
        limits: capacity for plans; `limits.packed_size` is the size of a plan.

    Raises:
        ImportError: Triton is not installed.
        ValueError: the kernels do not support the shape; the message names it.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        max_rows: int,
        device: torch.device,
        dtype: torch.dtype,
        processors: int | None = None,
        tiles: tuple[Tile, ...] = TILES,
    ) -> None:
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
            num_heads,
            num_kv_heads,
            processors,
            max_rows,
            max_partials=partials,
            max_items=max(256, 2 * max_rows),
            tiles=tiles,
        )
        self._partial = torch.empty(partials, num_heads, head_dim, dtype=dtype, device=device)
        self._partial_lse = torch.empty(partials, num_heads, dtype=torch.float32, device=device)
        self._last: tuple[bytes, CascadePlan | None] | None = None

    def plan(self, shared: SharedGroups, req_pool_idx: Int32Array) -> CascadePlan | None:
        """Plan a step (int32 [B] rows of req_to_token) on the host; return None if it does not fit.

        While groups and rows stay the same, the method returns the same object, whose copy on the device stays valid.
        """
        key = shared.segments.tobytes() + shared.rows.tobytes() + req_pool_idx.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = (key, plan_cascade(shared, req_pool_idx, self.limits))
        return self._last[1]

    def place(self, buffer: torch.Tensor) -> PlacedPlan:
        """Return views of `buffer`, from which the kernels read a plan that the caller copies there.

        Args:
            buffer: int32 [packed_size] on the device, possibly a view. All zeros is a plan without work.

        Raises:
            ValueError: the buffer has another size or dtype.
        """
        size = self.limits.packed_size
        if buffer.shape != (size,) or buffer.dtype != torch.int32:
            raise ValueError(f"the buffer of a plan must be int32 [{size}], not {buffer.dtype} {list(buffer.shape)}")
        return PlacedPlan(*torch.split(buffer, list(self.limits.sections)))

    def upload(self, plan: CascadePlan) -> PlacedPlan:
        """Copy a plan to newly allocated memory on the device."""
        return self.place(torch.from_numpy(plan.packed).to(self._device))

    def attend_shared(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        req_to_token: torch.Tensor,
        scale: float,
        tile: Tile,
        plan: PlacedPlan,
    ) -> None:
        """Attend to the plan's shared prefixes; `merge` uses the result.

        Args:
            q: [B, num_heads, head_dim]; may be a view of a fused projection.
            keys, values: the layer's pool, [slots, num_kv_heads, head_dim], contiguous; also float8_e4m3fn.
            req_to_token: int32 [rows, positions], on the device.
            tile: the plan's tile.
        """
        self._attend(
            q,
            keys,
            values,
            req_to_token,
            plan.lane_ptr,
            plan.items,
            plan.members,
            self._partial,
            self._partial_lse,
            scale=scale,
            lanes=self.limits.lanes(tile),
            block_m=tile.block_m,
        )

    def launch_all(self, q: torch.Tensor, pool: tuple[torch.Tensor, torch.Tensor], table: torch.Tensor) -> None:
        """Launch each kernel with every kind of arguments, for a plan without work.

        Args:
            q: [1, num_heads, head_dim].
        """
        plan = self.place(torch.zeros(self.limits.packed_size, dtype=torch.int32, device=self._device))
        lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=self._device)
        for tile in self.limits.tiles:
            self.attend_shared(q, *pool, table, 1.0, tile, plan)
        self.merge(q.clone(), lse, torch.empty_like(q).view(1, -1), plan)

    def merge(self, suffix: torch.Tensor, suffix_lse: torch.Tensor, out: torch.Tensor, plan: PlacedPlan) -> None:
        """Write each row's suffix result, merged with the results of its shared prefixes, to `out`.

        Args:
            suffix: [B, num_heads, head_dim], contiguous.
            suffix_lse: float32 [B, num_heads]: log2 of the sum of exp(score), as FlashInfer returns it; -inf for an
                empty suffix.
            out: [B, num_heads * head_dim], contiguous; may be the same memory as `suffix`.
        """
        self._merge(suffix, suffix_lse, plan.row_ptr, self._partial, self._partial_lse, out)


class CascadeStep:
    """A `CascadeRunner` with a buffer on the device for the plan of the current step."""

    def __init__(self, runner: CascadeRunner, device: torch.device) -> None:
        self.runner = runner
        self._buffer = torch.zeros(runner.limits.packed_size, dtype=torch.int32, device=device)
        self._placed: PlacedPlan = runner.place(self._buffer)
        self._uploader = Uploader(device)
        self._there: CascadePlan | None = None

    def upload(self, plan: CascadePlan) -> None:
        """Copy a plan to the buffer, unless the buffer has this plan already."""
        if plan is not self._there:
            self._uploader.upload_into(self._buffer.view(torch.uint8), [plan.packed], [0])
            self._there = plan

    def finish(
        self,
        q: torch.Tensor,
        pool: tuple[torch.Tensor, torch.Tensor],
        table: torch.Tensor,
        scale: float,
        tile: Tile,
        suffix: torch.Tensor,
        lse: torch.Tensor,
    ) -> None:
        """Merge attention over the shared prefixes into each row's suffix result (and its log-sum-exp), in place."""
        self.runner.attend_shared(q, *pool, table, scale, tile, self._placed)
        self.runner.merge(suffix, lse, suffix.view(suffix.shape[0], -1), self._placed)
