"""`RunnerConfig`: what a rank is told."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.distributed.rank_place import ONLY_RANK, RankPlace


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
    kv_cache_dtype: str
    max_step_tokens: int
    cuda_graph: str
    random_seed: int
    kernel_cache: str
    show_progress: bool = False
    mask_path: str | None = None
    place: RankPlace = ONLY_RANK
