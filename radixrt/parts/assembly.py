"""`assemble`: creates a scheduler with all of its parts, and defines the order of the parts."""

from __future__ import annotations

from collections.abc import Iterable

from radixrt.config import SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.messages.runner import CascadeCosts
from radixrt.parts.constraint.scheduler import Constraints
from radixrt.parts.media.scheduler import Media
from radixrt.parts.media.settings import MediaSettings
from radixrt.parts.overload.scheduler import Overload
from radixrt.parts.programs.scheduler import Programs
from radixrt.parts.reads.scheduler import ReadsPart
from radixrt.parts.recovery.scheduler import Recovery
from radixrt.parts.sharing.scheduler import Sharing
from radixrt.parts.stages.scheduler import StagePacing
from radixrt.parts.states.checkpoints import Checkpoints
from radixrt.parts.states.scheduler import HybridKVManager, StatesPart
from radixrt.parts.tenants.scheduler import Tenants
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.pacing import Pacing
from radixrt.scheduler.part import Part
from radixrt.scheduler.scheduler import Scheduler


def assemble(
    config: SchedulerConfig,
    cache: RadixCache,
    allocator: TokenToKVPoolAllocator,
    rows: ReqToTokenPool,
    *,
    context_length: int,
    eos_ids: Iterable[int],
    vocab_size: int,
    random_seed: int = 0,
    grammars: GrammarManager | None = None,
    shared_cores: bool = False,
    cascade: CascadeCosts | None = None,
    checkpoints: Checkpoints | None = None,
    stages: int = 1,
    tiers: Tiers | None = None,
    media: MediaSettings | None = None,
) -> Scheduler:
    """Return a scheduler over empty pools.

    Args:
        vocab_size: size of grammar masks, in tokens.
        grammars, shared_cores: see `Constraints`.
        cascade: cost model of attention over prefixes that several rows share; None to compute each row alone.
        checkpoints: decides where prompts leave states, for a model with recurrent layers; default: `Checkpoints()`.
        stages: pipeline stages of the model.
        tiers: memory that keeps prefixes beside the KV pool; None without.
        media: tower of a vision model; None for a model that reads text alone.
    """
    parts: list[Part] = [
        ReadsPart(),
        Constraints(vocab_size, grammars, shared_cores=shared_cores),
        Programs(),
        Recovery(),
        Overload(),
        Tenants(),
        Watch(),
    ]
    kv = KVManager(cache, allocator, rows)
    if cache.node_states is not None:
        kv = HybridKVManager(cache, cache.node_states, allocator, rows, checkpoints)
        parts.append(StatesPart())
    if cascade is not None and cache.shares:
        parts.append(Sharing(cascade))
    if media is not None:
        parts.append(Media(media))
    if tiers is not None and cache.shares:
        parts.append(tiers)
    return Scheduler(
        config,
        kv,
        context_length=context_length,
        eos_ids=eos_ids,
        random_seed=random_seed,
        parts=parts,
        pacing=StagePacing(stages, config.max_gap_s) if stages > 1 else Pacing(config.max_gap_s),
    )
