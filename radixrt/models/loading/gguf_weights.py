"""The weights of a GGUF file as model.safetensors: expanded to one dtype, or packed as codes with scales."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from radixrt.layers.formats.gguf_types import PACKED_TYPES
from radixrt.models.loading.gguf_blocks import rewrite
from radixrt.models.loading.gguf_file import GGUFFile

SAFETENSORS_DTYPES = {
    "bfloat16": ("BF16", 2),
    "float32": ("F32", 4),
    "float16": ("F16", 2),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
}
"""Code and bytes of a number, by the name of a dtype."""

CHUNK_VALUES = 1 << 20
"""Weights converted at once; bounds memory, and keeps numpy's temporaries in the cache."""


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of the GGUF file, and what is written for it.

    Attributes:
        source: its name in the file.
        name: its name in the Hugging Face folder.
        kind: name of the GGML type, if it stays packed; None if it is expanded.
        heads: of a tensor whose rows are in another order, see `_halves_from_pairs`; else 0.
    """

    source: str
    name: str
    kind: str | None = None
    heads: int = 0


def write_weights(
    file: GGUFFile, tensors: Sequence[WrittenTensor], path: Path, dtype: str, *, show_progress: bool
) -> None:
    """Write model.safetensors, part by part: numpy has no bfloat16, and the model need not fit into memory.

    A packed weight is written as `name` with its codes, and as `name` with the endings "_scale" and perhaps "_minimum",
    see `PackedRows`.

    Args:
        dtype: of expanded tensors, "bfloat16" or "float32".

    Raises:
        ModelLoadError: as `GGUFFile.blocks`.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    places: list[list[tuple[int, int]]] = []  # for each tensor, of each of its parts: first byte and bytes of a row
    total = 0
    for tensor in tensors:
        places.append([])
        for name, part_dtype, shape in _parts(file, tensor, dtype):
            code, size = SAFETENSORS_DTYPES[part_dtype]
            places[-1].append((total, math.prod(shape[1:]) * size))
            end = total + math.prod(shape) * size
            header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [total, end]}
            total = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    bar = tqdm(
        total=total, desc="Converting GGUF", unit="B", unit_scale=True, file=sys.stderr, disable=not show_progress
    )
    with path.open("wb") as out, bar:
        out.write(struct.pack("<Q", len(text)) + text)
        data = out.tell()
        for tensor, parts in zip(tensors, places, strict=True):
            for row, arrays in _chunks(file, tensor, dtype):
                for (first, row_bytes), array in zip(parts, arrays, strict=True):
                    bar.update(_write_at(out, data + first + row * row_bytes, array))


def mean_bits(file: GGUFFile, tensors: Sequence[WrittenTensor], dtype: str) -> float:
    """Return the mean number of bits of a weight of all linear layers but the output head."""
    expanded = 8 * SAFETENSORS_DTYPES[dtype][1]
    numbers, bits = 0, 0.0
    for tensor in tensors:
        if tensor.name.startswith("model.layers.") and len(file.tensors[tensor.source].shape) == 2:
            count = math.prod(file.tensors[tensor.source].shape)
            numbers += count
            bits += count * (expanded if tensor.kind is None else PACKED_TYPES[tensor.kind].bits)
    return round(bits / max(1, numbers), 3)


def _parts(file: GGUFFile, tensor: WrittenTensor, dtype: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield names, dtypes and shapes of what is written for a tensor."""
    shape = file.tensors[tensor.source].shape
    if tensor.kind is None:
        yield tensor.name, dtype, shape
        return
    form, (rows, columns) = PACKED_TYPES[tensor.kind], shape
    scales = rows, columns // form.columns
    yield tensor.name, "int8" if form.code_bits == 8 else "uint8", (rows, columns * form.code_bits // 8)
    yield f"{tensor.name}_scale", form.scales, scales
    if form.has_minima:
        yield f"{tensor.name}_minimum", form.scales, scales


def _chunks(
    file: GGUFFile, tensor: WrittenTensor, dtype: str
) -> Iterator[tuple[int, Sequence[npt.NDArray[np.generic]]]]:
    """Yield the number of a chunk's first row, and the chunk of each part."""
    shape = file.tensors[tensor.source].shape
    step = max(1, CHUNK_VALUES // max(1, math.prod(shape[1:]))) if len(shape) > 1 and not tensor.heads else shape[0]
    for start in range(0, shape[0], step):
        end = min(start + step, shape[0])
        if tensor.kind is None:
            values = file.read(tensor.source, start, end)
            yield start, [_rounded(_halves_from_pairs(values, tensor.heads), dtype)]
        else:
            # A row is permuted whole, so that its blocks stay as they are.
            packed = rewrite(_halves_from_pairs(file.blocks(tensor.source, start, end), tensor.heads), tensor.kind)
            yield start, [part for part in packed if part is not None]


def _halves_from_pairs(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Reorder the rows of some heads: Llama's GGUF files store the two dimensions that rotate together side by side,
    transformers half a head apart. Without heads, rows stay."""
    if not heads:
        return rows
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def _rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.generic]:
    """Return float32, or the bits of bfloat16."""
    if dtype == "float32":
        return np.ascontiguousarray(values, "<f4")
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")


def _write_at(out: BinaryIO, place: int, values: npt.NDArray[np.generic]) -> int:
    out.seek(place)
    return out.write(values.tobytes())


def packed_types(file: GGUFFile, names: Mapping[str, str]) -> dict[str, str]:
    """Return the GGML types of the tensors that can stay packed, by their names in the file.

    Args:
        names: Hugging Face names of the tensors, by their names in the file.
    """
    kinds = {name: file.kind(name) for name in names if len(file.tensors[name].shape) == 2}
    return {name: kind for name, kind in kinds.items() if kind in PACKED_TYPES}
