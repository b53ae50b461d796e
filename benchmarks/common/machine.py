"""Facts of the machine, and memory of a tree of processes, from /proc (Linux)."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Memory of a tree of processes, in MiB, summed over them.

    `rss` counts a page shared by two processes twice, `pss` counts it once; `peak` sums the highest rss of each.
    """

    rss: float = 0.0
    pss: float = 0.0
    peak: float = 0.0
    processes: int = 0


def facts() -> dict[str, str | int | float]:
    """CPU, usable cores, memory, kernel, Python and the load average of this moment."""
    cpu = _fields(PROC / "cpuinfo")
    flags = set(cpu.get("flags", "").split())
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cpu features": " ".join(flag for flag in wanted if flag in flags),
        "cores": len(os.sched_getaffinity(0)),
        "memory GiB": round(_kib(_fields(PROC / "meminfo").get("MemTotal", "0")) / MIB, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load average before": round(os.getloadavg()[0], 2),
    }


def tree_memory(root: int) -> Memory:
    """Memory of the process `root` and all its descendants; those that end meanwhile are not counted."""
    total = Memory()
    for pid in tree(root):
        try:
            status = _fields(PROC / str(pid) / "status")
            pss = _fields(PROC / str(pid) / "smaps_rollup").get("Pss", "0")
        except OSError:
            continue
        total = Memory(
            rss=total.rss + _kib(status.get("VmRSS", "0")) / 1024,
            pss=total.pss + _kib(pss) / 1024,
            peak=total.peak + _kib(status.get("VmHWM", "0")) / 1024,
            processes=total.processes + 1,
        )
    return total


def group_members(group: int) -> list[int]:
    """The live processes of a process group, zombies not counted."""
    return [pid for pid, (state, _, pgrp) in _processes().items() if pgrp == group and state not in "ZX"]


def tree(root: int) -> list[int]:
    """The process `root` and all its descendants."""
    parents = {pid: parent for pid, (_, parent, _) in _processes().items()}
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _processes() -> dict[int, tuple[str, int, int]]:
    """State, parent and process group of every process."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent, group = stat[stat.rindex(")") + 2 :].split()[:3]
            found[int(entry.name)] = (state, int(parent), int(group))
    return found


def _fields(path: Path) -> dict[str, str]:
    """The `name: value` lines of a /proc file; the first of each name."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _kib(value: str) -> int:
    return int(value.split()[0])
