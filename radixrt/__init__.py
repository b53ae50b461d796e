"""radixrt: an inference engine for programs that call a language model many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt._version import __version__

if TYPE_CHECKING:
    from radixrt.engine.engine import Chunk, Completion, Engine
    from radixrt.errors import ConfigError, EngineError, ModelLoadError, RadixRTError, RequestError
    from radixrt.lang.backend import Unsupported
    from radixrt.lang.branches import Branches, join
    from radixrt.lang.endpoint import Endpoint
    from radixrt.lang.errors import CallError, NotReadyError, ProgramCancelled, ProgramError
    from radixrt.lang.function import Function, function
    from radixrt.lang.local import set_default_backend
    from radixrt.lang.openai_backend import OpenAI
    from radixrt.lang.run_stream import ProgramStream
    from radixrt.lang.state import State
    from radixrt.lang.streaming import StreamEvent
    from radixrt.lang.trace import trace
    from radixrt.lang.trace_file import read_trace
    from radixrt.lang.words import (
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
    "assistant": "radixrt.lang.words",
    "assistant_begin": "radixrt.lang.words",
    "assistant_end": "radixrt.lang.words",
    "Branches": "radixrt.lang.branches",
    "CallError": "radixrt.lang.errors",
    "Endpoint": "radixrt.lang.endpoint",
    "Function": "radixrt.lang.function",
    "function": "radixrt.lang.function",
    "gen": "radixrt.lang.words",
    "image": "radixrt.lang.words",
    "join": "radixrt.lang.branches",
    "NotReadyError": "radixrt.lang.errors",
    "OpenAI": "radixrt.lang.openai_backend",
    "ProgramCancelled": "radixrt.lang.errors",
    "ProgramError": "radixrt.lang.errors",
    "ProgramStream": "radixrt.lang.run_stream",
    "read_trace": "radixrt.lang.trace_file",
    "role": "radixrt.lang.words",
    "role_begin": "radixrt.lang.words",
    "role_end": "radixrt.lang.words",
    "select": "radixrt.lang.words",
    "set_default_backend": "radixrt.lang.local",
    "State": "radixrt.lang.state",
    "StreamEvent": "radixrt.lang.streaming",
    "system": "radixrt.lang.words",
    "system_begin": "radixrt.lang.words",
    "system_end": "radixrt.lang.words",
    "trace": "radixrt.lang.trace",
    "Unsupported": "radixrt.lang.backend",
    "user": "radixrt.lang.words",
    "user_begin": "radixrt.lang.words",
    "user_end": "radixrt.lang.words",
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
    "function",
    "gen",
    "image",
    "join",
    "read_trace",
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
