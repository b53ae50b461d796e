"""MXFP4 numbers (OCP Microscaling Formats 1.0): 4-bit floats in groups of 32 that share a power of two as their scale.

A byte holds two numbers, the first one in its low half; a scale is a byte, the exponent plus 127.
"""

from __future__ import annotations

import functools

import torch

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the eight numbers without a sign; the highest of the four bits is the sign."""


def dequantize(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers in bfloat16, which represents them exactly.

    Args:
        blocks: uint8 [rows, groups, 16].
        scales: uint8 [rows, groups].

    Returns:
        [rows, groups * 32].
    """
    pairs = _pairs(blocks.device).index_select(0, blocks.flatten().int())
    values = pairs.view(torch.bfloat16).view(*scales.shape, -1)
    values *= torch.exp2(scales.float() - 127).to(values.dtype)[..., None]
    return values.flatten(1)


@functools.cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Return int32 [256]: for each byte, its two numbers in bfloat16, side by side in memory."""
    numbers = torch.tensor([*FP4, *(-value for value in FP4)], dtype=torch.bfloat16)
    byte = torch.arange(256)
    return torch.stack((numbers[byte & 15], numbers[byte >> 4]), dim=1).view(torch.int32).flatten().to(device)
