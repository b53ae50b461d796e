"""Products with weights of 8 and 4 bits against float64: nothing is rounded but float32 sums and the result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations
from radixrt.kernels.triton.codes_gemm_config import find_config, find_float8_config
from radixrt.kernels.triton.skinny_gemm_config import MAX_PARTS, MAX_TILES, Config, padded_tokens
from radixrt.layers.cuda_ops import CudaOps
from radixrt.layers.formats.base import StoredParameter, Tensors
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.codes import Codes, Numbers, Scheme, code_values, dequantize, pack_nibbles
from radixrt.layers.formats.cuda_codes import CudaQuantized, fragment_codes
from radixrt.layers.formats.quantized import Quantized, StoredLayout, quantized_format
from radixrt.layers.ops import TorchOps

pytestmark = pytest.mark.gpu

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NUMBERS: tuple[Numbers, ...] = ("int8", "e4m3", "int4", "e2m1")
SIZE = {"int8": 100.0, "e4m3": 300.0, "int4": 6.0, "e2m1": 4.0}
"""About the largest number, by which scales are divided: the tests' results stay in the range of float16."""


def make(
    numbers: Numbers, rows: int, columns: int, *, group: int = 0, block: int = 1, zeros: bool = False,
    minima: bool = False, device: str = "cpu", dtype: torch.dtype = torch.float32,
) -> Codes:  # fmt: skip
    """A weight of random codes, all of which occur."""
    generator = torch.Generator().manual_seed(rows + columns + group)
    scheme = Scheme(numbers, block, group)
    groups, scale_rows = scheme.groups(columns), scheme.scale_rows(rows)
    codes = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    if numbers == "int8":
        codes = codes.view(torch.int8)
    elif numbers == "e4m3":
        codes = torch.where(codes & 127 == 127, 0, codes).view(torch.float8_e4m3fn)
    else:
        codes = pack_nibbles(codes & 15)
    scales = (torch.rand(scale_rows, groups, generator=generator) + 0.5) / SIZE[numbers] * columns**-0.5
    zero = torch.randint(0, 16, (rows, groups), generator=generator, dtype=torch.uint8) if zeros else None
    minimum = -8 * scales * torch.rand(rows, groups, generator=generator) if minima else None
    parts = (codes, scales.to(dtype), zero, None if minimum is None else minimum.to(dtype))
    return Codes(*(None if part is None else part.to(device) for part in parts), scheme)  # type: ignore[arg-type]


def activations(device: str, tokens: int, columns: int) -> torch.Tensor:
    """The interpreter multiplies no matrices of bfloat16."""
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(tokens))
    return x.to(device, torch.bfloat16 if device == "cuda" else torch.float16)


def exactly(weight: Codes, x: torch.Tensor, bias: torch.Tensor | None, gated: bool = False) -> torch.Tensor:
    numbers = Codes(weight.codes, weight.scales.double(), weight.zeros, weight.minima, weight.scheme)
    y = x.double() @ dequantize(numbers, torch.float64).T + (0.0 if bias is None else bias.double())
    if not gated:
        return y
    gate, up = y.chunk(2, dim=1)
    return gate * gate.sigmoid() * up


def check(found: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, rtol=unit, atol=unit * 2**-4)


SCHEMES: dict[str, dict[str, Any]] = {
    "rows": {},
    "blocks": {"group": 128, "block": 128},
    "groups": {"group": 128},
    "bf16 scales": {"group": 256, "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
@pytest.mark.parametrize("numbers", NUMBERS)
def test_each_form(triton_device: str, numbers: Numbers, scheme: dict[str, Any], gated: bool) -> None:
    from radixrt.kernels.triton import skinny_gemm

    rows, columns, workspace = 128, 256, skinny_gemm.Workspace(triton_device)
    weight = make(numbers, rows * (1 + gated), columns, device=triton_device, **scheme)
    words = fragment_codes(weight)
    assert words is not None
    bias = activations(triton_device, 1, weight.shape[0])[0]
    for tokens, cut in ((3, Config(64, 128, 1, 3, 4)), (18, Config(64, 128, 2, 3, 4, bulk=True))):
        x = activations(triton_device, tokens, columns)
        found = skinny_gemm.multiply(x, words, bias, workspace, cut, gated=gated)
        check(found, exactly(weight, x, bias, gated), x.dtype)


@pytest.mark.parametrize("kind", ["zeros", "minima", "zeros of rows"])
def test_int4_whose_zero_is_not_eight(triton_device: str, kind: str) -> None:
    from radixrt.kernels.triton import skinny_gemm

    group = 0 if kind == "zeros of rows" else 128
    weight = make("int4", 100, 384, group=group, zeros=kind != "minima", minima=kind == "minima", device=triton_device)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 5, 384)
    cut, workspace = Config(64, 128, 1, 3, 4), skinny_gemm.Workspace(triton_device)
    check(skinny_gemm.multiply(x, words, None, workspace, cut), exactly(weight, x, None), x.dtype)


def test_int8_with_minima(triton_device: str) -> None:
    from radixrt.kernels.triton import skinny_gemm

    weight = make("int8", 100, 384, group=128, minima=True, device=triton_device)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 5, 384)
    cut, workspace = Config(64, 128, 1, 3, 4), skinny_gemm.Workspace(triton_device)
    check(skinny_gemm.multiply(x, words, None, workspace, cut), exactly(weight, x, None), x.dtype)


