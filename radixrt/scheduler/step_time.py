"""`StepTimeFit`: the step-time model (`messages.scheduler.StepTimes`), fitted to the steps as they are answered.

Two non-negative least-squares problems of three coefficients each: the time of decode rows, fitted to steps without
prompt chunks, and what prompt chunks add to it. A problem learns only from steps that say something about it, so a long
time without prompts leaves their coefficients alone.

- Errors are relative: a decode step of 10 ms counts as much as a prompt step of 1 s.
- Older steps count less, by a factor of 1 - 1 / MEMORY for each newer one. Errors that stay on one side take
  most of the weight from everything older, so that a machine that has become slower is learned in some tens of steps.
- A step that took CLIP times the predicted time, or more, counts as one that took CLIP times it: a compilation or a
  suspended process is one unusual step among many. The first steps are compared by their median instead.
- Coefficients that the steps do not tell apart (always 32 rows, say) keep their ratio to each other: the solution
  nearest to the last one, scaled to the new times, is taken.

Sans-io and deterministic. Fitting takes about ten microseconds of each step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from radixrt.messages.runner import ForwardStep
from radixrt.messages.scheduler import StepTimes
from radixrt.messages.wire import unpack_i32
from radixrt.scheduler.schedule_batch import DECODE

MEMORY = 512
CLIP = 4.0
FIRST_STEPS = 5
"""Number of first steps whose median sets the scale of the prior."""
SOLVE_EVERY = 8
ERROR_MEMORY = 64
BIAS_MEMORY = 16
BIAS_LIMIT = 0.4
BIASED_KEEP = 0.1
PRIOR_WEIGHT = 0.5
"""Weight of the scaled prior, relative to that of the first steps; it is forgotten as they are."""
RIDGE = 1e-4
PRIOR = StepTimes(step=5e-3, row=5e-5, context=5e-8, extend=1e-3, token=1e-4, pair=2e-8)
"""Ratios of the coefficients before there is data; their scale is that of the first steps."""


class StepShape(NamedTuple):
    """Amount of work of one step, as `StepTimes.seconds` takes it.

    Attributes:
        rows: number of rows with one new token behind others.
        context: sum of the lengths of these rows, new tokens included.
        tokens: number of new tokens in prompt chunks.
        pairs: sum over these tokens of the number of positions that each attends to.
    """

    rows: int
    context: int
    tokens: int = 0
    pairs: float = 0.0


def step_shape(step: ForwardStep) -> StepShape:
    """Return the amount of work of a step."""
    lengths = unpack_i32(step.seq_lens)
    if step.mode == DECODE:
        return StepShape(len(lengths), int(lengths.sum()))
    new = unpack_i32(step.extend_lens)
    single = (new == 1) & (lengths > 1)
    chunks, ends = new[~single].astype(np.float64), lengths[~single]
    pairs = float((chunks * (ends - (chunks - 1) / 2)).sum())
    return StepShape(int(single.sum()), int(lengths[single].sum()), int(chunks.sum()), pairs)


class StepTimeFit:
    """See the module's docstring.

    Attributes:
        times: the model fitted to the steps so far.
    """

    def __init__(self, prior: StepTimes = PRIOR) -> None:
        self._decode = _LeastSquares((prior.step, prior.row, prior.context))
        self._extend = _LeastSquares((prior.extend, prior.token, prior.pair))
        self._error = 0.0
        self._answered_at = 0.0
        self.times = prior

    def answered(self, step: ForwardStep, decided_at: float, now: float) -> None:
        """Learn from a step that is answered now, and that ran since it was decided or, if that was later, since the
        answer before it."""
        self.add(step_shape(step), now - max(decided_at, self._answered_at))
        self._answered_at = now

    def add(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took `seconds`; an empty step, or one without a duration, is ignored."""
        if seconds <= 0.0 or not (shape.rows or shape.tokens):
            return
        self._count_error(seconds, self.times.seconds(*shape))
        rest = (1.0, float(shape.rows), float(shape.context))
        if shape.tokens:
            self._extend.add((1.0, float(shape.tokens), shape.pairs), seconds, self._decode.predict(rest))
        else:
            self._decode.add(rest, seconds, 0.0)
        decode, extend = self._decode, self._extend
        self.times = StepTimes(*decode.coefficients, *extend.coefficients, self._error, decode.samples, extend.samples)

    def _count_error(self, seconds: float, predicted: float) -> None:
        samples = self._decode.samples + self._extend.samples
        if samples < FIRST_STEPS:
            return
        error = abs(seconds - predicted) / max(seconds, predicted)
        self._error += (error - self._error) / min(samples - FIRST_STEPS + 1, ERROR_MEMORY)


