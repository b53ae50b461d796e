"""The kernels of all steps are compiled ahead, each once, and nothing is launched; no GPU is needed."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled"),
]


class Driver:
    """Replaces Triton's driver on a machine without a GPU: an H200 that accepts every kernel."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.utils = SimpleNamespace(
            load_binary=self._load, unload_module=lambda _: None,
            get_device_properties=lambda _: {"max_shared_mem": 232448},
        )  # fmt: skip

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        assert device == 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, *_: Any) -> Any:
        def launch(*_: Any) -> None:
            raise AssertionError("a kernel was launched")

        return launch

    def _load(self, name: str, *_: Any) -> tuple[int, ...]:
        self.loaded.append(name)
        return 1, 1, 0, 0, 1024


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    from triton.runtime import driver as triton_driver

    fake = Driver()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(triton_driver, "_active", fake)
    return fake


def test_each_kernel_is_compiled_and_loaded_once(driver: Driver) -> None:
    from radixrt.kernels.triton.compile_ahead import compiling
    from radixrt.kernels.triton.kv_indices import _kv_indices_kernel, write_kv_indices

    table = torch.zeros(2, 64, dtype=torch.int32)
    ends = torch.arange(4, dtype=torch.int32)
    _kv_indices_kernel.device_caches.clear()
    with compiling() as names:
        for row in (0, 1):  # at any alignment
            rows = torch.zeros(4, dtype=torch.int64)[row : row + 1]
            for starts in (None, ends):
                write_kv_indices(table, rows, ends, 1, torch.empty_like(ends), starts)
        assert names == []
    assert names == driver.loaded == ["_kv_indices_kernel"] * 2
    _kv_indices_kernel.device_caches.clear()