@pytest.mark.parametrize(("numbers", "columns"), [("e4m3", 320), ("int8", 64)])
def test_columns_that_fill_no_step(triton_device: str, numbers: Numbers, columns: int) -> None:
    from radixrt.kernels.triton import skinny_gemm

    weight = make(numbers, 70, columns, device=triton_device)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 4, columns)
    for cut in (Config(64, 128, 1, 2, 4), Config(64, 256, 1, 2, 4)):
        found = skinny_gemm.multiply(x, words, None, skinny_gemm.Workspace(triton_device), cut)
        check(found, exactly(weight, x, None), x.dtype)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_every_code_exactly(triton_device: str, numbers: Numbers) -> None:
    from radixrt.kernels.triton import skinny_gemm

    values = torch.arange(256, dtype=torch.uint8)[None].repeat(64, 1)
    if numbers == "e4m3":
        values = torch.where(values & 127 == 127, 0, values)
    codes = pack_nibbles(values & 15) if numbers in ("int4", "e2m1") else values.view(Scheme(numbers).dtype)
    weight = Codes(codes.to(triton_device), torch.ones(64, 1, device=triton_device), None, None, Scheme(numbers))
    words = fragment_codes(weight)
    assert words is not None
    x = torch.eye(256, device=triton_device, dtype=activations(triton_device, 1, 1).dtype)
    workspace, cut = skinny_gemm.Workspace(triton_device), Config(64, 128, 1, 2, 4)
    found = [skinny_gemm.multiply(part, words, None, workspace, cut)[:, 0] for part in x.split(64)]
    assert torch.equal(torch.cat(found).float(), code_values(weight)[0])


@pytest.mark.parametrize("bits", [8, 4])
def test_order_of_codes(bits: int) -> None:
    """Thread t of four has sixteen bytes of a block in a row, whose pairs of columns are halves of words."""
    pytest.importorskip("triton")
    from radixrt.kernels.triton import weight_formats

    codes = torch.randint(0, 256, (3, 192), dtype=torch.uint8)
    words = weight_formats.in_fragment_order(codes, bits)
    assert torch.equal(weight_formats.from_fragment_order(words, bits), codes)
    block = weight_formats.BLOCK_8 if bits == 8 else weight_formats.BLOCK_4
    for column in range(block):
        one = torch.zeros(1, block, dtype=torch.uint8)
        one[0, column] = 1
        word = weight_formats.in_fragment_order(one if bits == 8 else pack_nibbles(one), bits).flatten().nonzero()
        assert word.item() // (block // 4 * bits // 32) == column // 2 % 4


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
def test_dequantization(triton_device: str, numbers: Numbers, scheme: dict[str, Any]) -> None:
    from radixrt.kernels.triton import codes

    weight = make(numbers, 130, 384, device=triton_device, **scheme)
    words = fragment_codes(weight)
    assert words is not None
    for dtype in {activations(triton_device, 1, 1).dtype, torch.float16, torch.float32}:
        out = torch.full((130, 384), torch.nan, dtype=dtype, device=triton_device)
        assert torch.equal(codes.dequantize(words, out), dequantize(weight, dtype))


