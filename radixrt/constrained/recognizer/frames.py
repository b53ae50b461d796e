"""Frames (return points of calls) and closures (readable nodes) of the recognizer at one text position.

A `Frame` merges all calls of the same rule from the same text position. Frames are created only when all possible calls
at a position are known, and equal frames are the same object. So frames and states can be compared by identity, and
results computed for a state are found again.
"""

from __future__ import annotations

from typing import Final

from radixrt.constrained.productions.expressions import GrammarTooComplex
from radixrt.constrained.recognizer.pushdown import ANY_ORDER, CALL, COUNT, END, FORK, REGULAR, Node, started
from radixrt.constrained.regex import Regex

MAX_CONFIGURATIONS: Final = 8000


class RecognizerTooComplex(GrammarTooComplex):
    """The grammar is too ambiguous at this text position to be followed, or its shortest completion is too long."""


class Frame:
    """Return points of a rule that is being read: for each call, the node after the call and the caller's frame.

    Attributes:
        returns: node, repetitions that are complete by then (0 where the node is no `COUNT` under way; of parts in any
            order `started(state)` of the tally), caller's frame.
        distance: characters from the end of the rule to the end of everything.
        best: the return point on that path.
    """

    __slots__ = ("best", "distance", "returns")

    def __init__(self, returns: tuple[Return, ...]) -> None:
        self.returns = returns
        # Ranks are computed once: of parts in any order, a distance takes a look at each part.
        ranks = list(map(_rank, returns))
        least = min(ranks, default=None)
        self.distance: int = 0 if least is None else least[0]
        ties = [entry for entry, rank in zip(returns, ranks, strict=True) if rank == least]
        # Of equally short completions, one that depends on the grammar alone, and not on the order of the returns.
        best = min(ties, key=lambda entry: entry[2].path()) if len(ties) > 1 else None
        self.best: Return | None = best or next(iter(ties), None)

    def path(self) -> list[tuple[int, int]]:
        """Return the serials and counts of the return points on the shortest path to the end of everything. Frames with
        equal paths have the same shortest completion."""
        found: list[tuple[int, int]] = []
        entry = self.best
        while entry is not None:
            node, count, frame = entry
            found.append((node.serial, count))
            entry = frame.best
        return found


Return = tuple[Node, int, Frame]
Item = tuple[Node, "int | Regex", Frame]


def _rank(entry: Return) -> tuple[int, int, int]:
    """Shortest first; of equal ones, in the order of the grammar."""
    node, count, _ = entry
    return _distance(entry), node.serial, count


def _distance(entry: Return) -> int:
    node, count, frame = entry
    if count == 0:
        return node.distance + frame.distance
    return node.missing_length(count) + node.next.distance + frame.distance


