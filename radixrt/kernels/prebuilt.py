"""CPU kernels that a wheel brings, compiled for several levels of processors, and the choice among them.

`make wheel` compiles them. A source folder has none: there the kernels are compiled on first use, for the machine.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).with_name("prebuilt")

AVX2 = frozenset({"abm", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VNNI = AVX512 | {"avx512_vnni"}
BF16 = VNNI | {"avx512_bf16"}
AMX = BF16 | {"amx_tile", "amx_bf16", "amx_int8"}


@dataclass(frozen=True)
class Level:
    """A kind of processors.

    Attributes:
        name: part of the library's file name.
        flags: of the compiler.
        needs: features of the processor without which the library must not be called, as `cpu_features.cpp` names them.
    """

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()


_VNNI_FLAGS = ("-march=x86-64-v4", "-mavx512vnni")
_BF16_FLAGS = (*_VNNI_FLAGS, "-mavx512bf16")

LEVELS = {
    "x86_64": (
        Level("x86-64-amx", (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), AMX),
        Level("x86-64-avx512-bf16", _BF16_FLAGS, BF16),
        Level("x86-64-avx512-vnni", _VNNI_FLAGS, VNNI),
        Level("x86-64-v4", ("-march=x86-64-v4",), AVX512),
        Level("x86-64-v3", ("-march=x86-64-v3",), AVX2),
        Level("x86-64", ("-march=x86-64", "-O2")),  # where -O3 takes five times as long
    ),
    "aarch64": (Level("aarch64", ("-march=armv8-a",)),),
}
"""Levels of each kind of machine, the fastest first. Each processor of the kind runs the last one."""

MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}
"""Other systems' names of these kinds."""


def machine_name(name: str) -> str:
    """Return the key of `LEVELS` for a system's name of a machine."""
    return MACHINES.get(name, name)


def library_name(level: Level, source: str) -> str:
    """Return the file name of a level's library.

    Args:
        source: hash of the kernels' source.
    """
    return f"cpu-{source}-{level.name}.so"


def find_prebuilt(source: str) -> Path | None:
    """Return the library of the highest level that this processor supports; None if this installation has none that was
    compiled from the same source.

    Args:
        source: hash of the kernels' source.
    """
    levels = LEVELS.get(machine_name(platform.machine()), ())
    if not levels or not (lowest := FOLDER / library_name(levels[-1], source)).is_file():
        return None
    features = cpu_features(ctypes.CDLL(str(lowest)))
    return next(_runnable(levels, features, source), None)


def _runnable(levels: tuple[Level, ...], features: frozenset[str], source: str) -> Iterator[Path]:
    for level in levels:
        if level.needs <= features and (library := FOLDER / library_name(level, source)).is_file():
            yield library


def cpu_features(library: ctypes.CDLL) -> frozenset[str]:
    """Return the features of this processor that a level may need.

    Args:
        library: kernels that this processor runs.
    """
    library.radixrt_cpu_features.restype = ctypes.c_char_p
    return frozenset(library.radixrt_cpu_features().decode().split())


def kernel_features(library: ctypes.CDLL) -> list[str]:
    """Return the features of processors that a library's kernels use, from the oldest to the newest."""
    library.radixrt_kernel_features.restype = ctypes.c_char_p
    names: str = library.radixrt_kernel_features().decode()
    return names.split()
