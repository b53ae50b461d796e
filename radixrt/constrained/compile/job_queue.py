"""Jobs of the compile workers, and the queue in which the clients of different API keys take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from radixrt.constraint import Constraint


@dataclass(eq=False)
class Job:
    """A constraint to compile.

    Attributes:
        tenant: the API key that the job counts for (`Envelope.tenant`).
        timeout_s: processor time that compiling may take, in seconds.
        thorough: see `protocol.CompileJob`.
        cpu_s: processor time of the current attempt, in seconds.
        ran_s: seconds in which the current attempt could have run, because its worker was not stopped.
        is_long: the job has used up the time of a short job.
        was_interrupted: a worker has died over the job.
    """

    id: int
    constraint: Constraint
    tenant: str
    timeout_s: float
    thorough: bool = False
    cpu_s: float = 0.0
    ran_s: float = 0.0
    is_long: bool = False
    was_interrupted: bool = False


class JobQueue:
    """Jobs that wait for a worker: in order of arrival within a tenant, and the tenants take turns.

    A job for which requests of several tenants wait is in the queue of each, and leaves all of them at once.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, deque[Job]] = {}  # the first tenant's turn is next; no tenant's queue is empty

    def push(self, job: Job, tenant: str, *, first: bool = False) -> None:
        """Add a job to a tenant's queue, behind the tenant's other jobs or before them."""
        jobs = self._jobs.setdefault(tenant, deque())
        if first:
            jobs.appendleft(job)
        elif job not in jobs:
            jobs.append(job)

    def pop(self, may_start: Callable[[str], bool]) -> Job | None:
        """Remove and return the next job of the tenant whose turn it is; None if no tenant's job may start.

        Args:
            may_start: whether a job of a tenant may start; tenants whose jobs may not are passed over.
        """
        for tenant in self._jobs:
            if may_start(tenant):
                job = self._jobs[tenant][0]
                self._jobs[tenant] = self._jobs.pop(tenant)  # to the end
                self.remove(job)
                job.tenant = tenant
                return job
        return None

    def remove(self, job: Job) -> None:
        """Remove a job from the queues of all tenants."""
        for tenant in [tenant for tenant, jobs in self._jobs.items() if job in jobs]:
            self._jobs[tenant].remove(job)
            if not self._jobs[tenant]:
                del self._jobs[tenant]
