"""`Part`: an optional feature of the engine in the scheduler, which the core calls at certain moments.

The core (`Scheduler`, `RequestTable`, `Admission`, `KVManager`, `SchedulerLoop`) moves rows of tokens through steps and
names no part. Each moment, an event such as the end of a request, is a method of `Part`, and a part overrides the
methods of the moments that concern the part. `Parts` keeps a tuple of overriding methods per moment, in the order of
the parts, so that a moment without such a method costs an empty loop. A part that is needed at times only switches its
moments off and on (`Parts.enable`), so that other steps do not enter the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from radixrt.mem_cache.results import InsertResult
from radixrt.mem_cache.tree_node import TreeNode
from radixrt.messages.images import RowImage
from radixrt.messages.parts import Finish, FinishError
from radixrt.messages.request import Request, Row
from radixrt.messages.runner import PartOrder, StepOutput
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.queue_order import Turns
from radixrt.scheduler.req import Req

if TYPE_CHECKING:
    from radixrt.config import SchedulerConfig
    from radixrt.executor.mask_table import StepMasks
    from radixrt.mem_cache.cache_journal import CacheJournal
    from radixrt.mem_cache.radix_cache import RadixCache
    from radixrt.scheduler.admission import Admission
    from radixrt.scheduler.counters import Counters
    from radixrt.scheduler.deltas import DeltaWriter
    from radixrt.scheduler.intake import Intake
    from radixrt.scheduler.kv_manager import DecodeRows, KVManager
    from radixrt.scheduler.request_table import RequestTable
    from radixrt.scheduler.schedule_batch import ByKind, ScheduleBatch
    from radixrt.scheduler.scheduler import Scheduler
    from radixrt.scheduler.step_time import StepTimeFit

P = TypeVar("P", bound="Part")


@dataclass(frozen=True)
class Core:
    """Objects of the core. A part reads them and calls their public methods; each object alone writes its own state.

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

    def order(self, part: Part, data: bytes) -> None:
        """Send an order to the part's end in every rank, before the next step."""
        self.scheduler.orders.append(PartOrder(part.name, data))


class End(NamedTuple):
    """End of a request.

    Attributes:
        rid: id of the request.
        req: the request; None for a `RequestGroup`, for whose rows `Part.ended` was called before.
        node: tree node in which the request's computed tokens end; None for a request that held no row, and for a group
            that was cut short.
        cached_tokens: prompt tokens that the cache saved.
        now: time of the end, in seconds.
    """

    rid: str
    req: Req | None
    node: TreeNode | None
    cached_tokens: int
    finish: Finish
    now: float


class Selection(NamedTuple):
    """Requests that may be in a step.

    Attributes:
        alone: the only request of the step; None for all requests but `without`.
        without: requests that may not be in the step.
    """

    alone: Req | None
    without: Collection[Req] = ()

    def has(self, req: Req) -> bool:
        """Return True if a request may be in the step."""
        return req not in self.without if self.alone is None else req is self.alone


class WatchedTree(NamedTuple):
    """Prefix tree of a memory outside of the KV pool.

    Attributes:
        journal: a new journal of the tree's events.
    """

    cache: RadixCache
    journal: CacheJournal


class Section(NamedTuple):
    """Input of one step for a part's end in the runner.

    Attributes:
        data: encoded input; the value of the part's name in `ForwardStep.sections`.
        kept: object that `Part.commit` gets with the step's answer; None if `Part.commit` is not to be called.
        seconds: predicted time of work that the part adds to the step, besides the work on tokens.
    """

    data: bytes
    kept: Any = None
    seconds: float = 0.0


