"""Collects `Facts`. Each probe is guarded: if it fails, `unknown` holds the reason.

Probes that import libraries run in a child process (`radixrt.doctor.child`), because an unsuitable driver can crash or
hang the process.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from radixrt._version import __version__
from radixrt.doctor.facts import CacheFolder, Disk, Facts, Gpu, Tool
from radixrt.engine.tier_options import available_memory
from radixrt.kernels.threads import pick_threads
from radixrt.models.loading.source import DEFAULT_PACKAGE, cache_folder
from radixrt.os_process import child_command
from radixrt.portable import num_cores

PACKAGES = (
    "torch",
    "flashinfer-python",
    "triton",
    "xgrammar",
    "llguidance",
    "transformers",
    "tokenizers",
    "safetensors",
    "msgspec",
    "pyzmq",
    "numpy",
)
CHILD_PROBES = ("torch", "CPU kernels", "triton", "flashinfer-python", "xgrammar", "llguidance", "pyzmq", "msgspec")
"""Names of the child's probes, in order."""
CHILD_TIMEOUT_S = 180.0
TOOL_TIMEOUT_S = 20.0
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "bf16", "asimd", "sve")
INSTALLERS = ("apt-get", "dnf", "apk", "zypper", "pacman")
MAX_CACHE_FILES = 200_000
PROBE_BYTES = 256 << 20
"""Size of the file by which a disk is measured; a quarter of the free space if that is less."""

T = TypeVar("T")


class Cpu(NamedTuple):
    name: str = ""
    features: tuple[str, ...] = ()


class Driver(NamedTuple):
    version: str | None = None
    gpus: tuple[str, ...] = ()


class Prober:
    """Runs probes and records the reasons of failures."""

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}

    def ask(self, name: str, probe: Callable[[], T], otherwise: T) -> T:
        try:
            return probe()
        except Exception as error:  # any failure; the other probes still run
            self.unknown[name] = f"{type(error).__name__}: {error}"[:300]
            return otherwise


def gather(*, device: str, attention_backend: str, model: str | None = None, disk: str | None = None) -> Facts:
    """Run all probes, in about the time that importing torch takes. Never raises.

    Args:
        model: folder of a model that is looked at too.
        disk: folder whose disk is measured too, by a file of `PROBE_BYTES` that is removed again.
    """
    # Libraries whose import may crash are probed in a child process, all others here.
    prober = Prober()
    ask = prober.ask
    nothing: dict[str, dict[str, Any]] = {}
    checkpoint = None if model is None else f"checkpoint={Path(model).expanduser()}"
    names = CHILD_PROBES if checkpoint is None else (*CHILD_PROBES, "memory bandwidth", checkpoint)
    child = ask("libraries", lambda: ask_child(names, prober.unknown), nothing)
    bandwidth, tensors = child.pop("memory bandwidth", {}), child.pop(checkpoint or "", {})
    for name, answer in (("memory bandwidth", bandwidth), ("checkpoint", tensors)):
        if "error" in answer:
            prober.unknown[name] = answer["error"]
    torch = child.get("torch", {})
    broken = {name: answer["error"] for name, answer in child.items() if "error" in answer and name != "CPU kernels"}
    kernels = child.get("CPU kernels")
    loaded = kernels or {}
    total, free = ask("memory", _memory, (0, 0))
    cpu = ask("CPU", _cpu, Cpu())
    driver = ask("driver", _driver, Driver())
    packages = {name: ask(name, functools.partial(_version, name), None) for name in PACKAGES}
    flashinfer = ask("FlashInfer's kernels", _flashinfer_folder, None)
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc_places = ([cuda_home] if cuda_home else []) + ["/usr/local/cuda"]
    return Facts(
        device=device,
        attention_backend=attention_backend,
        radixrt=__version__,
        python=platform.python_version(),
        system=ask("system", lambda: f"{platform.system()} {platform.release()} {platform.machine()}", ""),
        cpu=cpu.name,
        cpu_features=cpu.features,
        cores=num_cores(),
        memory_total=total,
        memory_free=free,
        memory_left=ask("memory of the control group", available_memory, free),
        driver=driver.version,
        driver_gpus=driver.gpus,
        torch=torch.get("version"),
        torch_cuda=torch.get("cuda"),
        gpus=tuple(Gpu(g["name"], (g["major"], g["minor"]), g["total"], g["free"]) for g in torch.get("gpus", ())),
        cuda_error=torch.get("cuda_error"),
        cuda_home=cuda_home,
        nvcc=ask("nvcc", lambda: _tool(["nvcc"], [f"{place}/bin" for place in nvcc_places], r"release ([\d.]+)"), None),
        compiler=ask("C++", lambda: _tool([os.environ.get("CXX") or "", "g++", "clang++", "c++"]), None),
        ninja=ask("ninja", lambda: _tool(["ninja"], [str(Path(sys.executable).parent)]), None),
        packages=packages,
        broken=broken,
        cpu_kernels=None if kernels is None or "missing" in kernels else kernels.get("error", ""),
        kernel_features=tuple(loaded.get("features", ())),
        kernels_prebuilt=loaded.get("prebuilt", False),
        threads=ask("threads", lambda: pick_threads(None), 0),
        flashinfer_kernels=ask(
            "FlashInfer's kernels", lambda: 0 if flashinfer is None else _size(flashinfer, suffix=".so"), 0
        ),
        default_model=ask("default model", lambda: importlib.util.find_spec(DEFAULT_PACKAGE) is not None, True),
        caches=ask("caches", lambda: _caches(flashinfer), ()),
        bandwidth={kind: rate for kind, rate in bandwidth.items() if kind in ("cpu", "cuda")},
        checkpoint=tensors.get("problem", ""),
        disk=None if disk is None else ask(f"disk of {disk}", lambda: _disk(Path(disk).expanduser()), None),
        installer=next((name for name in INSTALLERS if shutil.which(name)), None),
        unknown=prober.unknown,
    )


