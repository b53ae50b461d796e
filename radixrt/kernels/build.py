"""Loads the CPU kernels: those of the wheel (`prebuilt.py`), or those that the machine's own C++ compiler makes, once,
in the user's cache folder.

The kernels have a C interface and no torch headers, so compiling takes a few seconds. Their threads are their own
(`threads.cpp`), whose number `set_threads` sets.

`python -m radixrt.kernels.build FOLDER [MACHINE]` compiles the libraries of a wheel.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from radixrt.kernels.prebuilt import LEVELS, find_prebuilt, library_name, machine_name
from radixrt.kernels.threads import usable_cores
from radixrt.private_files import is_trusted, make_private_folder, write_private

logger = logging.getLogger(__name__)

SOURCES = [
    Path(__file__).with_name(name)
    for name in (
        "attention.cpp",
        "cpu_features.cpp",
        "elementwise.cpp",
        "experts.cpp",
        "gemm.cpp",
        "gemm_codes.cpp",
        "gemm_f32.cpp",
        "recurrence.cpp",
        "refine_top.cpp",
        "replay.cpp",
        "threads.cpp",
    )
]
HEADERS = [
    Path(__file__).with_name(f"{name}.h")
    for name in (
        "buffer",
        "code_panels",
        "gemm",
        "gemm_codes_tiles",
        "gemm_tiles",
        "panel_results",
        "replay",
        "thread_progress",
        "threads",
        "tile_registers",
        "vec",
    )
]
PORTABLE_FLAGS = ("-O3", "-fno-math-errno", "-fPIC", "-pthread", "-std=c++17")
FLAGS = (*PORTABLE_FLAGS, "-march=native")
COMPILE_TIMEOUT_S = 300
STATIC_RUNTIME = ("-s", "-static-libstdc++", "-static-libgcc") if sys.platform == "linux" else ()
"""Flags with which a wheel's library is linked: it needs no C++ runtime of the machine."""


class KernelUnavailable(Exception):
    """The kernels cannot be built or loaded here; says why."""


@cache
def load_kernels(cache_dir: Path) -> ctypes.CDLL:
    """Return the compiled kernels: prebuilt, from the cache folder, or freshly built. If the folder cannot be written,
    or other users could have written to it, the kernels are built for this process alone, and a warning is logged.

    Raises:
        KernelUnavailable: there is no compiler, or compiling failed; the message names a fix.
    """
    if (prebuilt := find_prebuilt(source_hash())) is not None:
        return _load(prebuilt)
    library = cache_dir / f"cpu-{_identity()}.so"
    try:
        make_private_folder(cache_dir)
        if library.exists() and is_trusted(library):
            return _load(library)
    except OSError:
        pass  # `write_private` finds the same, and is reported
    try:
        with tempfile.TemporaryDirectory(prefix="kernels-", ignore_cleanup_errors=True) as scratch:
            built = _compile(Path(scratch))
            try:
                write_private(library, built.read_bytes(), 0o700)
            except OSError as error:
                logger.warning("the compiled kernels are not kept for the next start: %s", error)
            return _load(built)  # it stays mapped when the file is gone
    except OSError as error:
        raise KernelUnavailable(f"the kernels cannot be built in the temporary folder: {error}") from error


def _load(library: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise KernelUnavailable(f"the compiled kernels do not load: {error}") from error


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and shutil.which(name):
            return name
    raise KernelUnavailable(
        "no C++ compiler was found (looked for $CXX, g++, clang++, c++), and this installation brings no kernels for "
        f"{platform.machine()}; install g++ or clang++, or a wheel that `make wheel` has built on such a machine"
    )


def source_hash() -> str:
    """Return a hash of all that a prebuilt library depends on: the source, the flags, and the levels of processors."""
    levels = [" ".join((each.name, *each.flags)) for machine in LEVELS.values() for each in machine]
    return _hash_with_source(*PORTABLE_FLAGS, *levels)


def _identity() -> str:
    """Names what the binary depends on: the source, the flags, and the processor that -march=native means."""
    try:
        text = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
        cpu = "".join(line for line in text.splitlines() if line.startswith(("flags", "model name", "Features")))
    except OSError:
        cpu = platform.processor()
    return _hash_with_source(*FLAGS, cpu, platform.machine(), sys.platform)


def _hash_with_source(*others: str) -> str:
    texts = [file.read_text() for file in (*SOURCES, *HEADERS)]
    return hashlib.sha256("\n".join([*texts, *others]).encode()).hexdigest()[:16]


def _compile(scratch: Path, flags: Sequence[str] = FLAGS, link: Sequence[str] = ()) -> Path:
    """Build the library in a folder and return its path."""
    compiler = _compiler()
    linked = scratch / "kernels.so"
    objects = [scratch / f"{source.stem}.o" for source in SOURCES]
    commands = [
        [compiler, *flags, "-c", str(source), "-o", str(compiled)]
        for source, compiled in zip(SOURCES, objects, strict=True)
    ]
    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(_run, commands))
    _run([compiler, "-shared", "-pthread", *link, *map(str, objects), "-o", str(linked)])
    return linked


def compile_prebuilt(folder: Path, machine: str) -> None:
    """Compile the libraries of a wheel into a folder, one for each level of processors.

    Args:
        machine: a key of `LEVELS`, or another system's name of it. For another machine than this one, $CXX names a
            cross compiler.

    Raises:
        KernelUnavailable: there is no compiler, compiling failed, or the machine has no levels.
    """
    if (levels := LEVELS.get(machine_name(machine))) is None:
        raise KernelUnavailable(f"{machine}: kernels are prebuilt for {', '.join(LEVELS)} alone")
    folder.mkdir(parents=True, exist_ok=True)
    for level in levels:
        with tempfile.TemporaryDirectory(prefix="kernels-") as scratch:
            built = _compile(Path(scratch), (*PORTABLE_FLAGS, *level.flags), STATIC_RUNTIME)
            shutil.copyfile(built, folder / library_name(level, source_hash()))


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        raise KernelUnavailable(f"{' '.join(command)} failed: {' '.join(output[-400:].split())}") from error


if __name__ == "__main__":
    compile_prebuilt(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else platform.machine())
