"""Options of vLLM, SGLang and llama.cpp: the option of radixrt that is the same, or why there is none.

Names are spelled with underscores and without dashes in front. In a sentence, `{port}` stands for the option `port` of
radixrt, which the command line and Python spell differently.
"""

from __future__ import annotations

import re

SAME_OPTIONS: dict[str, tuple[str, object]] = {
    "model_path": ("model", None),
    "tokenizer_path": ("tokenizer", None),
    "max_model_len": ("context_length", None),
    "ctx_size": ("context_length", None),
    "n_ctx": ("context_length", None),
    "max_total_tokens": ("kv_cache_tokens", None),
    "tensor_parallel_size": ("tp", None),
    "tp_size": ("tp", None),
    "pipeline_parallel_size": ("pp", None),
    "pp_size": ("pp", None),
    "data_parallel_size": ("replicas", None),
    "dp_size": ("replicas", None),
    "dp": ("replicas", None),
    "max_num_seqs": ("max_running_requests", None),
    "enable_prefix_caching": ("prefix_cache", True),
    "no_enable_prefix_caching": ("prefix_cache", False),
    "disable_radix_cache": ("prefix_cache", False),
    "kv_offloading_size": ("kv_host_gib", None),
    "radix_eviction_policy": ("eviction_policy", None),
    "enforce_eager": ("cuda_graph", "off"),
    "disable_cuda_graph": ("cuda_graph", "off"),
    "disable_overlap_schedule": ("max_inflight_steps", 1),
    "disable_custom_all_reduce": ("all_reduce", "nccl"),
    "distributed_executor_backend": ("executor", None),
    "seed": ("random_seed", None),
    "random_state": ("random_seed", None),
    "threads": ("num_threads", None),
    "disable_uvicorn_access_log": ("access_log", False),
    "disable_log_stats": ("log_stats_interval_s", 0.0),
}
"""Options with the meaning of an option of radixrt, and the value if the name implies a value. The command line accepts
these names as aliases."""

SHORT_OPTIONS = {"tp": "tp", "pp": "pp", "dp": "replicas", "q": "quantization"}
"""The same with a single dash in front, as vLLM spells them."""

SAME_VALUES: dict[str, dict[str, str]] = {
    "quantization": {
        # Online: a scale for each row is at least as exact as a scale for each tensor.
        **dict.fromkeys(("fp8_per_tensor", "fp8_per_channel", "fp8_per_block", "ptpc_fp8", "fbgemm_fp8"), "fp8"),
        **dict.fromkeys(("int8_per_channel_weight_only", "experts_int8"), "int8"),
        # The checkpoint's quantization_config says the same.
        **dict.fromkeys(
            (
                "awq", "awq_marlin", "gptq", "gptq_marlin", "marlin", "moe_wna16", "compressed-tensors",
                "compressed_tensors", "modelopt", "modelopt_fp8", "modelopt_fp4", "w8a8_fp8", "w8a8_int8", "mxfp4",
                "gguf",
            ),
            "auto",
        ),
    }
}  # fmt: skip
"""By option: the values of vLLM and SGLang, and the value of radixrt that is the same."""

_NEAREST_VALUES: dict[str, tuple[tuple[str, str], ...]] = {
    "quantization": (
        (r"bitsandbytes|bnb|nf4|hqq|rtn|quip|aqlm|exl|w4|wint4|fp4", "; the nearest is int4"),
        (r"mxfp8|fp8", "; the nearest is fp8"),
        (r"int8|torchao|quark|qoq", "; the nearest is int8"),
    )
}
"""By option: patterns of values of other engines, and the end of the error. The first pattern that fits counts."""

_SHORT_NAMES = {
    "n": "nnodes", "r": "node_rank", "O": "optimization_level", "asc": "api_server_count",
    "ep": "enable_expert_parallel", "dcp": "decode_context_parallel_size", "pcp": "prefill_context_parallel_size",
    "dpn": "data_parallel_rank", "dpr": "data_parallel_start_rank", "dpl": "data_parallel_size_local",
    "dpa": "data_parallel_address", "dpp": "data_parallel_rpc_port", "dpb": "data_parallel_backend",
    "dph": "data_parallel_hybrid_lb", "dpe": "data_parallel_external_lb", "cc": "compilation_config",
    "sc": "speculative_config", "ac": "attention_config", "m": "model_path", "c": "ctx_size", "t": "threads",
    "ngl": "n_gpu_layers",
}  # fmt: skip
"""Long names of options that vLLM and llama.cpp spell with one dash."""

