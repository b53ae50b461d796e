"""Paths that clients of other servers ask for: redirects where the meaning is the same, else the name of the route."""

from __future__ import annotations

from collections.abc import Collection

from radixrt.server.access.checks import PROBES
from radixrt.suggestions import similar

_LORA = "LoRA adapters are not served: merge the adapter into the model"
_BATCHES = "batches are not served: send each request to its own route, all at the same time"
_FILES = "files are not stored: send texts in the requests themselves"
_STATIC = "the model and its weights stay as they are while the server runs: start another server"
_TEXT = "models read and write text only"

NAMES: tuple[tuple[str, str], ...] = (
    ("/v1/messages/batches", "batches are not served: send each request to /v1/messages, all at the same time"),
    ("/v1/batches", _BATCHES),
    ("/v1/files", _FILES),
    ("/v1/uploads", _FILES),
    ("/v1/vector_stores", _FILES),
    ("/v1/load_lora_adapter", _LORA),
    ("/v1/unload_lora_adapter", _LORA),
    ("/load_lora_adapter", _LORA),
    ("/unload_lora_adapter", _LORA),
    ("/v1/audio", _TEXT),
    ("/v1/images", _TEXT),
    ("/v1/fine_tuning", _STATIC),
    ("/update_weights", _STATIC),
    ("/sleep", _STATIC),
    ("/wake_up", _STATIC),
    ("/v1/assistants", "conversations are those of POST /v1/responses"),
    ("/v1/threads", "conversations are those of POST /v1/responses"),
    ("/v1/conversations", "conversations are those of POST /v1/responses, by previous_response_id"),
    ("/get_model_info", "ask GET /v1/models, and GET /tokenizer_info for the tokenizer"),
    ("/model_info", "ask GET /v1/models, and GET /tokenizer_info for the tokenizer"),
    ("/load", "ask GET /metrics"),
    ("/get_load", "ask GET /metrics"),
    ("/reset_prefix_cache", "send POST /flush_cache"),
    ("/abort_request", "send POST /abort"),
    ("/start_profile", "start the server with --step-trace FILE"),
    ("/stop_profile", "start the server with --step-trace FILE"),
    ("/encode", "send POST /v1/embeddings"),
    ("/embed", "send POST /v1/embeddings"),
    ("/embedding", "send POST /v1/embeddings"),
    ("/pooling", "send POST /v1/embeddings or /classify"),
    ("/completion", "send POST /v1/completions"),
    ("/invocations", "send POST /v1/chat/completions"),
    ("/api/generate", "send POST /v1/completions"),
    ("/api/chat", "send POST /v1/chat/completions"),
    ("/api/embed", "send POST /v1/embeddings"),
    ("/api/tags", "ask GET /v1/models"),
    ("/props", "ask GET /v1/models"),
    ("/slots", "ask GET /metrics"),
)
"""Paths, which may go on with further segments, and what stands in their place."""


def redirect(method: str, path: str, known: Collection[str]) -> str | None:
    """Return the path that a client of another server means, where its request can be sent there as it is.

    Args:
        known: paths of all routes.
    """
    if method in ("GET", "HEAD") and path in PROBES:
        return PROBES[path]
    return f"/v1{path}" if f"/v1{path}" in known else None


def advice(path: str, known: Collection[str]) -> str | None:
    """Return what a client that asks for a path can do instead; None if nothing is known about the path."""
    for name, text in NAMES:
        if path == name or path.startswith(f"{name}/"):
            return text
    if path.startswith("/v1/v1/"):
        return f"the base URL of the client ends with /v1 twice; the route is {path.removeprefix('/v1')}"
    alike = similar(path.rstrip("/"), [each for each in known if "{" not in each], 0.85)
    return None if alike is None else f"did you mean {alike}?"
