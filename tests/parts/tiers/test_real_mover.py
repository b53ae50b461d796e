"""The runner end of tiers as it is, under random sequences of all events."""

from __future__ import annotations

import logging
from random import Random

import pytest

from radixrt.parts.tiers.runner import staging
from tests.parts.tiers.events import run
from tests.parts.tiers.harness import Sizes
from tests.parts.tiers.real_mover import ROW_BYTES, RealHost

SEQUENCES = 4


@pytest.mark.parametrize("late", [False, True])
def test_the_mover_moves_the_right_tokens(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable()

    def make_host(sizes: Sizes) -> RealHost:
        monkeypatch.setattr(staging, "MOVE_BYTES", sizes.move_pages * sizes.page * ROW_BYTES)
        monkeypatch.setattr(staging, "RECEIVED_MOVES", 1)  # so that orders take several pieces
        return RealHost(sizes.ranks, sizes.host_pages * sizes.page, sizes.page, Random(0), late=late)

    try:
        for seed in range(SEQUENCES):
            run(seed, 100, make_host=make_host, states=0)
    finally:
        logging.disable(logging.NOTSET)
