"""A scheduler with chosen parts, for tests of the core alone and of each part without the others."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable

from radixrt.config import SchedulerConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.chunk_cache import ChunkCache
from radixrt.mem_cache.granules import GRANULE_TOKENS
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.messages.kv_moves import KVOpen
from radixrt.messages.runner import CascadeCosts
from radixrt.models.vision_spec import VisionSpec
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
from radixrt.parts.tiers.records import PageRecords
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.parts.tiers.tier import Tier
from radixrt.parts.watch.scheduler import Watch
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.part import Part
from radixrt.scheduler.scheduler import Scheduler

CHOICES: dict[str, frozenset[str]] = {
    "none": frozenset(),
    "reads": frozenset({"reads"}),
    "constraint": frozenset({"constraint"}),
    "programs": frozenset({"programs"}),
    "recovery": frozenset({"recovery"}),
    "overload": frozenset({"overload"}),
    "tenants": frozenset({"tenants"}),
    "watch": frozenset({"programs", "watch"}),
    "states": frozenset({"states"}),
    "sharing": frozenset({"sharing"}),
    "stages": frozenset({"stages"}),
    "tiers": frozenset({"tiers"}),
    "media": frozenset({"media"}),
}
"""No part at all, and each part by itself. Watching alone needs another part: its views name requests' programs."""

TOWER = MediaSettings(
    VisionSpec(
        "qwen_vl", 9, (), patch=16, merge=2, depth=2, hidden=64, intermediate=256, heads=4, out_size=64, table_side=6,
        rotary_axes=(0, 1, 2),
    ),
    rows=64,
    flops_per_s=1e9,
)  # fmt: skip


def empty_tiers() -> Tiers:
    """Return a part `tiers` with an empty host tier of one page, for ranks that report nothing."""
    with tempfile.NamedTemporaryFile() as records:
        host = Tier("host", GRANULE_TOKENS, GRANULE_TOKENS, PageRecords(records.name, 1, GRANULE_TOKENS, create=True))
    return Tiers(host, None, KVOpen("", GRANULE_TOKENS, GRANULE_TOKENS), num_ranks=1, token_bytes=8)


def scheduler_with(
    names: Collection[str],
    config: SchedulerConfig,
    num_slots: int,
    *,
    context_length: int,
    eos_ids: Iterable[int],
    vocab_size: int,
    page_size: int,
    eviction: str,
    prefix_cache: bool,
    num_states: int,
    cascade: CascadeCosts,
    checkpoints: Checkpoints,
    stages: int,
    grammars: GrammarManager | None,
    shared_cores: bool,
) -> Scheduler:
    """Return a scheduler over empty pools, as `make_scheduler` does, with the named parts alone."""
    has_states, has_stages = "states" in names, "stages" in names
    assert has_states == bool(num_states)
    assert has_stages == (stages > 1)
    allocator = TokenToKVPoolAllocator(num_slots, page_size)
    slots = StateSlotAllocator(num_states) if has_states else None
    cache = RadixCache(allocator, eviction, slots) if prefix_cache else ChunkCache(allocator, slots)
    rows = ReqToTokenPool(config.max_running_requests, min(context_length, num_slots))
    kv = KVManager(cache, allocator, rows)
    if cache.node_states is not None:
        kv = HybridKVManager(cache, cache.node_states, allocator, rows, checkpoints)
    makers: dict[str, Callable[[], Part]] = {
        "reads": ReadsPart,
        "constraint": lambda: Constraints(vocab_size, grammars, shared_cores=shared_cores),
        "programs": Programs,
        "recovery": Recovery,
        "overload": Overload,
        "tenants": Tenants,
        "watch": Watch,
        "states": StatesPart,
        "sharing": lambda: Sharing(cascade),
        "tiers": empty_tiers,
        "media": lambda: Media(TOWER),
    }
    parts = [make() for name, make in makers.items() if name in names]
    assert len(parts) + has_stages == len(names), "an unknown part"
    if not cache.shares:
        parts = [part for part in parts if not isinstance(part, Sharing | Tiers)]
    return Scheduler(
        config,
        kv,
        context_length=context_length,
        eos_ids=eos_ids,
        parts=parts,
        pacing=StagePacing(stages) if has_stages else None,
    )
