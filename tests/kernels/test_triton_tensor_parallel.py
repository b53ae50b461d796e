"""Kernels of tensor parallelism, by rank processes under Triton's interpreter that map files as symmetric memory.

Epochs, halves and flags are so tested by ranks that really wait for each other; tests/gpu does the same on GPUs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.distributed.rank_processes import TIMEOUT_S
from tests.tiny_models import make_tiny_model

CASES = {
    2: ("one-shot", "two-shot", "gemms", "all-gathers", "samples", "self-test", "model"),
    4: ("one-shot", "two-shot", "all-gathers", "samples"),
    8: ("one-shot", "two-shot"),
}
"""Cases by the number of ranks. Interpreting the kernels of more ranks than cores takes long."""
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo", "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


def _has_loops() -> bool:
    """Return True if this Triton's interpreter has loops with this NumPy."""
    import triton

    return _version(triton.__version__) >= (3, 7) or _version(np.__version__) < (2, 3)


@functools.cache
def passed(folder: Path) -> tuple[dict[int, set[str]], str]:
    """Run all cases in one start: by the number of ranks, the cases that every rank passed; and the errors."""
    groups = []
    for ranks, cases in CASES.items():
        names = [name for name in cases if name != "gemms" or _has_loops()]
        groups.append(f"{ranks}:{','.join(names)}")
        for name in names:
            (folder / str(ranks) / name).mkdir(parents=True)
    make_tiny_model(folder / "2" / "model" / "model", num_hidden_layers=1, vocab_size=64)
    code = "from tests.kernels.tensor_parallel_cases import main; main()"
    command = [sys.executable, "-c", code, str(folder), *groups]
    environment = {**os.environ, **ENVIRONMENT}
    errors = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment, timeout=TIMEOUT_S).stderr
    found = {}
    for ranks in CASES:
        files = [folder / str(ranks) / f"passed-{rank}" for rank in range(ranks)]
        found[ranks] = set.intersection(*(set(each.read_text().split()) if each.exists() else set() for each in files))
    return found, errors


@pytest.fixture(scope="session")
def rank_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("ranks", "name"), [(ranks, name) for ranks, names in CASES.items() for name in names])
def test_ranks_that_wait_for_each_other(ranks: int, name: str, rank_folder: Path) -> None:
    if name == "gemms" and not _has_loops():
        pytest.skip("the interpreter of this Triton has no loops with this NumPy")
    found, errors = passed(rank_folder)
    assert name in found[ranks], errors
