"""Files of a model's folder: which hold its weights, and whether downloads and copies are whole.

Imports neither torch nor safetensors: the main process looks at the files before any process starts.
"""

from __future__ import annotations

import json
from pathlib import Path

from radixrt.errors import ModelLoadError

INDEX = "model.safetensors.index.json"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
MAX_POINTER_BYTES = 1024
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header, a little-endian number of eight bytes."""

MAX_HEADER_BYTES = 100_000_000
"""Limit of the safetensors library."""

SHOWN = 3
"""Names that an error about the files or weights of a model lists."""


def check_folder(folder: Path, *, weights: bool = True) -> None:
    """Verify that no file of a model's folder is a pointer of Git LFS, and that its weights are whole.

    Args:
        weights: look at the weights too.

    Raises:
        ModelLoadError: names the file and what to do about it.
    """
    for file in sorted(folder.iterdir()):
        if file.is_file():
            check_pointer(file)
    if weights:
        for file in weight_files(folder):
            _check_safetensors(file)


def check_pointer(file: Path) -> None:
    """Raise ModelLoadError if a file is what Git LFS leaves in place of a file that it has not fetched."""
    try:
        if file.stat().st_size > MAX_POINTER_BYTES or not file.read_bytes().startswith(LFS_POINTER):
            return
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror}") from error
    raise ModelLoadError(f"{file} is a pointer of Git LFS and not the file itself; run `git lfs pull` in {file.parent}")


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model.

    Raises:
        ModelLoadError: a file is missing, or the index is malformed; names it.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{index} is not an index of safetensors files: {error!r}") from error
        if any(not isinstance(name, str) or Path(name).name != name for name in names):
            raise ModelLoadError(f"{index} names files outside of its folder")
        files = [folder / name for name in sorted(names)]
        if absent := [file.name for file in files if not file.is_file()]:
            raise ModelLoadError(f"{folder} lacks {shorten(absent)}, which {INDEX} names; download the model again")
        return files
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    pickled = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt*"))
    if pickled:
        raise ModelLoadError(
            f"{folder} has no safetensors file, only {shorten(pickled)}: pickled weights can run any code and are"
            " not read; convert them, e.g. with transformers' save_pretrained"
        )
    raise ModelLoadError(f"{folder} has no weights: neither model.safetensors nor {INDEX}")


def shorten(names: list[str], limit: int = SHOWN) -> str:
    """Join names by commas; of more than `limit` names, the first ones and the number of the others."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def _check_safetensors(file: Path) -> None:
    """Compare the size of a file with the size that its header declares."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
            if LENGTH_BYTES + length > size or length > MAX_HEADER_BYTES:
                raise ModelLoadError(f"{file} is not a whole safetensors file ({size:,} bytes); download it again")
            header = json.loads(opened.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{file} cannot be read: its header is malformed; download it again") from error
    declared = LENGTH_BYTES + length + max(ends, default=0)
    if declared > size:
        raise ModelLoadError(f"{file} is cut: it has {size:,} of {declared:,} bytes; download it again")
