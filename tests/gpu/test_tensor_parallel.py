"""Tensor parallelism on GPUs: all-reduces and gathers, eager and captured, and the same tokens as on one GPU."""

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
from tests.tiny_models import make_tiny_model

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="fewer than two CUDA devices")]

OPTIONS: dict[str, Any] = {
    "kv_cache_tokens": 8192, "device": "cuda", "show_progress": False, "max_running_requests": 32,
}  # fmt: skip
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
SEEDED = {"temperature": 0.8, "seed": 3, "max_tokens": 24, "ignore_eos": True}
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False,
}  # fmt: skip
SIZES = [size for size in (2, 4) if size <= GPUS]

START = """
import sys, torch
from radixrt.distributed.parallel import TPGroup, join, rank_device
from radixrt.distributed.rank_info import RankInfo
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.plain import Plain
from radixrt.layers.linear import Linear
from radixrt.distributed.partial_sum import PartialSum
rank, size, store, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
one_shot = how != "nccl"
if how == "one_shot, little memory":
    from radixrt.distributed import device_communicator as limits
    limits.PART_BYTES[size] = 1 << 20
rank_info = RankInfo(rank, size, rank, size, store, 60.0, one_shot)
device = rank_device(torch.device("cuda"), rank_info)
group = join(rank_info, device)
assert (group.communicator is not None) == one_shot, "one_shot did not come up"
ops = CudaOps(early=True)
weight = 1 + torch.arange(4096, device=device) / 4096
"""

SUMS = """
for dtype in (torch.float32, torch.bfloat16):
    for rows in (1, 3, 64, 512, 1000):  # two ranks: 512 of bfloat16 are more programs than a GPU holds at once
        x = torch.arange(rows * 4096, device=device).remainder(13).to(dtype).view(rows, 4096) + rank
        expected = size * (torch.arange(rows * 4096, device=device) % 13).to(dtype).view(rows, 4096)
        expected += size * (size - 1) // 2
        assert torch.equal(group.all_reduce(x.clone()), expected), (dtype, rows, "eager")
        static = x.clone()
        def work():
            out = group.all_reduce(static * 1)
            for _ in range(7):
                out = group.all_reduce(out / size)
            wide = group.all_gather_columns(out[:, :100].float() + rank, 150)
            kept = torch.zeros(rows, 4096, dtype=dtype, device=device)
            add = ops.all_reduce_add_rms_norm
            normed = [add(kept, PartialSum(static * 1), weight, 1e-6, dtype, group) for _ in range(3)]
            return out, wide, kept, normed
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            out, wide, kept, normed = work()
        for turn in range(20):
            static.copy_(x + turn)
            graph.replay()
            assert torch.equal(out, expected + size * turn), (dtype, rows, turn)
            both = torch.cat([out[:, :100].float(), out[:, :100].float() + 1], 1)[:, :150]
            assert torch.equal(wide, both), (dtype, rows, turn)
            summed = torch.zeros_like(kept)
            for each in normed:
                wanted = ops.add_rms_norm(summed, expected + size * turn, weight, 1e-6, dtype)
                torch.testing.assert_close(each, wanted, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
            assert torch.equal(kept, summed), (dtype, rows, turn)
        del graph  # NCCL does not end a group whose collectives a graph still holds
ids = torch.full((5,), rank, dtype=torch.int64, device=device)
assert group.broadcast(ids).tolist() == [0] * 5
assert group.minimum(7 + rank) == 7
"""

PRODUCTS = """
# as o of an 8B model on two ranks
linear = Linear([whole_weight("", 4096, 2048)], rank == 0, torch.bfloat16, Plain(ops))
generator = torch.Generator(device).manual_seed(1)
numbers = torch.randint(-2, 3, (size, 4096, 2048), generator=generator, device=device)
linear.weight = torch.nn.Parameter(numbers[rank].bfloat16(), requires_grad=False)
if rank == 0:
    linear.bias = torch.nn.Parameter(torch.arange(4096, device=device).bfloat16(), requires_grad=False)
linear.process_weights_after_loading()
for rows in (1, 2, 3, 64):
    static = torch.zeros(rows, 2048, dtype=torch.bfloat16, device=device)
    kept = torch.zeros(rows, 4096, dtype=torch.bfloat16, device=device)
    def work():
        kept.zero_()
        for _ in range(3):
            part = linear.partial_sum(static, group)
            ops.all_reduce_add_rms_norm(kept, part, weight, 1e-6, torch.float32, group)
        return part
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        part = work()
    assert part.sent, rows
    for turn in range(20):
        static.copy_(torch.randint(-2, 3, static.shape, generator=generator, device=device))
        graph.replay()
        bias = 0 if linear.bias is None else linear.bias.float()
        product = (static.float() @ linear.weight.float().t() + bias).bfloat16()
        product = group.all_reduce(product.float())
        summed = torch.zeros_like(kept)
        for _ in range(3):
            summed += product
        assert torch.equal(kept, summed), (rows, turn)
    del graph
"""

END = """
torch.cuda.synchronize()
group.close()
"""


@pytest.mark.parametrize("how", ["nccl", "one_shot", "one_shot, little memory"])
@pytest.mark.parametrize("size", SIZES)
def test_sums_eager_and_captured(size: int, how: str, tmp_path: Path) -> None:
    """With little memory a sum takes several launches. Four ranks' sums of more than some rows go another way."""
    run_ranks(START + SUMS + END, size, tmp_path / "store", how)


