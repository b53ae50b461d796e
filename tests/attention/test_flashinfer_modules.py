"""FlashInfer's modules are loaded in the background, with fake modules: the tests need neither FlashInfer nor a GPU."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from radixrt.attention import flashinfer_modules
from radixrt.attention.flashinfer_modules import NICENESS, FlashInferModules

TIMEOUT_S = 60


@dataclass
class Spec:
    """Fake of FlashInfer's JitSpec. `build` waits for `together`, then notes its thread's priority."""

    name: str
    is_compiled: bool = False
    is_aot: bool = False
    together: threading.Barrier | None = None
    fails: Exception | None = None
    niceness: list[int] = field(default_factory=list)
    loaded: threading.Event = field(default_factory=threading.Event)

    def build(self, verbose: bool) -> None:
        assert not verbose
        if self.together is not None:
            self.together.wait(TIMEOUT_S)
        if self.fails is not None:
            raise self.fails
        self.niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))


def load(*specs: Spec) -> FlashInferModules:
    def found() -> list[tuple[Any, Callable[[], Any]]]:
        return [(spec, spec.loaded.set) for spec in specs]

    return FlashInferModules(found)


def test_all_modules_are_compiled_at_the_same_time_and_politely() -> None:
    together = threading.Barrier(2)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    specs = [Spec("a", together=together), Spec("b", True, is_aot=True), Spec("c", together=together)]
    modules = load(*specs)
    modules.wait()
    assert modules.loaded
    assert modules.error is None
    assert [spec.niceness for spec in specs] == [[NICENESS], [], [NICENESS]]
    assert all(spec.loaded.is_set() for spec in specs)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_nobody_waits_for_the_compiler_who_does_not_ask_for_it() -> None:
    together = threading.Barrier(2)
    modules = load(Spec("a", together=together))
    modules.wait(TIMEOUT_S)
    assert not modules.loaded
    together.wait(TIMEOUT_S)
    modules.wait()
    assert modules.loaded


def test_compiled_modules_are_waited_for() -> None:
    spec = Spec("a", True)
    modules = load(spec)
    modules.wait(TIMEOUT_S)
    assert modules.loaded
    assert spec.loaded.is_set()


def test_modules_of_another_installation_are_not() -> None:
    together = threading.Barrier(2)
    modules = load(Spec("a", True, together=together))
    modules.wait(0.01)
    assert not modules.loaded
    together.wait(TIMEOUT_S)
    modules.wait()
    assert modules.loaded


def test_without_a_compiler_nothing_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    spec = Spec("a", fails=RuntimeError("nvcc is not there"))
    with caplog.at_level(logging.WARNING):
        modules = load(spec, Spec("b"))
        modules.wait()
    assert not modules.loaded
    assert not spec.loaded.is_set()
    assert "nvcc is not there" in caplog.text
    assert modules.error is not None
    assert "radixrt doctor" in modules.error


def ninja_failed(output: str, code: int) -> RuntimeError:
    """Return the error that FlashInfer raises from ninja's."""
    error = RuntimeError(f"Ninja build failed. Ninja output:\n{output}")
    error.__cause__ = subprocess.CalledProcessError(code, "ninja", output)
    return error


def test_the_end_of_a_compilers_output_is_reported() -> None:
    compiled = [f"[{i}/11] nvcc {'-I/include ' * 200}" for i in range(11)]
    cause = ["FAILED: prefill.o", f"nvcc {'-D ' * 2000}", "a.cuh(3): error: no such type", "", "ninja: build stopped"]
    modules = load(Spec("a", fails=ninja_failed("\n".join([*compiled, *cause]), 1)))
    modules.wait()
    assert modules.error is not None
    assert "FAILED: prefill.o | nvcc -D" in modules.error
    assert "| a.cuh(3): error: no such type | ninja: build stopped)" in modules.error
    assert len(modules.error) < 1500


@pytest.mark.parametrize(
    "error", [ninja_failed("ninja: build stopped: interrupted by user.", 2), ninja_failed("[1/11] nvcc", -9)]
)
def test_compilers_ended_by_an_engine_that_closes_are_not_reported(
    error: RuntimeError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flashinfer_modules, "CLOSING_S", 3600.0)  # the process ends before
    with caplog.at_level(logging.WARNING):
        modules = load(Spec("a", fails=error))
        modules.wait()
        assert not modules.loaded
        assert not caplog.records


def test_compilers_ended_by_others_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flashinfer_modules, "CLOSING_S", 0.0)
    before = set(threading.enumerate())
    with caplog.at_level(logging.WARNING):
        modules = load(Spec("a", fails=ninja_failed("ninja: build stopped: interrupted by user.", 130)))
        for thread in set(threading.enumerate()) - before:
            if thread.name == "radixrt-flashinfer":
                thread.join(TIMEOUT_S)
    assert modules.error is not None
    assert "interrupted by user" in caplog.text
