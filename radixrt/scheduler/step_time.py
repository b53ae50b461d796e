"""`StepTimeFit`: the step-time model (`messages.scheduler_stats.StepTimes`), fitted to the steps as they are answered.

Two non-negative least-squares problems of three coefficients each: the time of decode rows, fitted to steps without
prompt chunks, and what prompt chunks add to it. A problem learns only from steps that say something about it, so a long
time without prompts leaves their coefficients alone.

- Errors are relative: a decode step of 10 ms counts as much as a prompt step of 1 s.
- Older steps count less, by a factor of 1 - 1 / MEMORY for each newer one. Errors that stay on one side take
  most of the weight from everything older, so that a machine that has become slower is learned in some tens of steps.
- A step that took CLIP times the predicted time, or more, counts as one that took CLIP times it: a compilation or a
  suspended process is one unusual step among many. The first steps are compared by their median instead.
- Coefficients that the steps do not determine (always 32 rows, or prompts so short that what they attend to does not
  matter) keep their ratio to the others, that of the prior or of what was learned before (ridge regression).

Sans-io and deterministic. Fitting takes about ten microseconds of each step; the scheduler defers it (`learn`) until it
has sent the next step.
"""

from __future__ import annotations

from msgspec.structs import replace

from radixrt.messages.scheduler_stats import StepTimes
from radixrt.messages.step_shape import StepShape

MEMORY = 512
CLIP = 4.0
FIRST_STEPS = 5
"""Number of first steps whose median sets the scale of the prior."""
SOLVE_EVERY = 8
MAX_NOTED = 16
"""Steps that wait to be learned from, at most, where nobody calls `learn`."""
ERROR_MEMORY = 64
RECENT_STEPS = 64
BIAS_MEMORY = 16
BIAS_LIMIT = 0.4
BIASED_KEEP = 0.1
NOISE = 0.015
"""Variance of the relative error of a step's time: a coefficient whose part is lost in it stays as it was."""
NEAR_MEMORY = 64
NEAR_FLOOR = 1e-3
"""Smallest part of the prior's ratio to the others that a coefficient is assumed to have."""
TINY_S = 1e-15
PRIOR = StepTimes(step=5e-3, row=5e-5, context=5e-8, extend=1e-3, token=1e-4, pair=2e-8)
"""Ratios of the coefficients before there is data; their scale is that of the first steps."""


class StepTimeFit:
    """See the module's docstring.

    Attributes:
        times: the model fitted to the steps so far.
        recent_s: running mean of the seconds of the last steps, whatever they consisted of.

    Both take in every answered step; `learn` does so before they are read.

    Args:
        stages: pipeline stages of the model. The model then predicts the seconds of one stage, those after which the
            next step of the same size may follow.
    """

    def __init__(self, prior: StepTimes = PRIOR, stages: int = 1) -> None:
        self._stages = stages
        self._decode = _LeastSquares((prior.step, prior.row, prior.context))
        self._extend = _LeastSquares((prior.extend, prior.token, prior.pair))
        self._error = 0.0
        self._ended_at = 0.0  # when the last step ended
        self._recent_s = 0.0
        self._times = prior
        self._answered: list[tuple[StepShape, float]] = []

    @property
    def times(self) -> StepTimes:
        self.learn()
        return self._times

    @property
    def recent_s(self) -> float:
        self.learn()
        return self._recent_s

    def answered(self, shape: StepShape, decided_at: float, forward_s: float, now: float) -> None:
        """Note a step that is answered now.

        It ended `forward_s` after it was sent, which is before now if the loop was busy, above all where the loop
        itself computes steps; and it ran since it was decided or, if that was later, since the step before it ended.
        With s stages a step that a stage computes in t seconds ends s * t after it was decided, or t after the step
        before it, whichever is later.

        Args:
            forward_s: see `StepOutput`; 0 if it is not known.
        """
        # Where stages compute one after another, the last one's time is not the step's.
        ended_at = min(now, decided_at + forward_s) if forward_s and self._stages == 1 else now
        self._answered.append((shape, min((ended_at - decided_at) / self._stages, ended_at - self._ended_at)))
        self._ended_at = ended_at
        if len(self._answered) >= MAX_NOTED:
            self.learn()

    def learn(self) -> None:
        """Fit the model to the noted steps."""
        for shape, seconds in self._answered:
            self.add(shape, seconds)
        self._answered.clear()

    @property
    def turn_times(self) -> StepTimes:
        """Model of the seconds in which every row gets a token: with s stages, s steps with a part of the rows each."""
        return self.times if self._stages == 1 else replace(self.times, step=self._stages * self.times.step)

    @property
    def recent_turn_s(self) -> float:
        """`recent_s` of as many steps as there are stages."""
        return self._stages * self.recent_s

    def add(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took `seconds`; an empty step, or one without a duration, is ignored."""
        if seconds <= 0.0 or not (shape.rows or shape.tokens):
            return
        predicted = self._times.seconds(*shape)
        self._count_error(seconds, predicted)
        steps = self._decode.samples + self._extend.samples + 1
        self._recent_s += (min(seconds, CLIP * predicted) - self._recent_s) / min(steps, RECENT_STEPS)
        rest = (1.0, float(shape.rows), float(shape.context))
        if shape.tokens:
            self._extend.add((1.0, float(shape.tokens), shape.pairs), seconds, self._decode.predict(rest))
        else:
            self._decode.add(rest, seconds, 0.0)
        decode, extend = self._decode, self._extend
        self._times = StepTimes(*decode.coefficients, *extend.coefficients, self._error, decode.samples, extend.samples)

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
        self._near = prior  # solution that is assumed where the samples do not determine one
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
            self._near = self.coefficients

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
        """Set the coefficients to the non-negative solution, near to what was known before, scaled to fit best."""
        gram, target, known = self._gram, self._target, self._near
        fitted = sum(b * t for b, t in zip(known, target, strict=True))
        norm = sum(known[i] * known[j] * gram[i][j] for i in range(3) for j in range(3))
        near = [max(b * fitted / norm, TINY_S) for b in known]
        ridge = [NOISE / (b * b) for b in near]
        free = [0, 1, 2]
        found = [0.0, 0.0, 0.0]
        while free:
            matrix = [[gram[i][j] + (ridge[i] if i == j else 0.0) for j in free] for i in free]
            solution = _eliminate(matrix, [target[i] + ridge[i] * near[i] for i in free])
            worst = min(range(len(free)), key=lambda k: solution[k] / near[free[k]])
            if solution[worst] >= 0.0:
                for i, value in zip(free, solution, strict=True):
                    found[i] = value
                break
            free.pop(worst)
        # Never zero: a step of rows without context takes time, and rates are computed from it.
        self.coefficients = (max(found[0], TINY_S), max(found[1], TINY_S), max(found[2], TINY_S))
        scale = NEAR_FLOOR * max(n / p for n, p in zip(near, self._prior, strict=True))
        target_near = [max(x, scale * p) for x, p in zip(found, self._prior, strict=True)]
        a, b, c = (n + (t - n) / NEAR_MEMORY for n, t in zip(near, target_near, strict=True))
        self._near = (a, b, c)


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
