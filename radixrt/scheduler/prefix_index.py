"""`PrefixIndex`: finds the requests that continue with given tokens at a given position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from radixrt.messages.wire import Int32Array
from radixrt.scheduler.req import Req


class PrefixIndex:
    """Index of requests by windows of their tokens. An index is used while the requests of one step are admitted.

    Every waiting request is looked up. So requests are indexed by their window at each position that a look-up asks
    for, and only requests with an equal window are compared.

    Args:
        window: number of tokens that must be equal.
    """

    def __init__(self, reqs: Iterable[Req], window: int) -> None:
        self._reqs = list(reqs)
        self._window = window
        self._indexes: dict[int, dict[tuple[str, bytes], list[Req]]] = {}

    def __len__(self) -> int:
        return len(self._reqs)

    def add(self, req: Req) -> None:
        self._reqs.append(req)
        for start, index in self._indexes.items():
            self._add_to(index, req, start)

    def like(self, namespace: str, ids: Int32Array, start: int) -> Sequence[Req]:
        """Return the requests of the namespace whose `window` tokens from position `start` on equal the tokens of `ids`
        there. Tokens before `start` are not compared."""
        if len(ids) < start + self._window:
            return ()
        index = self._indexes.get(start)
        if index is None:
            index = self._indexes[start] = {}
            for req in self._reqs:
                self._add_to(index, req, start)
        return index.get((namespace, ids[start : start + self._window].tobytes()), ())

    def _add_to(self, index: dict[tuple[str, bytes], list[Req]], req: Req, start: int) -> None:
        window = req.known_ids[start : start + self._window].tobytes()
        if len(window) == 4 * self._window:
            index.setdefault((req.namespace, window), []).append(req)


def common_len(a: Int32Array, b: Int32Array) -> int:
    """Return the number of leading tokens that are equal."""
    count = min(len(a), len(b))
    differs = a[:count] != b[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count
