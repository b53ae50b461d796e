"""Temperature scaling (Guo et al. 2017, arXiv 1706.04599): one number that makes confidences come true.

The softmax of log-probabilities divided by a temperature has the same most probable answer for every temperature. A
temperature above 1 lowers confidences. The best temperature minimizes the mean negative log-likelihood of the right
answers, which is a convex function of 1 / temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from radixrt.tasks.score import log_softmax

LOWEST, HIGHEST = 0.05, 20.0
"""Temperatures between which the best one is sought."""
NUM_BINS = 10
NUM_FOLDS = 5
_STEPS = 60
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class Example(NamedTuple):
    """An answered question.

    Attributes:
        logprobs: natural logarithm of the probability of each answer at temperature 1, up to a common addend.
        right: index of the right answer.
    """

    logprobs: Sequence[float]
    right: int


class Quality(NamedTuple):
    """How good probabilities are.

    Attributes:
        accuracy: share of the examples whose most probable answer is right.
        confidence: mean probability of the most probable answer.
        ece: expected calibration error: over NUM_BINS bins of equal width by confidence, the mean distance between a
            bin's mean confidence and its accuracy, weighted by the bin's examples.
        nll: mean negative log-likelihood of the right answers, in nats.
    """

    accuracy: float
    confidence: float
    ece: float
    nll: float


def quality(examples: Sequence[Example], temperature: float) -> Quality:
    return _quality([_scored(example, temperature) for example in examples])


def held_out_quality(examples: Sequence[Example]) -> Quality:
    """Return the quality of the examples, each with the temperature that the examples of the other folds give. Example
    i is in fold i modulo NUM_FOLDS."""
    scored = []
    for fold in range(NUM_FOLDS):
        rest = [example for i, example in enumerate(examples) if i % NUM_FOLDS != fold]
        temperature = best_temperature(rest)
        scored += [_scored(example, temperature) for example in examples[fold::NUM_FOLDS]]
    return _quality(scored)


def best_temperature(examples: Sequence[Example]) -> float:
    """Return the temperature of the least mean negative log-likelihood, between LOWEST and HIGHEST."""

    def loss(inverse: float) -> float:
        return sum(-log_softmax([value * inverse for value in e.logprobs])[e.right] for e in examples)

    # Golden-section search: the function of the inverse temperature is convex.
    low, high = 1.0 / HIGHEST, 1.0 / LOWEST
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(_STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = loss(right)
    return 2.0 / (low + high)


class _Scored(NamedTuple):
    is_right: bool
    confidence: float
    nll: float


def _scored(example: Example, temperature: float) -> _Scored:
    logs = log_softmax([value / temperature for value in example.logprobs])
    best = max(range(len(logs)), key=logs.__getitem__)
    return _Scored(best == example.right, math.exp(logs[best]), -logs[example.right])


def _quality(scored: Sequence[_Scored]) -> Quality:
    count = len(scored)
    bins: list[list[_Scored]] = [[] for _ in range(NUM_BINS)]
    for one in scored:
        bins[min(int(one.confidence * NUM_BINS), NUM_BINS - 1)].append(one)
    ece = sum(abs(sum(one.confidence - one.is_right for one in found)) for found in bins) / count
    return Quality(
        sum(one.is_right for one in scored) / count,
        sum(one.confidence for one in scored) / count,
        ece,
        sum(one.nll for one in scored) / count,
    )
