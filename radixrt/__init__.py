"""radixrt: an inference engine for programs that call a language model many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixrt._version import __version__

if TYPE_CHECKING:
    from radixrt.engine.engine import Chunk, Completion, Engine
    from radixrt.errors import ConfigError, EngineError, ModelLoadError, RadixRTError, RequestError
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
}

__all__ = [
    "Chunk",
    "Completion",
    "ConfigError",
    "Engine",
    "EngineError",
    "ModelLoadError",
    "RadixRTError",
    "RequestError",
    "SamplingParams",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Imported when first used: `import radixrt` and `radixrt --help` must stay instant.
    if name not in _HOMES:
        raise AttributeError(f"module 'radixrt' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
