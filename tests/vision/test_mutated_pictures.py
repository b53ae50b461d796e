"""10,000 mutated pictures harm nobody, and memory stays flat."""

from __future__ import annotations

import os
import random
from pathlib import Path

from radixrt.vision.processor import PatchProcessor
from tests.vision.mutations import mutated

MAX_GROWTH = 64 * 1024 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_ten_thousand_mutated_pictures():
    processor = PatchProcessor(16, 2, {"size": {"shortest_edge": 4096, "longest_edge": 65_536}}, 2048)
    rng = random.Random(7)
    mutated(rng, 1_000, processor)  # what stays in memory after the first pictures
    before = resident_bytes()
    num_read = mutated(rng, 9_000, processor)
    assert resident_bytes() - before < MAX_GROWTH
    assert 500 < num_read < 9_000