def test_dequantization_with_zeros(triton_device: str) -> None:
    from radixrt.kernels.triton import codes

    weight = make("int4", 70, 256, group=128, zeros=True, device=triton_device)
    words = fragment_codes(weight)
    assert words is not None
    found = codes.dequantize(words, torch.empty(70, 256, device=triton_device))
    torch.testing.assert_close(found, dequantize(weight), rtol=1e-6, atol=1e-6)


class Given(StoredLayout):
    """The layout of a weight that a test has made."""

    def __init__(self, weight: Codes) -> None:
        self._weight = weight

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        raise NotImplementedError

    def codes(self, tensors: Tensors) -> Codes:
        return self._weight


WEIGHTS = {
    "rows": make("e4m3", 128, 256),
    "blocks": make("e4m3", 256, 512, group=128, block=128),
    "groups": make("int4", 128, 256, group=128, zeros=True),
    "small groups": make("int4", 128, 256, group=32),
    "groups of 16": make("e2m1", 128, 256, group=16),
    "odd columns": make("int8", 128, 96),
    "odd groups": make("int8", 128, 192, group=48),
}


@pytest.mark.parametrize("tokens", [0, 1, 40, 65, 130, 513])
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_format_of_cuda_is_that_of_its_reference(triton_device: str, name: str, tokens: int) -> None:
    weight = Codes(*(part.to(triton_device) if isinstance(part, torch.Tensor) else part for part in WEIGHTS[name]))
    ours, reference = quantized_format(CudaOps(), Given(weight)), Quantized(TorchOps(), Given(weight))
    assert isinstance(ours, CudaQuantized)
    rows, columns = weight.shape
    x, bias = activations(triton_device, tokens, columns), activations(triton_device, 1, rows)[0]
    own, others = ours.prepare({}, bias, gated=True), reference.prepare({}, bias)
    assert ours.kernels(own) == ("plain torch" if name.startswith("odd") else "Triton")
    # Activations in float8 round more.
    loose = ours.float8_group(own, tokens, x.dtype) is not None
    assert loose == (triton_device == "cuda" and tokens > {"rows": 32, "blocks": 64}.get(name, 1000))
    limit = 0.04 if loose else 4 * torch.finfo(x.dtype).eps
    for product in ("linear", "silu_and_mul"):
        found = getattr(ours, product)(own, x, bias).double()
        expected = getattr(reference, product)(others, x, bias).double()
        assert found.shape == expected.shape
        assert (found - expected).norm() <= limit * expected.norm()
    summed = ours.partial_sum(own, x, bias, None)
    assert not summed.sent
    assert torch.equal(summed.x, ours.linear(own, x, bias))


SHAPES = [(6144, 4096, False), (28672, 4096, True), (4096, 14336, False), (1024, 2048, False), (576, 1536, False),
          (128256, 4096, False), (96, 64, True)]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns", "gated"), SHAPES)
