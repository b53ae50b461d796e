"""Commands for all replicas: one answer when every replica has answered, or has died."""

from __future__ import annotations

from radixrt.messages.scheduler import ControlReply, ControlReq
from radixrt.router.controls import Controls

FLUSH = ControlReq("1", "flush_cache")


def test_the_last_replica_completes_the_answer() -> None:
    controls = Controls()
    assert controls.ask(FLUSH, [0, 1], 0.0) == []
    assert controls.answered(0, ControlReply("1", ok=True)) == []
    assert controls.answered(0, ControlReply("1", ok=True)) == [], "the same replica again"
    assert controls.answered(1, ControlReply("1", ok=True)) == [ControlReply("1", ok=True)]
    assert controls.answered(1, ControlReply("1", ok=True)) == []


def test_a_failure_names_the_replica() -> None:
    controls = Controls()
    controls.ask(FLUSH, [0, 1], 0.0)
    controls.answered(1, ControlReply("1", ok=False, message="a slot is lost"))
    assert controls.answered(0, ControlReply("1", ok=True)) == [ControlReply("1", False, "replica 1: a slot is lost")]


def test_a_dead_replica_owes_no_answer() -> None:
    controls = Controls()
    controls.ask(FLUSH, [0, 1], 0.0)
    controls.ask(ControlReq("2", "check"), [0], 0.0)
    assert controls.lost(0) == [ControlReply("2", ok=True)]
    assert controls.answered(1, ControlReply("1", ok=True)) == [ControlReply("1", ok=True)]


def test_without_replicas_there_is_nothing_to_do() -> None:
    assert Controls().ask(FLUSH, [], 0.0) == [ControlReply("1", ok=True)]


def test_a_fenced_replica_owes_no_answer_and_the_answer_says_so() -> None:
    controls = Controls()
    controls.ask(FLUSH, [0, 1], 0.0)
    controls.answered(0, ControlReply("1", ok=True))
    (reply,) = controls.lost(1, is_fenced=True)
    assert reply.ok
    assert reply.message == "replica 1 is silent and counts as dead; it begins with an empty cache once it is heard"
    assert controls.ask(FLUSH, [], 0.0, fenced=[1]) == [reply]


def test_a_command_fails_at_a_replica_that_does_not_answer() -> None:
    controls = Controls()
    controls.ask(FLUSH, [0, 1], 3.0)
    controls.answered(0, ControlReply("1", ok=True))
    assert list(controls.owing()) == [(1, 3.0)]
    (reply,) = controls.lost(1, silent_s=4.2)
    assert reply == ControlReply("1", False, "replica 1 has not answered for 4 s; its process may be stopped")
    assert controls.answered(1, ControlReply("1", ok=True)) == [], "too late"
