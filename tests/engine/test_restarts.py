"""`RestartPolicy`: what is restarted after which failure, and when the engine gives up."""

from __future__ import annotations

import pytest

from radixrt.engine.restarts import ExitCode, RestartPolicy

ONE = ("tokenizer", "scheduler", "runner")
TWO = ("tokenizer", "scheduler", "runner-0", "runner-1")


def policy(kinds: tuple[str, ...] = ONE, *, external: bool = False, max_restarts: int = 3) -> RestartPolicy:
    return RestartPolicy(kinds, external=external, max_restarts=max_restarts, window_s=300.0)


@pytest.mark.parametrize(
    ("kinds", "failed", "serves", "restarted", "ends"),
    [
        (ONE, ("runner",), True, ("runner",), False),
        (TWO, ("runner-1",), True, ("runner-0", "runner-1"), False),
        (ONE, ("tokenizer",), True, ("tokenizer", "scheduler"), True),
        (ONE, ("scheduler",), True, ("tokenizer", "scheduler"), True),
        (TWO, ("scheduler",), True, ("tokenizer", "scheduler"), True),
        (TWO, ("scheduler",), False, TWO, True),
        (TWO, ("runner-0",), False, TWO, True),
        (ONE, ("scheduler", "runner"), True, ONE, True),
        (ONE, ("runner",), False, ONE, True),
        (ONE, ("tokenizer",), False, ("tokenizer", "scheduler"), True),
    ],
)
def test_what_is_restarted(
    kinds: tuple[str, ...], failed: tuple[str, ...], serves: bool, restarted: tuple[str, ...], ends: bool
) -> None:
    plan = policy(kinds).decide(failed, 0.0, scheduler_serves=serves)
    assert plan.restart == restarted
    assert plan.ends_requests is ends
    assert plan.exit_code is None


def test_the_budget_is_of_restarts_within_a_window() -> None:
    p = policy()
    for now in (0.0, 100.0, 200.0):
        assert p.decide(("runner",), now, scheduler_serves=True).exit_code is None
    assert p.decide(("runner",), 250.0, scheduler_serves=True).exit_code is ExitCode.RESTARTS_SPENT
    one = RestartPolicy(("scheduler", "runner"), external=False, max_restarts=1, window_s=300.0, replica=2)
    plan = one.decide(("scheduler",), 0.0, scheduler_serves=True)
    assert plan.restart == ("scheduler",)
    assert plan.description.startswith("restarting replica 2 scheduler, restart 1 of 1")
    assert one.decide(("scheduler",), 1.0, scheduler_serves=True).description.startswith("not starting it anew after 1")
    plan = p.decide(("runner",), 301.0, scheduler_serves=True)
    assert plan.exit_code is None
    assert "restart 3 of 3 in 300 s" in plan.description
    assert p.decide(("runner",), 302.0, scheduler_serves=True).restart == ()


def test_restarts_that_a_request_caused_are_not_counted() -> None:
    p = policy(max_restarts=2)
    for killers in range(5):
        p.refund(killers)
        for now in (0.0, 1.0):
            assert p.decide(("runner",), now, scheduler_serves=True).exit_code is None
    p.refund(4)
    assert p.decide(("runner",), 2.0, scheduler_serves=True).exit_code is ExitCode.RESTARTS_SPENT
    p.refund(0)  # the scheduler was started anew
    p.refund(1)
    assert p.decide(("runner",), 3.0, scheduler_serves=True).exit_code is None


def test_no_restarts_at_all() -> None:
    assert policy(max_restarts=0).decide(("tokenizer",), 0.0, scheduler_serves=True).exit_code


def test_ranks_that_others_started_are_not_restarted() -> None:
    plan = policy(external=True).decide(("runner",), 0.0, scheduler_serves=True)
    assert plan.exit_code is ExitCode.EXTERNAL_RANK