def test_tilings_fit(rows: int, columns: int, gated: bool) -> None:
    for tokens, bits, group in itertools.product((1, 16, 17, 64, 128, 256, 512), (4, 8), (0, 128)):
        cuts = [(find_config(tokens, rows, columns, gated=gated, bits=bits, group=group), 2)]
        if bits == 8 and (float8 := find_float8_config(tokens, rows, columns, gated=gated, group=group)):
            cuts.append((float8, 1))
        for cut, x_bytes in cuts:
            width, halves = min(padded_tokens(tokens), cut.tokens or 512), 1 + gated
            tiles = -(-rows // halves // cut.rows) * -(-tokens // width)
            assert not group or group % cut.step == 0
            assert cut.stages * cut.step * (cut.rows * halves * bits // 8 + x_bytes * width) <= 227 * 1024
            parts = tiles * cut.splits * cut.rows * width * halves
            assert cut.splits == 1 or (tiles <= MAX_TILES and parts <= MAX_PARTS)


FEW: dict[str, dict[str, Any]] = {**SCHEMES, "zeros": {"group": 128, "zeros": True}}


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("scheme", FEW.values(), ids=FEW.keys())
@pytest.mark.parametrize("numbers", NUMBERS)
def test_few_tokens(triton_device: str, numbers: Numbers, scheme: dict[str, Any], gated: bool) -> None:
    from radixrt.kernels.triton import codes_gemv

    if scheme.get("zeros") and numbers != "int4":
        pytest.skip("only int4 codes have zeros")
    ahead = codes_gemv.Cut(4, 1, x_ahead=True)
    for rows, columns, tokens, cut in ((37, 640, 1, codes_gemv.Cut(4, 1, 2)), (32, 1024, 4, ahead)):
        weight = make(numbers, rows * (1 + gated), columns, device=triton_device, **scheme)
        words = fragment_codes(weight)
        assert words is not None
        x = activations(triton_device, tokens, columns)
        slower = numbers == "int8" or (numbers == "e4m3" and gated and words.group > 0)
        assert codes_gemv.wins(x[:1], words, gated=gated) != slower
        bias = x[0, :1].repeat(weight.shape[0])
        found = codes_gemv.multiply(x, words, bias, gated=gated, cut=cut)
        check(found, exactly(weight, x, bias, gated), x.dtype)


@pytest.mark.parametrize("numbers", ["e4m3", "int4"])
@pytest.mark.parametrize("neighbours", [2, 4])
def test_few_tokens_in_either_order_of_columns(
    triton_device: str, monkeypatch: pytest.MonkeyPatch, numbers: Numbers, neighbours: int
) -> None:  # fmt: skip
    """The order depends on the version of Triton; a compiled kernel keeps the order of its own."""
    if triton_device == "cuda":
        pytest.skip("the interpreter reads the order at each call")
    import triton.language as tl

    from radixrt.kernels.triton import codes_gemv, weight_formats

    for module in (codes_gemv, weight_formats):
        monkeypatch.setattr(module, "NEIGHBOURS", tl.constexpr(neighbours))
    weight = make(numbers, 16, 512, group=128)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 3, 512)
    found = codes_gemv.multiply(x, words, None, cut=codes_gemv.Cut(2, 2))
    check(found, exactly(weight, x, None), x.dtype)


SMALL: dict[str, dict[str, Any]] = {
    "16": {"group": 16},
    "32, bf16 scales": {"group": 32, "dtype": torch.bfloat16},
    "64 x 64": {"group": 64, "block": 64},
    "32, zeros": {"group": 32, "zeros": True},
    "32, minima": {"group": 32, "minima": True},
}


@pytest.mark.parametrize("scheme", SMALL.values(), ids=SMALL.keys())
@pytest.mark.parametrize("numbers", NUMBERS)
def test_groups_smaller_than_a_step(triton_device: str, numbers: Numbers, scheme: dict[str, Any]) -> None:
    """Numbers are scaled and rounded before they are multiplied, as `dequantize` rounds them."""
    from radixrt.kernels.triton import codes, skinny_gemm

    if (scheme.get("zeros") or scheme.get("minima")) and numbers in ("e4m3", "e2m1"):
        pytest.skip("floats have no zeros and no minima")
    if scheme.get("zeros") and numbers == "int8":
        pytest.skip("only int4 codes have zeros")
    weight = make(numbers, 200, 384, device=triton_device, **scheme)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 20, 384)
    plain = codes.dequantize(words, torch.empty(200, 384, device=triton_device, dtype=x.dtype))
    torch.testing.assert_close(plain, dequantize(weight, x.dtype), rtol=torch.finfo(x.dtype).eps, atol=1e-6)
    rounded = Codes(plain, torch.ones(200, 1, device=triton_device), None, None, Scheme("e4m3"))
    for gated, cut in ((False, Config(64, 128, 2, 3, 4)), (True, Config(64, 128, 1, 3, 4, bulk=True))):
        found = skinny_gemm.multiply(x, words, None, skinny_gemm.Workspace(triton_device), cut, gated=gated)
        check(found, exactly(rounded, x, None, gated), x.dtype)


@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize(("numbers", "group"), [("int8", 0), ("int4", 128)])
def test_several_tiles_of_tokens(triton_device: str, numbers: Numbers, group: int, gated: bool) -> None:
    from radixrt.kernels.triton import codes, skinny_gemm

    weight = make(numbers, 192, 256, group=group, device=triton_device)
    words = fragment_codes(weight)
    assert words is not None
    x = activations(triton_device, 70, 256)
    exact = exactly(weight, x, None, gated)
    if group:
        plain = codes.dequantize(words, torch.empty(192, 256, device=triton_device, dtype=x.dtype))
        one = torch.ones(192, 1, device=triton_device)
        exact = exactly(Codes(plain, one, None, None, Scheme("e4m3")), x, None, gated)
    for cut in (Config(64, 128, 2, 3, 4, tokens=32), Config(64, 128, 1, 3, 4, bulk=True, tokens=32)):
        cut = cut._replace(rounds=group > 0)
        found = skinny_gemm.multiply(x, words, None, skinny_gemm.Workspace(triton_device), cut, gated=gated)
        check(found, exact, x.dtype)


