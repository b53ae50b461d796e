"""Norm, rotary embedding and the store in one launch, against the reference in float64.

bfloat16 within a unit in its last place (2^-7 of the value; the reference's own roundings between the operations are
not there in float64), float32 within 1e-5, float8_e4m3fn within half of one (2^-4).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radixrt.attention.base import AttentionLayer
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.rotary import RopeSpec, rotary_table

pytestmark = pytest.mark.gpu

BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
TOLERANCE = {BF16: 2**-7, F32: 1e-5}
CONTEXT, SLOTS, EPS = 512, 64, 1e-6
SHAPES = [(16, 8, 128), (32, 8, 128), (9, 3, 64), (14, 2, 80), (1, 1, 16), (12, 4, 256)]


class Case:
    """One layer's projection of some tokens."""

    def __init__(self, heads: int, kv_heads: int, dim: int, tokens: int, dtype: torch.dtype, device: str) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(device, dtype)

        generator = torch.Generator().manual_seed(heads * dim + tokens)
        self.layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
        self.qkv = random(tokens, heads + 2 * kv_heads, dim)
        self.q_weight, self.k_weight = 1 + 0.1 * random(dim), 1 + 0.1 * random(dim)
        rope = RopeSpec(theta=10000.0)
        self.table = rotary_table(rope, dim, CONTEXT, dtype, torch.device(device))
        self.positions = torch.randint(0, CONTEXT, (tokens,), generator=generator).to(device)
        self.slots = (1 + torch.randperm(SLOTS - 1, generator=generator)[:tokens]).to(device)

    def expected(self, norm: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v in float64."""
        layer, wide = self.layer, self.qkv.double()
        q, k, v = wide.split((layer.num_heads, layer.num_kv_heads, layer.num_kv_heads), dim=1)
        if norm:
            size = (layer.head_dim,)
            q = F.rms_norm(q, size, self.q_weight.double(), EPS)
            k = F.rms_norm(k, size, self.k_weight.double(), EPS)
        rows = self.table.double()[self.positions]
        q, k = (x * rows[:, :1] + x.roll(layer.head_dim // 2, -1) * rows[:, 1:] for x in (q, k))
        return q, k, v

    def prepare(self, norm: bool, pool: tuple[torch.Tensor, torch.Tensor] | None):
        weights = (self.q_weight, self.k_weight) if norm else (None, None)
        return CudaOps().prepare_heads(
            self.qkv, self.layer, self.positions, self.table, *weights, EPS, pool, self.slots
        )


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    # A rotated value is the difference of two products, so it is measured by the size of the values, not by its own.
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(
        found.double(), expected, rtol=TOLERANCE[found.dtype], atol=TOLERANCE[found.dtype] * scale / 64
    )


def pools(case: Case, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (SLOTS, case.layer.num_kv_heads, case.layer.head_dim)
    both = torch.full((2, *shape), 7.0, device=case.qkv.device)
    return both[0].to(dtype), both[1].to(dtype)


@pytest.mark.parametrize(("dim", "rotary"), [(256, 64), (80, 20)])
def test_part_of_a_head_is_rotated_beside_other_columns(triton_device: str, dim: int, rotary: int) -> None:
    """As in Qwen3.5: the projection has a gate behind v, norms have float32 weights, and few dimensions are rotated."""
    case = Case(4, 2, dim, 5, BF16, triton_device)
    expected_v = case.qkv[:, 6:].double()
    wide = torch.cat((case.qkv.flatten(1), case.qkv.flatten(1)), dim=1)
    case.qkv = wide[:, : 8 * dim].view(5, 8, dim)
    case.q_weight, case.k_weight = (1 + torch.randn(dim, device=triton_device) / 300 for _ in range(2))
    case.table = rotary_table(RopeSpec(theta=1e4), rotary, CONTEXT, F32, torch.device(triton_device))
    pool = pools(case, BF16)
    q, _, _ = case.prepare(True, pool)
    rows = case.table.double()[case.positions]
    cos, sin = rows[:, :1, : rotary // 2], rows[:, 1:, rotary // 2 :]
    for found, heads, weight in (
        (q, case.qkv[:, :4], case.q_weight),
        (pool[0][case.slots], case.qkv[:, 4:6], case.k_weight),
    ):
        expected = F.rms_norm(heads.double(), (dim,), weight.double(), EPS)
        low, high = expected[..., : rotary // 2].clone(), expected[..., dim // 2 : dim // 2 + rotary // 2].clone()
        expected[..., : rotary // 2] = low * cos - high * sin
        expected[..., dim // 2 : dim // 2 + rotary // 2] = high * cos + low * sin
        close(found, expected)
    close(pool[1][case.slots], expected_v)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
def test_stored_into_the_pool(triton_device: str, shape, norm: bool, tokens: int, dtype: torch.dtype) -> None:
    case = Case(*shape, tokens, dtype, triton_device)
    pool = pools(case, dtype)
    before = case.qkv.clone()
    q, k, v = case.prepare(norm, pool)
    expected_q, expected_k, expected_v = case.expected(norm)
    assert k is None
    assert v is None
    assert q.is_contiguous()
    assert torch.equal(case.qkv, before)
    close(q, expected_q)
    close(pool[0][case.slots], expected_k)
    assert torch.equal(pool[1][case.slots].double(), expected_v)
    others = torch.ones(SLOTS, dtype=torch.bool, device=triton_device)
    others[case.slots] = False
    assert (pool[0][others] == 7).all()
    assert (pool[1][others] == 7).all()


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "f32"])
def test_returned_without_a_pool(triton_device: str, norm: bool, dtype: torch.dtype) -> None:
    case = Case(9, 3, 64, 4, dtype, triton_device)
    q, k, v = case.prepare(norm, None)
    for found, expected in zip((q, k, v), case.expected(norm), strict=True):
        close(found, expected)


@pytest.mark.parametrize("shape", [(16, 8, 128), (9, 3, 64)], ids=str)
def test_stored_as_fp8(triton_device: str, shape) -> None:
    case = Case(*shape, 5, BF16, triton_device)
    case.qkv[0, -1, :3] = torch.tensor([1e4, -1e4, torch.nan])
    pool = pools(case, FP8)
    q, _, _ = case.prepare(True, pool)
    expected_q, expected_k, expected_v = case.expected(True)
    keys, values = (p[case.slots].double() for p in pool)
    close(q, expected_q)
    assert values[0, -1, :2].tolist() == [448.0, -448.0], "out of range is the largest there is"
    if triton_device == "cuda":  # the interpreter turns NaN into a number
        assert values[0, -1, 2].isnan()
    values[0, -1, :3] = expected_v[0, -1, :3] = 0
    for found, expected in ((keys, expected_k), (values, expected_v)):
        if triton_device == "cpu":  # the interpreter loses the carry where rounding reaches a power of two
            found = found.where(expected.abs().frexp().mantissa < 0.96, expected)
        torch.testing.assert_close(found, expected, rtol=2**-4 + 2**-7, atol=2**-9)


def test_strided_pools_and_many_tokens(triton_device: str) -> None:
    """Keys and values interleaved by slot in one tensor, as some backends lay them out."""
    case = Case(9, 3, 64, 50, BF16, triton_device)
    both = torch.zeros(SLOTS, 2, 3, 64, dtype=BF16, device=triton_device)
    case.prepare(False, (both[:, 0], both[:, 1]))
    _, expected_k, expected_v = case.expected(False)
    close(both[case.slots, 0], expected_k)
    assert torch.equal(both[case.slots, 1].double(), expected_v)


def test_what_the_kernel_does_not_take_goes_to_the_reference(triton_device: str) -> None:
    case = Case(4, 2, 32, 3, BF16, triton_device)
    wide = torch.zeros(3, 8, 64, dtype=BF16, device=triton_device)
    wide[..., :32] = case.qkv
    case.qkv = wide[..., :32]
    q, k, v = case.prepare(True, pools(case, BF16))
    assert q.is_contiguous()
    for found, expected in zip((q, k, v), case.expected(True), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=2**-5, atol=2**-5)
