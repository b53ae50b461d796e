"""`Layout`: how GPUs share the work, the layouts of a number of GPUs, and whether a model's weights fit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from radixrt.doctor.model import model_needs

RANKS, STAGES = (1, 2, 4, 8), (1, 2, 4)
GIB = 1 << 30
NAME = re.compile(r"(?:tp(\d+))?-?(?:pp(\d+))?-?(?:r(\d+))?")


@dataclass(frozen=True)
class Layout:
    """Replicas behind the router, each with pipeline stages of tensor-parallel ranks; a rank is a GPU."""

    tp: int = 1
    pp: int = 1
    replicas: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def name(self) -> str:
        """E.g. tp2-pp2-r2; parts that are 1 are left out, and one GPU is "one"."""
        parts = [f"tp{self.tp}"] * (self.tp > 1) + [f"pp{self.pp}"] * (self.pp > 1)
        return "-".join(parts + [f"r{self.replicas}"] * (self.replicas > 1)) or "one"

    @property
    def options(self) -> dict[str, Any]:
        """Options of the engine; one replica has no router."""
        return {"tp": self.tp, "pp": self.pp, "replicas": self.replicas if self.replicas > 1 else None}


ONE = Layout()


def parse_layout(name: str) -> Layout:
    """Return the layout of a name.

    Raises:
        ValueError: it is no name of a layout.
    """
    if name == ONE.name:
        return ONE
    match = NAME.fullmatch(name)
    if match is None or not any(match.groups()):
        raise ValueError(f"{name} is no layout; say one, tp2, pp2, r2 (two replicas), or several: tp2-pp2-r2")
    layout = Layout(*(int(part or 1) for part in match.groups()))
    if min(layout.tp, layout.pp, layout.replicas) < 1:
        raise ValueError(f"{name}: each part of a layout is at least 1")
    return layout


def layouts_of(gpus: int) -> list[Layout]:
    """Return the layouts of exactly so many GPUs: those with fewer replicas first, then those with fewer stages."""
    found = [Layout(tp, pp, gpus // (tp * pp)) for tp in RANKS for pp in STAGES if gpus % (tp * pp) == 0]
    return sorted(found, key=lambda layout: (layout.replicas, layout.pp))


def layouts_for(counts: list[int]) -> list[Layout]:
    """Return the layouts of several numbers of GPUs, one GPU first, which the others are compared with."""
    return list(dict.fromkeys([ONE, *(layout for count in sorted(counts) for layout in layouts_of(count))]))


@dataclass(frozen=True)
class Fit:
    """Attributes:
    weight_gib: of weights on each GPU, about; on a CPU, in the memory of all.
    kv_tokens: room for keys and values of all replicas together, about, if the pools are sized from memory.
    problem: why the layout cannot run; empty if it may.
    """

    weight_gib: float
    kv_tokens: int
    problem: str = ""


def fit_of(layout: Layout, folder: str, *, device: str, memory: int, dtype: str, context_length: int) -> Fit:
    """Return whether a model fits, by the sizes of its weights and of one request; the largest step, which takes some
    GiB too, is not counted.

    Args:
        folder: of the model.
        device: cpu or cuda.
        memory: bytes of each GPU; of a CPU all, which the replicas divide.
        context_length: tokens of a request that must have room.
    """
    each = memory if device == "cuda" else memory // layout.replicas
    needs = model_needs(folder, device=device, free_bytes=each, dtype=dtype, tp=layout.tp, pp=layout.pp)
    if needs.problem:
        return Fit(0.0, 0, needs.problem)
    weights = needs.weight_bytes / (layout.tp * layout.pp if device == "cuda" else 1) / GIB
    room = needs.kv_tokens * layout.replicas
    where = "a GPU" if device == "cuda" else "a replica"
    if weights > each / GIB:
        return Fit(weights, 0, f"{weights:.1f} GiB of weights do not fit the {each / GIB:.1f} GiB of {where}")
    if needs.kv_tokens < context_length:
        left = f"leave room for {needs.kv_tokens:,} tokens of keys and values"
        problem = f"{weights:.1f} GiB of weights in the {each / GIB:.1f} GiB of {where} {left}, and a request may have"
        return Fit(weights, room, f"{problem} {context_length:,}")
    return Fit(weights, room)
