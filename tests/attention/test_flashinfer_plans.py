"""Compilation of FlashInfer's modules, with fake modules: the tests need neither FlashInfer nor a GPU."""

from __future__ import annotations

import importlib.util
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@dataclass
class Spec:
    """Fake of FlashInfer's JitSpec: `build` compiles a module that is not up to date."""

    name: str
    together: threading.Barrier
    is_aot: bool = False
    fails: bool = False
    built: list[bool] = field(default_factory=list)

    def build(self, verbose: bool) -> None:
        self.together.wait(timeout=120)
        if self.fails:
            raise RuntimeError("nvcc is not there")
        self.built.append(verbose)


@dataclass
class Planner:
    specs: list[Spec]

    def modules(self) -> list[Any]:
        return self.specs


def build(*planners: Planner) -> None:
    from radixrt.attention import flashinfer_plans

    flashinfer_plans._build_at_once(planners)  # type: ignore[arg-type]


def test_each_module_is_built_once_and_all_at_the_same_time() -> None:
    together = threading.Barrier(3)
    a, b, c = (Spec(name, together) for name in "abc")
    again = Spec("a", together)
    ready = Spec("ready", together, is_aot=True)
    build(Planner([a, b, ready]), Planner([again, c]))
    assert a.built + again.built == [False]
    assert b.built == c.built == [False]
    assert ready.built == []


def test_what_fails_is_left_to_the_plan_that_needs_it() -> None:
    together = threading.Barrier(2)
    good = Spec("good", together)
    build(Planner([Spec("bad", together, fails=True), good]))
    assert good.built == [False]


def test_another_version_without_such_modules() -> None:
    build(Planner([object()]))  # type: ignore[list-item]
    build()
