"""Forms of the answers of routes about tokens and of those of operators; see `answer_types`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from radixrt.server.openapi.answer_types import Answer, ErrorDetail

# --- tokens ---


class Tokens(Answer, kw_only=True):
    """Token ids of a prompt."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(Answer, kw_only=True):
    """Text of token ids."""

    prompt: str


class ChatTemplates(Answer, kw_only=True):
    """Chat templates by name, as Jinja source, and the special tokens that they know by name."""

    templates: dict[str, str]
    special_tokens: dict[str, Any]


# --- management ---


class ModelCard(Answer, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None


class ModelList(Answer, kw_only=True):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(Answer, kw_only=True):
    """State of the server; `seconds` is the time that a deep check took, `replicas` the number in each state."""

    status: Literal["ok"]
    state: str
    replicas: dict[str, int] | UnsetType = UNSET
    seconds: float | UnsetType = UNSET


class Unavailable(Answer, kw_only=True):
    """State of a server that does not serve, and the reason."""

    status: Literal["unavailable"]
    state: str
    error: ErrorDetail


class Version(Answer, kw_only=True):
    """Version of radixrt."""

    version: str


class Aborted(Answer, kw_only=True):
    """Number of completions that were aborted."""

    aborted: int


class Released(Answer, kw_only=True):
    """The program was released."""

    status: Literal["ok"]


class NodeText(Answer, kw_only=True):
    """Text of the first tokens of a node of the radix tree."""

    node: int
    text: str
    tokens: int


class Flushed(Answer, kw_only=True):
    """The cache was flushed."""

    status: Literal["ok"]
    message: str


class Replica(Answer, kw_only=True):
    """One replica: its state, its processes, its load in the router and the latest numbers of its scheduler."""

    replica: int
    state: Literal["starting", "serving", "restarting", "draining", "drained", "fenced", "failed"]
    reason: str
    pids: dict[str, int]
    open: int
    queued: int
    predicted_wait_s: float
    fences: int
    running: int
    waiting: int
    slots_total: int
    slots_free: int
    slots_evictable: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class Replicas(Answer, kw_only=True):
    """All replicas, by number; none on a server without a router."""

    replicas: list[Replica]


class ReplicaChanged(Answer, kw_only=True):
    """The replica that was added, or is being changed."""

    status: Literal["ok"]
    replica: int
