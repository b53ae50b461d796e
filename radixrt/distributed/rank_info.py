"""`RankInfo`: the rank of a runner process, and how it reaches the other ranks. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.errors import ConfigError, shown


@dataclass(frozen=True)
class RankInfo:
    """One of the ranks that share a model.

    Rank = stage * tp + tp_rank: the tensor-parallel ranks of a pipeline stage follow one another.

    Attributes:
        rank: of `size` ranks, from 0.
        local_rank: of the `local_size` ranks on this machine, those of all replicas, which share its memory and cores;
            also the index of the rank's CUDA device.
        store: path of the file through which the ranks of this machine rendezvous; None for MASTER_ADDR and
            MASTER_PORT.
        timeout_s: the longest that ranks wait for each other, while loading too.
        one_shot: use `radixrt.distributed.device_communicator` on CUDA where it works.
        store_descriptor: listening socket at MASTER_ADDR and MASTER_PORT, which this rank serves.
        stages: pipeline stages that the ranks are divided into.
        launcher_rank: rank that torchrun or SLURM gave the process, which finds the store by it; None where they did
            not start it.
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
        """Rank in messages and logs: the launcher's, which its user knows, where there is one."""
        return self.rank if self.launcher_rank is None else self.launcher_rank

    @property
    def answers(self) -> bool:
        """True on the rank that answers steps: the first one of the last stage."""
        return self.rank == answering_rank(self.size, self.stages)


def answering_rank(size: int, stages: int) -> int:
    """Return the rank that answers steps, of `size` ranks in so many stages."""
    return size - size // stages


SINGLE_RANK = RankInfo()
"""The rank of a model that is not split."""


def rank_from_environment(environment: Mapping[str, str], timeout_s: float, stages: int = 1) -> RankInfo:
    """Read this process's rank from the environment variables of torchrun or SLURM.

    The launcher's rank 0, in whose process the engine is, becomes the rank that answers, so that tokens and grammar
    masks stay on its machine; the others follow in the launcher's order.

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
