"""Pipeline stages: the decoder layers that each group of ranks holds. Imports no torch.

A stage holds consecutive layers, with their keys and values, states and experts; the first one the embedding too, and
the last one the final norm and the output head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from radixrt.errors import ConfigError, shown
from radixrt.models.model_config import ModelSpec

HEAD_SHARE = 0.25
"""Cost of the output head, relative to a layer with as many parameters: a decode step reads it as it does a layer, and
a step of prompts, from which stages gain most, hardly uses it. The embedding costs no time: a step reads a few rows of
it."""


@dataclass(frozen=True)
class Stage:
    """One pipeline stage.

    Attributes:
        index: of `count` stages, from 0.
        layers: its layers, as indices of the model's.
    """

    index: int
    count: int
    layers: range

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


def stage_of(index: int, layers: Sequence[int]) -> Stage:
    """Return a stage of a model whose stages have these numbers of layers."""
    first = sum(layers[:index])
    return Stage(index, len(layers), range(first, first + layers[index]))


def whole(spec: ModelSpec) -> Stage:
    """Return the only stage of a model that is not divided."""
    return Stage(0, 1, range(0 if spec.decoder is None else len(spec.decoder.layers)))


def divide_layers(spec: ModelSpec, stages: int, wanted: str | None = None) -> tuple[int, ...]:
    """Return the number of layers of each stage: those by which the stage that takes longest takes least.

    Args:
        wanted: numbers of layers, separated by commas, to use instead; the option pp_layers.

    Raises:
        ConfigError: the model has no so many stages, or `wanted` does not fit it; names the option and what fits.
    """
    if stages == 1:
        if wanted is not None:
            raise ConfigError(f"pp_layers={wanted} divides a model into stages, and pp is 1; set pp, or leave it out")
        return (whole(spec).layers.stop,)
    decoder = spec.decoder
    if decoder is None:
        raise ConfigError(
            f"pp={stages}: {spec.architecture} runs through transformers' modeling code, which is not divided into"
            " stages; use pp=1"
        )
    attend, first = [not layer.is_recurrent for layer in decoder.layers], least_first_layers(spec)
    most = max_stages(spec)
    if stages > most:
        own = f", and the first stage the first {first} layers, behind which rows of images are added" if first else ""
        raise ConfigError(
            f"pp={stages}: {spec.architecture} has {sum(attend)} layers with attention, and every stage needs one{own};"
            f" pp may be 1 to {most}"
        )
    if wanted is not None:
        return _given(wanted, stages, attend, first)
    costs = [float(decoder.linear_parameters(layer)) for layer in decoder.layers]
    costs[-1] += HEAD_SHARE * spec.vocab_size * decoder.hidden_size
    return _divide(costs, attend, stages, first)


def least_first_layers(spec: ModelSpec) -> int:
    """Return the least number of layers of the first stage: it has the tower, and adds the deepstack rows of images
    behind the first layers."""
    return 0 if spec.vision is None else len(spec.vision.deepstack)


def _given(wanted: str, stages: int, attend: Sequence[bool], first: int) -> tuple[int, ...]:
    parts = [part.strip() for part in wanted.split(",")]
    layers = tuple(int(part) for part in parts if part.isdecimal())
    if len(layers) != len(parts) or len(layers) != stages or sum(layers) != len(attend) or 0 in layers:
        raise ConfigError(
            f"pp_layers={shown(wanted)} must be {stages} numbers above 0, separated by commas, that make"
            f" {len(attend)} layers"
        )
    for index in range(stages):
        if not any(attend[i] for i in stage_of(index, layers).layers):
            raise ConfigError(f"pp_layers={wanted}: stage {index} would have no layer with attention; it needs one")
    if layers[0] < first:
        raise ConfigError(
            f"pp_layers={wanted}: rows of images are added behind each of the first {first} layers, on stage 0; give"
            f" stage 0 at least {first} layers, not {layers[0]}"
        )
    return layers


def _divide(costs: Sequence[float], attend: Sequence[bool], stages: int, least: int) -> tuple[int, ...]:
    """Divide layers so that the largest cost of a stage is least, then the sum of squares (dynamic programming).

    Args:
        least: number of layers of the first stage.
    """
    sums, attending = [0.0, *accumulate(costs)], [0, *accumulate(attend)]

    def cost(first: int, end: int) -> float:
        if attending[end] == attending[first] or (first == 0 and end < least):
            return math.inf
        return sums[end] - sums[first]

    # By number of layers divided so far: (largest cost, sum of squares, layers of each stage).
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for _ in range(stages):
        best = {
            end: min(
                (max(best[i][0], cost(i, end)), best[i][1] + cost(i, end) ** 2, (*best[i][2], end - i))
                for i in best
                if i < end
            )
            for end in range(min(best) + 1, len(costs) + 1)
        }
    return best[len(costs)][2]


def max_stages(spec: ModelSpec) -> int:
    """Return the largest number of stages of a model; 1 for one that is not divided."""
    if spec.decoder is None:
        return 1
    attend, first = [not layer.is_recurrent for layer in spec.decoder.layers], least_first_layers(spec)
    return sum(attend[first:]) + (any(attend[:first]) if first else 0)
