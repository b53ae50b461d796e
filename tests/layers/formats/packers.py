"""Weights as producers of checkpoints store them, made bit by bit, and their values.

The functions share nothing with radixrt's: they loop over rows, columns and bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

Array = np.ndarray[Any, Any]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
AWQ_COLUMNS = [0, 2, 4, 6, 1, 3, 5, 7]
"""Column of its eight that nibble i of an int32 is, in AutoAWQ."""


class Packed(NamedTuple):
    """The tensors of a weight by the ends of their names, and its values, float32 [outputs, inputs]."""

    tensors: dict[str, torch.Tensor]
    values: torch.Tensor


Packer = Callable[[np.random.Generator, int, int], Packed]


def words(codes: Array, bits: int) -> torch.Tensor:
    """int32 [n, ceil(m * bits / 32)] of codes [n, m], the first in the lowest bits."""
    rows, columns = codes.shape
    count = 32 // bits
    packed = np.zeros((rows, -(-columns // count)), dtype=np.uint32)
    for row in range(rows):
        for column in range(columns):
            packed[row, column // count] |= np.uint32(int(codes[row, column]) << (bits * (column % count)))
    return torch.from_numpy(packed.view(np.int32).copy())


def less_one(zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """Subtract 1 from each zero of packed int32, as GPTQModel does when it saves version 1."""
    ones = np.uint32(sum(1 << place for place in range(0, 32, bits)))
    return torch.from_numpy((zeros.numpy().view(np.uint32) - ones).view(np.int32))


def awq_words(codes: Array) -> torch.Tensor:
    """int32 [n, m / 8] of codes [n, m] in the order of AutoAWQ."""
    rows, columns = codes.shape
    packed = np.zeros((rows, columns // 8), dtype=np.uint32)
    for row in range(rows):
        for word in range(columns // 8):
            for place, column in enumerate(AWQ_COLUMNS):
                packed[row, word] |= np.uint32(int(codes[row, 8 * word + column]) << (4 * place))
    return torch.from_numpy(packed.view(np.int32).copy())


def pairs(codes: Array) -> torch.Tensor:
    """uint8 [n, m / 2] of codes [n, m] of four bits, the first in the low half."""
    return torch.tensor([[int(row[i]) | int(row[i + 1]) << 4 for i in range(0, len(row), 2)] for row in codes]).to(
        torch.uint8
    )


def random_scales(rng: np.random.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(rng.uniform(0.005, 0.03, shape)).to(dtype)


def product(codes: Array, zeros: Array | int, scales: torch.Tensor, group_of: Array) -> torch.Tensor:
    """(code - zero) * scale, rounded once, with zeros and scales [n, groups] and the group of each column."""
    difference = codes.astype(np.int64) - (zeros if isinstance(zeros, int) else zeros[:, group_of])
    return torch.from_numpy(difference.astype(np.float64) * scales.double().numpy()[:, group_of]).float()


def compressed_ints(bits: int, group: int, *, symmetric: bool = True, ordered: bool = False) -> Packer:
    """compressed-tensors, pack-quantized; group 0 is a whole row."""

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size = group or inputs
        groups = -(-inputs // size)
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        zeros = rng.integers(0, 1 << bits, (outputs, groups)) if not symmetric else 1 << bits - 1
        scales = random_scales(rng, outputs, groups, dtype=torch.bfloat16) / (1 if bits == 4 else 16)
        group_of = np.arange(inputs) // size
        tensors = {
            "weight_packed": words(codes, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        if ordered:
            group_of = np.random.default_rng(inputs).permutation(group_of)  # one order for all weights of a layer
            tensors["weight_g_idx"] = torch.from_numpy(group_of.astype(np.int32))
        if not isinstance(zeros, int):
            tensors["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
        return Packed(tensors, product(codes, zeros, scales, group_of))

    return pack


def gptq(bits: int, group: int, *, symmetric: bool = True, version: int = 1, ordered: bool = False) -> Packer:
    """AutoGPTQ and GPTQModel; group 0 is a whole row."""

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size = group or inputs
        groups = -(-inputs // size)
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        zeros = (
            np.full((outputs, groups), 1 << bits - 1) if symmetric else rng.integers(0, 1 << bits, (outputs, groups))
        )
        scales = random_scales(rng, outputs, groups, dtype=torch.float16) / (1 if bits == 4 else 16)
        group_of = np.arange(inputs) // size
        if ordered:
            group_of = np.random.default_rng(inputs).permutation(group_of)
        stored = words(zeros.T, bits)
        if version == 1:
            stored = less_one(stored, bits)
        tensors = {
            "qweight": words(codes, bits).T.contiguous(),
            "qzeros": stored,
            "scales": scales.T.contiguous(),
            "g_idx": torch.from_numpy(group_of.astype(np.int32)),
        }
        return Packed(tensors, product(codes, zeros, scales, group_of))

    return pack


def awq(group: int, *, zero_point: bool = True) -> Packer:
    """AutoAWQ, gemm; group 0 is a whole row."""

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        size = group or inputs
        groups = -(-inputs // size)
        codes = rng.integers(0, 16, (outputs, inputs))
        zeros = rng.integers(0, 16, (outputs, groups)) if zero_point else np.full((outputs, groups), 8)
        scales = random_scales(rng, outputs, groups, dtype=torch.float16)
        tensors = {"qweight": awq_words(codes.T), "qzeros": awq_words(zeros.T), "scales": scales.T.contiguous()}
        return Packed(tensors, product(codes, zeros, scales, np.arange(inputs) // size))

    return pack


def floats(
    block: tuple[int, int], *, name: str = "weight_scale", dtype: torch.dtype = torch.float32, shape: str = "full"
) -> Packer:
    """e4m3 weights with a scale for each block of outputs and inputs, of which 0 are all.

    Args:
        shape: of the scales: "full" [n, m], "flat" [n * m], "scalar" [], "blocks" [n, 1, m, 1].
    """

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        codes = torch.from_numpy(rng.normal(0, 60, (outputs, inputs))).clamp(-448, 448).to(torch.float8_e4m3fn)
        rows, columns = block[0] or outputs, block[1] or inputs
        size = -(-outputs // rows), -(-inputs // columns)
        scales = random_scales(rng, *size, dtype=torch.float32) / 8
        if dtype == torch.float8_e8m0fnu:
            scales = torch.exp2(torch.from_numpy(rng.integers(-11, -7, size).astype(np.float32)))
        scales = scales.to(dtype)
        wide = scales.float().double().numpy()[np.arange(outputs)[:, None] // rows, np.arange(inputs)[None] // columns]
        values = torch.from_numpy(codes.double().numpy() * wide).float()
        shapes = {"full": size, "flat": (size[0] * size[1],), "scalar": (), "blocks": (size[0], 1, size[1], 1)}
        stored = scales.view(torch.uint8) if name == "exponents" else scales
        stored_name = "weight_scale" if name == "exponents" else name
        return Packed({"weight": codes, stored_name: stored.reshape(shapes[shape])}, values)

    return pack


def integers(*, per_tensor: bool = False) -> Packer:
    """int8 weights of compressed-tensors, int-quantized."""

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        codes = rng.integers(-128, 128, (outputs, inputs))
        scales = random_scales(rng, 1 if per_tensor else outputs, 1, dtype=torch.bfloat16) / 16
        values = torch.from_numpy(codes * scales.double().numpy()).float()
        stored = scales.reshape(1) if per_tensor else scales
        return Packed({"weight": torch.from_numpy(codes).to(torch.int8), "weight_scale": stored}, values)

    return pack


def fp4(group: int, kind: str) -> Packer:
    """e2m1 weights: "nvfp4" of compressed-tensors, "modelopt" (NVFP4), or "mxfp4" of compressed-tensors."""

    def pack(rng: np.random.Generator, outputs: int, inputs: int) -> Packed:
        codes = rng.integers(0, 16, (outputs, inputs))
        numbers = np.array([*E2M1, *(-number for number in E2M1)])[codes]
        groups = -(-inputs // group)
        name = "weight" if kind == "modelopt" else "weight_packed"
        tensors = {name: pairs(codes)}
        if kind == "mxfp4":
            exponents = rng.integers(119, 123, (outputs, groups))
            tensors["weight_scale"] = torch.from_numpy(exponents.astype(np.uint8))
            scales = 2.0 ** (exponents - 127.0)
        else:
            stored = torch.from_numpy(rng.uniform(50, 400, (outputs, groups))).to(torch.float8_e4m3fn)
            factor = torch.tensor(rng.uniform(2e-5, 8e-5), dtype=torch.float32)
            tensors["weight_scale"] = stored
            if kind == "modelopt":
                tensors["weight_scale_2"], wide = factor, stored.float() * factor
            else:
                tensors["weight_global_scale"], wide = (1 / factor).reshape(1), stored.float() / (1 / factor)
            scales = wide.double().numpy()
        values = numbers * scales[:, np.arange(inputs) // group]
        return Packed(tensors, torch.from_numpy(values).float())

    return pack
