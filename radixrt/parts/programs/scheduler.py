"""`Programs`: hints of running programs about their next calls, turned into retention levels of radix tree nodes.

Hints change no answer and lock no slot: a hint changes only the order in which nodes are evicted. *Held* nodes are
evicted last, and among them first the nodes of the program that began last (`tree_node.held_level`). The reason is that
programs take turns: in a pool too small for all programs, LRU would evict just the node that is needed next, and no
call would hit the cache. Programs hold these nodes:

- RETAIN_LEASED: the prefix that the branches of a fork share, as soon as the prefix is in the tree;
- RETAIN_EXTENDED: the end of a call that the program will continue.

RETAIN_DONE nodes are evicted first. A node becomes RETAIN_DONE if a single branch used the node, and the branch has
made its last call or is released. A hit on the node, by another request, makes it RETAIN_NORMAL again.

Between two calls of a program no request locks the program's nodes, so a waiting request could take their slots just
before the next call arrives. Therefore a request is not admitted while it would take slots from held branch ends of
programs that began earlier, or from the room that these programs need to grow, unless no request is active or the
request is overdue. A program keeps others waiting only if computing the program's longest prompt takes longer than
PROTECT_STEPS steps: the row of a waiting request is missing from every step meanwhile.

Bounds: a program holds at most PROGRAM_SHARE of the pool. All programs together hold at most TOTAL_SHARE, which exceeds
the pool because held nodes may be evicted. Hints beyond these bounds are ignored. A program's holds end KEEP_S after
the last request or hint of the program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from radixrt.errors import InvariantError
from radixrt.mem_cache.results import InsertResult
from radixrt.mem_cache.tree_node import (
    RETAIN_DONE,
    RETAIN_EXTENDED,
    RETAIN_LEASED,
    RETAIN_NORMAL,
    TreeNode,
    held_level,
)
from radixrt.messages.parts import FINISH_LENGTH, FINISH_STOP, ProgramHint
from radixrt.messages.request import Request, Row
from radixrt.messages.scheduler import ReleaseReq
from radixrt.messages.scheduler_stats import ProgramStats, StepTimes
from radixrt.messages.wire import Int32Array
from radixrt.scheduler.part import Core, End, Part
from radixrt.scheduler.queue_order import is_overdue
from radixrt.scheduler.req import Kin, Req
from radixrt.scheduler.stats import scheduler_stats

KEEP_S = 10.0
PROGRAM_SHARE = 0.75
TOTAL_SHARE = 2.0
GRACE_S = 1.0
"""Seconds for which a program without open requests keeps other requests waiting after the program's last request."""
PROTECT_STEPS = 5.0
GROWTH_SHARE = 0.25
"""Room that is reserved for the growth of a program that will continue a call, as a share of its first prompt."""
MAX_PROGRAMS = 4_096
MAX_HOLDS = 65_536
MAX_BRANCHES = 65_536
SWEEP_S = 1.0
"""Shortest interval between two searches for holds on evicted nodes. Only a hold beyond the bounds causes a search."""


@dataclass(eq=False)
class Hold:
    """Reason of a program to keep a node.

    Attributes:
        tokens: number of tokens on the node's path that belong to the program and are not counted by a hold further up.
    """

    node: TreeNode
    retention: int
    tokens: int


@dataclass(eq=False)
class Branch:
    """The node in which a branch's last call ended.

    Attributes:
        own_from: position on the path at which the branch's own tokens begin: behind the fork's prefix, and behind the
            prefix that was cached before the branch's first call.
        hold: the program's hold on the node; None if a bound refused the hold.
    """

    node: TreeNode
    own_from: int
    hold: Hold | None


@dataclass(eq=False)
class Program:
    """State of a running program, as described by its hints.

    Attributes:
        number: number of programs that began before this program.
        live: number of open requests.
        seen_at: time of the last request.
        priority: priority of the last request.
        tokens: sum of the tokens of all holds.
        longest_prompt: tokens of the longest prompt of admitted calls; 0 before the first admission.
        growth: tokens reserved for growth; 0 before a call that the program will continue is admitted.
        is_growing: `growth` is reserved: calls are open, or branches will continue.
    """

    id: str
    number: int
    seen_at: float
    priority: int = 0
    live: int = 0
    tokens: int = 0
    longest_prompt: int = 0
    growth: int = 0
    is_growing: bool = False
    forks: dict[TreeNode, Hold] = field(default_factory=dict)
    branches: dict[str, Branch] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """True once a call of the program was admitted."""
        return self.longest_prompt > 0


