"""Simulated devices: the time of a step, its error against step traces, and the sizes of a replica.

A step trace is what `radixrt launch --step-trace FILE` writes (`radixrt.runner.step_trace`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common.step_traces import answering_trace, read_events
from radixrt.bench.result import percentile
from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape

KV_BYTES = 131_072
"""Keys and values of a token of an 8B model."""
H200_8B = StepTimes(step=5e-3, row=22e-6, context=KV_BYTES / 3.4e12, extend=0.0, token=1 / 40_000, pair=0.0)
"""An 8B model on one H200: a decode step reads 131 kB for each token of context at 3.4 TB/s."""
MIN_STEPS = 16
"""Steps of a trace that a fit needs."""
CLIP = 4.0
"""Steps that took this many times the fitted time, or more, are outliers: a compilation, or a suspended process."""


@dataclass(frozen=True)
class Device:
    """Sizes and speed of one simulated replica.

    Attributes:
        times: model of the seconds that a step takes.
        num_slots: tokens that the KV pool holds.
        context_length: longest sequence, in tokens.
        max_running_requests, chunked_prefill_size, max_gap_ms: options of the scheduler.
        noise: standard deviation of the logarithm of a step's time.
        move_s: seconds that the keys and values of a token take from the pool of one replica to the pool of another,
            for the policy `moves`.
    """

    times: StepTimes = H200_8B
    num_slots: int = 200_000
    context_length: int = 131_072
    max_running_requests: int = 256
    chunked_prefill_size: int = 8192
    noise: float = 0.0
    move_s: float = KV_BYTES / 25e9
    max_gap_ms: float = math.inf


class TracedStep(NamedTuple):
    """A step and the seconds that it took."""

    shape: StepShape
    seconds: float


class StepFit(NamedTuple):
    """Step-time model fitted to a trace.

    Attributes:
        times: the model.
        median, p90: percentiles of its relative error, |predicted - measured| / measured, over `held_out` steps that
            it was not fitted to.
        bias: predicted over measured time of all these steps together, less 1.
    """

    times: StepTimes
    median: float
    p90: float
    bias: float
    held_out: int


def read_step_trace(path: Path, *, min_steps: int = MIN_STEPS) -> list[TracedStep]:
    """Read a step trace; of several ranks' that of the one that answers.

    A step took the time from its launch, or from the end of the step before if that was later, until its answer.

    Raises:
        ValueError: the file is no step trace, or one of an older version, whose events lack the shape of their step, or
            one of fewer steps than min_steps.
    """
    path = answering_trace(path)
    launched: dict[int, float] = {}
    steps, ended_at = [], 0.0
    for event in read_events(path):
        name, args = str(event.get("name")), event.get("args", {})
        if name.startswith("launch ") and "step" in args:
            launched[args["step"]] = event["ts"]
        elif name.startswith("answer "):
            if "context" not in args:
                raise ValueError(f"{path} has no shapes of steps; write it anew with --step-trace of this version")
            shape = StepShape(args["decode_rows"], args["context"], args["prompt_tokens"], args["pairs"])
            begin = max(launched.get(args["step"], ended_at), ended_at)
            ended_at = event["ts"]
            if ended_at > begin:
                steps.append(TracedStep(shape, (ended_at - begin) / 1e6))
    if len(steps) < min_steps:
        raise ValueError(f"{path} has {len(steps)} steps; {min_steps} or more are needed")
    return steps


def fit_steps(steps: Sequence[TracedStep]) -> StepFit:
    """Fit the model to every other step and measure its error on the rest.

    Errors are relative, coefficients not negative, and outliers are dropped after a first fit.
    """
    learned, held_out = steps[::2], steps[1::2]
    times = least_squares(learned)
    kept = [step for step in learned if 1 / CLIP < step.seconds / times.seconds(*step.shape) < CLIP]
    times = least_squares(kept or learned)
    predicted = [times.seconds(*step.shape) for step in held_out]
    errors = [abs(p - step.seconds) / step.seconds for p, step in zip(predicted, held_out, strict=True)]
    bias = sum(predicted) / sum(step.seconds for step in held_out) - 1
    return StepFit(times, percentile(errors, 50), percentile(errors, 90), bias, len(errors))


def least_squares(steps: Sequence[TracedStep]) -> StepTimes:
    """Return the coefficients, none of them negative, with the least squares of relative errors.

    The coefficient that is most negative is set to 0 until none is.
    """
    rows = np.array(
        [
            (1.0, s.shape.rows, s.shape.context, float(s.shape.tokens > 0), s.shape.tokens, s.shape.pairs)
            for s in steps
        ]
    )  # fmt: skip
    weighted = rows / np.array([[s.seconds] for s in steps])
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-12)
    free = [i for i in range(6) if weighted[:, i].any()]
    found = np.zeros(6)
    while free:
        solution = np.linalg.lstsq(weighted[:, free] / scale[free], np.ones(len(steps)), rcond=None)[0]
        if solution.min() >= 0:
            found[free] = solution / scale[free]
            break
        free.pop(int(solution.argmin()))
    step, row, context, extend, token, pair = (max(float(x), 0.0) for x in found)
    return StepTimes(step, row, context, extend, token, pair)
