"""Linear layers with float32 weights against float64, by each way that the kernel can be compiled."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from radixrt.kernels import build
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.ops import CpuOps

FLAGS = {"as here": (), "AVX2": ("-march=x86-64-v3",), "without any instructions": ("-march=x86-64",)}
ROWS = (1, 2, 3, 5, 6, 7, 19, 64)


@pytest.fixture(scope="module", params=FLAGS)
def ops(request: pytest.FixtureRequest, cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> CpuOps:
    """The kernels; the GEMM in float32 is compiled as for another processor."""
    library, flags = load_kernels(cache_folder / "kernels"), FLAGS[request.param]
    if not flags:
        return CpuOps(library)
    if platform.machine() != "x86_64":
        pytest.skip("the flags are those of x86-64")
    made = tmp_path_factory.mktemp("kernels") / "f32.so"
    sources = [str(Path(build.__file__).with_name(name)) for name in ("gemm_f32.cpp", "threads.cpp")]
    command = [build._compiler(), *build.FLAGS, "-O1", *flags, "-shared", *sources, "-o", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    gemm = ctypes.CDLL(str(made))
    set_threads(gemm, 2)

    class Both(ctypes.CDLL):
        def __getitem__(self, name_or_ordinal: int | str) -> ctypes._NamedFuncPointer:
            return (gemm if str(name_or_ordinal).startswith("radixrt_gemm_f32") else library)[name_or_ordinal]

    return CpuOps(Both(library._name))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (131, 144), (3, 16), (1, 576)])
def test_products(ops: CpuOps, outputs: int, inputs: int, biased: bool) -> None:
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs) if biased else None
    for rows in ROWS:
        x = torch.randn(rows, inputs)
        found = ops.linear(x, weight, bias)
        exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        torch.testing.assert_close(found.double(), exact, atol=2e-5, rtol=1e-5)


def test_a_row_has_the_same_bits_in_every_batch(ops: CpuOps) -> None:
    weight, x = torch.randn(70, 144), torch.randn(64, 144)
    alone = torch.cat([ops.linear(row, weight, None) for row in x.split(1)])
    for rows in ROWS:
        assert torch.equal(ops.linear(x[:rows], weight, None), alone[:rows])


def test_what_the_kernel_does_not_multiply_goes_to_torch(ops: CpuOps) -> None:
    x, weight = torch.randn(3, 40), torch.randn(8, 40)
    assert not ops.multiplies(weight)
    assert torch.equal(ops.linear(x, weight, None), torch.nn.functional.linear(x, weight))
    x, weight = torch.randn(3, 32).bfloat16(), torch.randn(8, 32).bfloat16()
    assert not ops.multiplies(weight)
    assert torch.equal(ops.linear(x, weight, None), torch.nn.functional.linear(x, weight))
