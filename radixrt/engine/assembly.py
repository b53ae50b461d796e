"""Builds the tokenizer, the scheduler and the runner from settings: the same parts for every way of running them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from radixrt.channel import Inbox, Outbox
from radixrt.config import Config
from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.engine.settings import EngineSettings
from radixrt.engine.tier_options import GIB
from radixrt.errors import ConfigError
from radixrt.messages.client import ToMain, ToTokenizer
from radixrt.messages.runner import FromRunner, RunnerReady
from radixrt.messages.scheduler import SchedulerReady, ToScheduler
from radixrt.parts.media.settings import CPU_FLOPS_PER_S, GPU_FLOPS_PER_S, MediaSettings, encoder_rows
from radixrt.portable import num_cores
from radixrt.start_log import StartLog

if TYPE_CHECKING:
    from radixrt.constrained.compile.grammar_manager import GrammarManager
    from radixrt.constrained.vocabulary import Vocabulary
    from radixrt.constraint import BackendChoice
    from radixrt.executor.base import Executor, PoolBytes
    from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
    from radixrt.mem_cache.radix_cache import RadixCache
    from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
    from radixrt.parts.tiers.scheduler import Tiers
    from radixrt.parts.tiers.settings import TierSettings
    from radixrt.runner.model_runner import ModelRunner
    from radixrt.runner.part import RunnerPart
    from radixrt.runner.worker import Worker
    from radixrt.scheduler.loop import SchedulerLoop
    from radixrt.tokenizer.worker import TokenizerWorker

logger = logging.getLogger(__name__)

WATCH_S = 0.005
WATCH_CORES = 8
"""On machines with a GPU and at least WATCH_CORES cores, the scheduler spins for up to WATCH_S seconds for the answer
of a constrained step before it sleeps. Most decode steps take less time. The other processes need cores as well."""

# Imports stand inside the functions: each process loads only its own part, and only the runner's needs torch.


def make_tokenizer(
    config: Config,
    settings: EngineSettings,
    to_scheduler: Outbox[ToScheduler],
    to_main: Outbox[ToMain],
    *,
    threaded: bool = False,
    image_folder: str = "",
) -> TokenizerWorker:
    """Return the tokenizer worker.

    Args:
        threaded: encode prompts in a separate thread.
        image_folder: private folder for pixels, which is made if the model reads images.
    """
    from radixrt.tokenizer.image_reader import ImageReader
    from radixrt.tokenizer.prompt_queue import PromptQueue
    from radixrt.tokenizer.tokenizer import Tokenizer
    from radixrt.tokenizer.worker import TokenizerWorker
    from radixrt.vision.limits import ImageLimits
    from radixrt.vision.processor import ImageProcessor

    template = config.model.chat_template
    if config.model.skip_tokenizer_init:
        tokenizer = Tokenizer.none(settings.eos_ids)
    else:
        tokenizer = Tokenizer.from_folder(
            Path(config.model.tokenizer or settings.folder),
            chat_template_file=None if template is None else Path(template),
        )
    images, vision, options = None, settings.vision, config.model
    if vision is not None:
        load = functools.partial(
            ImageProcessor.of,
            settings.folder,
            vision.kind,
            patch=vision.patch,
            merge=vision.merge,
            max_tokens=options.max_image_tokens,
        )
        images = ImageReader(load, Path(image_folder), ImageLimits(options.max_images))
    return TokenizerWorker(
        tokenizer,
        model=settings.model_name,
        vocab_size=settings.vocab_size,
        context_length=settings.context_length,
        tasks=settings.tasks,
        to_scheduler=to_scheduler,
        to_main=to_main,
        queue=PromptQueue(threaded=threaded),
        vision=vision,
        images=images,
    )


def make_runner(
    config: Config,
    settings: EngineSettings,
    rank_info: RankInfo = SINGLE_RANK,
    *,
    mask_path: str | None = None,
    progress: Callable[[], None] | None = None,
    start_log: StartLog | None = None,
    tiers: TierSettings | None = None,
) -> ModelRunner:
    """Return a ModelRunner without a loaded model.

    Args:
        rank_info: rank and number of ranks; default: a single rank.
        mask_path: where the scheduler puts grammar masks, in another process.
        progress: called after each layer that the host computes or launches.
        start_log: gets the phases of loading.
        tiers: memory besides the KV pool, for which the pool leaves room.
    """
    from radixrt.parts.reads.runner import StepReader
    from radixrt.runner.model_runner import ModelRunner
    from radixrt.runner.runner_config import RunnerConfig

    staging_bytes = 0
    if tiers is not None:
        from radixrt.parts.tiers.runner.staging import STAGING_BYTES

        staging_bytes = STAGING_BYTES
    make_inputs, image_rows = None, 0
    if settings.vision is not None:
        from radixrt.parts.media.runner import ImageEncoder

        make_inputs, image_rows = ImageEncoder.of, encoder_rows(config.model.max_image_tokens)

    return ModelRunner(
        RunnerConfig(
            folder=settings.folder,
            dtype=settings.dtype,
            load_format=config.model.load_format,
            quantization=config.model.quantization,
            device=config.executor.device,
            attention_backend=config.executor.attention_backend,
            num_threads=config.executor.num_threads,
            context_length=settings.context_length,
            max_running_requests=config.scheduler.max_running_requests,
            page_size=config.cache.page_size,
            kv_cache_tokens=config.cache.kv_cache_tokens,
            num_states=config.cache.num_states,
            memory_fraction=config.cache.memory_fraction,
            kv_cache_bytes=int(config.cache.kv_cache_gib * GIB),
            kv_cache_dtype=config.cache.kv_cache_dtype,
            max_step_tokens=config.scheduler.chunked_prefill_size,
            cuda_graph=config.executor.cuda_graph,
            random_seed=config.executor.random_seed,
            kernel_cache=settings.kernel_cache,
            show_progress=settings.show_progress and rank_info.known_as == 0,
            mask_path=mask_path,
            rank_info=rank_info,
            stage_layers=settings.stage_layers,
            host_tier_bytes=0 if tiers is None else tiers.host_bytes // tiers.ranks,
            staging_bytes=staging_bytes,
            image_rows=image_rows,
        ),
        progress,
        start_log,
        StepReader.of,
        make_inputs,
    )


def make_runner_worker(
    config: Config,
    settings: EngineSettings,
    answers: Outbox[FromRunner],
    rank_info: RankInfo = SINGLE_RANK,
    *,
    mask_path: str | None = None,
    progress: Callable[[], None] | None = None,
    start_log: StartLog | None = None,
    tiers: TierSettings | None = None,
) -> Worker:
    """Return a worker with an unloaded runner; see `make_runner`."""
    from radixrt.runner.worker import Worker

    parts: list[RunnerPart] = []
    if tiers is not None:
        from radixrt.parts.tiers.runner import Mover

        parts.append(Mover(rank_info, settings.stage_layers))

    runner = make_runner(
        config, settings, rank_info, mask_path=mask_path, progress=progress, start_log=start_log, tiers=tiers
    )
    return Worker(
        runner,
        answers,
        rank_info.known_as,
        answers_steps=rank_info.answers,
        alone=rank_info.size == 1,
        trace_path=config.executor.step_trace,
        rank_info=rank_info,
        step_timeout_s=config.executor.step_timeout_s,
        parts=parts,
    )


def make_scheduler_loop(
    config: Config,
    settings: EngineSettings,
    executor: Executor,
    inbox: Inbox[ToScheduler],
    tokenizer: Outbox[ToTokenizer],
    inbox_socket: Any | None = None,
    *,
    epoch: int = 0,
    tiers: TierSettings | None = None,
    image_links: str = "",
) -> SchedulerLoop:
    """Return the scheduler's loop, with pools of the sizes that the runner reports. Announces the scheduler to the
    tokenizer.

    Args:
        tiers: memory besides the KV pool; None without.
        image_links: see `PixelLinks`.

    Raises:
        EngineError: the runner is not ready in time.
        ConfigError: an option does not fit the model.
    """
    from radixrt.parts.assembly import assemble
    from radixrt.scheduler.loop import SchedulerLoop

    # Load everything else before waiting for the runner, on a GPU grammar libraries as well, in a thread. Otherwise the
    # first steps would wait for these libraries. On a CPU, the runner needs the cores meanwhile.
    grammars = _make_grammars(config, settings)
    ready = executor.wait_ready(config.executor.start_timeout_s)
    scheduler = assemble(
        config.scheduler,
        *_make_pools(config, settings, ready),
        context_length=settings.context_length,
        eos_ids=settings.eos_ids,
        vocab_size=ready.vocab_size,
        random_seed=config.executor.random_seed,
        grammars=grammars,
        shared_cores=ready.device == "cpu",
        cascade=None if config.executor.cascade == "off" else ready.cascade,
        stages=settings.stages,
        tiers=None if tiers is None else _make_tiers(tiers, executor.pool_bytes, on_cpu=ready.device == "cpu"),
        media=_media_settings(config, settings, image_links, ready),
    )
    # Pipeline stages need a step in flight for each stage, unless the user turned overlapping off.
    depth = config.scheduler.max_inflight_steps
    loop = SchedulerLoop(
        scheduler,
        executor,
        inbox,
        tokenizer,
        max_inflight=depth if settings.stages == 1 or depth == 1 else settings.stages,
        shared_cores=ready.device == "cpu",
        watch_s=WATCH_S if ready.device != "cpu" and num_cores() >= WATCH_CORES else 0.0,
        check_invariants=config.scheduler.check_invariants,
        inbox_socket=inbox_socket,
    )
    max_requests = config.scheduler.max_running_requests
    loop.announce(
        SchedulerReady(
            ready.num_slots,
            max_requests,
            ready.device,
            ready.dtype,
            epoch,
            ready.num_states,
            kv_cache_dtype=ready.kv_cache_dtype,
            weights=ready.weights,
        )
    )
    return loop


def _media_settings(config: Config, settings: EngineSettings, links: str, ready: RunnerReady) -> MediaSettings | None:
    """Return what the scheduler needs to know of the model's vision tower; None for a model that reads text alone."""
    vision = settings.vision
    if vision is None:
        return None
    return MediaSettings(
        vision,
        rows=encoder_rows(config.model.max_image_tokens),
        flops_per_s=ready.tower_flops_per_s or (CPU_FLOPS_PER_S if ready.device == "cpu" else GPU_FLOPS_PER_S),
        shares_memory=config.executor.executor not in ("ray", "external"),
        links=links,
    )


