"""`ModelRunner`: owns every tensor of one rank, turns a `ForwardStep` into sampled tokens, and decides nothing.

initialize: load_model -> init_memory_pool -> init_attention_backend -> init_cuda_graphs
each step:  prepare -> forward -> sample
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixrt.attention import make_backend
from radixrt.attention.base import AttentionBackend
from radixrt.constrained.grammar import Bitmask, bitmask_words
from radixrt.executor.device import free_memory, pick_device, pick_threads, torch_dtype
from radixrt.executor.forward_batch import ForwardBatch, ForwardMode
from radixrt.executor.kv_cache import KVCache, bytes_per_token, size_pool
from radixrt.executor.logprobs import prompt_logprobs, target_logprobs
from radixrt.executor.mask_buffer import MaskReader
from radixrt.executor.parallel import join, rank_device
from radixrt.executor.rank_place import ONLY_RANK, RankPlace
from radixrt.executor.sampler import Sampler
from radixrt.executor.sampling_tables import SamplingTables
from radixrt.executor.weights import load_model
from radixrt.kernels.build import KernelUnavailable, load_kernels
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps
from radixrt.messages import (
    ForwardStep,
    GrammarMask,
    Int32Array,
    LogprobColumns,
    RowWrite,
    unpack_i32,
)
from radixrt.models.model_config import load_model_spec
from radixrt.models.registry import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunnerConfig:
    """What one runner needs to know; plain values, so that it can cross a process boundary as JSON."""

    folder: str
    dtype: str
    load_format: str
    device: str
    attention_backend: str
    num_threads: int | None
    context_length: int
    max_running_requests: int
    page_size: int
    kv_cache_tokens: int | None
    memory_fraction: float
    random_seed: int
    kernel_cache: str
    show_progress: bool = False
    mask_path: str | None = None
    place: RankPlace = ONLY_RANK


@dataclass(frozen=True)
class LogitsProcessorOutput:
    """What the model says about a step.

    Attributes:
        next_token_logits: float32 [S, vocab], for the step's sampling rows in order.
        hidden_states: [T, hidden], the final hidden state of every new token.
    """

    next_token_logits: torch.Tensor
    hidden_states: torch.Tensor


@dataclass(frozen=True)
class SampledStep:
    """See `messages.StepOutput`. token_ids: int64 [S] on the CPU."""

    token_ids: torch.Tensor
    logprobs: list[LogprobColumns] = field(default_factory=list)
    prompt_logprobs: list[LogprobColumns] = field(default_factory=list)
    row_errors: list[tuple[int, str]] = field(default_factory=list)
    scores: bytes = b""


class ModelRunner:
    """See the module's docstring.

    Attributes (after `initialize`):
        device, dtype: of weights and activations.
        vocab_size: rows of the output head.
        max_total_num_tokens: slots of the KV pool.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self._config = config
        self.device = rank_device(pick_device(config.device), config.place)
        self.dtype = torch_dtype(config.dtype)
        self._spec = load_model_spec(Path(config.folder))
        self.vocab_size = self._spec.vocab_size
        self.max_total_num_tokens = 0
        self._masks = None if config.mask_path is None else MaskReader(config.mask_path)

    def initialize(self) -> None:
        """Load and allocate everything; call once, before any step.

        Raises:
            ModelLoadError, ConfigError: what is missing or does not fit, and the fix.
        """
        place = self._config.place
        threads = pick_threads(self._config.num_threads, place.local_size)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        self._group = join(place, self.device)
        with torch.inference_mode():
            self.load_model()
            self.init_memory_pool()
            self.init_attention_backend()
            self.init_cuda_graphs()

    def load_model(self) -> None:
        c = self._config
        self._model: Model = load_model(
            Path(c.folder), self._spec, dtype=c.dtype, device=self.device, load_format=c.load_format,
            seed=c.random_seed, show_progress=c.show_progress, ops=self._make_ops(), group=self._group,
        )  # fmt: skip

    def _make_ops(self) -> LayerOps:
        """Compiled where they can be had; plain torch where that is asked for (the attention backend says why not)."""
        if self.device.type != "cpu" or self._config.attention_backend == "torch_native":
            return TorchOps()
        try:
            return CpuOps(load_kernels(Path(self._config.kernel_cache)))
        except KernelUnavailable:
            return TorchOps()

    def init_memory_pool(self) -> None:
        """The KV pool, and the tables indexed by req_pool_idx (row 0 is padding)."""
        c = self._config
        layers = self._model.attention_layers
        num_slots = size_pool(
            wanted=c.kv_cache_tokens,
            free_bytes=free_memory(self.device) // (1 if self.device.type == "cuda" else c.place.local_size),
            fraction=c.memory_fraction,
            token_bytes=bytes_per_token(layers, self.dtype),
            page_size=c.page_size,
            useful_tokens=c.max_running_requests * c.context_length,
        )
        num_slots = self._group.minimum(num_slots)
        self._kv_cache = KVCache(layers, num_slots, c.page_size, self.dtype, self.device)
        self.max_total_num_tokens = num_slots
        rows = c.max_running_requests + 1
        self._req_to_token = torch.zeros(rows, c.context_length, dtype=torch.int32, device=self.device)
        self._future_token_ids = torch.full((rows,), -1, dtype=torch.int64, device=self.device)
        self._tables = SamplingTables(c.max_running_requests, self.vocab_size, self.device)
        self._sampler = Sampler(self._tables)
        self._prompt_logprobs: dict[int, int] = {}  # alternatives per prompt token, by req_pool_idx

    def init_attention_backend(self) -> None:
        c = self._config
        self._attention: AttentionBackend = make_backend(
            c.attention_backend, self._kv_cache, self._model.attention_layers, self.device, Path(c.kernel_cache)
        )

    def init_cuda_graphs(self) -> None:
        """Graphs are a CUDA matter; on other devices every step runs as it is."""

    # --- one step ---

    def prepare(self, step: ForwardStep) -> ForwardBatch:
        """Apply what the step writes into the runner's tables, and build its batch."""
        self._write_rows(step.row_writes)
        for row in step.sampling_rows:
            self._tables.write(row)
            self._prompt_logprobs[row.req_pool_idx] = row.prompt_logprobs
        idx, seq_lens = unpack_i32(step.req_pool_idx), unpack_i32(step.seq_lens)
        out_cache_loc = unpack_i32(step.out_cache_loc)
        if step.mode == ForwardMode.DECODE:
            return self.prepare_forward_batch_decode(idx, seq_lens, out_cache_loc)
        sampled = np.frombuffer(step.samples, np.uint8).astype(bool)
        return self.prepare_forward_batch_extend(
            unpack_i32(step.input_ids), idx, seq_lens, unpack_i32(step.extend_lens), out_cache_loc, sampled
        )

    def prepare_forward_batch_extend(
        self, input_ids: Int32Array, req_pool_idx: Int32Array, seq_lens: Int32Array, extend_lens: Int32Array,
        out_cache_loc: Int32Array, sampled: npt.NDArray[Any],
    ) -> ForwardBatch:  # fmt: skip
        """A batch of prompt chunks and decode rows riding along (shapes: see `ForwardStep`; sampled: bool [B])."""
        ends = np.cumsum(extend_lens)
        prefix_lens = seq_lens - extend_lens
        positions = np.arange(len(input_ids)) + np.repeat(prefix_lens - (ends - extend_lens), extend_lens)
        ids = self._tensor(input_ids)
        from_future = np.flatnonzero(input_ids < 0)
        if len(from_future):
            rows = np.repeat(req_pool_idx, extend_lens)[from_future]
            ids[self._tensor(from_future)] = self._future_token_ids[self._tensor(rows)]
        return self._make_batch(
            ForwardMode.EXTEND, ids, positions, req_pool_idx, seq_lens, extend_lens, out_cache_loc,
            self._tensor((ends - 1)[sampled]),
        )  # fmt: skip

    def prepare_forward_batch_decode(
        self, req_pool_idx: Int32Array, seq_lens: Int32Array, out_cache_loc: Int32Array
    ) -> ForwardBatch:
        """A batch in which every row extends by its future token."""
        ids = self._future_token_ids[self._tensor(req_pool_idx)]
        return self._make_batch(
            ForwardMode.DECODE, ids, seq_lens - 1, req_pool_idx, seq_lens, np.ones_like(seq_lens), out_cache_loc,
            torch.arange(len(seq_lens), device=self.device),
        )  # fmt: skip

    def _make_batch(
        self, mode: ForwardMode, ids: torch.Tensor, positions: npt.NDArray[Any], req_pool_idx: Int32Array,
        seq_lens: Int32Array, extend_lens: Int32Array, out_cache_loc: Int32Array, logits_index: torch.Tensor,
    ) -> ForwardBatch:  # fmt: skip
        rows = self._tensor(req_pool_idx)
        where = self._tensor(positions)
        slots = self._tensor(out_cache_loc)
        token_rows = rows if mode is ForwardMode.DECODE else self._tensor(np.repeat(req_pool_idx, extend_lens))
        self._req_to_token[token_rows, where] = slots.to(torch.int32)
        return ForwardBatch(
            mode=mode,
            input_ids=ids,
            positions=where,
            req_pool_indices=rows,
            seq_lens=self._tensor(seq_lens),
            out_cache_loc=slots,
            extend_lens=self._tensor(extend_lens),
            prefix_lens=self._tensor(seq_lens - extend_lens),
            logits_index=logits_index,
            req_to_token=self._req_to_token,
            seq_lens_cpu=seq_lens,
            extend_lens_cpu=extend_lens,
        )

    def forward(self, batch: ForwardBatch) -> LogitsProcessorOutput:
        """Run the model over a batch by its mode; an IDLE batch runs nothing and has no logits."""
        if batch.mode is ForwardMode.IDLE:
            nothing = torch.empty(0, self.vocab_size, device=self.device)
            return LogitsProcessorOutput(nothing, torch.empty(0, 0, device=self.device))
        self._attention.prepare(batch)
        hidden = self._model.forward(batch.input_ids, batch.positions, batch, self._attention)
        last = hidden if batch.mode is ForwardMode.DECODE else hidden[batch.logits_index]
        logits = self._model.compute_logits(last) if last.shape[0] else hidden.new_empty(0, self.vocab_size)
        return LogitsProcessorOutput(logits, hidden)

    def sample(
        self, output: LogitsProcessorOutput, batch: ForwardBatch, step: ForwardStep, mask: GrammarMask | None
    ) -> SampledStep:
        """Choose the next token of every sampling row; it becomes the row's future token.

        Rank 0 chooses; the others hear what, and return no tokens.
        """
        idx, seq_lens = unpack_i32(step.req_pool_idx), batch.seq_lens_cpu
        if step.mode == ForwardMode.EXTEND:
            sampled = np.frombuffer(step.samples, np.uint8).astype(bool)
            idx, seq_lens = idx[sampled], seq_lens[sampled]
        scored = self._score_prompts(output.hidden_states, batch, step)
        scores = self._score_targets(output.hidden_states, step)
        if len(idx) == 0:
            return SampledStep(torch.empty(0, dtype=torch.int64), prompt_logprobs=scored, scores=scores)
        rows = self._tensor(idx)
        if self._group.rank:
            self._future_token_ids[rows] = self._group.broadcast(torch.empty_like(rows))
            return SampledStep(torch.empty(0, dtype=torch.int64))
        allowed = None if mask is None else self._unpack_mask(mask)
        result = self._sampler.sample(output.next_token_logits, idx, seq_lens, allowed)
        self._future_token_ids[rows] = self._group.broadcast(result.token_ids)
        return SampledStep(result.token_ids.cpu(), result.logprobs, scored, result.row_errors, scores)

    def _unpack_mask(self, mask: GrammarMask) -> tuple[Int32Array, Bitmask]:
        rows = unpack_i32(mask.rows)
        if mask.bits or self._masks is None:
            return rows, np.frombuffer(mask.bits, np.uint32).reshape(len(rows), -1).copy()  # torch wants to own it
        return rows, self._masks.read(mask.offset, len(rows), bitmask_words(self.vocab_size))

    def _score_prompts(self, hidden: torch.Tensor, batch: ForwardBatch, step: ForwardStep) -> list[LogprobColumns]:
        columns = []
        targets = unpack_i32(step.logprob_targets)
        ends = np.cumsum(batch.extend_lens_cpu)
        idx = unpack_i32(step.req_pool_idx)
        taken = 0
        for row in unpack_i32(step.logprob_rows).tolist():
            new = int(batch.extend_lens_cpu[row])
            states = hidden[ends[row] - new : ends[row]]
            k = self._prompt_logprobs[int(idx[row])]
            columns.append(prompt_logprobs(self._model.compute_logits, states, targets[taken : taken + new], k))
            taken += new
        return columns

    def _score_targets(self, hidden: torch.Tensor, step: ForwardStep) -> bytes:
        if not step.score_index:
            return b""
        index, targets = unpack_i32(step.score_index), unpack_i32(step.score_targets)
        return target_logprobs(self._model.compute_logits, hidden, index, targets)

    def _write_rows(self, writes: list[RowWrite]) -> None:
        for write in writes:
            slots = torch.from_numpy(unpack_i32(write.slots).copy())
            self._req_to_token[write.req_pool_idx, write.start : write.start + len(slots)] = slots.to(self.device)

    def _tensor(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.device)

    def mirror_rows(self, rows: Int32Array, lens: Int32Array) -> Int32Array:
        """req_to_token[row, :len] of each row, concatenated (tests)."""
        table = self._req_to_token.cpu().numpy()
        parts = [table[r, :n] for r, n in zip(rows.tolist(), lens.tolist(), strict=True)]
        return np.concatenate([np.empty(0, np.int32), *parts])

    def shutdown(self) -> None:
        """Release the model and the pools."""
        for name in ("_model", "_kv_cache", "_attention", "_req_to_token", "_future_token_ids", "_tables", "_sampler"):
            self.__dict__.pop(name, None)
