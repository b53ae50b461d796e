"""`RankInfo`: the rank of a runner process, and the rendezvous with the other ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.errors import ConfigError, shown


@dataclass(frozen=True)
class RankInfo:
    """A rank of the ranks that share a model.

    rank = stage * tp + tp_rank, so the tensor-parallel ranks of a pipeline stage are consecutive.

    Attributes:
        rank: this rank, from 0 to size - 1.
        size: number of ranks.
        local_rank: this rank among the ranks of all replicas on this machine; also the index of its CUDA device.
        local_size: number of ranks of all replicas on this machine, which share its memory and cores.
        store: path of the file for the rendezvous of ranks on this machine; None to use MASTER_ADDR and MASTER_PORT.
        timeout_s: maximum time that ranks wait for each other, in seconds, also during loading.
        one_shot: use `radixrt.distributed.device_communicator` on CUDA if possible.
        store_descriptor: listening socket at MASTER_ADDR and MASTER_PORT, which this rank serves.
        stages: number of pipeline stages.
        launcher_rank: rank that torchrun or SLURM assigned to the process, used to find the store; None if neither
            started the process.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    store: str | None = None
    timeout_s: float = 600.0
    one_shot: bool = False
    store_descriptor: int | None = None
    stages: int = 1
    launcher_rank: int | None = None

    @property
    def tp(self) -> int:
        """Number of tensor-parallel ranks in a stage."""
        return self.size // self.stages

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp

    @property
    def stage(self) -> int:
        return self.rank // self.tp

    @property
    def known_as(self) -> int:
        """Rank for messages and logs: the launcher's rank if there is a launcher, because users know that number."""
        return self.rank if self.launcher_rank is None else self.launcher_rank

    @property
    def answers(self) -> bool:
        """True on the rank that returns the results of steps, which is the first rank of the last stage."""
        return self.rank == answering_rank(self.size, self.stages)


def answering_rank(size: int, stages: int) -> int:
    """Return the rank that returns the results of steps: the first rank of the last stage."""
    return size - size // stages


SINGLE_RANK = RankInfo()
"""The rank of a model that is not split."""


def rank_from_environment(environment: Mapping[str, str], timeout_s: float, stages: int = 1) -> RankInfo:
    """Read this process's rank from the environment variables of torchrun or SLURM.

    The launcher's rank 0, whose process is the engine, becomes the answering rank, so that tokens and grammar masks
    stay on the same machine. The other ranks follow in the launcher's order.

    Args:
        stages: pipeline stages of the model.

    Raises:
        ConfigError: a variable is missing or not a number, or the ranks cannot be divided into so many stages.
    """
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise ConfigError(f"executor=external: {name} is not set; torchrun sets it, a SLURM script must export it")
    size = _number(environment, "WORLD_SIZE", "SLURM_NTASKS")
    given = _number(environment, "RANK", "SLURM_PROCID")
    if not 0 <= given < size:
        raise ConfigError(f"executor=external: rank {given} of {size} ranks does not exist (RANK, WORLD_SIZE)")
    if size % stages:
        raise ConfigError(
            f"pp={stages}, but {size} ranks were started, which is no multiple of it; start {stages} * tp"
        )
    return RankInfo(
        rank=(given + answering_rank(size, stages)) % size,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", "SLURM_LOCALID"),
        local_size=_number(environment, "LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", default=size),
        timeout_s=timeout_s,
        stages=stages,
        launcher_rank=given,
    )


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
