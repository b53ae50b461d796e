"""`StepTimeFit`: the step-time model (`messages.scheduler_stats.StepTimes`), fitted to the steps as they are answered.

The model is two non-negative least-squares problems of three coefficients each: the time of decode rows, fitted to
steps without prompt chunks, and the time that prompt chunks add, fitted to steps with prompt chunks. So a long time
without prompts leaves the prompts' coefficients alone.

- Errors are relative: a decode step of 10 ms counts as much as a prompt step of 1 s.
- Each step multiplies the weight of all older steps by 1 - 1 / MEMORY. If the errors of many steps in a row have the
  same sign, older steps lose most of their weight: a machine that has become slower is learned in tens of steps.
- Times are clipped to CLIP times the predicted time: a compilation or a suspended process is one unusual step among
  many. The first steps are compared by their median instead.
- Coefficients that the steps do not determine (always 32 rows, or prompts so short that attention takes no time) keep
  their ratio to the other coefficients: the ratio of the prior, or the ratio learned before (ridge regression).

The class does no I/O and is deterministic. Fitting takes about ten microseconds per step; the scheduler's loop defers
it (`learn`) until the next step is submitted. NumPy would take twice as long for systems of three equations.
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
"""Maximum number of answered steps that wait for a call of `learn`."""
ERROR_MEMORY = 64
RECENT_STEPS = 64
BIAS_MEMORY = 16
BIAS_LIMIT = 0.4
BIASED_KEEP = 0.1
NOISE = 0.015
"""Variance of the relative error of a step's time. A coefficient whose share of the time is smaller stays unchanged."""
NEAR_MEMORY = 64
NEAR_FLOOR = 1e-3
"""Lower bound of a coefficient in `_near`, as a share of the coefficient's ratio to the others in the prior."""
TINY_S = 1e-15
PRIOR = StepTimes(step=5e-3, row=5e-5, context=5e-8, extend=1e-3, token=1e-4, pair=2e-8)
"""Ratios of the coefficients before there is data; their scale is that of the first steps."""


class StepTimeFit:
    """See the module's docstring.

    Attributes:
        times: the model fitted to the steps so far.
        recent_s: running mean of the seconds of the last steps, of any shape.
        last_s: seconds of the last answered step; 0 before the first.

    Reading either of the first two attribute first fits the model to all answered steps (`learn`).

    Args:
        stages: pipeline stages of the model. With several stages the model predicts the seconds of one stage, after
            which the next step of the same size may follow.
    """

    def __init__(self, prior: StepTimes = PRIOR, stages: int = 1) -> None:
        self._stages = stages
        self._decode = _LeastSquares((prior.step, prior.row, prior.context))
        self._extend = _LeastSquares((prior.extend, prior.token, prior.pair))
        self._error = 0.0
        self._ended_at = 0.0  # when the last step ended
        self._recent_s = self.last_s = 0.0
        self._times = prior
        self._most_tokens = self._most_pairs = 0.0
        self._answered: list[tuple[StepShape, float]] = []

    @property
    def times(self) -> StepTimes:
        self.learn()
        return self._times

    @property
    def recent_s(self) -> float:
        self.learn()
        return self._recent_s

    def answered(
        self, shape: StepShape, decided_at: float, forward_s: float, now: float, *, is_typical: bool = True
    ) -> None:
        """Note a step that is answered now.

        The step ended `forward_s` after it was sent. If the loop was busy, that is earlier than `now`, above all where
        the loop itself computes steps. The step began when it was decided or when the previous step ended, whichever is
        later. With s stages, a step that each stage computes in t seconds ends s * t after its decision or t after the
        end of the previous step, whichever is later.

        Args:
            forward_s: see `StepOutput`; 0 if unknown.
            is_typical: False for a step with other work than that on tokens, from which the model does not learn.
        """
        # With several stages `forward_s` is the time of the last stage alone.
        ended_at = min(now, decided_at + forward_s) if forward_s and self._stages == 1 else now
        self.last_s = min((ended_at - decided_at) / self._stages, ended_at - self._ended_at)
        self._ended_at = ended_at
        if is_typical:
            self._answered.append((shape, self.last_s))
        if len(self._answered) >= MAX_NOTED:
            self.learn()

    def learn(self) -> None:
        """Fit the model to the noted steps."""
        for shape, seconds in self._answered:
            self.add(shape, seconds)
        self._answered.clear()

    @property
    def turn_times(self) -> StepTimes:
        """Model of the seconds in which every row gets a token. With s stages that takes s steps, each with some of the
        rows."""
        return self.times if self._stages == 1 else replace(self.times, step=self._stages * self.times.step)

    @property
    def recent_turn_s(self) -> float:
        """Seconds in which every row gets a token, by `recent_s`."""
        return self._stages * self.recent_s

    def add(self, shape: StepShape, seconds: float) -> None:
        """Learn from a step that took `seconds`. Steps without rows or without a duration are ignored."""
        if seconds <= 0.0 or not (shape.rows or shape.tokens):
            return
        predicted = self._times.seconds(*shape)
        self._count_error(seconds, predicted)
        steps = self._decode.samples + self._extend.samples + 1
        self._recent_s += (min(seconds, CLIP * predicted) - self._recent_s) / min(steps, RECENT_STEPS)
        # A step with prompt chunks teaches only the time that the chunks add to the predicted time of its decode rows.
        rest = (1.0, float(shape.rows), float(shape.context))
        if shape.tokens:
            self._most_tokens = max(self._most_tokens, shape.tokens)
            self._most_pairs = max(self._most_pairs, shape.pairs)
            self._extend.add((1.0, float(shape.tokens), shape.pairs), seconds, self._decode.predict(rest))
        else:
            self._decode.add(rest, seconds, 0.0)
        decode, extend = self._decode, self._extend
        self._times = StepTimes(
            *decode.coefficients,
            *extend.coefficients,
            self._error,
            decode.samples,
            extend.samples,
            self._most_tokens,
            self._most_pairs,
        )

    def _count_error(self, seconds: float, predicted: float) -> None:
        samples = self._decode.samples + self._extend.samples
        if samples < FIRST_STEPS:
            return
        error = abs(seconds - predicted) / max(seconds, predicted)
        self._error += (error - self._error) / min(samples - FIRST_STEPS + 1, ERROR_MEMORY)