# --- the child ------------------------------------------------------------------------------------------------------


def ask_child(probes: Iterable[str], unknown: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the child's answers by probe. If a probe ends the child, another child runs the remaining probes.

    Args:
        unknown: receives the reason for each probe without an answer.
    """
    answers: dict[str, dict[str, Any]] = {}
    left = list(probes)
    while left:
        ended = _run_child(left, answers)
        left = [name for name in left if name not in answers]
        if left:
            unknown[left.pop(0)] = ended
    return answers


def _run_child(probes: list[str], answers: dict[str, dict[str, Any]]) -> str:
    """Add the answers of one child to `answers`; return how the child ended."""
    child = subprocess.Popen(
        child_command("radixrt.doctor.child", *probes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    timer = threading.Timer(CHILD_TIMEOUT_S, child.kill)
    timer.start()
    try:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("{"):  # libraries print too
                answer = json.loads(line)
                answers[answer.pop("probe")] = answer
        code = child.wait()
    finally:
        timer.cancel()
    return f"the probing process was ended by signal {-code}" if code < 0 else f"the probing process ended with {code}"


# --- this process ---------------------------------------------------------------------------------------------------


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> Cpu:
    """Return the name of the processor, and its features among CPU_FEATURES."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return Cpu(fields.get("model name", platform.processor()), tuple(name for name in CPU_FEATURES if name in flags))


def _memory() -> tuple[int, int]:
    import psutil

    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def _driver() -> Driver:
    """Return the NVIDIA driver's version and devices, from nvidia-smi or from the kernel module."""
    smi = shutil.which("nvidia-smi")
    if smi is not None:
        query = [smi, "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader"]
        result = subprocess.run(query, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
        rows = [line.split(", ", 1) for line in result.stdout.splitlines() if ", " in line]
        if result.returncode == 0 and rows:
            return Driver(rows[0][0], tuple(row[1] for row in rows))
    module = Path("/proc/driver/nvidia/version")
    if not module.exists():
        return Driver()
    found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", module.read_text())
    return Driver(found.group(1) if found else "version not known")


def _tool(names: list[str], places: list[str] | None = None, pattern: str = r"(\d+(\.\d+)+)") -> Tool | None:
    """Find the first available program of several, on the PATH or in any of `places`."""
    path = next((place for name in names if name and (place := _which(name, places or []))), None)
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    found = re.search(pattern, said.stdout + said.stderr)
    return Tool(path, found.group(1) if found else None)


def _which(name: str, places: list[str]) -> str | None:
    return shutil.which(name) or next((path for place in places if (path := shutil.which(name, path=place))), None)


def _flashinfer_folder() -> Path:
    """Return the folder of FlashInfer's compiled kernels."""
    return Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache" / "flashinfer"


def _caches(flashinfer: Path | None) -> tuple[CacheFolder, ...]:
    own = cache_folder()
    triton = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    places = {"CPU kernels": own / "kernels", "compiled grammars": own / "grammars", "converted models": own / "gguf"}
    other = {"Triton's kernels": triton} | ({} if flashinfer is None else {"FlashInfer's kernels": flashinfer})
    return tuple(
        CacheFolder(what, str(path), _size(path), _writable(path)) for what, path in {**places, **other}.items()
    )


def _disk(folder: Path) -> Disk:
    """Write a file to a folder and read it from the disk, not from the kernel's memory."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    free, piece = shutil.disk_usage(folder).free, os.urandom(1 << 20)  # a compressing disk gains nothing from it
    size = max(min(PROBE_BYTES, free // 4) // len(piece), 1) * len(piece)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        started = time.perf_counter()
        for _ in range(size // len(piece)):
            file.write(piece)
        os.fsync(file.fileno())
        written = time.perf_counter()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        began = time.perf_counter()
        while file.read(1 << 20):
            pass
        read_s = time.perf_counter() - began
    return Disk(str(folder), free, size / (written - started), size / read_s)


def _size(folder: Path, suffix: str = "") -> int:
    """Sum the sizes in bytes of a folder's files with the suffix; 0 if the folder does not exist."""
    total = 0
    for count, (parent, _, files) in enumerate(os.walk(folder)):
        if count > MAX_CACHE_FILES:
            break
        for name in files:
            if name.endswith(suffix):
                total += os.stat(os.path.join(parent, name), follow_symlinks=False).st_size
    return total


def _writable(folder: Path) -> bool:
    """Return True if the folder can be written, or created if it does not exist."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
