"""Counts of moves, as snapshots, sums over replicas and metrics show them."""

from __future__ import annotations

import msgspec

from radixrt.client.fleet_stats import merge_stats
from radixrt.messages.kv_moves import KVConnectorOutput
from radixrt.messages.scheduler_stats import TierStats
from radixrt.parts.tiers.counters import TierCounters
from radixrt.parts.tiers.moves import MoveKind, Transfer, pieces
from radixrt.parts.tiers.scheduler import Tiers
from radixrt.scheduler.stats import scheduler_stats
from tests.scheduler.fake_runner import Harness
from tests.server.fake_engine import FakeEngine, stats
from tests.server.helpers import Caller


def counted() -> TierStats:
    counters = TierCounters()
    counters.finished("out", 1000, 0.002)
    counters.finished("in", 300, 0.0004)
    counters.finished("in", 300, 99.0)
    counters.failed("load")
    counters.refused("full")
    counters.refused("full")
    counters.refused("price")
    return counters.stats({"host": 640, "disk": 1280}, {"host": 128}, {"host": 64})


def test_a_snapshot_does_not_change_later() -> None:
    counters = TierCounters()
    counters.finished("out", 1000, 0.002)
    before = counters.stats({}, {}, {})
    bytes_before = msgspec.msgpack.encode(before)
    counters.finished("out", 1000, 0.002)
    counters.refused("full")
    assert msgspec.msgpack.encode(before) == bytes_before
    assert counters.stats({}, {}, {}).moves["out"].finished == 2


def test_replicas_add_up() -> None:
    one = msgspec.structs.replace(stats(), tiers=counted())
    without = msgspec.structs.replace(stats(), tiers=None)
    tiers = merge_stats([one, without, one], queued=0).tiers
    assert tiers is not None
    assert (tiers.tokens_total, tiers.tokens_used) == ({"host": 1280, "disk": 2560}, {"host": 256})
    assert (tiers.moves["in"].bytes, tiers.moves["in"].finished, tiers.moves["load"].failed) == (1200, 4, 2)
    assert tiers.moves["in"].seconds is not None
    assert sum(tiers.moves["in"].seconds.counts) == 4
    assert (tiers.refused, tiers.fetched_tokens) == ({"full": 4, "price": 2}, {"host": 128})


def test_the_part_reports_places_and_moves() -> None:
    scheduler = Harness(parts={"tiers"}).scheduler
    tiers = scheduler_stats(scheduler, 0.0).tiers
    assert tiers == TierStats({"host": 64}, {"host": 0})
    moves = scheduler.part(Tiers).moves
    for number, output in (
        (1, KVConnectorOutput(finished_sending=[1], seconds=[0.002])),
        (2, KVConnectorOutput(failed_recving=[2])),
    ):
        kind = MoveKind.OUT if number == 1 else MoveKind.IN
        moves.start(Transfer(kind, pieces([(bytes(256), 4), (bytes(256), 4)], 64, 64, 8), lambda ok: None))
        moves.reported(0, output)
    tiers = scheduler_stats(scheduler, 0.0).tiers
    assert tiers is not None
    assert (tiers.moves["out"].bytes, tiers.moves["out"].finished, tiers.moves["in"].failed) == (512, 1, 1)
    assert scheduler_stats(Harness().scheduler, 0.0).tiers is None


def test_metrics() -> None:
    engine = FakeEngine()
    try:
        caller = Caller(engine)
        engine.client.dispatch(stats())
        assert "kv_tier" not in caller.metrics()
        engine.client.dispatch(msgspec.structs.replace(stats(), tiers=counted()))  # 1000 prompt tokens, 400 cached
        lines = caller.metrics().splitlines()
    finally:
        engine.close()
    for line in (
        'kv_tier_tokens{state="used",tier="host"} 128.0',
        'kv_tier_tokens{state="free",tier="host"} 512.0',
        'kv_tier_tokens{state="free",tier="disk"} 1280.0',
        'prompt_tokens_by_source_total{source="computed"} 600.0',
        'prompt_tokens_by_source_total{source="device"} 336.0',
        'prompt_tokens_by_source_total{source="host"} 64.0',
        'prompt_tokens_by_source_total{source="disk"} 0.0',
        'kv_moved_bytes_total{direction="out",tier="host"} 1000.0',
        'kv_moved_bytes_total{direction="in",tier="host"} 600.0',
        'kv_moves_total{direction="in",result="finished",tier="host"} 2.0',
        'kv_moves_total{direction="in",result="failed",tier="disk"} 1.0',
        'kv_move_seconds_bucket{direction="in",le="0.0005",tier="host"} 1.0',
        'kv_move_seconds_count{direction="in",tier="host"} 2.0',
        'kv_moves_refused_total{reason="full"} 2.0',
    ):
        assert f"radixrt_{line}" in lines, line
