"""Conversion of float8 in registers: every number, exactly, in the order that the kernels expect."""

from __future__ import annotations

from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
fp8: Any = pytest.importorskip("radixrt.kernels.triton.fp8")
four_numbers, pairs_of_numbers = fp8.four_numbers, fp8.pairs_of_numbers

pytestmark = pytest.mark.gpu


@triton.jit
def _convert_kernel(words, four, eight, DTYPE: tl.constexpr):
    at = tl.arange(0, 64)
    word = tl.load(words + at)
    a, b, c, d = four_numbers(word, DTYPE)
    tl.store(four + at * 4, a)
    tl.store(four + at * 4 + 2, b)
    tl.store(four + at * 4 + 1, c)
    tl.store(four + at * 4 + 3, d)
    pairs = pairs_of_numbers(word, tl.load(words + 63 - at), DTYPE)
    for i in tl.static_range(8):
        tl.store(eight + at * 8 + i, pairs[i])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_number(dtype: torch.dtype, triton_device: str) -> None:
    codes = torch.arange(256, device=triton_device).to(torch.uint8)
    codes = torch.where(codes & 127 == 127, 0, codes)  # NaN
    four = torch.empty(256, dtype=dtype, device=triton_device)
    eight = torch.empty(64, 4, 2, dtype=dtype, device=triton_device)
    name = tl.bfloat16 if dtype is torch.bfloat16 else tl.float16
    _convert_kernel[(1,)](codes.view(torch.int32), four, eight, name, num_warps=1)
    unit = (fp8.UNIT_BFLOAT16 if dtype is torch.bfloat16 else fp8.UNIT_FLOAT16).value
    numbers = codes.view(torch.float8_e4m3fn).double()
    assert torch.equal(four.double() * unit, numbers)
    assert torch.equal(eight[:, :, 0].double() * unit, numbers.view(64, 4))
    assert torch.equal(eight[:, :, 1].double() * unit, numbers.view(64, 4).flip(0))
