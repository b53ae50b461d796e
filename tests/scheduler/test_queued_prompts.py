"""Prefixes that queued requests have in common."""

from __future__ import annotations

import random

import numpy as np

from radixrt.mem_cache.granules import GRANULE_TOKENS as GRANULE
from radixrt.parts.overload.queued_prompts import QueuedPrompts, prefix_hashes


def ids(*parts: tuple[int, int]) -> np.ndarray:
    """(token, count) pairs, as token ids."""
    return np.concatenate([np.full(count, token, np.int32) for token, count in parts])


def hashes(*parts: tuple[int, int], namespace: str = "") -> list[int]:
    return prefix_hashes(ids(*parts), namespace)


def test_shared_prefixes_count_in_whole_granules() -> None:
    queued = QueuedPrompts()
    queued.add("a", hashes((1, 5 * GRANULE), (2, 3 * GRANULE)))
    assert queued.shared_len(hashes((1, 5 * GRANULE), (3, 3 * GRANULE))) == 5 * GRANULE
    assert queued.shared_len(hashes((1, 2 * GRANULE + 10))) == 2 * GRANULE
    assert queued.shared_len(hashes((1, GRANULE - 1))) == 0
    assert queued.shared_len(hashes((2, 3 * GRANULE))) == 0
    assert queued.shared_len(hashes((1, 5 * GRANULE), namespace="another namespace")) == 0


def test_random_queues_against_the_definition() -> None:
    rng = random.Random(0)
    queued, held = QueuedPrompts(), {}
    for i in range(600):
        if held and rng.random() < 0.4:
            rid = rng.choice(list(held))
            del held[rid]
            queued.keep(held.keys())
            assert rid not in queued
            continue
        namespace = rng.choice(["", "x"])
        prompt = ids(*((rng.randint(1, 2), GRANULE) for _ in range(rng.randint(0, 4))), (3, rng.randint(1, 30)))
        common = 0
        for other, space in held.values():
            same = 0
            while (
                space == namespace
                and same + GRANULE <= min(len(other), len(prompt))
                and (other[: same + GRANULE] == prompt[: same + GRANULE]).all()
            ):
                same += GRANULE
            common = max(common, same)
        assert queued.shared_len(prefix_hashes(prompt, namespace)) == common
        held[f"r{i}"] = (prompt, namespace)
        queued.add(f"r{i}", prefix_hashes(prompt, namespace))
