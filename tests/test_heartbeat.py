"""Heartbeats through the shared file."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixrt.heartbeat import Beats, Heartbeat, HeartbeatFile, open_heartbeat


def test_each_worker_writes_its_own_slot(tmp_path: Path) -> None:
    path = str(tmp_path / "heartbeats")
    file = HeartbeatFile(path, 3)
    for slot in range(3):
        file.reset(slot, 600.0)
    workers = [open_heartbeat(path, slot) for slot in range(3)]
    workers[1].beat()
    workers[2].expect(10.0)
    workers[2].beat()
    assert [file.read(slot) for slot in range(3)] == [Beats(0, 600.0), Beats(1, 600.0), Beats(2, 10.0)]
    file.reset(2, 600.0)
    assert file.read(2) == Beats(0, 600.0)


def test_every_block_is_allocated(tmp_path: Path) -> None:
    path = tmp_path / "heartbeats"
    HeartbeatFile(str(path), 2)
    assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_a_lap_is_the_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 1.0, 4.0, 5.0, 5.5))
    monkeypatch.setattr("radixrt.heartbeat.time.perf_counter", lambda: next(times))
    heartbeat = Heartbeat()
    for _ in range(3):
        heartbeat.beat()
    assert heartbeat.lap() == 3.0
    heartbeat.beat()
    assert heartbeat.lap() == 0.5
