"""`ModelRunner`: owns every tensor of one rank and computes sampled tokens from a `ForwardStep`.

With pipeline stages, a runner computes the layers of its stage from the previous stage's output, and only the last
stage samples.

initialize: load_model -> init_memory_pool -> init_attention_backend -> init_cuda_graphs -> warm_up
each step:  prepare -> forward -> sample

The scheduler makes all decisions about a step; the runner only chooses kernels and graphs for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from radixrt.attention import make_backend, start_loading
from radixrt.attention.base import AttentionBackend
from radixrt.attention.hybrid import HybridAttnBackend
from radixrt.attention.kv_cache import KVCache, bytes_per_token
from radixrt.attention.state_pool import StatePool, bytes_per_state
from radixrt.distributed.parallel import TPGroup, join, rank_device
from radixrt.distributed.pipeline import connect_stages
from radixrt.executor.mask_table import Mask, MaskReader
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardBatch, ForwardMode
from radixrt.forward_batch.padding import graph_buckets, max_graph_rows
from radixrt.forward_batch.token_rows import TokenRows
from radixrt.kernels.threads import pick_threads, unbind_thread
from radixrt.layers.ops import LayerOps
from radixrt.messages.runner import CascadeCosts, ForwardStep, GrammarMask, WeightsInfo
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.messages.wire import Int32Array, unpack_i32
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import ModelSpec, load_model_spec
from radixrt.models.precision import torch_dtype
from radixrt.models.registry import Model, no_progress
from radixrt.runner.graphs.memory import graph_bytes, longest_captured_prompt
from radixrt.runner.kv_cache_dtype import KVCacheDtype, resolve_kv_cache_dtype
from radixrt.runner.pool_sizes import bytes_in_flight, least_states, shared_costs, size_pools
from radixrt.runner.profile_run import largest_step, load_gemm_kernels, mixed_step
from radixrt.runner.runner_config import (
    RunnerConfig,
    bound_primitive_caches,
    divide_threads,
    free_memory,
    make_ops,
    pick_device,
    still_works,
    supports_dependent_launch,
)
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables
from radixrt.runner.step_result import (
    InputReader,
    LogitsProcessorOutput,
    SampledStep,
    SampleResult,
    StepValues,
    ValueReader,
)
from radixrt.runner.warm_up import compile_kernels, verify_kernels
from radixrt.runner.weights_info import weights_info
from radixrt.start_log import StartLog

if TYPE_CHECKING:
    from radixrt.attention.flashinfer_modules import FlashInferModules
    from radixrt.runner.graphs.cpu_graph_runner import CpuGraphRunner
    from radixrt.runner.graphs.cuda_graph_runner import CudaGraphRunner, StagedStep
    from radixrt.runner.graphs.prompt_graph_runner import PromptGraphRunner

logger = logging.getLogger(__name__)

MakeInputs = Callable[[RunnerConfig, ModelSpec, TPGroup, LayerOps, Callable[[], None]], InputReader]
"""Creates an `InputReader` of a model on a rank, with kernels and a function to call after each piece of work."""

LOADING_S = 3.0
"""Longest time, in seconds, that the start waits for compiled attention kernels to be loaded. Kernels that have yet to
be compiled are not awaited."""


class ModelRunner:
    """Executes steps on one rank; see the module's docstring.

    Attributes (after `initialize`):
        device, dtype: device and dtype of weights and activations.
        vocab_size: rows of the output head.
        max_total_num_tokens: slots of the KV pool.
        kv_cache_dtype: dtype of keys and values.
        num_states: slots of recurrent states; see `RunnerReady`.
        kv_cache, states: pools of keys and values, and of recurrent states (None without recurrent layers).
        token_bytes, state_bytes, tower_flops_per_s: see `RunnerReady`.
        batches: creates the batches of steps; owns the mirror of req_to_token and the future tokens.
        cascade, weights: see `RunnerReady`.

    Args:
        progress: called after each layer of a step that the host computes or launches; a replayed graph calls nothing.
        start_log: gets the phases of `initialize`.
        make_reader: creates the reader of values other than samples; None: steps read none.
        make_inputs: creates the reader of inputs other than tokens of a model; None: steps have none.
    """

    def __init__(
        self,
        config: RunnerConfig,
        progress: Callable[[], None] | None = None,
        start_log: StartLog | None = None,
        make_reader: Callable[[Model], ValueReader] | None = None,
        make_inputs: MakeInputs | None = None,
    ) -> None:
        self._config = config
        self._make_inputs = make_inputs
        self._inputs: InputReader | None = None
        self._make_reader = make_reader
        self._progress = progress
        self._start_log = start_log or StartLog(None)
        self.device = rank_device(pick_device(config.device), config.rank_info)
        self.dtype = torch_dtype(config.dtype)
        # A vision part that is not supported has been refused before, or its images are not read.
        self._spec = load_model_spec(Path(config.folder), config.quantization, reads_images=False)
        self._own_stage = config.stage(self._spec)
        self.vocab_size = self._spec.vocab_size
        self.max_total_num_tokens = 0
        self.kv_cache_dtype = KVCacheDtype("model")
        self.num_states = 0
        self.cascade: CascadeCosts | None = None
        self.weights = WeightsInfo()
        self._masks = MaskReader(config.mask_path)
        self._modules: FlashInferModules | None = None

    def initialize(self) -> None:
        """Load the model and allocate all memory; call once, before any step.

        Raises:
            ModelLoadError, ConfigError: something is missing or does not fit; the message names the fix.
        """
        rank_info, log = self._config.rank_info, self._start_log
        log.begin("device")
        if self.device.type == "cpu":
            unbind_thread(os.environ)
        self._threads = pick_threads(self._config.num_threads, rank_info.local_size)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        bound_primitive_caches()
        self._group = join(rank_info, self.device)
        self._links = connect_stages(rank_info, self.device)
        with torch.inference_mode():
            log.begin("weights")
            self.kv_cache_dtype = resolve_kv_cache_dtype(self._config, self._spec, self.device)
            self._config = replace(self._config, kv_cache_dtype=self.kv_cache_dtype.name)
            decoder = self._spec.decoder
            if decoder is not None:
                layers = [decoder.layers[i] for i in self._own_stage.layers]
                self._modules = start_loading(
                    self._config.attention_backend,
                    [x.sliding_window for x in layers if not x.is_recurrent],
                    head_dim=decoder.head_dim,
                    dtype=self.dtype,
                    kv_dtype=self._config.pool_dtype,
                    device=self.device,
                )
            self.load_model()
            self.init_memory_pool()
            log.begin("pool and graphs")
            self.init_attention_backend()
            self.init_cuda_graphs()
            log.begin("first steps")
            self.warm_up()
        log.end()

    def load_model(self) -> None:
        c = self._config
        ops = make_ops(
            c.attention_backend,
            self.device,
            Path(c.kernel_cache),
            dependent_launch=supports_dependent_launch(self.device),
            threads=self._threads,
        )
        self._model: Model = load_model(
            Path(c.folder),
            self._spec,
            dtype=c.dtype,
            device=self.device,
            load_format=c.load_format,
            seed=c.random_seed,
            show_progress=c.show_progress,
            group=self._group,
            stage=self._own_stage,
            kv_scales=self.kv_cache_dtype.scaled,
            ops=ops,
        )
        divide_threads(self._model, ops, self._threads)
        if self._make_inputs is not None:
            self._inputs = self._make_inputs(c, self._spec, self._group, ops, self._progress or no_progress)
        self.weights = weights_info(self._model, self._spec)
        if self.weights.scheme:
            share, kernels = 100 * self.weights.quantized, ", ".join(self.weights.kernels)
            logger.info("%.0f %% of the weights are quantized: %s, kernels: %s", share, self.weights.scheme, kernels)
        if self._progress is not None:
            self._model.progress = self._progress

    def init_memory_pool(self) -> None:
        """Allocate the KV pool in the memory that the largest step leaves free, and the tables by req_pool_idx."""
        c = self._config
        layers = self._model.attention_layers
        sharers = c.rank_info.local_size if self.device.type == "cpu" else 1
        if self.device.type == "cuda":
            others = self._measure_largest_step() + c.staging_bytes
        else:
            # A configured pool has its size already, also after a restart, when the host tier has taken its memory.
            others = c.host_tier_bytes if c.kv_cache_tokens is None else 0
        sizes = size_pools(c, self._model, free_memory(self.device) // sharers - others)
        self.max_total_num_tokens = self._group.minimum(sizes.kv_slots)
        self.num_states = least_states(sizes.states, self._group)
        self._allocate(self.max_total_num_tokens, c.max_running_requests, self.num_states)
        self.cascade = shared_costs(self.device, layers, c.pool_dtype, self._group)

    def _allocate(self, num_slots: int, max_requests: int, num_states: int) -> None:
        c = self._config
        self.states = StatePool(self._model.states, num_states, self.device) if self._model.states else None
        self.kv_cache = KVCache(self._model.attention_layers, num_slots, c.page_size, c.pool_dtype, self.device)
        on_cuda = self.device.type == "cuda"
        sizes, max_given = (graph_buckets(max_requests), max_graph_rows(max_requests)) if on_cuda else ([], 0)
        vision = self._spec.vision if self._inputs is not None else None
        self.batches = BatchBuilder(
            max_requests,
            c.context_length,
            self.device,
            sizes,
            max_given,
            has_offsets=vision is not None and bool(vision.rotary_axes),
        )
        self._tables = SamplingTables(max_requests, self.vocab_size, self.device)
        never = () if vision is None else (vision.image_token_id, *vision.marker_ids)
        self._sampler = Sampler(self._tables, never=never)
        self._reader = None if self._make_reader is None else self._make_reader(self._model)
        self._graphs: CudaGraphRunner | None = None
        self._prompt_graphs: PromptGraphRunner | None = None
        self._cpu_graphs: CpuGraphRunner | None = None

    def _measure_largest_step(self) -> int:
        """Return the bytes that the largest step allocates temporarily, plus the bytes of CUDA graphs. Running the step
        also loads the kernels for prompts."""
        c = self._config
        steps = [
            largest_step(c.max_running_requests, c.max_step_tokens, c.context_length),
            mixed_step(c.max_running_requests, c.max_step_tokens, c.context_length),
        ]
        rows = max(len(step.samples) for step in steps)
        slots = max(len(step.out_cache_loc) // 4 for step in steps)
        self._allocate(-(-slots // c.page_size) * c.page_size, rows, RESERVED_STATES)
        self.init_attention_backend()
        self._start_log.begin("compiling kernels")
        compile_kernels(
            self._model, self._attention, self._sampler, self.batches, max_rows=rows, max_tokens=c.max_step_tokens
        )
        with torch.inference_mode():
            verify_kernels(self._model, self.device)
        if self._modules is not None:
            self._modules.wait(LOADING_S)
        self._start_log.begin("largest step")
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        for step in steps:
            self._run_once(step)
        self._run_once(steps[-1], narrow=self._model.narrows)
        if self._inputs is not None:
            self._inputs.measure()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_allocated(self.device) - before
        self._longest_prompt = longest_captured_prompt(self._model, c.max_step_tokens, self._group)
        graphs = graph_bytes(c, self._model, self._attention, peak, self._longest_prompt)
        logger.info("the largest step needs %.2f GiB, CUDA graphs up to %.2f GiB", peak / 2**30, graphs / 2**30)
        del self.kv_cache, self.states, self.batches, self._attention
        torch.cuda.empty_cache()
        return peak + graphs + bytes_in_flight(self._model, c.max_step_tokens, self._own_stage.count)

    def _run_once(self, step: ForwardStep, *, narrow: bool = False) -> LogitsProcessorOutput:
        """Run a dummy step. Without `narrow` the step takes as much memory as a step that scores its tokens."""
        self.batches.write_rows(step.row_writes)
        batch = self.batches.build(step, narrow=narrow)
        output = self.forward(batch)
        self.sample(output, batch, step, None)
        return output

    def init_attention_backend(self) -> None:
        c = self._config
        attention: AttentionBackend = make_backend(
            c.attention_backend,
            self.kv_cache,
            self._model.attention_layers,
            dtype=self.dtype,
            max_rows=max_graph_rows(c.max_running_requests),
            context_length=c.context_length,
            kernel_cache=Path(c.kernel_cache),
            dependent_launch=supports_dependent_launch(self.device),
            modules=self._modules,
        )
        self._attention = attention if self.states is None else HybridAttnBackend(attention, self.states)

    def init_cuda_graphs(self) -> None:
        """Create the graphs of decode steps and prompts (FlashInfer only), or the recorded decode steps of a CPU."""
        if self._config.cuda_graph == "off":
            return
        if self.device.type == "cpu":
            from radixrt.runner.graphs.cpu_graph_runner import create_cpu_graphs

            self._cpu_graphs = create_cpu_graphs(
                self._model, self._attention, Path(self._config.kernel_cache), ranks=self._config.rank_info.size
            )
        if self.device.type != "cuda":
            return
        from radixrt.runner.graphs.create import create_graphs

        self._graphs, self._prompt_graphs = create_graphs(
            self._config,
            self._model,
            self._attention,
            self._sampler,
            self.batches,
            vocab_size=self.vocab_size,
            longest_prompt=self._longest_prompt,
            dtype=self.dtype,
            device=self.device,
            group=self._group,
        )

    def _capture_next(self) -> bool:
        """Capture one more graph, with preference to requested graphs; return False if none is left."""
        graphs = [each for each in (self._graphs, self._prompt_graphs) if each is not None]
        if any(each.capture_next(requested=True) for each in graphs):
            return True
        if self._inputs is not None and self._inputs.idle_work():
            return True
        return any(each.capture_next(requested=False) for each in graphs)

    def warm_up(self) -> None:
        """Run dummy steps that allocate memory and load kernels. On CUDA, a later step would have to synchronize with
        the device to load them.

        The dummy steps write rows and slots that no request holds yet.
        """
        if self.device.type != "cuda":
            self.run_smallest_step()
            return
        c = self._config
        tokens = min(c.max_step_tokens, self.max_total_num_tokens, c.max_running_requests * c.context_length)
        step = largest_step(c.max_running_requests, tokens, c.context_length)
        hidden = self._run_once(step).hidden_states
        rows = [n for n in graph_buckets(max_graph_rows(c.max_running_requests)) if n <= hidden.shape[0]]
        load_gemm_kernels(self._model, hidden, rows, self._logits_buffer)
        torch.cuda.synchronize(self.device)

    def run_smallest_step(self) -> None:
        """Run a dummy step of one token; see `warm_up`."""
        self._run_once(largest_step(1, 1, self._config.context_length))

    def idle_work(self) -> bool:
        """Capture one more graph while there is no step; return False if none is left.

        With several ranks no graph is captured while idle: all ranks would have to capture the same graph at the same
        time, but ranks are idle at different times.
        """
        return self._group.size == 1 and self._capture_next()

    # --- one step ---

    def prepare(self, step: ForwardStep) -> ForwardBatch | StagedStep:
        """Write the step's changes into the runner's tables and create its batch, or stage it for a CUDA graph."""
        self.batches.write_rows(step.row_writes)
        for row in step.sampling_rows if self._links.is_last else ():
            self._tables.write(row)
        inputs = None if self._inputs is None else self._inputs.of_step(step.sections, self.batches)
        if (staged := self._stage(step)) is not None:
            return staged
        prompts = self._prompt_graphs
        is_captured = inputs is None and prompts is not None and prompts.has(len(step.out_cache_loc) // 4)
        return self.batches.build(step, narrow=self._model.narrows and not is_captured, inputs=inputs)

    def _stage(self, step: ForwardStep) -> StagedStep | None:
        """Stage a step of few tokens for a CUDA graph; return None if no graph fits."""
        if self._graphs is None or len(step.out_cache_loc) // 4 > self._graphs.max_rows:
            return None
        if (rows := TokenRows.of(step)) is None:
            return None
        samples = slice(rows.num_samples)
        inputs = self._sampler.plain_inputs(rows.req_pool_idx[samples], rows.seq_lens[samples])
        return self._graphs.stage(rows, *inputs)

    def forward(
        self, batch: ForwardBatch | StagedStep, arrived: Callable[[], None] | None = None
    ) -> LogitsProcessorOutput:
        """Run this stage's layers over a batch; an IDLE batch runs no layer.

        Args:
            arrived: called once the previous stage's output has arrived; on CUDA, once the stream waits for the output.

        Returns:
            Logits and hidden states. There are no logits before the last stage, and for a staged step `sample` fetches
            the logits from the graph's buffer.
        """
        output = self._forward(batch, arrived)
        # Work on inputs that no token of this step reads. The step's copies to the device do not wait for it.
        self._compute_inputs()
        return output

    def _compute_inputs(self) -> None:
        if self._inputs is not None:
            self._inputs.compute()

    def _forward(self, batch: ForwardBatch | StagedStep, arrived: Callable[[], None] | None) -> LogitsProcessorOutput:
        nothing = torch.empty(0, 0, device=self.device)
        if isinstance(batch, ForwardBatch) and batch.mode is ForwardMode.IDLE:
            return LogitsProcessorOutput(torch.empty(0, self.vocab_size, device=self.device), nothing)
        received = self._links.receive(lambda: self._model.stage_input(batch.num_tokens))
        if arrived is not None:
            arrived()
        if not isinstance(batch, ForwardBatch):
            assert self._graphs is not None
            if (sent := self._graphs.forward(batch, received)) is not None:
                self._links.send(sent)
            return LogitsProcessorOutput(nothing, nothing)
        # Graphs of prompts compute all layers for all tokens. Without a graph, the last layer of a narrowed batch
        # computes only the wanted rows, and the hidden states have a row for each wanted row.
        hidden = self._prompt_graphs.forward(batch, received) if self._prompt_graphs is not None else None
        narrowed = hidden is None and (batch.narrowed is not None or batch.mode is ForwardMode.DECODE)
        if hidden is None:
            self._attention.prepare(batch)
            if batch.inputs is not None:
                self._compute_inputs()
            hidden = None if self._cpu_graphs is None else self._cpu_graphs.forward(batch)
        if hidden is None:
            hidden = self._model.forward(batch.input_ids, batch.positions, batch, self._attention, received)
        if not self._links.is_last:
            self._links.send(hidden)
            return LogitsProcessorOutput(nothing, hidden)
        # Logits of the sampling rows only, which may be fewer than the rows whose hidden states were computed.
        last = hidden if narrowed else hidden[batch.logits_index]
        if batch.sample_index is not None:
            last = last[batch.sample_index]
        tokens = batch.wanted_tokens if narrowed else None
        if not last.shape[0]:
            return LogitsProcessorOutput(hidden.new_empty(0, self.vocab_size), hidden, tokens)
        logits = self._model.compute_logits(last, self._logits_buffer(last.shape[0]))
        self._sampler.suppress(logits)
        return LogitsProcessorOutput(logits[: batch.sample_rows.shape[0]], hidden, tokens)

    def _logits_buffer(self, rows: int) -> torch.Tensor | None:
        """Return float32 [rows, vocab], a buffer for the logits of an uncaptured step; None to allocate them."""
        return None if self._graphs is None else self._graphs.logits_for(rows)

    def sample(
        self,
        output: LogitsProcessorOutput,
        batch: ForwardBatch | StagedStep,
        step: ForwardStep,
        mask: GrammarMask | None,
    ) -> SampledStep:
        """Sample the next token of every sampling row, and store the token as the row's future token.

        On CUDA the work is only enqueued: see `SampledStep.is_ready`. With several ranks, rank 0 samples and broadcasts
        the tokens, or all ranks sample the same tokens from their columns of the logits (`DeviceCommunicator.sample`).
        Only rank 0 returns results, and nothing is sampled before the last pipeline stage.
        """
        if not self._links.is_last:
            return SampledStep.nothing()
        allowed = self.read_mask(mask)
        idx, seq_lens = unpack_i32(step.req_pool_idx), unpack_i32(step.seq_lens)
        if step.mode == ForwardMode.EXTEND:
            sampled = np.frombuffer(step.samples, np.uint8).astype(bool)
            idx, seq_lens = idx[sampled], seq_lens[sampled]
        # The graph samples rows without filters, and applies masks if it has gathered the columns of the logits. All
        # other rows are sampled without a graph, from the graph's logits.
        if not isinstance(batch, ForwardBatch):
            assert self._graphs is not None
            masked = mask is not None and bool(mask.rows)
            if self._sampler.plain(idx) and (not masked or self._graphs.samples_masked(batch)):
                return self._sampled(self._graphs.sample(batch, allowed))
            return self._sampled(self._choose(self._graphs.logits(batch), idx, seq_lens, batch.sample_rows, allowed))
        values = self._reader.of_step(step.sections, output) if self._reader is not None and step.sections else None
        result = None
        if len(idx):
            result = self._choose(output.next_token_logits, idx, seq_lens, batch.sample_rows, allowed)
        return self._sampled(result, values)

    def read_mask(self, message: GrammarMask | None) -> Mask | None:
        """Return the masks of a step; None on ranks that do not sample. The message of a step that has failed must be
        read too, because later messages refer to its masks."""
        if message is None or self._group.rank or not self._links.is_last:
            return None
        mask, new = self._masks.read(message, self.vocab_size)
        self._sampler.masks_changed(new)
        return mask

    def _choose(
        self, logits: torch.Tensor, idx: Int32Array, seq_lens: Int32Array, rows: torch.Tensor, mask: Mask | None
    ) -> SampleResult | None:
        """Sample without a graph, and store the tokens as future tokens.

        Args:
            idx, seq_lens: int32 [S], req_pool_idx and length of each sampling row.
            rows: int64 [S], `idx` on the device.
        """
        if self._group.rank:
            self.batches.future_token_ids[rows] = self._group.broadcast(torch.empty_like(rows))
            return None
        result = self._sampler.sample(logits, idx, seq_lens, mask)
        self.batches.future_token_ids[rows] = self._group.broadcast(result.token_ids)
        return result

    def _sampled(self, result: SampleResult | None, values: StepValues | None = None) -> SampledStep:
        if self._group.rank:
            return SampledStep.nothing()
        return SampledStep.begin(result, values, self.device)

    @property
    def tower_flops_per_s(self) -> float:
        return 0.0 if self._inputs is None else self._inputs.flops_per_s

    @property
    def token_bytes(self) -> int:
        return bytes_per_token(self._model.attention_layers, self._config.pool_dtype)

    @property
    def state_bytes(self) -> int:
        return bytes_per_state(self._model.states)

    def reset_rows(self) -> None:
        """Bring what steps write by row into the state that a new scheduler assumes."""
        self.batches.reset_offsets()
        if self._inputs is not None:
            self._inputs.reset()

    def is_usable(self) -> bool:
        """Return whether the device still works after an error, and release its cached memory."""
        return still_works(self.device)

    def shutdown(self) -> None:
        """Release the model and the pools."""
        tensors = "_inputs _graphs _prompt_graphs _model kv_cache states _attention batches _tables _sampler _reader"
        for name in tensors.split():
            self.__dict__.pop(name, None)
