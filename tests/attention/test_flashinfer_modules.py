"""FlashInfer's modules are loaded in the background, with fake modules: the tests need neither FlashInfer nor a GPU."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from radixrt.attention.flashinfer_modules import NICENESS, FlashInferModules

TIMEOUT_S = 60


@dataclass
class Spec:
    """Fake of FlashInfer's JitSpec. `build` waits for `together`, then notes its thread's priority."""

    name: str
    is_compiled: bool = False
    is_aot: bool = False
    together: threading.Barrier | None = None
    fails: bool = False
    niceness: list[int] = field(default_factory=list)
    loaded: threading.Event = field(default_factory=threading.Event)

    def build(self, verbose: bool) -> None:
        assert not verbose
        if self.together is not None:
            self.together.wait(TIMEOUT_S)
        if self.fails:
            raise RuntimeError("nvcc is not there")
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
    spec = Spec("a", fails=True)
    with caplog.at_level(logging.WARNING):
        modules = load(spec, Spec("b"))
        modules.wait()
    assert not modules.loaded
    assert not spec.loaded.is_set()
    assert "nvcc is not there" in caplog.text
    assert modules.error is not None
    assert "radixrt doctor" in modules.error
