"""Reports of `radixrt doctor`, as text and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from radixrt.doctor.advice import Finding
from radixrt.doctor.facts import GIB, Disk, Facts, Tool
from radixrt.doctor.model import ModelNeeds
from radixrt.doctor.roles import RoleLayout

MIB = 1 << 20
PREFIX_TOKENS = 8192
"""Length of the prefix as which the speed of a disk is shown."""


def as_dict(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """{"works": bool, "findings": [{severity, what, fix}], "facts": {...}}"""
    return {
        "works": all(finding.severity != "error" for finding in findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
        "facts": dataclasses.asdict(facts),
    }


def as_text(facts: Facts, findings: Sequence[Finding]) -> str:
    lines = [f"{name:<12}{value}" for name, value in _lines(facts)]
    for finding in findings:
        lines += ["", f"{finding.severity}: {finding.what}"]
        if finding.fix is not None:
            lines.append(f"  fix it with: {finding.fix}")
    return "\n".join([*lines, "", _verdict(facts, findings)])


def _verdict(facts: Facts, findings: Sequence[Finding]) -> str:
    if any(finding.severity == "error" for finding in findings):
        return "Serving does not work here as asked for."
    return f"Serving works here, on {'CUDA' if facts.uses_cuda else 'the CPU'}."


def _lines(facts: Facts) -> Iterator[tuple[str, str]]:
    yield "radixrt", f"{facts.radixrt}, Python {facts.python}, {facts.system}"
    yield "asked for", f"--device {facts.device} --attention-backend {facts.attention_backend}"
    features = f" ({' '.join(facts.cpu_features)})" if facts.cpu_features else ""
    yield "CPU", f"{facts.cpu or 'not known'}, {facts.cores} cores{features}"
    yield "memory", f"{facts.memory_free / GIB:.1f} of {facts.memory_total / GIB:.1f} GiB free"
    yield "driver", _known(facts, "driver", facts.driver)
    for i, gpu in enumerate(facts.gpus):
        memory = f"{gpu.memory_free / GIB:.1f} of {gpu.memory_total / GIB:.1f} GiB free"
        yield f"GPU {i}", f"{gpu.name}, compute capability {gpu.capability[0]}.{gpu.capability[1]}, {memory}"
    if not facts.gpus:
        for i, gpu_name in enumerate(facts.driver_gpus):
            yield f"GPU {i}", f"{gpu_name} (not usable by torch)"
    built = f"built for CUDA {facts.torch_cuda}" if facts.torch_cuda else "built without CUDA"
    yield "torch", _known(facts, "torch", None if facts.torch is None else f"{facts.torch}, {built}")
    for name, tool in (("nvcc", facts.nvcc), ("C++", facts.compiler), ("ninja", facts.ninja)):
        yield name, _known(facts, name, _tool(tool))
    if facts.cpu_kernels is not None or "CPU kernels" in facts.unknown:
        yield "CPU kernels", _known(facts, "CPU kernels", facts.cpu_kernels or _kernels(facts))
    yield "packages", ", ".join(_package(facts, name) for name in facts.packages)
    for folder in facts.caches:
        yield "cache", f"{folder.path}: {folder.what}, {folder.size / MIB:.1f} MiB"
    if facts.model is not None and not facts.model.problem:
        yield from _model(facts.model, facts.bandwidth.get("cuda" if facts.uses_cuda else "cpu", 0))
        yield from _host_tier(facts, facts.model)
    if facts.layout is not None and not facts.layout.problem:
        yield "roles", _roles(facts.layout, facts.model)
    if facts.disk is not None:
        yield "disk", _disk(facts.disk, 0 if facts.model is None else facts.model.token_bytes)
    for name, reason in facts.unknown.items():
        yield "not known", f"{name}: {reason}"


def _kernels(facts: Facts) -> str:
    """Return the line about compiled CPU kernels that load."""
    made = "of this installation" if facts.kernels_prebuilt else "compiled for this machine"
    instructions = " ".join(facts.kernel_features) or "the processor's basic instructions"
    threads = "1 thread" if facts.threads == 1 else f"{facts.threads} threads"
    # OMP_NUM_THREADS, or a control group that limits the processor time, as in a container.
    fewer = f", fewer than the {facts.cores} cores: see docs/cpu.md" if facts.threads < facts.cores else ""
    return f"{made}, with {instructions}; {threads}{fewer}"


def _model(needs: ModelNeeds, bandwidth: int) -> Iterator[tuple[str, str]]:
    """Yield the lines about a model.

    Args:
        bandwidth: bytes a second that the device reads; 0 if it is not known.
    """
    yield "model", f"{needs.architecture} on {needs.runs_on}, {needs.dtype}, {needs.context_length} tokens of context"
    scheme = f", {needs.scheme}" if needs.scheme else ""
    yield "weights", f"about {_size(needs.weight_bytes)} in memory{scheme}"
    if needs.tower_bytes:
        yield "tower", f"{_size(needs.tower_bytes)} of the weights, on each rank of the first stage"
    if bandwidth and needs.step_bytes:
        rate = needs.readers * bandwidth
        speed = f"at most {rate / needs.step_bytes:,.0f} tokens/s for one request"
        yield "floor", f"{speed}, each of which reads {_size(needs.step_bytes)} of weights at {rate / 1e9:,.0f} GB/s"
    if needs.token_bytes:
        fits = f"about {needs.kv_tokens} tokens fit beside the weights" if needs.kv_tokens else "the weights do not fit"
        yield "KV cache", f"{needs.token_bytes / 1024:.1f} KiB a token; {fits}"
    if needs.state_bytes:
        share = f"about {needs.num_states} fit beside these tokens" if needs.num_states else "none fits"
        users = f"each running request (at most {needs.requests}) and each prefix that is kept"
        yield "states", f"{needs.state_bytes / 1024:,.0f} KiB for {users}; {share}"
    if len(needs.ranks) > 1:
        yield "ranks", f"--tp may be {', '.join(map(str, needs.ranks))}"
    if needs.stages > 1:
        yield "stages", f"--pp may be 1 to {needs.stages}"
    for note in needs.notes:
        yield "note", note


def _host_tier(facts: Facts, needs: ModelNeeds) -> Iterator[tuple[str, str]]:
    """Yield how many tokens of a model the memory of the host keeps outside of the KV pool."""
    if needs.token_bytes:
        left = facts.memory_left - (0 if facts.uses_cuda else needs.weight_bytes)
        free = f"{left / GIB:.1f} GiB are left for it and the KV cache" if left > 0 else "no memory is left for it"
        if facts.uses_cuda:
            free = f"{left / GIB:.1f} GiB of memory are left"
        kept = f"{GIB // needs.token_bytes:,} tokens"
        if needs.state_bytes:
            kept += f", of which the state of each prefix takes {-(-needs.state_bytes // needs.token_bytes):,}"
        yield "host tier", f"--kv-host-gib 1 keeps {kept}; {free}"


def _roles(layout: RoleLayout, needs: ModelNeeds | None) -> str:
    """Return the line about replicas with roles."""
    line = f"--replicas {len(layout.roles)} --roles {layout.listed}: {layout.counts}"
    if "prefill" not in layout.roles:
        return f"{line}; each computes what it answers"
    size = f"{_size(layout.host_bytes)} each, or of " if layout.host_bytes else ""
    line += f"; prefixes move by host tiers of {size}--kv-host-gib"
    if needs is None or not needs.token_bytes or not layout.host_bytes:
        return line
    longest = layout.host_bytes // needs.token_bytes - -(-needs.state_bytes // needs.token_bytes)
    return f"{line}, which keep {max(longest, 0):,} tokens; longer prompts are computed where they are answered"


def _disk(disk: Disk, token_bytes: int) -> str:
    """Return the line about a disk.

    Args:
        token_bytes: of the model's keys and values; 0 without a model.
    """
    rates = f"writes {disk.write_rate / 1e6:,.0f} MB/s and reads {disk.read_rate / 1e6:,.0f} MB/s"
    line = f"{disk.folder} {rates}, {_size(disk.free)} free"
    if not token_bytes:
        return line
    prefix = PREFIX_TOKENS * token_bytes
    return f"{line}; a prefix of {PREFIX_TOKENS:,} tokens ({_size(prefix)}) loads in {prefix / disk.read_rate:.2f} s"


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _known(facts: Facts, name: str, value: str | None) -> str:
    if value is not None:
        return value
    return "not known" if name in facts.unknown else "none"


def _tool(tool: Tool | None) -> str | None:
    return None if tool is None else f"{tool.version or 'version not known'}, {tool.path}"


def _package(facts: Facts, name: str) -> str:
    version = facts.packages[name]
    if name in facts.broken:
        return f"{name} {version or ''} (does not import)"
    return f"{name} {version}" if version is not None else f"no {name}"