@pytest.mark.parametrize("size", SIZES)
def test_products_send_their_parts(size: int, tmp_path: Path) -> None:
    run_ranks(START + PRODUCTS + END, size, tmp_path / "store", "one_shot")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 64, which every attention kernel takes, and enough of them for four ranks."""
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "wide", "llama", hidden_size=256, num_attention_heads=8,
        num_key_value_heads=4, head_dim=64, intermediate_size=512, initializer_range=0.08,
        max_position_embeddings=2048,
    )  # fmt: skip


def tokens(folder: Path, inputs: list[list[int]], **options: Any) -> list[list[int]]:
    """Greedy outputs of all prompts at once, again from the cache, and seeded ones."""
    with radixrt.Engine(str(folder), **{**OPTIONS, **options}) as engine:
        runs = [engine.generate(inputs, params) for params in ([GREEDY] * 2 + [SEEDED])]
        engine.check_invariants()
    return [c.token_ids for run in runs for c in run]


@pytest.fixture(scope="module")
def of_one_gpu(model: Path) -> list[list[int]]:
    return tokens(model, prompts(), dtype="float32")


@pytest.mark.parametrize("options", [{}, {"max_inflight_steps": 1}, {"all_reduce": "nccl"}], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_float32_equals_one_gpu(size: int, options: dict[str, Any], model: Path, of_one_gpu: list[list[int]]) -> None:
    assert tokens(model, prompts(), dtype="float32", tp=size, **options) == of_one_gpu


@pytest.mark.parametrize("size", SIZES)
def test_long_steps_equal_one_gpus(size: int, model: Path) -> None:
    """Steps of thousands of tokens; with four ranks they take another all-reduce than a decode step does."""
    inputs = [[(i * k) % 400 + 3 for i in range(1900)] for k in range(3, 3 + 9)]
    options = {"dtype": "float32", "kv_cache_tokens": 20000, "chunked_prefill_size": 16384}
    assert tokens(model, inputs, tp=size, **options) == tokens(model, inputs, **options)


@pytest.mark.parametrize(("size", "all_reduce"), [(2, "nccl"), *((size, "one_shot") for size in SIZES)])
def test_one_row_is_the_same_however_its_steps_run(size: int, all_reduce: str, model: Path) -> None:
    """Captured at the start, when first needed, or not at all: a row alone meets the same kernels. The prompt is too
    long to be captured: that would pad it, and GEMMs round differently for another number of tokens. More
    than two ranks NCCL adds up in another order when captured; ours always in rank order."""
    one = [[i % 400 + 3 for i in range(1100)]]
    ways = [
        tokens(model, one, dtype="bfloat16", tp=size, all_reduce=all_reduce, cuda_graph=how)
        for how in ("off", "auto", "start")
    ]
    assert ways[0] == ways[1] == ways[2]


@pytest.mark.parametrize("all_reduce", ["nccl", "one_shot"])
@pytest.mark.parametrize("size", SIZES)
def test_captured_bfloat16_is_as_near_as_one_gpus(
    size: int, all_reduce: str, model: Path, of_one_gpu: list[list[int]]
) -> None:
    """Ranks round parts of a sum, so outputs part ways from one GPU's; from float32's no sooner than those do."""
    alone = tokens(model, prompts(), dtype="bfloat16", cuda_graph="start")
    split = tokens(model, prompts(), dtype="bfloat16", tp=size, cuda_graph="start", all_reduce=all_reduce)
    assert agreement(split, of_one_gpu) > agreement(alone, of_one_gpu) - 0.1


def test_a_mixed_batch_over_two_ranks(model: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {"json_schema": SCHEMA},
        {"temperature": 0.9, "top_p": 0.8, "top_k": 20, "seed": 1},
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 1.0, "frequency_penalty": 0.5, "seed": 2},
    ]
    params = [{"max_tokens": 24, **kinds[i % 4]} for i in range(12)]
    with radixrt.Engine(str(model), tp=2, dtype="bfloat16", **OPTIONS) as engine:
        answers = engine.generate(prompts()[:12], params)
        engine.check_invariants()
    for i, answer in enumerate(answers):
        assert answer.token_ids
        if i % 4 == 0:
            assert isinstance(json.loads(answer.text)["a"], int)
        if i % 4 == 2:
            assert [entry.token_id for entry in answer.logprobs] == answer.token_ids


def test_plain_rows_with_masks_alone(model: Path) -> None:
    """Captured steps whose rows are all greedy and constrained: the mask counts, though plain rows need no gather."""
    params = {"temperature": 0, "json_schema": SCHEMA, "max_tokens": 24}
    with radixrt.Engine(str(model), tp=2, dtype="float32", cuda_graph="start", **OPTIONS) as engine:
        split = [c.token_ids for c in engine.generate(prompts()[:6], params)]
    with radixrt.Engine(str(model), dtype="float32", cuda_graph="start", **OPTIONS) as engine:
        assert split == [c.token_ids for c in engine.generate(prompts()[:6], params)]


def test_dummy_weights_are_those_of_one_gpu(model: Path) -> None:
    options = {"dtype": "float32", "load_format": "dummy"}
    assert tokens(model, prompts()[:8], tp=2, **options) == tokens(model, prompts()[:8], **options)


@pytest.mark.skipif(GPUS >= 4, reason="every rank gets a device")
def test_more_ranks_than_devices_is_refused(model: Path) -> None:
    with pytest.raises(radixrt.EngineError, match="needs a CUDA device of its own"):
        radixrt.Engine(str(model), tp=4, **OPTIONS)