class Part:
    """Base class of parts; see the module's docstring. The methods of the base class do nothing. `now` is the caller's
    time in seconds.

    Attributes:
        name: key of the part's section in a step and of its orders and reports, and name of the obstacle if the part
            leaves a request in the queue.
        of_chunks: only a step with prefill chunks can have a section of the part.
    """

    name = ""
    of_chunks = False

    @property
    def is_busy(self) -> bool:
        """True if `turn` has more to do although no message arrives; the loop then does not sleep."""
        return False

    def attach(self, core: Core) -> None:
        """Keep the objects of the core that the part needs. The scheduler calls this once, before any other method."""

    # --- requests ---

    def refuse(self, message: Request, now: float, *, compiling: int) -> FinishError | None:
        """Return the error of a request that must not be queued; None to let the request pass.

        Args:
            compiling: number of requests in preparation, which will join the queue later.
        """

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        """Note a request, or a row of a group, that is about to join the queue."""

    def input_seconds(self, images: Sequence[RowImage], namespace: str, cached: int) -> float:
        """Return the predicted seconds of the part's work for a prompt with images, whose first `cached` tokens are
        cached."""
        return 0.0

    def may_admit(self, req: Req, room: int, now: float) -> bool:
        """Return False to leave a waiting request in the queue during this step. The method changes no state.

        Args:
            room: number of slots left after the expected needs of all active requests and of this request; negative if
                slots are missing.
        """
        return True

    def fetches(self, req: Req, now: float) -> bool:
        """Return True to leave a waiting request in the queue because keys and values of its prefix are on their way to
        the tree, for which the part may reserve slots now (`KVManager.copies`). The request would be admitted
        otherwise. `PartReport`s must end the wait: no step needs to be in flight meanwhile."""
        return False

    def turns(self, tokens: int) -> Turns:
        """Return whose turn it is in the next step, in place of the schedule policy alone.

        Args:
            tokens: maximum number of prompt tokens in the step.
        """
        raise NotImplementedError

    def gives_way(self, *, at_once: bool) -> Req | None:
        """Return an active request that must give its row to a waiting request; None if no request must. The request
        joins the queue again.

        Args:
            at_once: no step is in flight, so the request loses its row now.
        """

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        """Note a request that was just admitted.

        Args:
            prompt_tokens: number of prompt tokens, without the prefix that an earlier row of the same group has; 0 if
                `again`.
            cached_tokens: number of these prompt tokens that came from the cache; 0 if `again`.
            again: the request was admitted before and has lost its row since.
        """

    def published(self, req: Req, start: int, result: InsertResult) -> None:
        """Note that a request's computed tokens are in the tree. Tokens from position `start` on may be new there."""

    def ended(self, end: End) -> None:
        """Note the end of a request."""

    def flushing(self) -> None:
        """Note that an operator empties the prefix cache: all tokens without a lock are about to be evicted."""

    def cleared(self) -> None:
        """Note that the tree was emptied."""

    def emptying(self) -> None:
        """Release every hold on nodes of the tree and every reserved slot (`KVManager.copies`): the tree is
        about to be emptied, because the keys and values of its slots are lost or may be wrong."""

    # --- steps ---

    def only(self, now: float) -> Sequence[Selection]:
        """Return the requests that may be in the next step, and alternatives for the case that none of these requests
        can be computed; empty if all requests may be in the step. A step of selected requests is decided only while no
        other step is in flight."""
        return ()

    def may_step(self, decode: list[Req]) -> bool:
        """Return False to wait for the steps in flight before a step with these decode rows is decided."""
        return True

    def section(self, kinds: ByKind, decode: DecodeRows) -> Section | None:
        """Return the part's section of a step with these chunks and decode rows, in this order; None for a step without
        a section of the part."""

    def commit(self, batch: ScheduleBatch, kept: Any, output: StepOutput, now: float) -> None:
        """Read a step's answer, before the sampled tokens are appended. Called for steps whose `Section.kept` of this
        part is not None.

        Args:
            kept: `Section.kept`.
        """

    def committed(self, batch: ScheduleBatch) -> None:
        """Note that the answer of a step is processed: tokens are appended, and finished requests have ended."""

    def settle(self, now: float) -> bool:
        """Do deferred work after a step's answer, while the device computes; return whether a request ended."""
        return False

    def lost(self, batches: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        """Note that the runner died while these steps were in flight. Their requests are queued again after this
        call."""

    # --- ends of the part in the ranks ---

    def reported(self, rank: int, data: bytes, now: float) -> None:
        """Read a report of the part's end in a rank (`PartReport.data`). Orders are sent by `Core.order`. Reports on
        orders from before `lost` do not arrive."""

    # --- the loop ---

    def handles(self) -> Mapping[type, Callable[[Any, float], Iterable[Any]]]:
        """Return a handler for each type of message that the part takes. A handler gets the message and the time, and
        returns the messages to send to the tokenizer."""
        return {}

    def turn(self, now: float) -> Iterable[Any]:
        """Return the messages to send to the tokenizer at the end of an iteration of the loop."""
        return ()

    def save(self) -> bool:
        """Save what outlives the processes, which are about to end; return True while that is under way. Called again
        and again, for a bounded time, and not while a request is open."""
        return False

    def forgetting(self, namespace: str, *, whole_owner: bool) -> None:
        """Drop what the part keeps of the tokens of a namespace; see `Scheduler.forget_namespace`."""

    def forgotten(self) -> None:
        """Note that the scheduler is about to drop all requests: a router has moved them to other replicas."""

    def tick(self, now: float) -> None:
        """Do periodic work. `Scheduler.next_batch` calls this at most every `EXPIRY_CHECK_S` seconds."""

    def trees(self) -> Mapping[str, WatchedTree]:
        """Return the prefix trees outside of the KV pool that a reader of cache events may watch, by memory."""
        return {}

    def kept(self, tokens: Int32Array, namespace: str) -> Mapping[str, int]:
        """Return the number of leading tokens whose keys and values the part keeps outside of the KV pool, by memory.
        The method changes nothing."""
        return {}

    def stats(self, now: float) -> Mapping[str, Any]:
        """Return the part's fields of `SchedulerStats`."""
        return {}

    def check(self) -> None:
        """Check the part's invariants.

        Raises:
            InvariantError: the first invariant that does not hold, with its figures.
        """


class TakerPart(Part):
    """A part that takes the sampled tokens of some requests (`Req.taker`). A scheduler has at most one such part.

    The part may prepare a request before the request joins the queue (a grammar is compiled). Steps with rows of the
    part get a mask of allowed tokens per row, which depends on the tokens of all earlier steps.

    Attributes:
        mask_words: number of uint32 words of one mask.
    """

    mask_words = 0

    @property
    def num_preparing(self) -> int:
        """Number of requests in preparation."""
        return 0

    def preparing(self) -> Iterable[Request]:
        """Return the requests in preparation."""
        return ()

    @property
    def sockets(self) -> list[Any]:
        """ZMQ sockets that become readable when the preparation of a request is finished."""
        return []

    def prepare(self, message: Request, now: float) -> bool:
        """Begin to prepare a request. Return False if the request needs no preparation and can be queued at once."""
        return False

    def poll(self, now: float, *, steps_in_flight: bool) -> bool:
        """Queue the requests whose preparation is finished; return whether there were any."""
        return False

    def abort(self, rid: str) -> bool:
        """Drop a request in preparation; return False if no such request is in preparation."""
        return False

    def masks(self, batch: ScheduleBatch, now: float) -> StepMasks:
        """Return the masks of a step. The caller has committed all earlier tokens of the step's masked rows."""
        raise NotImplementedError

    def look_ahead(self) -> Iterator[None]:
        """Compute in advance, while the device computes, results that the next masks may need. The iterator yields
        after each fraction of a millisecond, so that the caller can stop, and ends when nothing is left to do."""
        return iter(())

    def close(self) -> None:
        """Stop the threads and processes that prepare requests."""


class Parts:
    """Parts of one scheduler, and for each moment a tuple of the parts' overriding methods.

    Args:
        parts: parts in the order of their calls. Only `radixrt.parts.assembly` lists all parts.

    Attributes:
        may_admit, sections: the overriding parts instead of their methods, because the caller needs the parts' names.
        reported: `Part.reported` of the parts with an end in the ranks, by their names.
        decode_sections: the parts of `sections` that are asked for a step without prefill chunks.
        taker: the part that takes sampled tokens, or a `TakerPart` without effect.
    """

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        self.all = tuple(parts)
        self._off: set[tuple[Part, str]] = set()
        self.refuse = self._overridden("refuse")
        self.queued = self._overridden("queued")
        self.input_seconds = self._overridden("input_seconds")
        self.turns = self._overridden("turns")
        self.gives_way = self._overridden("gives_way")
        self.may_admit = tuple(part for part in self.all if _overrides(part, "may_admit"))
        self.admitted = self._overridden("admitted")
        self.fetches = self._overridden("fetches")
        self.published = self._overridden("published")
        self.ended = self._overridden("ended")
        self.flushing = self._overridden("flushing")
        self.cleared = self._overridden("cleared")
        self.emptying = self._overridden("emptying")
        self.only = self._overridden("only")
        self.may_step = self._overridden("may_step")
        self.sections = tuple(part for part in self.all if _overrides(part, "section"))
        self.decode_sections = tuple(part for part in self.sections if not part.of_chunks)
        self.committed = self._overridden("committed")
        self.settle = self._overridden("settle")
        self.lost = self._overridden("lost")
        self.reported = {part.name: part.reported for part in self.all if _overrides(part, "reported")}
        self.turn = self._overridden("turn")
        self.tick = self._overridden("tick")
        self.forgetting = self._overridden("forgetting")
        self.forgotten = self._overridden("forgotten")
        self.trees = self._overridden("trees")
        self.kept = self._overridden("kept")
        self.save = self._overridden("save")
        self.stats = self._overridden("stats")
        self.check = self._overridden("check")
        takers = [part for part in self.all if isinstance(part, TakerPart)]
        self.taker = takers[0] if takers else TakerPart()

    def enable(self, part: Part, moments: Iterable[str], *, on: bool) -> None:
        """Switch moments of a part on or off; all are on at first.

        Args:
            moments: of "turns", "gives_way", "only", "may_step", "committed", "settle" and "turn", the moments of each
                step.
        """
        for moment in moments:
            if on == ((part, moment) not in self._off):
                continue
            self._off ^= {(part, moment)}
            setattr(self, moment, self._overridden(moment))

    def whose_turn(self, tokens: int) -> Turns | None:
        """Return whose turn it is in the next step; None if the schedule policy alone decides. See `Part.turns`."""
        return next((turns(tokens) for turns in self.turns), None)

    def _overridden(self, moment: str) -> tuple[Callable[..., Any], ...]:
        return tuple(
            getattr(part, moment) for part in self.all if _overrides(part, moment) and (part, moment) not in self._off
        )

    def kept_outside(self, tokens: Int32Array, namespace: str) -> dict[str, int]:
        """Return the number of leading tokens that parts keep outside of the KV pool, by memory; see `Part.kept`."""
        found: dict[str, int] = {}
        for kept in self.kept:
            found |= kept(tokens, namespace)
        return found

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