_LORA = "LoRA adapters are not served; merge the adapter into the model"
_SPECULATION = "speculative decoding is not supported"
_MEDIA = (
    "{max_images} and {max_image_tokens} bound the images of a request, and {text_only} loads no vision tower; audio "
    "and video are not read (docs/vision.md)"
)
_NODES = "ranks on several machines: {executor} ray (docs/ray.md), or external under torchrun or SLURM"
_EXPERTS = "not needed: experts are divided over the ranks of {tp}"
_GRAPHS = (
    "{cuda_graph} says when CUDA graphs are captured; their sizes follow from the requests, and nothing is compiled"
)
_OFFLOAD = "weights stay on the device; {kv_host_gib} keeps keys and values in host memory, {kv_disk} on disk too"
_WEIGHTS = "not needed: the format of the weights is read from the model's files (docs/models.md)"
_LOGS = "{access_log}, {log_level} and {log_format} configure the log; texts of requests are never logged"
_METRICS = "/metrics is always served, with buckets of its own (docs/operations.md)"
_TRACES = "{otlp_endpoint} is the URL of the collector; OTEL_EXPORTER_OTLP_PROTOCOL chooses between HTTP and gRPC"
_TOOLS = "not needed: the format of tool calls follows from the chat template, and {tool_call_format} overrides it"
_REASONING = "not needed: reasoning follows from the chat template, and {reasoning_parser} overrides it"
_PAGES = "pages of one token share every common prefix; {page_size} sets another size"
_TEMPLATE = "{chat_template} names the file of a template; requests may have chat_template_kwargs"
_GRAMMARS = "{grammar_backend} chooses the library that enforces constraints, and requests have fields for the rest"
_CHUNKS = (
    "long prompts are always computed in chunks; {chunked_prefill_size} is the most prompt tokens of a step, and "
    "{max_gap_ms} bounds the time between two tokens of the requests beside them"
)
_MEMORY = "{memory_fraction} is the part of the memory beside the weights for the KV pool, {kv_cache_tokens} its size"
_REVISION = "the hub's main revision is loaded; fetch another with `hf download --revision`, and name its folder"
_OVERRIDES = "the model's config.json decides; change it in a copy of the model's folder"
_SAMPLING = "requests set how tokens are sampled; radixrt reads only the end tokens of generation_config.json"
_TASKS = "not needed: what a model is for is read from its files (docs/embeddings.md)"
_TOKENIZER = "not needed: one process runs the model's fast tokenizer for all requests"
_KEYS = "{api_key_file} holds keys with their names, rights and limits"
_CORS = "{cors_origins} lists the origins, separated by commas, that browsers may call from"
_PROXY = "routes have no prefix, which a proxy can remove; the server listens at {host} and {port}"
_DEVICES = "CUDA_VISIBLE_DEVICES chooses the GPUs"
_PROCESSES = "one process answers HTTP, and {replicas} adds engines behind it (docs/scale.md)"
_WATCHDOG = "{hang_timeout_s}, {step_timeout_s} and {start_timeout_s} bound the time without progress"
_PRIORITY = "requests may have a priority, and {schedule_policy} orders requests of equal priority"
_ALWAYS = "not needed: it is always on, or a field of requests (see the route /docs)"
_RECURRENT = "{num_states} is the number of states of recurrent layers, which have the precision of the model"
_KERNELS = "not needed: radixrt chooses its kernels; {attention_backend} and {all_reduce} choose others"
_SPLIT = "{roles} with {replicas} has replicas that compute prompts for others, which answer (docs/scale.md)"
_OVERLAP = "{max_inflight_steps} says whether scheduling overlaps with the model"
_CODE = "no code of a user's or of a model's repository is loaded into the server (SECURITY.md)"
_INTERNAL = "it belongs to the inside of another engine, and nothing here corresponds to it"