class _LeastSquares:
    """Non-negative coefficients b with seconds = offset + x . b, from weighted sums over the samples.

    Attributes:
        coefficients: the solution.
        samples: number of samples so far.
    """

    def __init__(self, prior: tuple[float, float, float]) -> None:
        self.coefficients = prior
        self.samples = 0
        self._gram = [[0.0] * 3 for _ in range(3)]  # sum of w x x'
        self._target = [0.0] * 3  # sum of w x (seconds - offset)
        self._first: list[tuple[tuple[float, float, float], float, float]] = []
        self._prior = prior
        self._bias = 0.0

    def predict(self, x: tuple[float, float, float]) -> float:
        a, b, c = self.coefficients
        return a * x[0] + b * x[1] + c * x[2]

    def add(self, x: tuple[float, float, float], seconds: float, offset: float) -> None:
        self.samples += 1
        if self.samples > FIRST_STEPS:
            self._learn(x, seconds, offset)
            if self.samples % SOLVE_EVERY == 0 or self.samples < 8 * FIRST_STEPS:
                self._solve()
            return
        self._first.append((x, seconds, offset))
        self._scale_prior()
        if self.samples == FIRST_STEPS:
            for sample in self._first:
                self._learn(*sample)
            self._first.clear()
            for i, coefficient in enumerate(self.coefficients):
                added = PRIOR_WEIGHT * self._gram[i][i]
                self._gram[i][i] += added
                self._target[i] += added * coefficient

    def _scale_prior(self) -> None:
        """Scale the prior by the median of the first samples."""
        a, b, c = self._prior
        ratios = sorted(
            max(seconds - offset, seconds / CLIP) / (a * x[0] + b * x[1] + c * x[2])
            for x, seconds, offset in self._first
        )
        scale = ratios[len(ratios) // 2]
        self.coefficients = (a * scale, b * scale, c * scale)

    def _learn(self, x: tuple[float, float, float], seconds: float, offset: float) -> None:
        predicted = self.predict(x) + offset
        clipped = min(max(seconds, predicted / CLIP), predicted * CLIP)
        self._bias += ((clipped - predicted) / max(clipped, predicted) - self._bias) / BIAS_MEMORY
        keep = 1.0 - 1.0 / MEMORY
        if abs(self._bias) > BIAS_LIMIT:
            keep, self._bias = BIASED_KEEP, 0.0
        weight = 1.0 / (predicted * predicted)
        value = max(clipped - offset, 0.0) * weight
        for row, target_x in zip(self._gram, x, strict=True):
            scaled = target_x * weight
            row[0] = row[0] * keep + scaled * x[0]
            row[1] = row[1] * keep + scaled * x[1]
            row[2] = row[2] * keep + scaled * x[2]
        target = self._target
        target[0] = target[0] * keep + x[0] * value
        target[1] = target[1] * keep + x[1] * value
        target[2] = target[2] * keep + x[2] * value

    def _solve(self) -> None:
        """Set the coefficients to the non-negative solution nearest to the last one, scaled to fit best."""
        gram, target, last = self._gram, self._target, self.coefficients
        fitted = sum(b * t for b, t in zip(last, target, strict=True))
        norm = sum(last[i] * last[j] * gram[i][j] for i in range(3) for j in range(3))
        scale = fitted / norm if norm > 0.0 else 1.0
        near = [b * scale for b in last]
        free = [i for i in range(3) if gram[i][i] > 0.0]
        found = dict(enumerate(near))
        while free:
            matrix = [[gram[i][j] * (1.0 + RIDGE * (i == j)) for j in free] for i in free]
            right = [target[i] + RIDGE * gram[i][i] * near[i] for i in free]
            solution = _eliminate(matrix, right)
            worst = min(range(len(free)), key=lambda k: solution[k] * gram[free[k]][free[k]] ** 0.5)
            if solution[worst] >= 0.0:
                found.update(zip(free, solution, strict=True))
                break
            found[free.pop(worst)] = 0.0
        self.coefficients = (found[0], found[1], found[2])


def _eliminate(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a small symmetric positive definite system by Gaussian elimination, in place."""
    n = len(right)
    for i in range(n):
        pivot = matrix[i][i]
        for j in range(i + 1, n):
            factor = matrix[j][i] / pivot
            for k in range(i, n):
                matrix[j][k] -= factor * matrix[i][k]
            right[j] -= factor * right[i]
    for i in reversed(range(n)):
        for k in range(i + 1, n):
            right[i] -= matrix[i][k] * right[k]
        right[i] /= matrix[i][i]
    return right
