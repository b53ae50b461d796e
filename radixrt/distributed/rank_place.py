"""`RankPlace`: which rank a runner is, and where it finds the others. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.errors import ConfigError, shown


@dataclass(frozen=True)
class RankPlace:
    """One of the ranks that share a model.

    Attributes:
        rank: below `size`.
        local_rank: among the `local_size` ranks of this machine, which share its memory and cores; its CUDA device.
        store: a file of this machine where the ranks meet; None where they meet at MASTER_ADDR and MASTER_PORT.
        timeout_s: the longest that ranks wait for each other, while loading too.
        one_shot: on CUDA, `radixrt.distributed.one_shot` is used where it works.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: str | None = None
    timeout_s: float = 600.0
    one_shot: bool = False


ONLY_RANK = RankPlace()


def launched_place(environment: Mapping[str, str], timeout_s: float) -> RankPlace:
    """This process's place among those that torchrun or SLURM started.

    Raises:
        ConfigError: a variable that says it is missing or no number.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise ConfigError(f"executor=external: {name} is not set; torchrun sets it, a SLURM script must export it")
    size = _number(environment, "WORLD_SIZE", "SLURM_NTASKS")
    place = RankPlace(
        rank=_number(environment, "RANK", "SLURM_PROCID"),
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", "SLURM_LOCALID"),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=size),
        timeout_s=timeout_s,
    )
    if not 0 <= place.rank < place.size:
        raise ConfigError(
            f"executor=external: rank {place.rank} of {place.size} ranks does not exist (RANK, WORLD_SIZE)"
        )
    return place


def _number(environment: Mapping[str, str], *names: str, default: int | None = None) -> int:
    for name in names:
        if value := environment.get(name):
            if not value.isdecimal():
                raise ConfigError(f"executor=external: {name} must be a number, not {shown(value)}")
            return int(value)
    if default is None:
        raise ConfigError(
            f"executor=external: none of {', '.join(names)} is set; start every rank with torchrun or srun"
        )
    return default
