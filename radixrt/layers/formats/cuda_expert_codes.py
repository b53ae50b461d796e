"""Experts whose weights are `Codes`, by the kernels of `expert_codes_gemm`."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from radixrt.kernels.packed_weights import PackedWeights
from radixrt.layers.formats.codes import ZERO_OF_INT4, Codes

LEAST_GROUP, WIDE_GROUP = 32, 128
"""Groups have at least so many columns; those from WIDE_GROUP on are multiples of it."""
SCALE_ALIGNMENT = 16
"""Bytes of which rows of scales of small groups are multiples, for the copy engine."""


def packed_weights(weight: Codes) -> PackedWeights | None:
    """Return the weight [E, rows, columns] of experts in the order that the kernels read; None where they do not
    support it.

    Codes are moved expert by expert, so that the temporary memory is as large as the codes of one expert.
    """
    from radixrt.kernels.triton import mxfp4
    from radixrt.kernels.triton.weight_formats import BLOCK_4, BLOCK_8, in_fragment_order

    scheme, (experts, rows, columns) = weight.scheme, weight.shape
    group, block = scheme.columns, BLOCK_8 if scheme.bits == 8 else BLOCK_4
    if group % LEAST_GROUP or (group > WIDE_GROUP and group % WIDE_GROUP) or group == 96:
        return None
    if scheme.rows > 1 and (weight.zeros is not None or weight.minima is not None or 0 < group < WIDE_GROUP):
        return None
    padding = -columns % block
    scaled = scheme.numbers == "e2m1" and group == mxfp4.GROUP and _fits_mxfp4(weight)
    words = torch.empty(
        experts, rows, (columns + padding) * scheme.bits // 32, dtype=torch.int32, device=weight.codes.device
    )
    for out, codes in zip(words, weight.codes, strict=True):
        padded = F.pad(codes.view(torch.uint8), (0, padding * scheme.bits // 8))
        ordered = in_fragment_order(padded, scheme.bits)
        out.copy_(mxfp4.in_places(ordered) if scaled else ordered)
    scales, shifts, scale_rows = weight.scales.contiguous(), shifts_of(weight), scheme.rows
    if not group and shifts is not None:  # one group, which the kernels take for a wide one
        group = -(-columns // WIDE_GROUP) * WIDE_GROUP
    if not group:
        scales, scale_rows = scales.float().repeat_interleave(scale_rows, dim=1)[:, :rows, 0].contiguous(), 1
    elif group < WIDE_GROUP:
        if scaled:
            scales = scales * mxfp4.FACTOR
        padding = -scales.shape[2] % (SCALE_ALIGNMENT // scales.element_size())
        scales = F.pad(scales, (0, padding))
        shifts = None if shifts is None else F.pad(shifts, (0, padding))
    numbers = "mxfp4" if scaled else scheme.numbers
    return PackedWeights(words, scales, shifts, numbers, scale_rows, group, columns)


def _fits_mxfp4(weight: Codes) -> bool:
    """Return True if scales are bfloat16 numbers of a size that `mxfp4` supports."""
    from radixrt.kernels.triton import mxfp4

    scales = weight.scales
    return scales.dtype == torch.bfloat16 and bool(scales.abs().max() <= mxfp4.LARGEST_SCALE)


def shifts_of(weight: Codes) -> torch.Tensor | None:
    """Return the values of the number 0, float32; None where they are 0. An int4 code is read less 8."""
    zero = ZERO_OF_INT4 if weight.scheme.numbers == "int4" else 0
    if weight.minima is not None:
        return (weight.minima.float() + zero * weight.scales.float()).contiguous()
    if weight.zeros is not None:
        return ((zero - weight.zeros.float()) * weight.scales.float()).contiguous()
    return None