class Closure:
    """The epsilon closure of some nodes: follows calls, forks and returns up to the nodes that read something.

    Calls of the same rule from the current text position share a frame, which collects its return points until
    `finish`. A call of a nullable rule is also passed over, so that a return without reading anything can be ignored.
    """

    def __init__(self, frames: dict[frozenset[Return], Frame]) -> None:
        self.items: list[Item] = []
        self.complete = False
        self._frames = frames
        self._seen: set[tuple[Node, int, object]] = set()
        self._pending: dict[Node, _Pending] = {}

    def enter(self, node: Node, frame: Frame | _Pending) -> None:
        """Continue at a node.

        Raises:
            RecognizerTooComplex: more than `MAX_CONFIGURATIONS` configurations can be reached.
        """
        todo: list[tuple[Node, int, Frame | _Pending]] = [(node, 0, frame)]
        seen = self._seen
        while todo:
            configuration = todo.pop()
            if configuration in seen:
                continue
            seen.add(configuration)
            if len(seen) > MAX_CONFIGURATIONS:
                raise RecognizerTooComplex(f"more than {MAX_CONFIGURATIONS} parses of a text are possible at once")
            node, count, frame = configuration
            kind = node.kind
            if kind == FORK:
                todo.extend([(target, 0, frame) for target in node.targets])
            elif kind == CALL:
                # A call at the end of a rule needs no frame: the callee returns to the caller's return points. So
                # right recursion does not grow the stack.
                if node.next.kind == END:
                    todo.append((node.body, 0, frame))
                else:
                    self._call(node.body, (node.next, 0, frame), todo)
                if node.skips:
                    todo.append((node.next, 0, frame))
            elif kind == COUNT:
                # Without an upper bound, counts above `low` are equivalent and become `low`.
                if count >= node.low:
                    todo.append((node.next, 0, frame))
                if node.high is None:
                    self._call(node.body, (node, max(1, min(count + 1, node.low)), frame), todo)
                elif count < node.high:
                    self._call(node.body, (node, count + 1, frame), todo)
            elif kind == ANY_ORDER:
                tally = node.tally
                assert tally is not None
                bodies = node.bodies[1 if count else 0]
                if count and tally.may_end(count >> 1):
                    todo.append((node.next, 0, frame))
                for part, after in tally.moves(count >> 1):
                    self._call(bodies[part], (node, started(after), frame), todo)
            elif kind == END:
                if isinstance(frame, Frame):
                    if not frame.returns:
                        self.complete = True
                    todo.extend(frame.returns)
            elif kind == REGULAR:
                self.items.append((node, node.regex, frame))  # type: ignore[arg-type]  # resolved by `finish`
                if node.regex.nullable:
                    todo.append((node.next, 0, frame))
            else:
                self.items.append((node, 0, frame))  # type: ignore[arg-type]

    def _call(
        self,
        body: Node,
        entry: tuple[Node, int, Frame | _Pending],
        todo: list[tuple[Node, int, Frame | _Pending]],
    ) -> None:
        pending = self._pending.get(body)
        if pending is None:
            pending = self._pending[body] = _Pending()
            todo.append((body, 0, pending))
        pending.returns.append(entry)

    def finish(self) -> tuple[frozenset[Item], bool]:
        """The items with their final frames, and whether the text may end."""
        return frozenset([(node, progress, self._final(frame)) for node, progress, frame in self.items]), self.complete

    def _final(self, frame: Frame | _Pending) -> Frame:
        """Return the frame with the content of a pending frame."""
        if isinstance(frame, Frame):
            return frame
        # Callers first, with a stack of our own: calls may nest deeper than Python's stack. Pending frames cannot call
        # one another in a circle, because the grammar has no left recursion.
        unfinished = [frame]
        while unfinished:
            last = unfinished[-1]
            callers = [caller for _, _, caller in last.returns if isinstance(caller, _Pending) and caller.final is None]
            if callers and last.final is None:
                unfinished.extend(callers)
                continue
            unfinished.pop()
            if last.final is None:
                key = frozenset(_without_dominated(last.returns))
                final = self._frames.get(key)
                if final is None:
                    final = self._frames[key] = Frame(tuple(key))
                last.final = final
        assert frame.final is not None
        return frame.final


class _Pending:
    """A frame whose returns are still being collected."""

    __slots__ = ("final", "returns")

    def __init__(self) -> None:
        self.returns: list[tuple[Node, int, Frame | _Pending]] = []
        self.final: Frame | None = None


def _without_dominated(returns: list[tuple[Node, int, Frame | _Pending]]) -> list[Return]:
    """The returns with final frames, without counts that allow nothing which another count does not allow too.

    Of counts that have reached the least number of repetitions, the smallest leaves most; without an upper bound
    the largest of all does.
    """
    kept: list[Return] = []
    counts: dict[tuple[Node, Frame], set[int]] = {}
    for node, count, caller in returns:
        frame = caller if isinstance(caller, Frame) else caller.final
        assert frame is not None
        if count == 0 or node.kind == ANY_ORDER:
            kept.append((node, count, frame))
        else:
            counts.setdefault((node, frame), set()).add(count)
    for (node, frame), found in counts.items():
        if node.high is None:
            kept.append((node, max(found), frame))
            continue
        enough = [count for count in found if count >= node.low]
        kept.extend((node, count, frame) for count in found if count < node.low)
        if enough:
            kept.append((node, min(enough), frame))
    return kept