@needs_gpu
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_the_same_bits_as_with_the_numbers_in_bfloat16(triton_device: str, numbers: Numbers, tokens: int) -> None:
    from radixrt.kernels.triton import skinny_gemm

    weight = make(numbers, 512, 2048, device=triton_device)
    weight = weight._replace(scales=torch.ones_like(weight.scales))
    words = fragment_codes(weight)
    assert words is not None
    x, workspace = activations(triton_device, tokens, 2048) / 64, skinny_gemm.Workspace(triton_device)
    for cut in (Config(64, 128, 1, 3, 4), Config(64, 128, 4, 3, 4, bulk=True), Config(128, 128, 2, 2, 8)):
        found = skinny_gemm.multiply(x, words, None, workspace, cut)
        assert torch.equal(found, skinny_gemm.multiply(x, code_values(weight).bfloat16(), None, workspace, cut))


@needs_gpu
@pytest.mark.parametrize("tokens", [1, 3, 16, 33, 64, 128, 200, 500])
@pytest.mark.parametrize(
    ("numbers", "group", "block"), [("e4m3", 0, 1), ("e4m3", 128, 128), ("int8", 0, 1), ("int4", 128, 1)]
)
@pytest.mark.parametrize(("rows", "columns"), [(1024, 3072), (6144, 4096), (4096, 14336)])
def test_sizes_of_models(
    triton_device: str, rows: int, columns: int, numbers: Numbers, group: int, block: int, tokens: int
) -> None:  # fmt: skip
    weight = make(numbers, rows, columns, group=group, block=block, device=triton_device)
    x, ops = activations(triton_device, tokens, columns), CudaOps(early=True)
    words, exact = fragment_codes(weight), exactly(weight, x, None)
    assert words is not None
    found = ops.multiply_codes(x, words, None)
    error = ((found.double() - exact).norm() / exact.norm()).item()
    plain = x @ dequantize(weight, torch.bfloat16).T
    usual = ((plain.double() - exact).norm() / exact.norm()).item()
    rounded = ops.float8_group(words, tokens, x.dtype) is not None
    assert rounded == (numbers == "e4m3" and tokens > (64 if group else 32))
    assert error <= (0.03 if rounded else 1.05 * usual)
    assert all(torch.equal(found, ops.multiply_codes(x, words, None)) for _ in range(5))


@needs_gpu
@pytest.mark.parametrize("tokens", [1, 64, 100, 300])
@pytest.mark.parametrize("numbers", ["e4m3", "int4"])
def test_the_same_bits_eagerly_and_in_a_graph(triton_device: str, numbers: Numbers, tokens: int) -> None:
    gate_up = fragment_codes(make(numbers, 6144, 1024, device=triton_device))
    down = fragment_codes(make(numbers, 1024, 3072, device=triton_device))
    assert gate_up is not None
    assert down is not None
    start, norm = activations(triton_device, tokens, 1024), torch.ones(1024, device=triton_device).bfloat16()

    def run(ops: CudaOps, residual: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor | None = None
        for _ in range(12):
            float8 = ops.float8_group(gate_up, tokens, residual.dtype)
            given = (residual, None if x is None else PartialSum(x), norm, 1e-6, torch.bfloat16, None)
            normed = (
                ops.all_reduce_add_rms_norm(*given)
                if float8 is None
                else ops.all_reduce_add_rms_norm_float8(*given, float8)
            )
            if ops.reads_codes(normed, gate_up, gated=True):
                inner: Activations = ops.multiply_codes(normed, gate_up, None, gated=True)
            else:
                assert float8 == 0
                inner = ops.silu_and_mul_float8(ops.multiply_codes(normed, gate_up, None), float8)
            x = ops.multiply_codes(inner, down, None)
        return ops.add_rms_norm(residual, x, norm, 1e-6, torch.bfloat16)

    expected = run(CudaOps(), start.clone())
    early = CudaOps(early=True)
    assert all(torch.equal(run(early, start.clone()), expected) for _ in range(10))
    residual, graph = start.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(early, residual)
    for _ in range(10):
        residual.copy_(start)
        graph.replay()
        assert torch.equal(found, expected)
