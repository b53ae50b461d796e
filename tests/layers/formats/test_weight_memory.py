"""Memory of the weights of compiled CPU kernels: aligned, apart from one another, freed, and in large pages."""

from __future__ import annotations

import gc
import mmap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.layers.formats import weight_memory
from radixrt.layers.formats.weight_memory import LINE, WeightMemory

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MIB = 1 << 20


def mapping_of(address: int) -> str:
    """Return the entry of this process's memory map that has an address; empty where none has."""
    found: list[str] = []
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in (first := line.split()[0]) and not first.endswith(":"):
            low, high = (int(number, 16) for number in first.split("-"))
            inside = low <= address < high
            if not inside and found:
                break
        if inside:
            found.append(line)
    return "\n".join(found)


def test_weights_lie_apart_and_are_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "CHUNK", 4096)
    memory, made = WeightMemory(), []
    for i, shape in enumerate([(3, 5), (700,), (2, 3, 4), (900,), (5000,), (1,), (64, 16)]):
        weight = memory.empty(*shape, dtype=torch.bfloat16)
        assert weight.shape == shape
        assert weight.is_contiguous()
        assert weight.data_ptr() % LINE == 0
        made.append(weight.fill_(i))
    assert all(bool((weight == i).all()) for i, weight in enumerate(made))


def test_small_weights_share_a_chunk_also_behind_a_large_one() -> None:
    memory = WeightMemory()
    first = memory.empty(MIB, dtype=torch.uint8)
    memory.empty(weight_memory.CHUNK + 1, dtype=torch.uint8)
    assert memory.empty(MIB, dtype=torch.uint8).data_ptr() == first.data_ptr() + MIB


def test_a_chunk_is_freed_with_its_last_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks: list[weakref.ref[mmap.mmap]] = []
    make = mmap.mmap

    def made(*args: Any, **kwargs: Any) -> mmap.mmap:
        chunk = make(*args, **kwargs)
        chunks.append(weakref.ref(chunk))
        return chunk

    monkeypatch.setattr(mmap, "mmap", made)
    memory = WeightMemory()
    weights = [memory.empty(MIB, dtype=torch.uint8) for _ in range(2)]
    (chunk,) = chunks
    del memory, weights[0]
    gc.collect()
    assert chunk() is not None
    weights.clear()
    gc.collect()
    assert chunk() is None


def test_weights_are_in_large_pages() -> None:
    if not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text():
        pytest.skip("this system has no large pages")
    weight = WeightMemory().empty(16 * MIB, dtype=torch.uint8)
    flags = next(line for line in mapping_of(weight.data_ptr()).splitlines() if line.startswith("VmFlags:"))
    assert "hg" in flags.split()
