"""Answers of the routes about tokens and of the routes for operators."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from radixrt.server.answers.base import Answer
from radixrt.server.answers.errors import ErrorDetail

# --- tokens ---


class Tokens(Answer):
    """Token ids of a prompt."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(Answer):
    """Text of token ids."""

    prompt: str


class ChatTemplates(Answer):
    """Chat templates by name, as Jinja source, and the special tokens that they know by name."""

    templates: dict[str, str]
    special_tokens: dict[str, Any]


# --- management ---


class ModelCard(Answer, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "radixrt"
    root: str
    parent: str | None = None
    max_model_len: int | None


class ModelList(Answer, kw_only=True):
    """All models that are served: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(Answer, kw_only=True):
    """State of the server; `seconds` is the time that a deep check took, `replicas` the number in each state."""

    status: Literal["ok"] = "ok"
    state: str
    replicas: dict[str, int] | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


class Unavailable(Answer, kw_only=True):
    """State of a server that does not serve, and the reason."""

    status: Literal["unavailable"] = "unavailable"
    state: str
    error: ErrorDetail


class Version(Answer):
    """Version of radixrt."""

    version: str


class Weights(Answer):
    """Formats of the weights of linear layers, experts and the output head: `scheme` names those of quantized weights,
    or is "plain"; `kernels` multiply by them; `quantized` is their share of the weights, from 0 to 1."""

    scheme: str
    kernels: list[str]
    quantized: float


class ServerInfo(Answer, kw_only=True):
    """What is served, and on what; the sizes are in tokens, and those of all replicas in which any request fits."""

    version: str
    model: str
    device: str
    dtype: str
    kv_cache_dtype: str
    weights: Weights
    context_length: int
    kv_cache_tokens: int
    max_running_requests: int
    tool_call_format: str
    roles: list[Literal["both", "prefill", "decode"]] | UnsetType = UNSET


class Aborted(Answer):
    """Number of completions that were aborted."""

    aborted: int


class Released(Answer):
    """The program was released."""

    status: Literal["ok"] = "ok"


class NodeTiers(Answer):
    """Tokens from the root of the radix tree to a node's end that are kept outside of the KV pool too, by tier."""

    node: int
    kept: dict[str, int]


class NodeText(Answer):
    """Text of the first tokens of a node of the radix tree."""

    node: int
    text: str
    tokens: int


class Flushed(Answer, kw_only=True):
    """The cache was flushed."""

    status: Literal["ok"] = "ok"
    message: str


class Forgotten(Answer, kw_only=True):
    """Cached prompts were dropped."""

    status: Literal["ok"] = "ok"


class Replica(Answer):
    """One replica: its state, its processes, its load in the router and the latest numbers of its scheduler, which are
    0 until they are known."""

    replica: int
    state: Literal["starting", "serving", "restarting", "draining", "drained", "fenced", "failed"]
    reason: str
    pids: dict[str, int]
    role: Literal["both", "prefill", "decode"] = "both"
    open: int = 0
    queued: int = 0
    predicted_wait_s: float = 0.0
    fences: int = 0
    prefills: int = 0
    running: int = 0
    waiting: int = 0
    slots_total: int = 0
    slots_free: int = 0
    slots_evictable: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class Replicas(Answer):
    """All replicas, by number; none on a server without a router."""

    replicas: list[Replica]


class ReplicaChanged(Answer, kw_only=True):
    """The replica that was added, or is being changed."""

    status: Literal["ok"] = "ok"
    replica: int
