"""Selection of a choice by the log-probabilities of its tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from radixrt.messages.parts import SelectMethod
from radixrt.tasks.score import select, softmax

L = math.log


class Selected(NamedTuple):
    choice: int
    logprobs: list[float]
    scores: list[float]
    probabilities: list[float]


def run(
    method: SelectMethod, choices: list[list[tuple[int, float]]], unconditional: list[list[float]] | None = None
) -> Selected:
    ids = [[token for token, _ in choice] for choice in choices]
    found = select(method, ids, [[value for _, value in choice] for choice in choices], unconditional or [])
    result = Selected(*found, softmax(found[2]))
    assert sum(result.probabilities) == pytest.approx(1.0)
    return result


def test_the_mean_decides() -> None:
    result = run("token_length_normalized", [[(1, -1.0)], [(2, -0.9), (3, -0.9), (4, -0.9)]])
    assert result.choice == 1
    assert result.logprobs == pytest.approx([-1.0, -2.7])
    assert result.scores == pytest.approx([-1.0, -0.9])


def test_of_equal_scores_the_first() -> None:
    for method in ("token_length_normalized", "greedy"):
        assert run(method, [[(1, -1.0)], [(2, -1.0)], [(3, -1.0)]]).choice == 0


def test_greedy_takes_the_best_token_each_time() -> None:
    a = [(1, L(0.6)), (2, L(0.1))]
    b = [(1, L(0.6)), (3, L(0.2))]
    c = [(4, L(0.4)), (5, L(0.9))]
    result = run("greedy", [a, b, c])
    assert result.choice == 1
    assert run("token_length_normalized", [a, b, c]).choice == 2
    assert result.probabilities == pytest.approx([0.6 / 3, 0.6 * 2 / 3, 0.4])


def test_greedy_holds_an_ended_choice_against_the_others_with_its_mean() -> None:
    short = [(1, L(0.5))]
    assert run("greedy", [short, [(1, L(0.5)), (2, L(0.4))]]).choice == 0
    assert run("greedy", [short, [(1, L(0.5)), (2, L(0.6))]]).choice == 1
    assert run("greedy", [short, [(1, L(0.5)), (2, L(0.4)), (3, 0.0)], [(9, L(0.4))]]).choice == 0


def test_greedy_on_choices_with_the_same_tokens() -> None:
    result = run("greedy", [[(1, -1.0)], [(1, -1.0)]])
    assert result.choice == 0


def test_what_is_likely_anyway_counts_less() -> None:
    result = run("unconditional_likelihood_normalized", [[(1, -2.0)], [(2, -1.0), (3, -3.0)]], [[-6.0], [-1.5, -3.0]])
    assert result.scores == pytest.approx([4.0, 0.25])
    assert result.choice == 0
    assert result.logprobs == pytest.approx([-2.0, -4.0])


def test_impossible_choices_stay_finite() -> None:
    for method in ("token_length_normalized", "greedy"):
        result = run(method, [[(1, -9999.0)], [(2, -9999.0), (3, -1.0)], [(4, -0.1)]])
        assert result.choice == 2
        assert all(map(math.isfinite, result.scores))
