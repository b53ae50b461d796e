"""`FlashInferModules`: FlashInfer's kernels, loaded in the background, and compiled where this machine has not yet.

nvcc takes minutes of many cores for them. Steps do not wait: until the kernels are loaded, `varlen` computes prompts.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

logger = logging.getLogger(__name__)

NICENESS = 19
"""Lowest priority, for the compiler: the engine serves meanwhile."""

COMPILER_HINT = (
    "they are compiled once on each machine, by nvcc (of the CUDA that torch was built for) and ninja; `radixrt doctor "
    "--device cuda --attention-backend flashinfer` reports what is missing"
)

LAST_LINES = 5
MAX_LINE_CHARS = 300
"""Part of a compiler's output that is reported: its last lines, cut at this length, for commands are long."""

CLOSING_S = 2.0
"""Delay before compilers that were ended from outside are reported. If a closing engine ended the compilers, the
engine's process is gone soon, and nothing is reported."""

Loads = Callable[[], list[tuple[Any, Callable[[], Any]]]]
"""Returns each module's build specification (FlashInfer's JitSpec), and a function that loads the compiled module."""


class FlashInferModules:
    """Loads modules in a separate thread, which starts immediately.

    Args:
        find: see `Loads`; called in the thread.

    Attributes:
        error: the reason why the modules cannot be used; None while there is none.
    """

    def __init__(self, find: Loads) -> None:
        self.error: str | None = None
        self._find = find
        self._compiled_before = False
        self._known = threading.Event()  # whether they were compiled before
        self._finished = threading.Event()
        threading.Thread(target=self._run, name="radixrt-flashinfer", daemon=True).start()

    @property
    def loaded(self) -> bool:
        return self._finished.is_set() and self.error is None

    def wait(self, loading_s: float | None = None) -> None:
        """Wait until the modules are loaded, or cannot be.

        Args:
            loading_s: wait at most so many seconds for loading, and not for compilers; None to wait for both without
                limit.
        """
        if loading_s is None:
            self._finished.wait()
        elif self._known.wait(loading_s) and self._compiled_before:
            self._finished.wait(loading_s)  # a new installation of FlashInfer compiles them again

    def _run(self) -> None:
        try:
            self._load()
        except Exception as error:  # of any type: from ninja, nvcc, the loader or another version of FlashInfer
            self.error = f"its kernels cannot be loaded or compiled here ({_reason(error)}); {COMPILER_HINT}"
            if _was_ended(error):
                self._end()
                time.sleep(CLOSING_S)
            if threading.main_thread().is_alive():  # else the process exits, and no thread can be started any more
                logger.warning("prompts are computed by slower kernels: FlashInfer: %s", self.error)
        finally:
            self._end()

    def _end(self) -> None:
        self._known.set()
        self._finished.set()

    def _load(self) -> None:
        found = self._find()
        missing = [spec for spec, _ in found if not spec.is_compiled]
        self._compiled_before = not missing
        self._known.set()
        if missing:
            logger.info(
                "%d of FlashInfer's kernels are being compiled in the background; prompts are computed by slower "
                "kernels meanwhile",
                len(missing),
            )
        started = time.perf_counter()
        build_all([spec for spec, _ in found if not spec.is_aot])
        if missing:
            logger.info("compiled FlashInfer's kernels in %.0f s", time.perf_counter() - started)
        with ThreadPoolExecutor(len(found)) as pool:
            list(pool.map(lambda each: each[1](), found))


def build_all(specs: Sequence[Any]) -> None:
    """Compile modules that are not up to date, in parallel, at low priority, which a process inherits from the thread
    that starts it.

    Each module is built in its own folder: ninja rebuilds a module that is only in another folder's log (as with
    `flashinfer.jit.build_jit_specs`).
    """
    with ThreadPoolExecutor(max(1, len(specs)), initializer=_lower_priority) as pool:
        list(pool.map(lambda spec: spec.build(verbose=False), specs))


def _reason(error: Exception) -> str:
    """Return the error's last lines: FlashInfer appends ninja's output, at whose end the cause stands."""
    lines = [" ".join(line.split()) for line in f"{type(error).__name__}: {error}".splitlines()]
    return " | ".join([line[:MAX_LINE_CHARS] for line in lines if line][-LAST_LINES:])


def _was_ended(error: Exception) -> bool:
    """Return True if ninja, or a compiler that it started, was ended by a signal."""
    cause = error.__cause__
    killed = isinstance(cause, subprocess.CalledProcessError) and cause.returncode < 0
    return killed or "interrupted by user" in f"{error}"  # ninja says so of SIGINT, SIGTERM and SIGHUP


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)  # on Linux this is the thread's alone


def check_supported(dtype: torch.dtype, head_dim: int) -> None:
    """Raise ValueError if there are no kernels for a model's dtype or head size."""
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"FlashInfer computes in float16 or bfloat16, not {dtype}")
    if head_dim not in (64, 128, 256):
        raise ValueError(f"head_dim {head_dim} is none of 64, 128 and 256")


def load_modules(
    windows: Iterable[int | None], *, head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, device: torch.device
) -> FlashInferModules:
    """Begin to load the modules for prompts of a model.

    Args:
        windows: sliding windows of the layers.
        dtype, kv_dtype: dtypes of queries and of the pool.

    Raises:
        ImportError: FlashInfer or Triton is not installed.
        ValueError: there are no such kernels.
    """
    check_supported(dtype, head_dim)
    for package in ("flashinfer", "triton"):
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"No module named {package!r}")
    windowed = {window is not None for window in windows}

    def find() -> list[tuple[Any, Callable[[], Any]]]:
        from flashinfer.jit import gen_batch_prefill_module
        from flashinfer.prefill import get_batch_prefill_module
        from flashinfer.utils import determine_attention_backend

        # Prompts read keys of the queries' dtype, but for rows of few queries.
        kinds = {(str(determine_attention_backend(device, 0, False, False, dtype, dtype)), dtype), ("fa2", kv_dtype)}
        # No positional encoding, no logits cap, no accumulation in half precision.
        arguments = [
            (name, dtype, of, dtype, torch.int32, head_dim, head_dim, 0, has_window, False, False)
            for name, of in kinds
            for has_window in windowed
        ]
        return [
            (gen_batch_prefill_module(*each), functools.partial(get_batch_prefill_module, *each)) for each in arguments
        ]

    return FlashInferModules(find)