@dataclass(slots=True, eq=False)
class ProgramCall:
    """Open request of a program.

    Attributes:
        program: the program; None without a prefix cache, where hints have no effect.
        lease_len: number of leading tokens to lease for a fork once they are in the tree; 0 if there is nothing to
            lease any more.
    """

    program: Program | None
    hint: ProgramHint
    lease_len: int = 0


class Reserved(NamedTuple):
    """Tokens that programs reserve at a moment.

    Attributes:
        numbers: numbers of the reserving programs, ascending.
        sums: sums[i] is the number of tokens that the first i programs reserve.
    """

    numbers: list[int]
    sums: list[int]

    def before(self, program: Kin | None) -> int:
        """Return the number of tokens reserved against a call of a program: the tokens of the programs that began
        earlier. For a request without a program, all programs count."""
        return self.sums[-1 if program is None else bisect_left(self.numbers, program.number)]


@dataclass
class Counters:
    """Counts since the scheduler started; see `ProgramStats`."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    leases: int = 0
    refused_holds: int = 0
    releases: int = 0
    expired: int = 0


class Programs(Part):
    """See the module's docstring. The only code that sets retention levels."""

    name = "programs"

    def __init__(self) -> None:
        self._stats = Counters()
        self._calls: dict[str, ProgramCall] = {}  # of open requests, by id
        self._reserved: dict[int, Reserved] = {}  # by the priority of the waiting request; valid at `_reserved_at`
        self._reserved_at = -1.0
        self._programs: OrderedDict[str, Program] = OrderedDict()  # the least recently active first
        self._holds: dict[TreeNode, list[Hold]] = {}
        self._num_holds = 0
        self._num_branches = 0
        self._tokens = 0
        self._growth = 0  # of all programs that are growing
        self._num_begun = 0
        self._swept_at = 0.0

    def attach(self, core: Core) -> None:
        self._cache = core.kv.cache
        self._num_slots = core.kv.allocator.num_slots
        self._step_time = core.step_time
        self._core = core.scheduler

    # --- moments of requests ---

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        hint = message.envelope.program
        if hint is None:
            return
        rid = req.rid if req.member is None else req.member.group
        call = self._calls.get(rid)
        if call is None:  # a request, or the first row of a group: all rows of a group are one call, without a lease
            prompt_len = req.prompt_len if req.member is None else 0
            call = self._calls[rid] = self.begin_call(hint, now, prompt_len, message.envelope.priority)
        req.kin = call.program
        if req.member is None:
            req.fork_len, req.fork_uses = hint.fork_len, hint.siblings

    def may_admit(self, req: Req, room: int, now: float) -> bool:
        """Leave a request in the queue that would take slots reserved by programs that began earlier: slots of held
        nodes, or slots for growth."""
        if room >= self.held_tokens + self.growing_tokens or is_overdue(req, now):
            return True
        if self._reserved_at != now:
            self._reserved_at = now
            self._reserved.clear()
        reserved = self._reserved.get(req.priority)
        if reserved is None:
            reserved = self._reserved[req.priority] = self.reserved(self._step_time.turn_times, now, req.priority)
        return room >= reserved.before(req.kin)

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        self._reserved.clear()
        call = self._call_of(req)
        if call is None:
            return
        # A group's rows make the program begin, but they are not continued, so the program does not grow by them.
        self._begun(call, req.prompt_len, grows=req.member is None)
        if req.member is None and not again:
            self._stats.prompt_tokens += prompt_tokens
            self._stats.cached_tokens += cached_tokens

    def published(self, req: Req, start: int, result: InsertResult) -> None:
        call = self._calls.get(req.rid)
        if call is not None and call.lease_len:
            self._lease_fork(call, req.known_ids, req.namespace, req.kv.length)

    def ended(self, end: End) -> None:
        call = self._calls.pop(end.rid, None)
        if call is not None:
            whole = end.finish.reason in (FINISH_STOP, FINISH_LENGTH)
            self._end_call(call, end.node if whole else None, end.cached_tokens, end.now)

    def hint_of(self, req: Req) -> ProgramHint | None:
        """Return the hint of an open request; None for a request without a hint and for a row of a group."""
        call = self._calls.get(req.rid)
        return None if call is None else call.hint

    def _call_of(self, req: Req) -> ProgramCall | None:
        return self._calls.get(req.rid if req.member is None else req.member.group)

    def handles(self) -> Mapping[type, Callable[[Any, float], Iterable[Any]]]:
        return {ReleaseReq: self._released}

    def _released(self, message: ReleaseReq, now: float) -> Iterable[Any]:
        self.release(message.program, message.branch)
        return [scheduler_stats(self._core, now)]  # an idle scheduler sends no others until it has a request

    @property
    def held_tokens(self) -> int:
        """Sum of the tokens of all holds."""
        return self._tokens

    @property
    def growing_tokens(self) -> int:
        """Sum of the tokens by which growing programs are expected to grow."""
        return self._growth

    @property
    def max_tokens(self) -> int:
        """Bound of `held_tokens`."""
        return int(TOTAL_SHARE * self._num_slots)

    # --- requests ---

    def begin_call(self, hint: ProgramHint, now: float, prompt_len: int = 0, priority: int = 0) -> ProgramCall:
        """Register a request of a program.

        Args:
            prompt_len: number of prompt tokens, which bounds the prefix that is leased for a fork; 0 to lease nothing.
        """
        if not self._cache.shares:
            return ProgramCall(None, hint)
        program = self._programs.get(hint.program)
        if program is None:
            if len(self._programs) >= MAX_PROGRAMS:
                self._forget(next(iter(self._programs.values())))
            program = self._programs[hint.program] = Program(hint.program, self._num_begun, now)
            self._num_begun += 1
        program.live += 1
        program.priority = priority
        self._touch(program, now)
        # The last branch of a fork needs no lease: no other branch would use the prefix.
        lease_len = min(max(hint.fork_len, 0), prompt_len) if hint.siblings > 1 else 0
        return ProgramCall(program, hint, lease_len)

    def _begun(self, call: ProgramCall, prompt_len: int, *, grows: bool) -> None:
        """Note that a call was admitted. A program grows from the first call on that it will continue."""
        program, hint = call.program, call.hint
        if program is None or not self._is_current(program):
            return
        program.longest_prompt = max(program.longest_prompt, prompt_len)
        if grows and hint.will_continue and not program.is_growing:
            program.growth = program.growth or max(1, int(GROWTH_SHARE * prompt_len))
            program.is_growing = True
            self._growth += program.growth

    def reserved(self, times: StepTimes, now: float, priority: int) -> Reserved:
        """Return the tokens that programs reserve: held branch ends that no request has locked, and room for growth.

        Args:
            times: model of step times, to exclude programs whose prompts are computed quickly.
            priority: priority of the request that asks for slots. Programs of lower priority are excluded.
        """
        found = []
        worth_s = PROTECT_STEPS * times.step
        for program in self._programs.values():
            idle = not program.live and now - program.seen_at > GRACE_S
            if idle or program.priority < priority or times.prompt_seconds(program.longest_prompt) <= worth_s:
                continue
            holds = (branch.hold for branch in program.branches.values() if branch.hold is not None)
            tokens = sum(hold.tokens for hold in holds if not hold.node.lock_ref and hold.node.parent is not None)
            found.append((program.number, tokens + (program.growth if program.is_growing else 0)))
        found.sort()
        return Reserved([number for number, _ in found], [0, *accumulate(tokens for _, tokens in found)])

    def _lease_fork(self, call: ProgramCall, ids: Int32Array, namespace: str, computed: int) -> None:
        """Lease a fork's prefix once, as soon as the tree holds the prefix.

        Args:
            computed: number of tokens of `ids` that are in the tree.
        """
        program, length = call.program, call.lease_len
        if program is None or not 0 < length <= computed:
            return
        call.lease_len = 0
        node = self._cache.node_at(ids[:length], namespace)
        if node is None or not self._is_current(program) or node in program.forks:
            return
        hold = self._hold(program, node, RETAIN_LEASED, 0)
        if hold is not None:
            program.forks[node] = hold
            self._stats.leases += 1

    def _end_call(self, call: ProgramCall, node: TreeNode | None, cached: int, now: float) -> None:
        """Update the program at the end of a request.

        Args:
            node: node in which the request's computed tokens end; None if the request was cut short, so that the hint
                about later calls does not hold.
            cached: number of prompt tokens that were found in the cache.
        """
        program, hint = call.program, call.hint
        if program is None:
            return
        program.live -= 1
        if not self._is_current(program):
            return
        self._touch(program, now)
        if node is not None and node.parent is not None:
            self._end_turn(program, hint, node, cached)
        self._settle_growth(program)

    def _end_turn(self, program: Program, hint: ProgramHint, node: TreeNode, cached: int) -> None:
        """Update the branch of a call that ended in `node`."""
        before = self._drop_branch(program, hint.branch)
        goes_on = before is not None and before.node in node.path()
        own_from = before.own_from if before is not None and goes_on else max(hint.fork_len, cached)
        if hint.will_continue:
            hold = self._hold(program, node, RETAIN_EXTENDED, own_from)
            if self._num_branches < MAX_BRANCHES:
                program.branches[hint.branch] = Branch(node, own_from, hold)
                self._num_branches += 1
            elif hold is not None:
                self._unhold(program, hold)
        else:
            self._give_up(node, own_from)

    # --- releases and time ---

    def release(self, program_id: str, branch: str | None) -> None:
        """End the holds of a program or of a branch, which makes no more calls. Unknown ids have no effect."""
        program = self._programs.get(program_id)
        if program is None:
            return
        self._stats.releases += 1
        names = list(program.branches) if branch is None else [branch]
        for name in names:
            ended = self._drop_branch(program, name)
            if ended is not None and ended.node.parent is not None:
                self._give_up(ended.node, ended.own_from)
        if branch is None:
            self._forget(program)
        else:
            self._settle_growth(program)

    def tick(self, now: float) -> None:
        """Forget programs without a request for KEEP_S; their nodes become RETAIN_NORMAL."""
        while self._programs:
            program = next(iter(self._programs.values()))
            if now - program.seen_at < KEEP_S:
                return
            if program.live > 0:
                self._touch(program, now)  # a call of the program takes longer than KEEP_S
            else:
                self._forget(program)
                self._stats.expired += 1

    def cleared(self) -> None:
        """Forget all programs."""
        for program in list(self._programs.values()):
            self._forget(program)

    def _is_current(self, program: Program) -> bool:
        return self._programs.get(program.id) is program

    def _touch(self, program: Program, now: float) -> None:
        program.seen_at = now
        self._programs.move_to_end(program.id)

    def _forget(self, program: Program) -> None:
        for hold in program.forks.values():
            self._unhold(program, hold)
        program.forks.clear()
        for name in list(program.branches):
            self._drop_branch(program, name)
        self._stop_growing(program)
        del self._programs[program.id]

    def _settle_growth(self, program: Program) -> None:
        """Stop reserving growth for a program without open calls and branches. A client that never releases its
        programs gives no other sign that a program has ended."""
        if not program.live and not program.branches:
            self._stop_growing(program)

    def _stop_growing(self, program: Program) -> None:
        if program.is_growing:
            program.is_growing = False
            self._growth -= program.growth

    def _drop_branch(self, program: Program, name: str) -> Branch | None:
        branch = program.branches.pop(name, None)
        if branch is not None:
            self._num_branches -= 1
            if branch.hold is not None:
                self._unhold(program, branch.hold)
        return branch

    # --- retention levels ---

    def _give_up(self, node: TreeNode, own_from: int) -> None:
        """Set nodes of a path to RETAIN_DONE, from the end up to the first node that has branches, is held, is locked,
        or begins before position `own_from`."""
        length = sum(above.num_tokens for above in node.path())
        while len(node.children) <= 1 and not node.lock_ref and node not in self._holds and node.parent is not None:
            length -= node.num_tokens
            if length < own_from:
                return
            self._cache.set_retention(node, RETAIN_DONE)
            node = node.parent

    def _hold(self, program: Program, node: TreeNode, retention: int, own_from: int) -> Hold | None:
        tokens = self._cost(node, own_from)
        if not self._fits(program, tokens):
            self._sweep(program.seen_at)
            if not self._fits(program, tokens):
                self._stats.refused_holds += 1
                return None
        hold = Hold(node, held_level(retention, program.number), tokens)
        self._holds.setdefault(node, []).append(hold)
        self._num_holds += 1
        self._tokens += tokens
        program.tokens += tokens
        self._update_retention(node)
        return hold

    def _unhold(self, program: Program, hold: Hold) -> None:
        holds = self._holds[hold.node]
        holds.remove(hold)
        if not holds:
            del self._holds[hold.node]
        self._num_holds -= 1
        self._tokens -= hold.tokens
        program.tokens -= hold.tokens
        self._update_retention(hold.node)

    def _update_retention(self, node: TreeNode) -> None:
        retention = max((hold.retention for hold in self._holds.get(node, ())), default=RETAIN_NORMAL)
        self._cache.set_retention(node, retention)

    def _cost(self, node: TreeNode, own_from: int) -> int:
        """Return the number of tokens on the node's path from position `own_from` on, without the tokens at and above
        the next held node."""
        length = sum(above.num_tokens for above in node.path())
        cost = 0
        above: TreeNode | None = node
        while above is not None and length > own_from and (above is node or above not in self._holds):
            cost += min(above.num_tokens, length - own_from)
            length -= above.num_tokens
            above = above.parent
        return cost

    def _fits(self, program: Program, tokens: int) -> bool:
        return (
            program.tokens + tokens <= PROGRAM_SHARE * self._num_slots
            and self._tokens + tokens <= self.max_tokens
            and self._num_holds < MAX_HOLDS
        )

    def _sweep(self, now: float) -> None:
        """Drop holds on nodes that were evicted."""
        if now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        for program in self._programs.values():
            for node in [node for node in program.forks if node.parent is None]:
                self._unhold(program, program.forks.pop(node))
            for name in [name for name, branch in program.branches.items() if branch.node.parent is None]:
                self._drop_branch(program, name)

    # --- statistics ---

    def stats(self, now: float) -> Mapping[str, Any]:
        c = self._stats
        return {
            "programs": ProgramStats(
                programs=len(self._programs),
                holds=self._num_holds,
                held_tokens=self._tokens,
                prompt_tokens=c.prompt_tokens,
                cached_tokens=c.cached_tokens,
                leases=c.leases,
                refused_holds=c.refused_holds,
                releases=c.releases,
                expired=c.expired,
            )
        }

    def check(self) -> None:
        """Check that retention(node) is the highest level of the node's holds, and <= RETAIN_NORMAL for a node without
        holds; that the tokens of all programs sum to `held_tokens`, within all bounds; and that the growth of growing
        programs sums to `growing_tokens`."""
        holds = self.holds()
        for node in self._cache.iter_nodes():
            expected = holds.get(node)
            retention = node.retention
            if retention > RETAIN_NORMAL if expected is None else retention != expected:
                raise InvariantError(f"{node!r} has retention level {retention}, its programs hold it with {expected}")
        tokens = [program.tokens for program in self._programs.values()]
        if sum(tokens) != self._tokens or min(tokens, default=0) < 0:
            raise InvariantError(f"programs hold {tokens}, but held_tokens is {self._tokens}")
        growth = [program.growth for program in self._programs.values() if program.is_growing]
        if sum(growth) != self._growth:
            raise InvariantError(f"programs grow by {growth}, not {self._growth}")
        if self._tokens > self.max_tokens or max(tokens, default=0) > PROGRAM_SHARE * self._num_slots:
            raise InvariantError(f"programs hold {tokens} of {self._num_slots} slots, which is more than they may")

    def holds(self) -> dict[TreeNode, int]:
        """Return the retention level of each held node. A held node may have been evicted."""
        return {node: max(hold.retention for hold in holds) for node, holds in self._holds.items()}

    def holders(self) -> Iterator[tuple[str, TreeNode, int]]:
        """Yield (program, node, retention level) for each hold, the most recently active program first."""
        for program in reversed(self._programs.values()):
            holds = [*program.forks.values(), *(b.hold for b in program.branches.values() if b.hold is not None)]
            for hold in holds:
                yield program.id, hold.node, hold.retention