class _LeastSquares:
    """Fits non-negative coefficients b of `seconds = offset + x . b`, from running weighted sums over the samples.

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
            # A single sample changes the solution only while there are few samples.
            if self.samples % SOLVE_EVERY == 0 or self.samples < 8 * FIRST_STEPS:
                self._solve()
            return
        # The first steps may compile kernels. So they are kept until their median gives the scale of the coefficients,
        # by which all samples are clipped.
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
        """Add a sample to the weighted sums."""
        predicted = self.predict(x) + offset
        clipped = min(max(seconds, predicted / CLIP), predicted * CLIP)
        # A mean error far from zero shows that the machine has changed its speed: older samples lose their weight.
        self._bias += ((clipped - predicted) / max(clipped, predicted) - self._bias) / BIAS_MEMORY
        keep = 1.0 - 1.0 / MEMORY
        if abs(self._bias) > BIAS_LIMIT:
            keep, self._bias = BIASED_KEEP, 0.0
        # Weighted by 1 / predicted^2, the squared error of a step is the square of its relative error. The loops are
        # unrolled because every step runs them.
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
        """Set the coefficients to the non-negative minimum of the weighted squares plus a ridge term.

        The ridge term is NOISE * sum((b_i / near_i - 1)^2), where `near` are the coefficients known before, times the
        common factor that fits the samples best.
        """
        gram, target, known = self._gram, self._target, self._near
        fitted = sum(b * t for b, t in zip(known, target, strict=True))
        norm = sum(known[i] * known[j] * gram[i][j] for i in range(3) for j in range(3))
        near = [max(b * fitted / norm, TINY_S) for b in known]
        ridge = [NOISE / (b * b) for b in near]
        # Active-set method: solve the linear system of the free coefficients. If the solution has negative
        # coefficients, fix the most negative one (relative to `near`) at zero, and solve for the others.
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
        # Never zero: a step of rows without context takes time, and callers divide by predicted times.
        self.coefficients = (max(found[0], TINY_S), max(found[1], TINY_S), max(found[2], TINY_S))
        # `_near` follows the solution slowly. Without the floor, a coefficient that is zero for a while would vanish
        # from `_near`, and the ridge term would then hold the coefficient at zero.
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
