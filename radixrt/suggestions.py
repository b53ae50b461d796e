"""The name that a user probably meant: other engines' names for an option or a command, and names spelled alike."""

from __future__ import annotations

import difflib
from collections.abc import Collection

PEER_COMMANDS = {
    "serve": "launch",
    "server": "launch",
    "start": "launch",
    "launch_server": "launch",
    "run": "generate",
    "complete": "generate",
    "check": "doctor",
    "env": "doctor",
}
"""Commands of vLLM, SGLang, Ollama and their like, with the command that does the same here."""

PEER_OPTIONS: dict[str, tuple[str, object]] = {
    "model_path": ("model", None),
    "tokenizer_path": ("tokenizer", None),
    "max_model_len": ("context_length", None),
    "max_total_tokens": ("kv_cache_tokens", None),
    "ctx_size": ("context_length", None),
    "n_ctx": ("context_length", None),
    "tensor_parallel_size": ("tp", None),
    "tp_size": ("tp", None),
    "pipeline_parallel_size": ("pp", None),
    "pp_size": ("pp", None),
    "data_parallel_size": ("replicas", None),
    "dp_size": ("replicas", None),
    "dp": ("replicas", None),
    "gpu_memory_utilization": ("memory_fraction", None),
    "mem_fraction_static": ("memory_fraction", None),
    "num_gpu_blocks_override": ("kv_cache_tokens", None),
    "block_size": ("page_size", None),
    "max_num_seqs": ("max_running_requests", None),
    "max_num_batched_tokens": ("chunked_prefill_size", None),
    "enable_prefix_caching": ("prefix_cache", True),
    "no_enable_prefix_caching": ("prefix_cache", False),
    "disable_radix_cache": ("prefix_cache", False),
    "radix_eviction_policy": ("eviction_policy", None),
    "scheduling_policy": ("schedule_policy", None),
    "enforce_eager": ("cuda_graph", "off"),
    "disable_cuda_graph": ("cuda_graph", "off"),
    "disable_overlap_schedule": ("max_inflight_steps", 1),
    "disable_custom_all_reduce": ("all_reduce", "nccl"),
    "distributed_executor_backend": ("executor", None),
    "guided_decoding_backend": ("grammar_backend", None),
    "tool_call_parser": ("tool_call_format", None),
    "allowed_origins": ("cors_origins", None),
    "random_state": ("random_seed", None),
    "seed": ("random_seed", None),
    "threads": ("num_threads", None),
    "otlp_traces_endpoint": ("otlp_endpoint", None),
    "disable_log_requests": ("access_log", False),
    "disable_uvicorn_access_log": ("access_log", False),
    "disable_log_stats": ("log_stats_interval_s", 0),
    "decode_log_interval": ("log_stats_interval_s", None),
}
"""Options of vLLM, SGLang and llama.cpp, with the option that does the same here and, where it is fixed, its value."""


def similar(name: str, known: Collection[str]) -> str | None:
    """Return the known name that is spelled most like `name`; None if none is alike."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return found[0] if found else None


def command_meant(name: str, known: Collection[str]) -> str | None:
    """Return the command that a user who wrote `name` probably meant; None if nothing is alike."""
    peer = PEER_COMMANDS.get(name.replace("-", "_"))
    return peer if peer in known else similar(name, known)


def option_meant(name: str, known: Collection[str]) -> tuple[str, object] | None:
    """Return the option that a user who wrote `name` probably meant, and the value if the name implies a value.

    Args:
        name: with underscores, e.g. "max_model_len".
        known: the options that there are, spelled likewise.
    """
    peer = PEER_OPTIONS.get(name)
    if peer is not None and peer[0] in known:
        return peer
    alike = similar(name, [*known, *(each for each, (ours, _) in PEER_OPTIONS.items() if ours in known)])
    if alike is None:
        return None
    return (alike, None) if alike in known else PEER_OPTIONS[alike]
