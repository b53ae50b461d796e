"""Runner end of tiers: moves keys and values between the KV pool, the arena, the rank's file on disk, and arenas of
other replicas, and states of recurrent layers like as many tokens."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixrt.attention.kv_cache import KVCache
from radixrt.attention.state_pool import StatePool
from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.messages.kv_moves import (
    TIERS,
    KVConnectorOutput,
    KVDrop,
    KVIn,
    KVOpen,
    KVOrder,
    KVOut,
    KVPull,
    KVSave,
    arena_path,
)
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.parts.tiers.runner.arena import Arena
from radixrt.parts.tiers.runner.file_moves import FileMoves
from radixrt.parts.tiers.runner.page_file import PageFile
from radixrt.parts.tiers.runner.pool_copies import Ended, HostCopies, PoolCopies, pool_tensors
from radixrt.parts.tiers.runner.staging import CudaLink, CudaRows, StagedCopies
from radixrt.parts.tiers.runner.state_rows import PoolRows, StateRows, state_tensors
from radixrt.parts.tiers.settings import data_path
from radixrt.runner.part import RunnerPart

if TYPE_CHECKING:
    from radixrt.runner.model_runner import ModelRunner

logger = logging.getLogger(__name__)


class Mover(RunnerPart):
    """Executes the orders of `radixrt.messages.kv_moves` in one rank. A move that cannot be made is reported as failed:
    the scheduler then has the tokens computed.

    Args:
        rank_info: this rank, which selects its arena and file.
        stage_layers: see `RunnerConfig`.
    """

    name = TIERS

    def __init__(self, rank_info: RankInfo = SINGLE_RANK, stage_layers: tuple[int, ...] = ()) -> None:
        self._rank_info = rank_info
        self._stage_layers = stage_layers
        self._decoder = msgspec.msgpack.Decoder(KVOrder)
        self._opening: KVOpen | None = None
        self._copies: PoolCopies | None = None
        self._pages: npt.NDArray[np.uint8] | None = None
        self._files: FileMoves | None = None
        self._ended: list[Ended] = []  # moves that have failed at once

    def attach(self, runner: ModelRunner) -> None:
        self.use(runner.kv_cache, runner.device, runner.states)

    def use(self, kv_cache: KVCache, device: torch.device, states: StatePool | None = None) -> None:
        """Move the keys and values of a pool, and states. On CUDA, compile the kernels."""
        self._device = device
        self._tensors = pool_tensors(kv_cache)
        self._state_tensors = state_tensors(states)
        self._states: StateRows | None = None
        self._rows = None
        if device.type == "cuda" and self._tensors:
            self._rows = CudaRows(self._tensors)
            self._rows.compile_ahead()

    @property
    def is_busy(self) -> bool:
        return (
            bool(self._ended)
            or (self._copies is not None and self._copies.is_busy)
            or (self._files is not None and self._files.is_busy)
        )

    def order(self, data: bytes) -> None:
        order = self._decoder.decode(data)
        if isinstance(order, KVOpen):
            self._open(order)
        elif isinstance(order, KVDrop):
            self.reset()
        elif isinstance(order, KVOut | KVIn):
            slots, places = unpack_i32(order.slots), unpack_i32(order.places)
            self._check(slots, places)
            if self._copies is None:
                self._ended.append(Ended(order.move, isinstance(order, KVOut), None))
            elif isinstance(order, KVOut):
                self._copies.out(order.move, slots, places)
            else:
                self._copies.into(order.move, places, slots)
        elif isinstance(order, KVPull):
            self._pull(order)
        elif self._files is None or self._copies is None:
            self._ended.append(Ended(order.move, isinstance(order, KVSave), None))
        else:
            self._files.begin(order, self._copies.fence())

    def _pull(self, order: KVPull) -> None:
        if self._pages is None or self._copies is None:
            self._ended.append(Ended(order.move, False, None))
            return
        if self._files is None:  # no disk tier has started the thread
            self._files = FileMoves(None, self._pages)
        arena = arena_path(order.arena, self._rank_info.rank)
        self._files.begin(msgspec.structs.replace(order, arena=arena), self._copies.fence())

    def _check(self, slots: Int32Array, places: Int32Array) -> None:
        """Check indices, because a kernel would write anywhere.

        Raises:
            ValueError: a slot or a place does not exist.
        """
        opening = self._opening
        num_slots = self._tensors[0].shape[0] if self._tensors else 0
        num_places = 0 if opening is None else opening.page + opening.num_places
        is_state = slots < 0
        if self._states is not None and is_state.any():
            self._states.check(slots[is_state])
            slots = np.where(is_state, 0, slots)
        for name, numbers, count in (("slots", slots, num_slots), ("places", places, num_places)):
            if len(numbers) != len(slots) or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < count):
                raise ValueError(f"{len(numbers)} {name} for {len(slots)} slots, or a number is not below {count}")

    def _open(self, opening: KVOpen) -> None:
        """Map the arena and start the file's thread, unless they are open already."""
        if opening == self._opening and self._copies is not None:
            return
        self.close()
        self._opening = opening
        row_bytes = sum(tensor[0].nbytes for tensor in self._tensors)
        self._states = None
        if opening.state_rows:
            self._states = StateRows(self._state_tensors, opening.state_rows, row_bytes)
        try:
            arena = Arena(arena_path(opening.arena, self._rank_info.rank), opening.page + opening.num_places, row_bytes)
        except (OSError, ValueError) as error:
            logger.warning("cannot open the host tier, nothing is copied to it: %s", error)
            return
        if self._rows is None:
            self._copies = HostCopies(self._tensors, arena.rows, self._states)
        else:
            rows = self._rows if self._states is None else PoolRows(self._rows, self._states)
            try:
                self._copies = StagedCopies(rows, CudaLink(arena, self._device), opening.page, self._device)
            except torch.OutOfMemoryError as error:
                logger.warning("no memory for staging, nothing is copied to the host tier: %s", error)
                return
        self._pages = arena.memory.view(-1, opening.page * row_bytes).numpy()
        if opening.disk and opening.num_files:
            path = data_path(opening.disk, self._rank_info.rank)
            file = PageFile(path, opening.page * row_bytes, self._layout(opening))
            self._files = FileMoves(file, self._pages)

    def _layout(self, opening: KVOpen) -> bytes:
        """Return 16 bytes for the model and the part of its keys and values that is in this rank."""
        rank = self._rank_info
        sizes = [tensor[0].nbytes for tensor in self._tensors]
        part: tuple[object, ...] = (
            rank.tp_rank, rank.tp, rank.stage, rank.stages, self._stage_layers, opening.page, sizes,
        )  # fmt: skip
        if opening.state_rows:
            part += (opening.state_rows, [tensor[0].nbytes for tensor in self._state_tensors])
        return hashlib.blake2b(opening.model + repr(part).encode(), digest_size=16).digest()

    def poll(self) -> bytes | None:
        ended, self._ended = self._ended, []
        if self._copies is not None:
            ended += self._copies.poll()
        if self._files is not None:
            ended += self._files.poll()
        return msgspec.msgpack.encode(_report(ended)) if ended else None

    def reset(self) -> None:
        self._ended.clear()
        if self._files is not None:
            self._files.drop()
        if self._copies is not None:
            self._copies.drop()

    def close(self) -> None:
        self.reset()
        if self._files is not None:
            self._files.close()
        if self._copies is not None:
            self._copies.close()
        self._opening, self._files, self._copies, self._pages = None, None, None, None


def _report(ended: list[Ended]) -> KVConnectorOutput:
    sent, received = ([each for each in ended if each.sends is sends] for sends in (True, False))
    return KVConnectorOutput(
        finished_sending=[each.move for each in sent if each.seconds is not None],
        failed_sending=[each.move for each in sent if each.seconds is None],
        finished_recving=[each.move for each in received if each.seconds is not None],
        failed_recving=[each.move for each in received if each.seconds is None],
        seconds=[each.seconds for each in (*sent, *received) if each.seconds is not None],
    )
