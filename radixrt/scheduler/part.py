"""`Part`: what a part of the engine may do in the scheduler, moment by moment.

The core (`Scheduler`, `RequestTable`, `Admission`, `KVManager`, `SchedulerLoop`) moves rows of tokens through steps and
names no part. A part overrides the methods of the moments that concern it. `Parts` keeps one tuple for each moment with
the methods that are overridden, in the order of the parts, so that a moment without a part costs an empty loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from radixrt.mem_cache.results import InsertResult
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.parts import Finish, FinishError
from radixrt.messages.request import Request, Row
from radixrt.messages.runner import StepOutput
from radixrt.scheduler.req import Req

if TYPE_CHECKING:
    from radixrt.config import SchedulerConfig
    from radixrt.executor.mask_table import StepMasks
    from radixrt.scheduler.admission import Admission
    from radixrt.scheduler.counters import Counters
    from radixrt.scheduler.deltas import DeltaWriter
    from radixrt.scheduler.intake import Intake
    from radixrt.scheduler.kv_manager import KVManager
    from radixrt.scheduler.request_table import RequestTable
    from radixrt.scheduler.schedule_batch import ScheduleBatch, StepPlan
    from radixrt.scheduler.scheduler import Scheduler
    from radixrt.scheduler.step_time import StepTimeFit

P = TypeVar("P", bound="Part")


@dataclass(frozen=True)
class Core:
    """Objects of the core that parts read, and whose public methods they call. Each is written by its own module.

    Attributes:
        max_len: longest sequence, prompt and output together, that the context and the KV pool hold.
    """

    scheduler: Scheduler
    config: SchedulerConfig
    kv: KVManager
    requests: RequestTable
    admission: Admission
    intake: Intake
    writer: DeltaWriter
    counters: Counters
    step_time: StepTimeFit
    max_len: int


class End(NamedTuple):
    """End of a request.

    Attributes:
        rid: id of the request.
        req: the request; None for a group, whose rows have ended one by one before.
        node: node in which the request's computed tokens end in the tree; None if it was waiting, or a group was cut
            short.
        cached_tokens: prompt tokens that the cache saved.
        now: time of the end, in seconds.
    """

    rid: str
    req: Req | None
    node: TreeNode | None
    cached_tokens: int
    finish: Finish
    now: float


class Section(NamedTuple):
    """What a part adds to a step.

    Attributes:
        data: bytes for the part's end in the runner, `ForwardStep.sections`.
        kept: what the part gets back with the step's answer.
    """

    data: bytes
    kept: Any = None


class Part:
    """Base class of parts; see the module's docstring. Every method does nothing unless it is overridden.

    Attributes:
        name: key of the part's section in a step, and of its obstacle in views of the queue.
    """

    name = ""

    @property
    def is_busy(self) -> bool:
        """True if `turn` has more to do without any message."""
        return False

    def attach(self, core: Core) -> None:
        """Keep what the part needs of the core; called once, before any other method."""

    # --- requests ---

    def refuse(self, message: Request, now: float, *, compiling: int) -> FinishError | None:
        """Return the error of a request that must not be queued; None to let it pass.

        Args:
            compiling: number of requests that will join the queue later.
        """

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        """Note a request, or a row of a group, that is about to wait in the queue."""

    def may_admit(self, req: Req, room: int, now: float) -> bool:
        """Return False to leave a waiting request in the queue in this step; nothing is changed.

        Args:
            room: slots that stay free beside the active requests and this one; negative if there are too few.
        """
        return True

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        """Note a request that was just admitted.

        Args:
            prompt_tokens, cached_tokens: tokens of its prompt, and those that the cache saved, without those that an
                earlier row of the same group has too; 0 if it is admitted again.
            again: it was admitted before, and has lost its row meanwhile.
        """

    def published(self, req: Req, start: int, result: InsertResult) -> None:
        """Note that a request's computed tokens are in the tree; those from position `start` on may be new there."""

    def ended(self, end: End) -> None:
        """Note the end of a request."""

    def cleared(self) -> None:
        """Note that the tree was emptied."""

    # --- steps ---

    def only(self) -> Req | None:
        """Return the request that the next step must contain alone, with no other step in flight; None for no such
        rule."""

    def may_step(self, decode: list[Req]) -> bool:
        """Return False if no step with these decode rows may be decided while others are in flight."""
        return True

    def section(self, plan: StepPlan) -> Section | None:
        """Return what the part adds to a step; None for nothing."""

    def commit(self, batch: ScheduleBatch, kept: Any, output: StepOutput, now: float) -> None:
        """Take a step's answer, before its tokens are appended; called only for a step with a section of the part.

        Args:
            kept: `Section.kept`.
        """

    def committed(self, batch: ScheduleBatch) -> None:
        """Note that a step's answer was taken as a whole."""

    def lost(self, batches: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Note that the runner died with these steps in flight, before their requests are queued again."""

    # --- the loop ---

    def handles(self) -> Mapping[type, Callable[[Any, float], Iterable[Any]]]:
        """Return the messages to the scheduler that the part handles: functions of the message and the time, in
        seconds, which return the messages to send to the tokenizer."""
        return {}

    def turn(self, now: float) -> Iterable[Any]:
        """Return the messages to send to the tokenizer at the end of a turn of the loop."""
        return ()

    def forgotten(self) -> None:
        """Note that a router has taken all requests back."""

    def tick(self, now: float) -> None:
        """Do what is due; called a few times a second."""

    def stats(self, now: float) -> Mapping[str, Any]:
        """Return the part's fields of `SchedulerStats`."""
        return {}

    def check(self) -> None:
        """Check the part's invariants.

        Raises:
            InvariantError: the first invariant that does not hold, with its figures.
        """


class TakerPart(Part):
    """A part that takes the sampled tokens of some rows (`Req.taker`): at most one part of a scheduler does.

    Its requests may need preparation before they can be queued, and its steps an input that depends on the tokens of
    the steps before them: a mask of allowed tokens for each of its rows.

    Attributes:
        mask_words: uint32 words of a mask.
    """

    mask_words = 0

    @property
    def num_preparing(self) -> int:
        """Number of requests that are being prepared."""
        return 0

    @property
    def sockets(self) -> list[Any]:
        """ZMQ sockets that become readable when a request is prepared."""
        return []

    def prepare(self, message: Request, now: float) -> bool:
        """Take a request that needs preparation; return False for one that can be queued as it is."""
        return False

    def poll(self, now: float, *, steps_in_flight: bool) -> bool:
        """Queue the requests that are prepared; return whether there were any."""
        return False

    def abort(self, rid: str) -> bool:
        """Forget a request that is being prepared; return whether there was one."""
        return False

    def masks(self, batch: ScheduleBatch, now: float) -> StepMasks:
        """Return the masks of a step, all earlier tokens of whose rows are known."""
        raise NotImplementedError

    def settle(self, now: float) -> bool:
        """Do deferred work while the device computes; return whether a request ended."""
        return False

    def look_ahead(self) -> Iterator[None]:
        """Work out, while the device computes, what the next tokens may need; each value comes after a fraction of a
        millisecond, none if nothing is left to do."""
        return iter(())

    def close(self) -> None:
        """Stop what the preparation has started."""


class Parts:
    """Parts of one scheduler, and a tuple of methods for each moment.

    Args:
        parts: in the order in which they are asked; the only code that lists them is `radixrt.parts.assembly`.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.all = tuple(parts)
        self.refuse = self._overridden("refuse")
        self.queued = self._overridden("queued")
        self.may_admit = tuple(part for part in self.all if _overrides(part, "may_admit"))
        self.admitted = self._overridden("admitted")
        self.published = self._overridden("published")
        self.ended = self._overridden("ended")
        self.cleared = self._overridden("cleared")
        self.only = self._overridden("only")
        self.may_step = self._overridden("may_step")
        self.sections = tuple(part for part in self.all if _overrides(part, "section"))
        self.committed = self._overridden("committed")
        self.lost = self._overridden("lost")
        self.turn = self._overridden("turn")
        self.tick = self._overridden("tick")
        self.forgotten = self._overridden("forgotten")
        self.stats = self._overridden("stats")
        self.check = self._overridden("check")
        takers = [part for part in self.all if isinstance(part, TakerPart)]
        self.taker = takers[0] if takers else TakerPart()

    def _overridden(self, moment: str) -> tuple[Callable[..., Any], ...]:
        return tuple(getattr(part, moment) for part in self.all if _overrides(part, moment))

    def get(self, kind: type[P]) -> P:
        """Return the part of a class.

        Raises:
            KeyError: the scheduler has no such part.
        """
        for part in self.all:
            if isinstance(part, kind):
                return part
        raise KeyError(kind.__name__)


def _overrides(part: Part, moment: str) -> bool:
    return getattr(type(part), moment) is not getattr(Part, moment)
