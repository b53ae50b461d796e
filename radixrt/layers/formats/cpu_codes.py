"""`CpuQuantized`: quantized weights in the layout of the compiled CPU kernels (`kernels/gemm_codes.cpp`)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from radixrt.kernels.compiled import Kernel
from radixrt.layers.formats.base import Tensors
from radixrt.layers.formats.codes import (
    Codes,
    Numbers,
    code_values,
    dequantize,
    doubled_e2m1,
    select_expert,
    spread,
    unpack_nibbles,
)
from radixrt.layers.formats.panels import plain_format
from radixrt.layers.formats.quantized import Quantized, StoredLayout
from radixrt.layers.ops import CpuOps

LANES = 16
"""Features of gate, and of up, in a panel of a gated weight."""
DEPTH, MIN_GROUP = 64, 8
"""The kernels support groups of a multiple of DEPTH columns, or of a divisor of DEPTH, at least MIN_GROUP."""
MAX_GROUP = 32768
"""Columns of a group whose sums the kernels can represent."""
MIDDLE, ZEROS, MINIMA = range(3)
"""`PanelLayout.offsets`."""


class PanelLayout(ctypes.Structure):
    """`radixrt::codes::Weight` of kernels/code_panels.h, which documents the fields."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("half", ctypes.c_int32),
        ("offsets", ctypes.c_int32),
        ("gated", ctypes.c_int32),
    )


class CodePanels(NamedTuple):
    """A weight of int8 or int4 codes, or the weights of experts, in panels of 32 rows each.

    Attributes:
        panels: uint8 [bytes], of experts [E, bytes].
        layout: points to the panels, of experts to the panels of the first one.
    """

    panels: torch.Tensor
    layout: PanelLayout


class ScaledWeight(NamedTuple):
    """A weight of e4m3 codes, which no instruction multiplies, as a plain bfloat16 weight.

    Attributes:
        weight: the codes, or, where a row has several scales, the weight; prepared for `Plain`.
        scales: float32 [rows]; None where the weight includes them.
    """

    weight: Any
    scales: torch.Tensor | None


