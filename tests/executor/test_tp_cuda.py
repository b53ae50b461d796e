"""Tensor parallelism on GPUs: sums eager and in graphs, and the same tokens as one GPU's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import radixrt
from radixrt.config import ExecutorConfig
from tests.equivalence.test_tiny_models import prompts
from tests.tiny_models import make_tiny_model

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")]

OPTIONS: dict[str, Any] = {"dtype": "float32", "kv_cache_tokens": 8192, "device": "cuda", "show_progress": False}
HAS_GRAPHS = "cuda_graph" in ExecutorConfig.__dataclass_fields__
SIZES = [size for size in (2, 4) if size <= GPUS]

SUMS = """
import sys, torch
from radixrt.executor.parallel import TPGroup, join, rank_device
from radixrt.executor.rank_place import RankPlace
rank, size, store, one_shot = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "one_shot"
place = RankPlace(rank, size, rank, size, store, 60.0, one_shot)
device = rank_device(torch.device("cuda"), place)
group = join(place, device)
if one_shot:
    assert group._one_shot is not None, "one_shot did not come up"
for dtype in (torch.float32, torch.bfloat16):
    for rows in (1, 3, 64, 1000):
        x = torch.arange(rows * 4096, device=device).remainder(13).to(dtype).view(rows, 4096) + rank
        expected = size * (torch.arange(rows * 4096, device=device) % 13).to(dtype).view(rows, 4096)
        expected += size * (size - 1) // 2
        assert torch.equal(group.all_reduce(x.clone()), expected), (dtype, rows, "eager")
        static = x.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out = group.all_reduce(static * 1)
            for _ in range(7):
                out = group.all_reduce(out / size)
            wide = group.gather_columns(out[:, :100].float(), 150)
        for turn in range(20):
            static.copy_(x + turn)
            graph.replay()
            assert torch.equal(out, expected + size * turn), (dtype, rows, turn)
            both = torch.cat([out[:, :100].float()] * 2, 1)[:, :150]
            assert torch.equal(wide, both if size == 2 else torch.cat([both] * 2, 1)[:, :150])
ids = torch.full((5,), rank, dtype=torch.int64, device=device)
assert group.broadcast(ids).tolist() == [0] * 5
assert group.minimum(7 + rank) == 7
torch.cuda.synchronize()
group.close()
"""


@pytest.mark.parametrize("how", ["nccl", "one_shot"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_eager_and_captured(size: int, how: str, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SUMS, str(rank), str(size), str(tmp_path / "store"), how],
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()


def tokens(folder: Path, **options: Any) -> list[list[int]]:
    """Greedy and seeded outputs of many prompts at once and again from the cache."""
    inputs = prompts()
    greedy = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    seeded = {"temperature": 0.8, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    with radixrt.Engine(str(folder), **{**OPTIONS, **options}) as engine:
        runs = [engine.generate(inputs, params) for params in (greedy, greedy, seeded)]
        engine.check_invariants()
    return [c.token_ids for run in runs for c in run]


def variants() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{}, {"max_inflight_steps": 1}, {"all_reduce": "one_shot"}]
    if HAS_GRAPHS:
        found += [{"cuda_graph": kind} for kind in _other_graph_settings()]
    return found


def _other_graph_settings() -> list[Any]:
    field = ExecutorConfig.__dataclass_fields__["cuda_graph"]
    choices = field.metadata["choices"] or (True, False)
    return [choice for choice in choices if choice != field.default]


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64, which every attention kernel takes, and enough of them for four ranks."""
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "wide", "llama", hidden_size=256, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, intermediate_size=512, initializer_range=0.08,
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_one_gpu(wide_model: Path) -> list[list[int]]:
    return tokens(wide_model)


@pytest.mark.parametrize("variant", variants(), ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_the_same_tokens_as_one_gpu(
    size: int, variant: dict[str, Any], wide_model: Path, of_one_gpu: list[list[int]]
) -> None:
    assert tokens(wide_model, tp=size, **variant) == of_one_gpu


def test_more_ranks_than_devices_is_refused(tiny_model: Callable[[str], Path]) -> None:
    if GPUS >= 4:
        pytest.skip("all ranks get a device")
    with pytest.raises(radixrt.EngineError, match="needs a CUDA device of its own"):
        radixrt.Engine(str(tiny_model("llama")), tp=4, **OPTIONS)


def test_dummy_weights_are_those_of_one_gpu(wide_model: Path) -> None:
    assert tokens(wide_model, tp=2, load_format="dummy") == tokens(wide_model, load_format="dummy")
