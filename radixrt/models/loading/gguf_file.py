"""`GGUFFile`: the metadata and tensors of a GGUF file, mapped into memory.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The header is parsed here rather than by the `gguf`
package, which makes two numpy arrays of each string (seconds for a vocabulary); its dequantization is used.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radixrt.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_STRING = 1 << 28
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """Location of a tensor: row-major shape, GGML quantization type, byte offset from the file's start."""

    shape: tuple[int, ...]
    kind: int
    offset: int


class GGUFFile:
    """An open GGUF file, little-endian, version 2 or 3.

    Attributes:
        path: of the file.
        metadata: key -> int, float, bool, str or a list of them.
        tensors: name -> location.
    """

    def __init__(self, path: Path) -> None:
        """Raises ModelLoadError if the file cannot be read or is malformed."""
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error
        self._at = 0
        try:
            self.metadata, self.tensors = self._parse()
        except (struct.error, ValueError, IndexError, OverflowError) as error:
            raise ModelLoadError(f"{path} is not a whole GGUF file: {error}; download it again") from error

    def _parse(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        if self._data[:4] != MAGIC:
            raise ModelLoadError(f"{self.path} is not a GGUF file")
        self._at = 4
        version = self._scalar("I")
        if version not in VERSIONS:
            raise ModelLoadError(f"{self.path}: GGUF version {version} is not supported; {VERSIONS} are")
        tensor_count, key_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        infos = [self._tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        start = -(-self._at // alignment) * alignment
        return metadata, {name: GGUFTensor(shape, kind, start + offset) for name, shape, kind, offset in infos}

    def _scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        size = self._scalar("Q")
        if size > MAX_STRING or self._at + size > len(self._data):
            raise ValueError(f"a string of {size} bytes at {self._at}")
        self._at += size
        return self._data[self._at - size : self._at].decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"a value of unknown type {kind} at {self._at}")
        item, count = self._scalar("I"), self._scalar("Q")
        if count > len(self._data):
            raise ValueError(f"an array of {count} values at {self._at}")
        if item not in SCALARS:
            return [self._value(item) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{SCALARS[item]}", self._data, self._at)
        self._at += struct.calcsize(f"<{count}{SCALARS[item]}")
        return list(values)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims = [self._scalar("Q") for _ in range(self._scalar("I"))]
        return name, tuple(reversed(dims)), self._scalar("I"), self._scalar("Q")

    def kind(self, name: str) -> str:
        """Return the name of a tensor's GGML type, e.g. "Q4_K".

        Raises:
            ModelLoadError: this version of the gguf package does not know the type.
        """
        import gguf

        number = self.tensors[name].kind
        try:
            return str(gguf.GGMLQuantizationType(number).name)
        except ValueError:
            raise ModelLoadError(f"{self.path}: {name} has the unknown GGML type {number}") from None

    def blocks(self, name: str, start: int = 0, end: int | None = None) -> npt.NDArray[np.uint8]:
        """Return rows [start, end) of a tensor as they are stored, uint8 [rows, bytes of a row]; a tensor of one
        dimension is one row.

        Raises:
            ModelLoadError: the type is not known, the rows are not whole blocks, or the file is truncated.
        """
        import gguf

        tensor, kind = self.tensors[name], self.kind(name)
        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
        rows, per_row = tensor.shape[0], math.prod(tensor.shape[1:])
        if len(tensor.shape) == 1:
            rows, per_row = 1, tensor.shape[0]
        end = rows if end is None else end
        if per_row % block:
            raise ModelLoadError(f"{self.path}: rows of {name} are no multiple of {block}, as {kind} needs")
        row_bytes = per_row // block * block_bytes
        first, last = tensor.offset + start * row_bytes, tensor.offset + end * row_bytes
        if last > len(self._data):
            raise ModelLoadError(f"{self.path} ends before {name} does; download it again")
        return np.frombuffer(self._data, np.uint8, last - first, first).reshape(end - start, row_bytes)

    def read(self, name: str, start: int = 0, end: int | None = None) -> npt.NDArray[np.float32]:
        """Return rows [start, end) of a tensor, dequantized to float32; a tensor of one dimension is read whole.

        Raises:
            ModelLoadError: the quantization is not supported, or as `blocks`.
        """
        import gguf

        tensor, kind = self.tensors[name], self.kind(name)
        raw = self.blocks(name) if len(tensor.shape) == 1 else self.blocks(name, start, end)
        try:
            values = gguf.quants.dequantize(_typed(raw, kind), gguf.GGMLQuantizationType[kind])
        except NotImplementedError:
            raise ModelLoadError(f"{self.path}: {name} is quantized as {kind}, which is not supported") from None
        shape = tensor.shape if len(tensor.shape) == 1 else (raw.shape[0], *tensor.shape[1:])
        return np.ascontiguousarray(values, np.float32).reshape(shape)


def _typed(raw: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    """View raw bytes as `gguf.quants.dequantize` expects them: unquantized data typed, quantized data as bytes."""
    plain = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    return raw.view(plain[kind]) if kind in plain else raw
