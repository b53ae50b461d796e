"""The best offline hit rate: what it is where that can be counted by hand or by trying everything."""

from __future__ import annotations

import itertools
import random
from functools import cache

import pytest

from benchmarks.programs.optimal_cache import Traced, best_hit_rate


def test_a_cache_that_holds_everything_misses_only_what_is_new() -> None:
    shared = list(range(100))
    trace = [Traced([*shared, 1000 + i], [2000 + i]) for i in range(5)]
    rate, distinct = best_hit_rate(trace, 10**6)
    assert rate == pytest.approx(4 * 100 / (5 * 101))
    assert distinct == 100 + 5 + 5


def test_outputs_are_cached_for_the_next_turn() -> None:
    trace = [Traced([1, 2, 3], [4, 5]), Traced([1, 2, 3, 4, 5, 6], [7])]
    assert best_hit_rate(trace, 100)[0] == pytest.approx(5 / 9)
    assert best_hit_rate(trace, 4)[0] == pytest.approx(4 / 9)


def test_no_cache_no_hits() -> None:
    assert best_hit_rate([Traced([1, 2], [3])] * 3, 0)[0] == 0.0
    assert best_hit_rate([], 100) == (0.0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_best_of_all_ways_to_evict(seed: int) -> None:
    """Prompts of one page (two tokens) and one token of their own: the classical problem of page replacement."""
    rng = random.Random(seed)
    pages = [rng.randrange(4) for _ in range(9)]
    size = rng.randint(1, 3)

    @cache
    def most_hits(at: int, held: frozenset[int]) -> int:
        if at == len(pages):
            return 0
        hit = pages[at] in held
        after = held | {pages[at]}
        kept = [frozenset(some) for some in itertools.combinations(after, min(size, len(after)))]
        return hit + max(most_hits(at + 1, some) for some in kept)

    trace = [Traced([10 * page, 10 * page + 1, 1000 + i], []) for i, page in enumerate(pages)]
    rate, _ = best_hit_rate(trace, 2 * size)
    assert round(rate * 3 * len(pages)) == 2 * most_hits(0, frozenset())
