"""All events of a scheduler with tiers, for random sequences.

`python -m tests.parts.tiers.events 1000000` does as many operations, drawn from a plain random generator, in sequences
of 200 events that begin with other sizes each. `tests.parts.tiers.test_state_machine` draws from hypothesis, which
shrinks what fails.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from radixrt.messages.kv_moves import MAX_MOVES, MAX_RECEIVING_ON_DEVICE
from radixrt.messages.parts import ProgramHint
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.parts.tiers.tier import root_name
from radixrt.scheduler.invariants import check_scheduler
from tests.parts.tiers.fake_mover import FakeHost
from tests.parts.tiers.harness import Sizes, TieredHarness
from tests.scheduler.fake_runner import VOCAB

DEADLY = VOCAB  # no runner samples it, and none survives it
RUN = [1 + i * i % 37 for i in range(256)]
PREFIXES = [
    [5] * 40, RUN[:64], RUN[:128], RUN[:150], RUN[:230], RUN[:64] + [7] * 70, [9] * 128, [9] * 100 + RUN[:70],
]  # fmt: skip
SUFFIXES = [[1], [2, 3], [2, 4, 1], [3] * 5]
SALTS = ["", "", "a", "b"]

CHOICES: dict[str, Sequence[Any]] = {
    "pages": (5, 6, 8, 12),
    "page_size": (1, 1, 16),
    "depth": (1, 2),
    "ranks": (1, 1, 2),
    "stages": (1, 1, 1, 2),
    "chunk": (16, 100, 1000),
    "rows": (1, 2, 4),
    "host_pages": (2, 5, 12, 30),
    "file_pages": (0, 3, 10, 40),
    "move_pages": (1, 1, 2, 4),
    "receiving": (2, MAX_MOVES, MAX_RECEIVING_ON_DEVICE),
    "eager": (0.2, 0.6, 0.9),
    "pays": (1.0, 1.0, 0.7),
    "seed": range(2**16),
    "states": (0, 0, 2, 5, 12),
    "state_rows": (1, 5, 70),
}
"""Values of each argument of `Events`."""

Draw = Callable[[Sequence[Any]], Any]


class Events:
    """A harness, and one method for each event.

    Args:
        make_host: makes arena and files; default: fake ones.
        states: state slots of requests and nodes; 0 for a model without states, otherwise pages have one token.
        check: check the scheduler's invariants whenever it has done anything; otherwise after each event.
    """

    def __init__(
        self, *, pages: int, page_size: int, depth: int, ranks: int, stages: int, chunk: int, rows: int,
        host_pages: int, file_pages: int, move_pages: int, receiving: int, eager: float, pays: float, seed: int,
        states: int = 0, state_rows: int = 0,
        check: bool = True,
        make_host: Callable[[Sizes], FakeHost] | None = None,
    ) -> None:  # fmt: skip
        ranks = max(ranks, stages)  # a rank for each stage
        page_size, state_rows = (1, state_rows) if states else (page_size, 0)
        sizes = Sizes(ranks, host_pages, file_pages, move_pages, receiving, state_rows=state_rows)
        self.h = TieredHarness(
            sizes, host=make_host and make_host(sizes), num_slots=64 * pages, page_size=page_size,
            num_states=states and states + RESERVED_STATES, stages=stages, depth=max(depth, stages),
            chunked_prefill_size=chunk, max_running_requests=rows, max_queued_requests=8, request_timeout_s=50.0,
            deadly=[DEADLY], eager=eager, pays=pays, seed=seed, check=check,
        )  # fmt: skip
        self.count = 0
        self.disturbed: set[str] = set()

    def happens(self, draw: Draw) -> str:
        """Draw an event and let it happen; return its name and arguments."""
        name = draw(WEIGHTED) if self.h.scheduler.has_runner else draw([*WEIGHTED, *["runner_is_ready"] * 40])
        arguments = {key: draw(values) for key, values in EVENTS[name][1].items()}
        getattr(self, name)(**arguments)
        if not self.h.check:
            check_scheduler(self.h.scheduler)
        return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"

    # --- requests ---

    def add(self, prefix: int, suffix: int, max_tokens: int, priority: int, salt: str, kills: bool) -> None:
        self.count += 1
        self.h.add(
            f"r{self.count}", PREFIXES[prefix] + SUFFIXES[suffix] + [DEADLY] * kills, max_tokens=max_tokens,
            ignore_eos=True, priority=priority, cache_salt=salt,
        )  # fmt: skip

    def fork(self, prefix: int, count: int, salt: str) -> None:
        """Calls of a program with a common prefix arrive together."""
        for suffix in SUFFIXES[:count]:
            self.count += 1
            hint = ProgramHint("p", f"0/{count}", fork_len=len(PREFIXES[prefix]), siblings=count, will_continue=True)
            prompt = PREFIXES[prefix] + suffix
            self.h.add(f"r{self.count}", prompt, max_tokens=2, ignore_eos=True, cache_salt=salt, program=hint)

    def score(self, prefix: int, count: int, salt: str) -> None:
        self.count += 1
        self.h.add_score(f"r{self.count}", {tuple(PREFIXES[prefix]): SUFFIXES[:count]}, cache_salt=salt)

    def abort(self, back: int) -> None:
        rid = f"r{max(self.count - back, 1)}"
        self.disturbed.add(rid)
        self.h.scheduler.abort(rid, self.h.now)
        self.h.take()
        self.h.verify()

    def flush(self) -> None:
        self.h.scheduler.flush_cache()
        self.h.verify()

    def pool_evicts(self, tokens: int) -> None:
        self.h.cache.evict(tokens)
        self.h.verify()

    # --- time ---

    def turn(self, count: int) -> None:
        for _ in range(count):
            self.h.turn()

    def submit_only(self) -> None:
        if len(self.h.inflight) < self.h.depth:
            self.h.submit()

    def work(self, count: int) -> None:
        """The device and the links run ahead; the scheduler hears of that later."""
        for _ in range(count):
            self.h.work()

    def take_reports(self, rank: int) -> None:
        if rank < len(self.h.answers):
            self.h.take_reports(rank)

    def time_passes(self, seconds: float) -> None:
        self.h.now += seconds

    def becomes_idle(self) -> None:
        if self.h.scheduler.has_runner:
            self.h.rest(2.0)
            self.h.check_idle()

    # --- faults ---

    def move_fails(self) -> None:
        self.h.fail_move()

    def step_fails(self) -> None:
        if self.h.may_fail:
            self.disturbed.update(r.rid if r.member is None else r.member.group for r in self.h.inflight[0].requests)
            self.h.fail()

    def runner_dies(self) -> None:
        if self.h.scheduler.has_runner:
            self.h.kill()

    def runner_is_ready(self) -> None:
        if not self.h.scheduler.has_runner:
            self.h.restart()

    def scheduler_dies(self) -> None:
        self.h.restart_scheduler()
        self.h.check_tiers()

    def engine_dies(self, keeps_memory: bool) -> None:
        self.h.restart_engine(keeps_memory=keeps_memory)
        self.h.check_tiers()

    def record_is_damaged(self, disk: bool, number: int, bit: int) -> None:
        """While no scheduler runs."""
        self.h.damage_table("disk" if disk else "host", number, bit)
        self.engine_dies(keeps_memory=True)

    def file_page_is_damaged(self, number: int) -> None:
        self.h.host.damage_file(number % self.h.host.ranks, number // 2)

    def wipe(self, salt: str) -> None:
        self.h.scheduler.forget_namespace(salt, whole_owner=False)
        self.h.verify()
        self.h.check_tiers()
        for tier in (self.h.tiers.host, self.h.tiers.disk):
            assert tier is None or root_name(salt) not in [root.namespace for root in tier.cache.roots()]

    # --- the end ---

    def end(self) -> None:
        """Let everything end, and check every output."""
        h = self.h
        if not h.scheduler.has_runner:
            h.restart()
        h.drain()
        h.check_idle()
        assert h.finishes.keys() >= h.requests.keys() | h.score_requests.keys(), "every request ends"
        for rid, finish in h.finishes.items():
            if finish.reason in ("stop", "length", "timeout"):
                if rid in h.score_requests:
                    h.assert_scores(rid)
                else:
                    h.assert_output(rid)
            elif finish.reason == "abort":
                assert rid in self.disturbed
            else:
                assert finish.error is not None
                known = ("timeout", "queue_full", "context_length_exceeded", "runner_killed")
                assert finish.error.code in known or rid in self.disturbed, finish


EVENTS: dict[str, tuple[int, dict[str, Sequence[Any]]]] = {
    "add": (24, {
        "prefix": range(len(PREFIXES)), "suffix": range(len(SUFFIXES)), "max_tokens": (1, 1, 2, 5, 70),
        "priority": (0, 0, 1), "salt": SALTS, "kills": [False] * 30 + [True],
    }),
    "fork": (8, {"prefix": range(len(PREFIXES)), "count": (2, 3, 4), "salt": SALTS}),
    "score": (6, {"prefix": range(len(PREFIXES)), "count": (1, 3, 4), "salt": SALTS}),
    "abort": (5, {"back": range(6)}),
    "flush": (1, {}),
    "pool_evicts": (6, {"tokens": (64, 200, 1000)}),
    "turn": (40, {"count": range(1, 12)}),
    "submit_only": (10, {}),
    "work": (24, {"count": range(1, 20)}),
    "take_reports": (12, {"rank": (0, 1)}),
    "time_passes": (6, {"seconds": (0.1, 1.0, 20.0)}),
    "becomes_idle": (10, {}),
    "move_fails": (4, {}),
    "step_fails": (4, {}),
    "runner_dies": (3, {}),
    "scheduler_dies": (2, {}),
    "engine_dies": (2, {"keeps_memory": (False, False, True)}),
    "record_is_damaged": (1, {"disk": (False, True), "number": range(2**16), "bit": range(8)}),
    "file_page_is_damaged": (3, {"number": range(2**16)}),
    "wipe": (1, {"salt": ("a", "b")}),
    "runner_is_ready": (0, {}),
}  # fmt: skip
"""Weight of each event, and values of its arguments."""

WEIGHTED = [name for name, (weight, _) in EVENTS.items() for _ in range(weight)]


def run(seed: int, count: int, **fixed: Any) -> Counter[str]:
    """Draw a sequence of events from a seed; return what happened, in numbers.

    Args:
        fixed: arguments of `Events` that are not drawn.

    Raises:
        AssertionError, InvariantError: with the events as notes.
    """
    draw = Random(seed).choice
    log: list[str] = []
    try:
        arguments = {key: draw(values) for key, values in CHOICES.items()} | fixed
        log.append(str(arguments))
        events = Events(**arguments, check=False)
        for _ in range(count):
            log.append("...")
            log[-1] = events.happens(draw)
        events.end()
    except BaseException as error:
        error.add_note(f"seed {seed}, {len(log) - 1} events, the last ones: {log[:1] + log[-12:]}")
        raise
    h = events.h
    h.close()
    cached = sum(usage.cached_tokens for usage in h.usages.values())
    return Counter([type(order).__name__ for order in h.orders]) + Counter(
        events=count,
        operations=count + h.operations,
        requests=len(h.finishes),
        computed=h.runner.tokens_computed,
        cached=cached,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("operations", type=int, help="events, iterations of the loop, and units of work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--length", type=int, default=200, help="events of a sequence")
    args = parser.parse_args()
    logging.disable()
    totals: Counter[str] = Counter()
    started = time.perf_counter()
    seed = args.seed
    while totals["operations"] < args.operations:
        totals += run(seed, args.length)
        seed += 1
    print(f"seeds {args.seed} to {seed - 1}, {time.perf_counter() - started:.0f} s: {dict(totals)}")


if __name__ == "__main__":
    main()
