"""Blocks of GGUF files are rewritten into codes of the same values, bit by bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from radixrt.layers.formats.codes import Codes, Scheme, dequantize
from radixrt.layers.formats.gguf_types import PACKED_TYPES
from radixrt.models.loading.gguf_blocks import REWRITERS, rewrite

SCALES_AT = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
"""Bytes of a block where float16 scales are; 0 and 2 in the other types."""


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return uint8 rows of random blocks with finite scales, among them zero, negative and denormal ones."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    draw = np.random.default_rng(seed)
    blocks = draw.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in SCALES_AT.get(kind, (0, 2)):
        scales = draw.normal(0, 0.02, blocks.shape[:2]).astype(np.float16)
        scales.flat[::7] = draw.choice(np.array([0.0, -0.0, 6e-8, -3e-6, 60000.0], np.float16), scales.flat[::7].size)
        blocks[..., at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def codes_of(rows: np.ndarray, kind: str) -> Codes:
    packed, form = rewrite(rows, kind), PACKED_TYPES[kind]
    minima = None if packed.minima is None else torch.from_numpy(packed.minima)
    scheme = Scheme(form.numbers, columns=form.columns)
    return Codes(torch.from_numpy(packed.codes), torch.from_numpy(packed.scales), None, minima, scheme)


@pytest.mark.parametrize("kind", PACKED_TYPES)
def test_every_value_is_that_of_the_gguf_package(kind: str) -> None:
    rows = random_blocks(kind, 37, 768)
    expected = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    codes, form = codes_of(rows, kind), PACKED_TYPES[kind]
    values = dequantize(codes).numpy()
    assert values.shape == (37, 768)
    assert values.astype("<f4").tobytes() == expected.astype("<f4").tobytes()
    assert (codes.minima is not None) == form.has_minima
    assert codes.scales.dtype == getattr(torch, form.scales)
    assert codes.scales.shape == (37, 768 // form.columns)
    bits = sum(8 * each.nbytes for each in (codes.codes, codes.scales, codes.minima) if each is not None)
    assert bits == form.bits * 37 * 768


def test_blocks_have_the_sizes_of_the_format() -> None:
    sizes = {kind: gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1] for kind in PACKED_TYPES}
    assert {kind: size for kind, (size, _) in REWRITERS.items()} == sizes
