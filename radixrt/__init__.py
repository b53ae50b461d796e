"""radixrt: an inference engine for programs that call a language model many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt._version import __version__

if TYPE_CHECKING:
    from radixrt.engine.engine import Chunk, Completion, Engine
    from radixrt.errors import ConfigError, EngineError, ModelLoadError, RadixRTError, RequestError
    from radixrt.lang.backends.base import Unsupported
    from radixrt.lang.backends.default import set_default_backend
    from radixrt.lang.backends.openai import OpenAI
    from radixrt.lang.backends.token_backend import Endpoint
    from radixrt.lang.core.embedding import embed
    from radixrt.lang.core.function import Function, ProgramStream, function
    from radixrt.lang.core.primitives import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        image,
        role,
        role_begin,
        role_end,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from radixrt.lang.core.reranking import rerank
    from radixrt.lang.core.state import Branches, State, join
    from radixrt.lang.core.streaming import StreamEvent
    from radixrt.lang.errors import CallError, NotReadyError, ProgramCancelled, ProgramError
    from radixrt.lang.observe.trace import read_trace, trace
    from radixrt.sampling_params import SamplingParams

_HOMES = {
    "Chunk": "radixrt.engine.engine",
    "Completion": "radixrt.engine.engine",
    "Engine": "radixrt.engine.engine",
    "ConfigError": "radixrt.errors",
    "EngineError": "radixrt.errors",
    "ModelLoadError": "radixrt.errors",
    "RadixRTError": "radixrt.errors",
    "RequestError": "radixrt.errors",
    "SamplingParams": "radixrt.sampling_params",
    "assistant": "radixrt.lang.core.primitives",
    "assistant_begin": "radixrt.lang.core.primitives",
    "assistant_end": "radixrt.lang.core.primitives",
    "Branches": "radixrt.lang.core.state",
    "CallError": "radixrt.lang.errors",
    "embed": "radixrt.lang.core.embedding",
    "Endpoint": "radixrt.lang.backends.token_backend",
    "Function": "radixrt.lang.core.function",
    "function": "radixrt.lang.core.function",
    "gen": "radixrt.lang.core.primitives",
    "image": "radixrt.lang.core.primitives",
    "join": "radixrt.lang.core.state",
    "NotReadyError": "radixrt.lang.errors",
    "OpenAI": "radixrt.lang.backends.openai",
    "ProgramCancelled": "radixrt.lang.errors",
    "ProgramError": "radixrt.lang.errors",
    "ProgramStream": "radixrt.lang.core.function",
    "read_trace": "radixrt.lang.observe.trace",
    "rerank": "radixrt.lang.core.reranking",
    "role": "radixrt.lang.core.primitives",
    "role_begin": "radixrt.lang.core.primitives",
    "role_end": "radixrt.lang.core.primitives",
    "select": "radixrt.lang.core.primitives",
    "set_default_backend": "radixrt.lang.backends.default",
    "State": "radixrt.lang.core.state",
    "StreamEvent": "radixrt.lang.core.streaming",
    "system": "radixrt.lang.core.primitives",
    "system_begin": "radixrt.lang.core.primitives",
    "system_end": "radixrt.lang.core.primitives",
    "trace": "radixrt.lang.observe.trace",
    "Unsupported": "radixrt.lang.backends.base",
    "user": "radixrt.lang.core.primitives",
    "user_begin": "radixrt.lang.core.primitives",
    "user_end": "radixrt.lang.core.primitives",
}

__all__ = [
    "Branches",
    "CallError",
    "Chunk",
    "Completion",
    "ConfigError",
    "Endpoint",
    "Engine",
    "EngineError",
    "Function",
    "ModelLoadError",
    "NotReadyError",
    "OpenAI",
    "ProgramCancelled",
    "ProgramError",
    "ProgramStream",
    "RadixRTError",
    "RequestError",
    "SamplingParams",
    "State",
    "StreamEvent",
    "Unsupported",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "embed",
    "function",
    "gen",
    "image",
    "join",
    "read_trace",
    "rerank",
    "role",
    "role_begin",
    "role_end",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "trace",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> Any:
    # Imported when first used: `import radixrt` and `radixrt --help` must stay instant.
    if name not in _HOMES:
        raise AttributeError(f"module 'radixrt' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
