"""Experts with weights of 8 and 4 bits: what the kernels compute with the dequantized weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.layers.formats.base import StoredParameter, Tensors
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.codes import Codes, Numbers, Scheme, dequantize, pack_nibbles
from radixrt.layers.formats.cuda_codes import CudaQuantized
from radixrt.layers.formats.cuda_expert_codes import packed_weights
from radixrt.layers.formats.online import Kind, OnlineQuantization
from radixrt.layers.formats.quantized import StoredLayout
from radixrt.layers.ops import TorchOps
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.kernels.test_triton_experts import biases, check, dtypes, make
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.gpu

SIZE = {"int8": 100.0, "e4m3": 300.0, "int4": 6.0, "e2m1": 4.0}
"""About the largest number of each kind."""
KINDS: dict[str, tuple[Numbers, dict[str, Any]]] = {
    "fp8 rows": ("e4m3", {}),
    "int8 rows": ("int8", {}),
    "int4 rows": ("int4", {}),
    "fp8 blocks": ("e4m3", {"block": 128, "group": 128}),
    "fp8 blocks of few rows": ("e4m3", {"block": 32, "group": 128}),
    "fp8 refined blocks": ("e4m3", {"group": 128}),
    "int4 groups": ("int4", {"group": 128}),
    "int4 groups with zeros": ("int4", {"group": 128, "zeros": True}),
    "int4 groups with minima": ("int4", {"group": 128, "minima": True}),
    "int8 groups with minima": ("int8", {"group": 128, "minima": True}),
    "int4 rows with zeros": ("int4", {"zeros": True}),
    "int4 small groups": ("int4", {"group": 32}),
    "int4 small groups with zeros": ("int4", {"group": 32, "zeros": True}),
    "int8 small groups": ("int8", {"group": 64}),
    "e2m1 groups, float16": ("e2m1", {"group": 32}),
    "e2m1 groups, large scales": ("e2m1", {"group": 32, "dtype": torch.bfloat16, "largest": 8.0}),
    "mxfp4": ("e2m1", {"group": 32, "dtype": torch.bfloat16}),
}


def random_codes(
    shape: tuple[int, int, int], numbers: Numbers, *, group: int = 0, block: int = 1, zeros: bool = False,
    minima: bool = False, dtype: torch.dtype | None = None, largest: float = 0.0, device: str = "cpu",
) -> Codes:  # fmt: skip
    """Random codes, all of which occur; scales are powers of two in bfloat16, and any in float16 or float32."""
    count, rows, columns = shape
    generator = torch.Generator().manual_seed(rows + columns + group)
    scheme = Scheme(numbers, block, group)
    codes = torch.randint(0, 256, (count, rows, columns), generator=generator, dtype=torch.uint8)
    if numbers == "e4m3":
        codes = torch.where(codes & 127 == 127, 0, codes)
    codes = codes.view(scheme.dtype) if scheme.bits == 8 else pack_nibbles(codes & 15)
    grid = (count, scheme.scale_rows(rows), scheme.groups(columns))
    scales = (torch.rand(grid, generator=generator) + 0.5) / SIZE[numbers] * columns**-0.5
    if dtype == torch.bfloat16:
        scales = torch.exp2(scales.log2().round())
    if largest:
        scales[0, 0, 0] = largest
    zero = torch.randint(0, 16, grid, generator=generator, dtype=torch.uint8) if zeros else None
    minimum = -8 * scales * torch.rand(grid, generator=generator) if minima else None
    kept = dtype or (torch.float16 if group == 32 else torch.float32)
    parts = (codes, scales.to(kept), zero, None if minimum is None else minimum.to(kept))
    return Codes(*(None if part is None else part.to(device) for part in parts), scheme)  # type: ignore[arg-type]


def numbers_of(weight: Codes, dtype: torch.dtype) -> torch.Tensor:
    """What the kernels multiply by: numbers times scales of small groups are rounded to the dtype of activations."""
    small = 0 < weight.scheme.columns < 128
    return dequantize(weight, dtype if small else torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(triton_device: str, kind: str) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    numbers, options = KINDS[kind]
    large = triton_device == "cuda"
    count, top_k, hidden, columns = (
        (8, 4, 1024, 704) if large else (3, 2, 256, 160)
    )  # the last groups of 160 are not full
    weights = [
        random_codes((count, rows, width), numbers, device=triton_device, **options)
        for rows, width in ((2 * columns, hidden), (hidden, columns))
    ]
    packed = [packed_weights(each) for each in weights]
    assert packed[0] is not None
    assert packed[1] is not None
    assert packed[0].numbers == ("mxfp4" if kind == "mxfp4" else numbers)
    for tokens in (1, 4, 5, 40, 200, 700) if large else (3, 18):
        for dtype in dtypes(triton_device):
            x, experts, chosen, *_ = make(triton_device, dtype, tokens, count, top_k, hidden, columns)
            found = CudaOps().run_experts(x, experts, chosen, packed[0], packed[1])
            assert found is not None
            check(found, (x, experts, chosen, *(numbers_of(each, dtype) for each in weights)))


def test_biases(triton_device: str) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    for tokens in (3, 18):
        for dtype in dtypes(triton_device):
            made = make(triton_device, dtype, tokens, 3, 2, 128, 64)
            weights = [random_codes(tuple(each.shape), "e4m3", device=triton_device) for each in made[3:]]  # type: ignore[arg-type]
            packed = [packed_weights(each) for each in weights]
            rule = biases(made)
            assert packed[0] is not None
            assert packed[1] is not None
            found = CudaOps().run_experts(*made[:3], packed[0], packed[1], rule)
            assert found is not None
            check(found, (*made[:3], *(dequantize(each) for each in weights)), rule)


@pytest.mark.parametrize(
    ("shape", "numbers", "options"),
    [
        ((2, 64, 96), "int4", {"group": 16}),
        ((2, 64, 192), "int4", {"group": 96}),
        ((2, 64, 384), "int8", {"group": 192}),
    ],
)
def test_other_groups_have_no_kernel(shape: tuple[int, int, int], numbers: Numbers, options: dict[str, Any]) -> None:
    assert packed_weights(random_codes(shape, numbers, **options)) is None


@dataclass(frozen=True)
class Given(StoredLayout):
    """Weights that are codes already."""

    weights: dict[str, Codes]

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        raise NotImplementedError

    def codes(self, tensors: Tensors) -> Codes:
        return self.weights[next(iter(tensors))]


@pytest.mark.parametrize("group", [0, 16])
def test_the_format_chooses_the_kernels_or_one_expert_after_the_other(triton_device: str, group: int) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    dtype = dtypes(triton_device)[0]
    x, experts, chosen, *_ = make(triton_device, dtype, 3, 3, 2, 128, 64)
    weights = {
        "gate_up": random_codes((3, 128, 128), "int4", group=group, device=triton_device),
        "down": random_codes((3, 128, 64), "int4", group=group, device=triton_device),
    }
    made = CudaQuantized(CudaOps(), Given(weights))
    gate_up, down = made.prepare_experts({"gate_up": x}, {"down": x}, biased=False)
    found = made.experts(gate_up, down, x, experts, chosen, None)
    if group:
        assert found is None
        assert torch.equal(made.expert(gate_up, 1).codes, weights["gate_up"].codes[1])
        return
    assert isinstance(gate_up, PackedWeights)
    assert found is not None
    check(found, (x, experts, chosen, *(dequantize(each) for each in weights.values())))


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_a_model_that_is_quantized_while_it_loads(triton_device: str, kind: Kind, tmp_path: Path) -> None:
    from radixrt.layers.cuda_ops import CudaOps

    folder = make_tiny_model(tmp_path / "m", "qwen3_moe", moe_intermediate_size=64)
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    spec = replace(spec, decoder=replace(spec.decoder, quantization=OnlineQuantization(kind)))
    generator = torch.Generator().manual_seed(0)
    x, scores = (torch.randn(5, size, generator=generator).to(triton_device) for size in (64, 8))
    weights, experts = scores.topk(3)
    found = []
    for ops in (CudaOps(), TorchOps()):
        model = load_model(folder, spec, dtype="float32", device=triton_device, ops=ops)
        assert isinstance(model, Decoder)
        mixture = model.layers[1].feed_forward.experts
        assert isinstance(mixture._gate_up, PackedWeights) == isinstance(ops, CudaOps)
        found.append(mixture(x, experts, weights.softmax(-1)))
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