def _make_tiers(settings: TierSettings, sizes: list[PoolBytes], *, on_cpu: bool) -> Tiers:
    """Return the part with what earlier schedulers and earlier runs left in its memory.

    Args:
        sizes: of keys, values and states in each rank.
        on_cpu: the pool is in host memory.

    Raises:
        ConfigError: the host tier is too small.
    """
    from radixrt.messages.kv_moves import (
        MAX_MOVES,
        MAX_RECEIVING_ON_DEVICE,
        MOVE_BYTES,
        RECEIVE_BYTES_ON_DEVICE,
        KVOpen,
    )
    from radixrt.parts.tiers.folder import erase_pages, write_layout, zero_pages
    from radixrt.parts.tiers.records import PageRecords
    from radixrt.parts.tiers.scheduler import Tiers
    from radixrt.parts.tiers.settings import table_path
    from radixrt.parts.tiers.tier import Tier

    token_bytes = [each.token for each in sizes]
    state_rows = max(-(-each.state // each.token) for each in sizes)
    page, pages = settings.page, settings.host_pages(token_bytes)
    # The shortest prefix is a page, and its state may begin behind the last token of a further page.
    least = 1 if not state_rows else 2 + -(-state_rows // page)
    if pages < least:
        needed, what = (least + 1) * page * sum(token_bytes) / GIB, "state" if state_rows else "page"
        raise ConfigError(
            f"kv_host_gib={settings.host_bytes / 2**30:.3g} holds no {what}; at least {needed:.2g} is needed"
        )
    zero = functools.partial(zero_pages, settings.arena, page, token_bytes)
    has_states = state_rows > 0
    host = Tier("host", pages * page, page, PageRecords(settings.records, pages, page), zero, has_states=has_states)
    disk, files = None, settings.disk_pages(token_bytes) if settings.disk else 0
    if files:
        try:
            write_layout(settings.disk, page, token_bytes, files)
            records = PageRecords(table_path(settings.disk), files, page)
            erase = functools.partial(erase_pages, settings.disk)
            disk = Tier("disk", files * page, page, records, erase, has_states=has_states)
        except OSError as error:
            logger.warning("prefixes do not go to disk: %s", error)
    if disk is not None and disk.num_tokens:
        logger.info("%d tokens of earlier prompts are on disk", disk.num_tokens)
    opening = KVOpen(
        settings.arena,
        pages * page,
        page,
        disk="" if disk is None else settings.disk,
        num_files=0 if disk is None else files,
        model=bytes.fromhex(settings.model),
        state_rows=state_rows,
    )
    receiving, receive_bytes = MAX_MOVES, MOVE_BYTES
    if not on_cpu:
        receiving, receive_bytes = MAX_RECEIVING_ON_DEVICE, RECEIVE_BYTES_ON_DEVICE
    return Tiers(host, disk, opening, settings.ranks, max(token_bytes), receiving, settings.records, receive_bytes)


def _make_grammars(config: Config, settings: EngineSettings) -> GrammarManager:
    from radixrt.constrained.compile.grammar_manager import GrammarManager
    from radixrt.constrained.compile.protocol import WorkerSettings

    def load_vocabulary() -> Vocabulary:
        from radixrt.constrained.vocabulary import Vocabulary

        return Vocabulary.from_folder(folder, settings.vocab_size, settings.eos_ids)

    folder = config.model.tokenizer or settings.folder
    no_tokenizer = config.model.skip_tokenizer_init  # then the tokenizer process refuses all constraints
    worker = WorkerSettings(
        str(folder),
        settings.vocab_size,
        list(settings.eos_ids),
        settings.grammar_cache if config.constrained.grammar_disk_cache else None,
        log_format=config.server.log_format,
    )
    return GrammarManager(
        load_vocabulary,
        inline=config.executor.executor == "uni" or no_tokenizer,
        worker=None if no_tokenizer else worker,
        compile_timeout_s=config.constrained.compile_timeout_s,
        default_timeout_s=config.scheduler.request_timeout_s,
        cache_bytes=config.constrained.grammar_cache_mb * 1024 * 1024,
        backend=cast("BackendChoice", config.constrained.grammar_backend),
        closed=config.constrained.closed_objects,
        starts_idle=settings.device == "cpu",
    )


def _make_pools(
    config: Config, settings: EngineSettings, ready: RunnerReady
) -> tuple[RadixCache, TokenToKVPoolAllocator, ReqToTokenPool]:
    from radixrt.mem_cache.pools import make_pools

    page_size, policy = config.cache.page_size, config.cache.eviction_policy
    if ready.num_states and page_size != 1:
        raise ConfigError(f"page_size must be 1 for a model with recurrent layers, got {page_size}")
    return make_pools(
        ready.num_slots,
        page_size,
        ready.num_states,
        config.scheduler.max_running_requests,
        settings.context_length,
        eviction=policy,
        prefix_cache=config.cache.prefix_cache,
    )
