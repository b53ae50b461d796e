"""`RankInfo`: the rank of a runner process, and how it reaches the other ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.errors import ConfigError, shown


@dataclass(frozen=True)
class RankInfo:
    """One of the ranks that share a model.

    Attributes:
        rank: of `size` ranks, from 0.
        local_rank: of the `local_size` ranks on this machine, those of all replicas, which share its memory and cores;
            also the index of the rank's CUDA device.
        store: path of the file through which the ranks of this machine rendezvous; None for MASTER_ADDR and
            MASTER_PORT.
        timeout_s: the longest that ranks wait for each other, while loading too.
        one_shot: use `radixrt.distributed.device_communicator` on CUDA where it works.
        store_descriptor: listening socket at MASTER_ADDR and MASTER_PORT, which this rank serves.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: str | None = None
    timeout_s: float = 600.0
    one_shot: bool = False
    store_descriptor: int | None = None


SINGLE_RANK = RankInfo()
"""The rank of a model that is not split."""


def rank_from_environment(environment: Mapping[str, str], timeout_s: float) -> RankInfo:
    """Read this process's rank from the environment variables of torchrun or SLURM.

    Raises:
        ConfigError: a variable is missing or not a number.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise ConfigError(f"executor=external: {name} is not set; torchrun sets it, a SLURM script must export it")
    size = _number(environment, "WORLD_SIZE", "SLURM_NTASKS")
    info = RankInfo(
        rank=_number(environment, "RANK", "SLURM_PROCID"),
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", "SLURM_LOCALID"),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=size),
        timeout_s=timeout_s,
    )
    if not 0 <= info.rank < info.size:
        raise ConfigError(f"executor=external: rank {info.rank} of {info.size} ranks does not exist (RANK, WORLD_SIZE)")
    return info


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
