"""Linear layers with weights of 8 and 4 bits on a CPU against float64, by each way that the kernels can be compiled."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from radixrt.kernels import build
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.codes import Codes, Numbers, Scheme, dequantize, spread
from radixrt.layers.formats.cpu_codes import CodePanels, CpuQuantized, ScaledWeight
from radixrt.layers.formats.online import Kind, OnlineQuantization
from radixrt.layers.formats.online_layout import OnlineLayout
from radixrt.layers.formats.quantized import Quantized, multiply, quantized_format
from radixrt.layers.linear import Linear
from radixrt.layers.lm_head import LMHead
from radixrt.layers.ops import CpuOps, TorchOps
from radixrt.layers.refine_top import NEAR_TOP

pytestmark = pytest.mark.usefixtures("two_threads")

FLAGS = {
    "as here": (),
    "without tile registers": ("-mno-amx-int8", "-mno-amx-bf16", "-mno-amx-tile"),
    "without any instructions": ("-march=x86-64",),
}
TOKENS = (1, 2, 3, 5, 8, 17, 70)


@pytest.fixture(scope="module", params=FLAGS)
def ops(request: pytest.FixtureRequest, cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuOps:
    """The kernels; those for codes are compiled as on another processor."""
    library, flags = load_kernels(cache_folder / "kernels"), FLAGS[request.param]
    if not flags:
        return CpuOps(library)
    if platform.machine() != "x86_64":
        pytest.skip("the flags are those of x86-64")
    made = tmp_path_factory.mktemp("kernels") / "codes.so"
    sources = [str(Path(build.__file__).with_name(name)) for name in ("gemm_codes.cpp", "threads.cpp")]
    command = [build._compiler(), *build.FLAGS, "-O1", *flags, "-shared", *sources, "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    codes = ctypes.CDLL(str(made))
    set_threads(codes, 2)

    class Both(ctypes.CDLL):
        def __getitem__(self, name_or_ordinal: int | str) -> ctypes._NamedFuncPointer:
            return (codes if str(name_or_ordinal).startswith("radixrt_codes") else library)[name_or_ordinal]

        def __getattr__(self, name: str) -> ctypes._NamedFuncPointer:
            return self[name]

    return CpuOps(Both(str(made)))


class Case(NamedTuple):
    numbers: Numbers = "int8"
    rows: int = 96
    columns: int = 192
    group: int = 0
    offsets: str = ""
    block: int = 1
    dtype: torch.dtype = torch.float32


CASES = [
    Case(),
    Case(rows=50, columns=200),
    Case(rows=31, columns=72, block=16),
    Case(group=16),
    Case(group=32, dtype=torch.float16),
    Case(group=128, block=64, columns=320),
    Case(group=96, columns=200, dtype=torch.bfloat16),
    Case(group=32, offsets="minima", dtype=torch.float16),
    Case(group=16, offsets="minima"),
    Case("int4"),
    Case("int4", rows=70, columns=72),
    Case("int4", group=32, dtype=torch.float16),
    Case("int4", group=64, offsets="zeros", dtype=torch.float16),
    Case("int4", group=128, offsets="zeros", columns=320),
    Case("int4", group=16, offsets="minima", rows=33),
    Case("int4", group=32, offsets="minima", dtype=torch.float16),
    Case("int4", offsets="minima"),
    Case("e2m1", group=16),
    Case("e2m1", group=32, dtype=torch.bfloat16),
    Case(group=32, offsets="minima", dtype=torch.float16, rows=1650, columns=96),
    Case("int4", group=32, offsets="zeros", rows=1650, columns=96),
]
"""Each thread has several panels of the weights with 1,650 rows, and the last panel is not full."""


def make(case: Case) -> Codes:
    generator = torch.Generator().manual_seed(hash(case[1:4]))
    scheme = Scheme(case.numbers, case.block, case.group)
    groups = scheme.groups(case.columns)
    scales = (torch.rand(scheme.scale_rows(case.rows), groups, generator=generator) + 0.5) / 64
    scales[0, 0] = 2.0**-20  # without a leading one in float16
    shape = case.rows, scheme.code_columns(case.columns)
    codes = torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
    zeros = torch.randint(0, 16, (case.rows, groups), generator=generator).to(torch.uint8)
    minima = torch.randn(scales.shape, generator=generator).to(case.dtype)
    return Codes(
        codes if scheme.bits == 8 else codes.view(torch.uint8),
        scales.to(case.dtype),
        zeros if case.offsets == "zeros" else None,
        minima if case.offsets == "minima" else None,
        scheme,
    )


def error_bound(x: torch.Tensor, weight: Codes, integers: bool, in_bfloat16: bool) -> torch.Tensor:
    """Return the largest error [T, rows] of float32 sums of products, and of the rounding of factors."""
    exact = dequantize(weight, torch.float64)
    terms = x.abs() @ (exact.abs() + 16 * spread(weight.scales, weight)).T
    if in_bfloat16:
        return terms * 2**-7.9
    half_a_unit = x.abs().amax(1, keepdim=True) / 32512 * 0.501
    return terms * 2**-20 + half_a_unit * exact.abs().sum(1) * integers


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_linear_layers(ops: CpuOps, case: Case) -> None:
    quantized, weight = CpuQuantized(ops, OnlineLayout("int8")), make(case)
    packed, gated = quantized.pack(weight), quantized.pack(weight, gated=True)
    assert isinstance(packed, CodePanels)
    assert gated.layout.gated == (case.rows % 32 == 0)
    integers, several = ops.library.radixrt_codes_integers() == 1, 0 < case.group < case.columns
    for tokens in TOKENS:
        x = torch.randn(tokens, case.columns)
        x[:, 1] *= 20.0
        bias = torch.randn(case.rows)
        out = quantized.linear(packed, x, None)
        exact = x.double() @ dequantize(weight, torch.float64).T
        bound = error_bound(x.double(), weight, integers, integers and several and tokens >= 16)
        assert ((out - exact).abs() <= bound).all()
        assert torch.equal(quantized.linear(packed, x, bias), out + bias)
        if case.rows % 2 == 0:
            torch.testing.assert_close(quantized.silu_and_mul(gated, x, None), ops.silu_and_mul(out))


@pytest.mark.parametrize("numbers", ["int8", "int4"])
def test_integers_of_rows_are_multiplied_without_rounding(ops: CpuOps, numbers: Numbers) -> None:
    """Activations that 16 bits represent: the result is the exact sum, rounded as the scales are applied."""
    quantized, weight = CpuQuantized(ops, OnlineLayout("int8")), make(Case(numbers, columns=192))
    weight = weight._replace(scales=torch.ones_like(weight.scales))
    packed, x = quantized.pack(weight), torch.randint(-32512, 32513, (33, 192)).float()
    x[:, 7] = 32512.0
    exact = x.double() @ dequantize(weight, torch.float64).T
    atol = 2.0 if ops.library.radixrt_codes_integers() else 64.0
    for tokens in (1, 33):
        torch.testing.assert_close(
            quantized.linear(packed, x[:tokens], None).double(), exact[:tokens], rtol=1e-6, atol=atol
        )


@pytest.mark.parametrize("rows", [96, 1650])
@pytest.mark.parametrize("numbers", ["int8", "int4"])
def test_rows_of_a_batch_do_not_depend_on_each_other(ops: CpuOps, numbers: Numbers, rows: int) -> None:
    quantized, case = CpuQuantized(ops, OnlineLayout("int8")), Case(numbers, rows=rows)
    packed, x = quantized.pack(make(case)), torch.randn(300, case.columns)
    together = quantized.linear(packed, x, None)
    for tokens in (1, 2, 3, 7, 40):
        assert torch.equal(quantized.linear(packed, x[:tokens], None), together[:tokens])


def test_a_padded_weight_reads_nothing_of_the_weight_before(ops: CpuOps) -> None:
    """Groups of 32 inputs cover 224 of the 256 that 200 are padded to."""
    quantized, case = CpuQuantized(ops, OnlineLayout("int8")), Case(group=32, columns=200)
    broken = make(case._replace(columns=256))
    broken = broken._replace(scales=torch.full_like(broken.scales, torch.nan))
    weight, x = make(case), torch.randn(40, 200)
    before = quantized.linear(quantized.pack(weight), x, None)
    # All threads write NaN where they convert weights.
    assert quantized.linear(quantized.pack(broken), torch.randn(40, 256), None).isnan().all()
    assert torch.equal(quantized.linear(quantized.pack(weight), x, None), before)
    assert not before.isnan().any()


def test_zeros_and_extremes(ops: CpuOps) -> None:
    quantized, weight = CpuQuantized(ops, OnlineLayout("int8")), make(Case(group=32))
    packed, x = quantized.pack(weight), torch.zeros(4, 192)
    x[1, 5], x[2, :] = 1e30, 1e-30
    out = quantized.linear(packed, x, None)
    assert not out[0].any()
    torch.testing.assert_close(out, multiply(weight, x, None), rtol=1e-3, atol=0.0)
    assert quantized.linear(packed, x[:0], None).shape == (0, 96)


def test_long_rows_and_narrow_groups(ops: CpuOps) -> None:
    quantized = CpuQuantized(ops, OnlineLayout("int8"))
    codes = torch.full((32, 70000), 127, dtype=torch.int8)
    long = Codes(codes, torch.full((32, 1), 0.01), None, None, Scheme("int8"))
    x = torch.ones(2, 70000)
    torch.testing.assert_close(quantized.linear(quantized.pack(long), x, None), torch.full((2, 32), 88900.0))
    narrow = make(Case(group=12))
    assert quantized.pack(narrow) is narrow
    x = torch.randn(3, 192)
    assert torch.equal(quantized.linear(narrow, x, None), multiply(narrow, x, None))


@pytest.mark.parametrize("scheme", [Scheme("e4m3"), Scheme("e4m3", 128, 128)], ids=str)
def test_e4m3_codes_are_multiplied_in_bfloat16(ops: CpuOps, scheme: Scheme) -> None:
    quantized, codes = CpuQuantized(ops, OnlineLayout("fp8")), torch.randn(192, 256).to(torch.float8_e4m3fn)
    scales = torch.rand(scheme.scale_rows(192), scheme.groups(256)) + 0.5
    weight = Codes(codes, scales, None, None, scheme)
    packed, x = quantized.pack(weight), torch.randint(-3, 4, (5, 256)).float()
    assert isinstance(packed, ScaledWeight)
    # Rows are exact, and blocks round a weight once. oneDNN rounds results, where there are no panels.
    torch.testing.assert_close(quantized.linear(packed, x, None), multiply(weight, x, None), rtol=8e-3, atol=0.3)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_an_output_head_is_exact_near_the_top(ops: CpuOps, kind: Kind) -> None:
    projection = whole_weight("lm_head", 640, 96)
    made = OnlineQuantization(kind).linear([projection], ops)
    assert isinstance(made, CpuQuantized)
    assert made.loads_plain
    head = LMHead(projection, torch.bfloat16, made)
    weight = torch.randn(640, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    head.weight = torch.nn.Parameter(weight, requires_grad=False)
    head.process_weights_after_loading()
    assert head.weight is None
    hidden = torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    exact = hidden @ weight.float().T
    logits = head(hidden)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, exact, atol=0.5, rtol=0.0)
    assert not torch.equal(logits, exact)
    near = exact >= exact.amax(1, keepdim=True) - NEAR_TOP + 1.0
    torch.testing.assert_close(logits[near], exact[near])


def test_an_output_head_stays_plain_elsewhere(ops: CpuOps) -> None:
    projection = [whole_weight("lm_head", 640, 96)]
    assert OnlineQuantization("fp8").linear(projection, ops) is None
    assert OnlineQuantization("int8").linear(projection, TorchOps()) is None


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers(ops: CpuOps, kind: Kind, dtype: torch.dtype) -> None:
    """A layer and a mixture of experts equal the reference in torch."""
    results = []
    torch.manual_seed(3)
    weight, gate_up, down = torch.randn(96, 64) / 8, torch.randn(3, 128, 64) / 8, torch.randn(3, 64, 64) / 8
    x, experts, weights = torch.randn(9, 64).to(dtype), torch.randint(0, 3, (9, 1)), torch.rand(9, 1)
    for each in (ops, TorchOps()):
        made = quantized_format(each, OnlineLayout(kind, 32 if kind == "int4" else 0))
        assert type(made) is (CpuQuantized if each is ops else Quantized)
        layer = Linear([whole_weight("", 96, 64)], False, torch.float32, made)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        mixture = FusedExperts(3, [whole_weight("", 128, 64)] * 3, [whole_weight("", 64, 64)] * 3, torch.float32, made)
        mixture.gate_up_proj = torch.nn.Parameter(gate_up, requires_grad=False)
        mixture.down_proj = torch.nn.Parameter(down, requires_grad=False)
        for module in (layer, mixture):
            module.process_weights_after_loading()
            assert not list(module.parameters())
        results.append((layer(x), mixture(x, experts, weights)))
    tolerance = 1e-3 if dtype == torch.float32 and kind != "fp8" else 2e-2
    for found, expected in zip(*results, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
