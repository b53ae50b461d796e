"""The backend of a program: the values that `backend=` takes, and the default.

If no default was set, the first program that needs one starts an `Engine` on the embedded model, which is closed when
the interpreter ends.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from typing import Any

from radixrt.errors import ConfigError, shown
from radixrt.lang.backends.base import Backend

_lock = threading.RLock()
_default: list[Backend] = []
_of_engines: weakref.WeakKeyDictionary[Any, Backend] = weakref.WeakKeyDictionary()


def set_default_backend(backend: Any) -> None:
    """Set the backend of programs that are run without `backend=`.

    Args:
        backend: an Engine, a Backend, the URL of a radixrt server, or None for the embedded model.
    """
    chosen = [] if backend is None else [as_backend(backend)]
    with _lock:
        _default[:] = chosen


def get_default_backend() -> Backend:
    """Return the default backend; start an engine on the embedded model if there is none.

    Raises:
        ModelLoadError, EngineError: that engine cannot be started.
    """
    with _lock:
        if not _default:
            from radixrt.engine.engine import Engine

            engine = Engine()
            atexit.register(engine.close)
            _default.append(as_backend(engine))
        return _default[0]


def as_backend(backend: Any = None) -> Backend:
    """Convert the value of `backend=` to a backend; None is the default.

    Raises:
        ConfigError: the value is not a backend.
    """
    if backend is None:
        return get_default_backend()
    if isinstance(backend, Backend):
        return backend
    if isinstance(backend, str):
        from radixrt.lang.backends.token_backend import Endpoint

        return Endpoint(backend)
    from radixrt.engine.engine import Engine

    if isinstance(backend, Engine):
        from radixrt.lang.backends.token_backend import EngineBackend

        with _lock:
            if backend not in _of_engines:
                _of_engines[backend] = EngineBackend(backend)
            return _of_engines[backend]
    raise ConfigError(
        f"backend must be an Engine, rt.Endpoint(url), rt.OpenAI(base_url, model) or a URL, not {shown(backend)}"
    )