class CpuQuantized(Quantized):
    """Weights of int8 and int4 codes are multiplied as they are. e2m1 codes become int8 codes, exactly. e4m3 codes
    become bfloat16, exactly where a row has one scale.

    Activations are rounded to integers of 16 bits, or not at all, depending on the processor: see the kernels. Weights
    with several scales in a row are rounded to bfloat16 in steps of many rows where there are tile registers (AMX).
    """

    own_kernels = "C++"

    def __init__(self, ops: CpuOps, layout: StoredLayout) -> None:
        super().__init__(ops, layout)
        library, pointer, i64 = ops.library, ctypes.c_void_p, ctypes.c_int64
        self._plain, self._memory = plain_format(ops), ops.weights
        self._size = library.radixrt_codes_bytes
        self._size.restype, self._size.argtypes = i64, [pointer]
        self._fill = Kernel(library, "radixrt_codes_pack", [pointer] * 5)
        self._gemm = Kernel(library, "radixrt_codes_gemm", [pointer] * 3 + [i64])

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        weight = self._layout.codes(tensors)
        return self.pack(weight, gated=gated and bias is None)

    def pack(self, weight: Codes, *, gated: bool = False) -> Any:
        """Return a weight, or the weights of experts, as the kernels read it; unchanged where they do not support it.

        Args:
            gated: the result is for `silu_and_mul` alone.
        """
        if weight.scheme.numbers == "e4m3":
            return self._scaled(weight)
        made = supported(weight)
        if made is None:
            return weight
        layout = panel_layout(made, gated=gated)
        *experts, _, _ = made.shape
        panels = self._memory.empty(*experts, self._size(ctypes.addressof(layout)), dtype=torch.uint8)
        for i in range(experts[0] if experts else 1):
            layout.panels = (panels[i] if experts else panels).data_ptr()
            self._fill_panels(layout, select_expert(made, i) if experts else made)
        layout.panels = panels.data_ptr()
        return CodePanels(panels, layout)

    def _fill_panels(self, layout: PanelLayout, weight: Codes) -> None:
        tensors = (
            weight.codes.contiguous(),
            weight.scales.float().contiguous(),
            None if weight.zeros is None else weight.zeros.contiguous(),
            None if weight.minima is None else weight.minima.float().contiguous(),
        )
        self._fill.call(ctypes.addressof(layout), *(None if each is None else each.data_ptr() for each in tensors))

    def _scaled(self, weight: Codes) -> Any:
        if weight.codes.dim() == 3:
            return tuple(self._scaled(select_expert(weight, i)) for i in range(weight.shape[0]))
        if weight.scheme.columns:
            return ScaledWeight(self._plain.prepare({"weight": dequantize(weight, torch.bfloat16)}), None)
        values = self._plain.prepare({"weight": code_values(weight).bfloat16()})
        return ScaledWeight(values, spread(weight.scales, weight)[:, 0].contiguous())

    def is_compiled(self, weight: Any) -> bool:
        if isinstance(weight, ScaledWeight):
            return self._plain.is_compiled(weight.weight)
        return isinstance(weight, CodePanels)

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, Codes):
            return super().linear(weight, x, bias)
        if isinstance(weight, ScaledWeight):
            out = self._plain.linear(weight.weight, x.float(), None)
            if weight.scales is not None:
                out = out.mul_(weight.scales)
        else:
            assert not weight.layout.gated, "a gated layer is applied by silu_and_mul"
            out = self._multiply(weight.layout, x)
        return (out if bias is None else out.add_(bias)).to(x.dtype)

    def silu_and_mul(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if isinstance(weight, CodePanels) and weight.layout.gated:
            return self._multiply(weight.layout, x).to(x.dtype)
        return super().silu_and_mul(weight, x, bias)

    def expert(self, weight: Any, index: int) -> Any:
        if isinstance(weight, Codes):
            return super().expert(weight, index)
        if not isinstance(weight, CodePanels):
            return weight[index]
        layout = PanelLayout.from_buffer_copy(weight.layout)
        layout.panels = weight.panels[index].data_ptr()
        return CodePanels(weight.panels[index], layout)

    def _multiply(self, layout: PanelLayout, x: torch.Tensor) -> torch.Tensor:
        x = x.float().contiguous()
        out = torch.empty(x.shape[0], layout.rows // 2 if layout.gated else layout.rows, dtype=torch.float32)
        self._gemm.call(ctypes.addressof(layout), x.data_ptr(), out.data_ptr(), x.shape[0])
        return out


def panel_layout(weight: Codes, *, gated: bool) -> PanelLayout:
    """Return the layout of a supported weight, without panels."""
    *_, rows, columns = weight.shape
    numbers = [weight.scales] if weight.minima is None else [weight.scales, weight.minima]
    return PanelLayout(
        rows=rows,
        columns=columns,
        group=weight.scheme.columns or -(-columns // DEPTH) * DEPTH,
        bits=weight.scheme.bits,
        half=all(torch.equal(each.half().float(), each.float()) for each in numbers),
        offsets=MINIMA if weight.minima is not None else ZEROS if weight.zeros is not None else MIDDLE,
        gated=gated and rows % (2 * LANES) == 0,
    )


def supported(weight: Codes) -> Codes | None:
    """Return the same weight as int8 or int4 codes, with scales for each row and groups that the kernels support; None
    where there are no such groups."""
    scheme, (*_, rows, columns) = weight.scheme, weight.shape
    group = scheme.columns or (MAX_GROUP if columns > MAX_GROUP else 0)
    if group % DEPTH:
        group = math.gcd(group, DEPTH)
        if group < MIN_GROUP:
            return None
    codes, scales = weight.codes, weight.scales
    if scheme.numbers == "e2m1":
        codes, scales = doubled_e2m1(unpack_nibbles(codes)), scales.float() / 2

    def expanded(values: torch.Tensor | None, block: int) -> torch.Tensor | None:
        if values is None:
            return None
        if block > 1:
            values = values.repeat_interleave(block, dim=-2)[..., :rows, :]
        if group == scheme.columns:
            return values
        times = (scheme.columns or -(-columns // group) * group) // group
        return values.repeat_interleave(times, dim=-1)[..., : -(-columns // group)]

    made = expanded(scales, scheme.rows)
    assert made is not None
    numbers: Numbers = "int8" if scheme.numbers == "e2m1" else scheme.numbers
    new = replace(scheme, numbers=numbers, rows=1, columns=group)
    return Codes(codes, made, expanded(weight.zeros, 1), expanded(weight.minima, scheme.rows), new)
