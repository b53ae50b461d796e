"""Pipeline stages on GPUs: transfers beside computation and graphs, and the same tokens as on one GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import radixrt
from tests.distributed.rank_processes import run_ranks
from tests.equivalence.test_tiny_models import prompts
from tests.gpu.test_runner import agreement
from tests.gpu.test_tensor_parallel import OPTIONS, SCHEMA, tokens
from tests.tiny_models import make_tiny_model

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")]

TRANSFERS = """
import sys, torch
from radixrt.distributed.parallel import join, rank_device
from radixrt.distributed.pipeline import connect_stages
from radixrt.distributed.rank_info import RankInfo
rank, size, store, stages, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
info = RankInfo(rank, size, rank, size, store, 60.0, kind == "cuda", stages=stages)
device = rank_device(torch.device(kind), info)
group = join(info, device)
links = connect_stages(info, device)
assert links.is_last == (info.stage == stages - 1)
assert group.minimum(7 + rank) == 7
static = torch.zeros(2048, 2, 512, device=device)
side = 4096 if kind == "cuda" else 16
numbers = torch.zeros(side, side, device=device)
def work():
    for _ in range(4):  # so that the host is ahead of the device, and steps are on their way while others are computed
        torch.mm(numbers, numbers)
    static.add_(1.0)
replay = work
if kind == "cuda":
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    replay = graph.replay
static.zero_()
seen = []
for step in range(40):
    rows = (1, 7, 2048)[step % 3]
    received = links.receive(lambda: torch.empty(rows, 2, 512, device=device))
    assert (received is None) == (info.stage == 0)
    replay()
    group.all_reduce(torch.ones(4096, device=device))
    sent = static[:rows].clone() * (1 + info.tp_rank)
    if received is not None:
        seen.append((received.clone(), step))
        sent = received + sent
    links.send(sent)
for received, step in seen:  # each stage before adds step + 1
    assert torch.equal(received, torch.full_like(received, info.stage * (step + 1) * (1 + info.tp_rank))), step
links.close()
if kind == "cuda":
    torch.cuda.synchronize()
    del graph, replay
group.close()
"""


@pytest.mark.parametrize(("ranks", "stages"), [(2, 2), (4, 4), (4, 2)])
def test_hidden_states_arrive_as_they_were_sent(ranks: int, stages: int, tmp_path: Path) -> None:
    """Graphs are replayed into the same buffer while earlier steps are still being sent."""
    if ranks > GPUS:
        pytest.skip("too few CUDA devices")
    run_ranks(TRANSFERS, ranks, tmp_path / "store", stages, "cuda")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "wide", "llama", hidden_size=256, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, intermediate_size=512, initializer_range=0.08, num_hidden_layers=4,
        max_position_embeddings=2048,
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_one_gpu(model: Path) -> list[list[int]]:
    return tokens(model, prompts(), dtype="float32")


@pytest.mark.parametrize(
    "options",
    [{}, {"cuda_graph": "start"}, {"cuda_graph": "off"}, {"max_inflight_steps": 1}, {"chunked_prefill_size": 16}],
    ids=str,
)
def test_float32_equals_one_gpu(options: dict[str, Any], model: Path, of_one_gpu: list[list[int]]) -> None:
    assert tokens(model, prompts(), dtype="float32", pp=2, **options) == of_one_gpu


@pytest.mark.skipif(GPUS < 4, reason="fewer than four CUDA devices")
@pytest.mark.parametrize("options", [{"tp": 2, "pp": 2}, {"pp": 4}, {"tp": 2, "pp": 2, "all_reduce": "nccl"}], ids=str)
def test_float32_over_four_gpus(options: dict[str, Any], model: Path, of_one_gpu: list[list[int]]) -> None:
    assert tokens(model, prompts(), dtype="float32", **options) == of_one_gpu


def test_stages_of_unequal_graphs(model: Path, of_one_gpu: list[list[int]]) -> None:
    """With few captured buckets a stage pads a step that another one need not: what travels is the step's tokens."""
    assert tokens(model, prompts(), dtype="float32", pp=2, pp_layers="1,3", max_running_requests=7) == of_one_gpu


def test_bfloat16_in_graphs(model: Path, of_one_gpu: list[list[int]]) -> None:
    alone = tokens(model, prompts(), dtype="bfloat16", cuda_graph="start")
    split = tokens(model, prompts(), dtype="bfloat16", pp=2, cuda_graph="start")
    assert agreement(split, of_one_gpu) > agreement(alone, of_one_gpu) - 0.1


@pytest.mark.parametrize("kind", ["qwen3_next", "gpt_oss", "qwen3_moe"])
def test_other_kinds_of_layers(kind: str, tmp_path: Path) -> None:
    layers: dict[str, Any] = {"num_hidden_layers": 4}
    if kind == "qwen3_next":
        layers["layer_types"] = ["linear_attention", "full_attention"] * 2
    folder = make_tiny_model(tmp_path / "m", kind, **layers, max_position_embeddings=2048)
    alone = tokens(folder, prompts()[:12], dtype="float32")
    assert tokens(folder, prompts()[:12], dtype="float32", pp=2) == alone


def test_long_steps_equal_one_gpus(model: Path) -> None:
    inputs = [[(i * k) % 400 + 3 for i in range(1900)] for k in range(3, 3 + 9)]
    options = {"dtype": "float32", "kv_cache_tokens": 20000, "chunked_prefill_size": 4096}
    assert tokens(model, inputs, pp=2, **options) == tokens(model, inputs, **options)


def test_constrained_rows_and_log_probabilities(model: Path) -> None:
    params = [
        {"temperature": 0, "max_tokens": 24, "json_schema": SCHEMA},
        {"temperature": 0.9, "seed": 1, "max_tokens": 24, "ignore_eos": True, "top_k": 20, "frequency_penalty": 0.5},
        {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1},
    ] * 4
    found = []
    for stages in (1, 2):
        with radixrt.Engine(str(model), pp=stages, dtype="float32", cuda_graph="start", **OPTIONS) as engine:
            answers = engine.generate(prompts()[:12], params)
            engine.check_invariants()
        found.append([answer.token_ids for answer in answers])
        assert all(isinstance(json.loads(answer.text)["a"], int) for answer in answers[::3])
    assert found[0] == found[1]


def test_the_pool_is_that_of_all_gpus(model: Path) -> None:
    """Each GPU holds half of the layers, so that the same memory holds twice the tokens."""
    slots = []
    for stages in (1, 2):
        options = {**OPTIONS, "kv_cache_tokens": None, "memory_fraction": 0.0005}
        with radixrt.Engine(str(model), pp=stages, dtype="bfloat16", **options) as engine:
            assert engine.client.info is not None
            slots.append(engine.client.info.num_slots)
    assert slots[1] > 1.8 * slots[0], slots