SENTENCES: tuple[tuple[str, str], ...] = (
    (r"trust_remote_code|logits?_processors?|plugin|worker_(extension_)?cls|scheduler_cls|middleware|custom_weight"
     r"|forward_hooks|sigquit", _CODE),
    (r"lora|prompt_adapter", _LORA),
    (r"^hf_token$", "set HF_TOKEN in the environment"),
    (r"^(download_dir|ignore_patterns)$", "set HF_HOME to the folder for downloaded models"),
    (r"(^|_)revision$|model_checksum", _REVISION),
    (r"specul|^spec_|draft|lookahead|ngram|acceptance|eagle", _SPECULATION),
    (r"disaggregation|kv_transfer|ec_transfer|kv_connector|pdmux|sm_group|^encoder_|reserved_dec|round_robin", _SPLIT),
    (r"(^|_)mm(_|$)|multimodal|media|image|video|language_(model_)?only|precise_embedding", _MEDIA),
    (r"quant|modelopt|torchao|fp4|fp8|fp32_lm_head|calculate_kv_scales|auto_round|dequant", _WEIGHTS),
    (r"expert|moe|eplb|(^|_)ep(_|$)|deepep|all2all|dbo|ubatch|batch_overlap|tbo_|mooncake|grouped_gemm|^kt_", _EXPERTS),
    (r"hicache|hierarchical|lmcache|offload|swap_space|cpu_backup|memory_saver|sleep_mode|preemption_mode", _OFFLOAD),
    (r"nnodes|node_rank|master_|dist_init|nccl_(init|port)|^data_parallel_|^ray_|use_ray|context_parallel|_cp_|dp_attention"
     r"|dp_lm_head|hybrid_lb|^dist_backend", _NODES),
    (r"dist_timeout|watchdog", _WATCHDOG),
    (r"cuda_?graph|compil|^optimization_level$|seq_len_to_capture", _GRAPHS),
    (r"otlp|^enable_trace$|detailed_traces|nvtx|profil|nsight", _TRACES),
    (r"log_requests|log_outputs|log_deltas|log_config|log_error|max_log_len|uvicorn|log_level_http|log_stats_logging"
     r"|crash_dump|aggregate_engine_logging|time_stats|show_time_cost|gc_warning|balance_log", _LOGS),
    (r"decode_log_interval|load_watch", "{log_stats_interval_s} is the time between two lines about the load"),
    (r"metric|bucket|histogram", _METRICS),
    (r"kv_events", "the events of the cache are a feed of /ui and of the router (docs/cache_events.md)"),
    (r"auto_tool|tool_call|tool_parser|exclude_tools|tool_server", _TOOLS),
    (r"enable_reasoning|reasoning_config", _REASONING),
    (r"chat_template|response_role|completion_template", _TEMPLATE),
    (r"guided_decoding|structured_output|constrained_json|outlines", _GRAMMARS),
    (r"batched_tokens|prefill_tokens|partial_prefill|long_prefill|chunked_prefill|mixed_chunk|dynamic_chunk|chunked_prefix"
     r"|prefill_max_requests|prefill_delayer|full_isl|encoder_input", _CHUNKS),
    (r"gpu_memory|mem_fraction|kv_cache_memory|kvcache_ratio|swa_|gpu_blocks", _MEMORY),
    (r"^block_size$|prefix_caching_hash", _PAGES),
    (r"mamba|hybrid_kv|linear_attn", _RECURRENT),
    (r"hf_overrides|model_override|rope_|hf_config|config_format|override_attn|sliding_win|decrypted", _OVERRIDES),
    (r"generation_config|sampling_(defaults|params)|max_logprobs|logprobs_mode|auto_truncate", _SAMPLING),
    (r"^(task|runner|convert|is_embedding|model_impl)$|pooler|multi_item_scoring|prompt_embeds", _TASKS),
    (r"tokenizer_info|fastapi_docs|prompt_tokens_details|cache_report|return_hidden|return_tokens_as|usage|load_tracking"
     r"|request_id|priority_scheduling$|ssl_refresh", _ALWAYS),
    (r"priority|scheduling_policy|policy$", _PRIORITY),
    (r"tokenizer|detokeniz|tokens_only", _TOKENIZER),
    (r"ssl_|admin_api|api_keys", _KEYS),
    (r"^allow(ed)?_", _CORS),
    (r"root_path|^uds$|^grpc|h11", _PROXY),
    (r"gpu_id|numa|^device_ids|n_gpu_layers", _DEVICES),
    (r"api_server_count|headless|load_balance|frontend_multi", _PROCESSES),
    (r"loader|safetensors|load(_|ing)|weight|ckpt|pt_load", _WEIGHTS),
    (r"overlap|async|scheduler_steps|multi_step|decode_steps|delay_factor|recv_interval|stream_interval"
     r"|incremental_streaming|micro_batch|batch_depth", _OVERLAP),
    (r"attention|attn|flashinfer|triton|cascade|nccl|symm|mscclpp|p2p|gemm|sampling_backend|fused|fusion|kernel|^(nsa|dsa)_"
     r"|deterministic|nan|v2_block|kv_sharing|all_?reduce|context_interleave|interleave_size", _KERNELS),
    (r"^(warmups|skip_server_warmup)$", _GRAPHS),
    (r"^(additional_config|kernel_config|performance_mode|shutdown_timeout|fail_on_environ_validation|sleep_on_idle|numactl"
     r"|collect_tokens|debug_|msprobe|use_tqdm|dllm_|rl_|file_storage)", _INTERNAL),
)  # fmt: skip
"""Patterns of names, and the sentence for an option whose name has the pattern. The first that fits counts."""


def full_name(flag: str) -> str:
    """Return the long name of a flag of the command line, as the keys of this module are spelled."""
    name = flag.lstrip("-").replace("-", "_")
    if flag.startswith("--"):
        return name
    return _SHORT_NAMES.get(name) or ("optimization_level" if re.fullmatch(r"O\d", name) else name)


def sentence(name: str) -> str | None:
    """Return what to say about an option of another engine; None if the name is not known."""
    return next((text for pattern, text in SENTENCES if re.search(pattern, name)), None)


def same_value(option: str, value: object) -> object:
    """Return the value of an option of radixrt that a value of another engine stands for; other values as they are."""
    return SAME_VALUES.get(option, {}).get(value, value) if isinstance(value, str) else value


def nearest_value(option: str, value: object) -> str:
    """Return part of a sentence about a value of another engine that radixrt does not have; empty if it is unknown."""
    patterns = _NEAREST_VALUES.get(option, ())
    return next((text for pattern, text in patterns if re.search(pattern, str(value).lower())), "")
