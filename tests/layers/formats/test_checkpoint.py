"""The slices of stored tensors that a rank takes, by the units of their axes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.checkpoint import (
    ALL,
    Units,
    bias_sources,
    joined,
    sources,
    split_by_input,
    split_by_output,
    whole_weight,
)

BY_OUTPUT = split_by_output("m", 256, 96, [range(64, 128), range(128, 160), range(192, 224)])
BY_INPUT = split_by_input("m", 256, 96, range(32, 64))


@pytest.mark.parametrize(
    ("units", "shape", "taken"),
    [
        (Units(), (256, 96), [range(64, 160), range(192, 224)]),
        (Units(1, ALL), (256, 1), [range(64, 160), range(192, 224)]),  # a scale for each row
        (Units(1, None), (256,), [range(64, 160), range(192, 224)]),
        (Units(32, 48), (8, 2), [range(2, 5), range(6, 7)]),  # scales of blocks
        (Units(1, 2), (256, 48), [range(64, 160), range(192, 224)]),  # two numbers in a byte
        (Units(1, 32, trailing=(16,)), (256, 3, 16), [range(64, 160), range(192, 224)]),
        (Units(ALL, ALL), (1, 1), [range(1), range(1)]),
    ],
)
def test_outputs_are_divided(units: Units, shape: tuple[int, ...], taken: list[range]) -> None:
    found = sources(BY_OUTPUT, "scale", units)
    assert [tensor.taken for tensor in found] == taken
    assert {(tensor.name, tensor.shape, tensor.dim) for tensor in found} == {("m.scale", shape, 0)}
    assert [tensor.rows for tensor in found] == [len(each) for each in taken]


@pytest.mark.parametrize(
    ("units", "shape", "dim", "taken", "rows"),
    [
        (Units(), (256, 96), 1, range(32, 64), 256),
        (Units(1, ALL), (256, 1), 1, range(1), 256),  # every rank has the scales of all rows
        (Units(1, None), (256,), 0, range(256), 256),
        (Units(128, 16), (2, 6), 1, range(2, 4), 2),
        (Units(1, 32, trailing=(16,)), (256, 3, 16), 1, range(1, 2), 256),
    ],
)
def test_inputs_are_divided(units: Units, shape: tuple[int, ...], dim: int, taken: range, rows: int) -> None:
    (found,) = sources(BY_INPUT, "scale", units)
    assert (found.shape, found.dim, found.taken, found.rows) == (shape, dim, taken, rows)


def test_a_unit_that_ranks_would_divide_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"m\.scale: a rank would have 64 to 160, which divides groups of 128"):
        sources(BY_OUTPUT, "scale", Units(128, 96))
    (last,) = sources(whole_weight("m", 200, 100), "scale", Units(128, 128))  # the last units are not full
    assert (last.shape, last.taken, last.rows) == ((2, 1), range(2), 2)


def test_stacked_and_transposed_weights() -> None:
    stacked = replace(BY_INPUT, name="experts.down_proj", stack=(3, 8), transposed=True)
    (plain,) = sources(stacked, "weight")
    assert (plain.name, plain.shape, plain.index, plain.dim) == ("experts.down_proj", (8, 96, 256), 3, 0)
    assert plain.transposed
    (codes,) = sources(stacked, "blocks", Units(1, 32, trailing=(16,)), dtype="uint8")
    assert (codes.name, codes.shape, codes.dim) == ("experts.down_proj_blocks", (8, 256, 3, 16), 1)
    assert not codes.transposed


def test_alternatives_have_the_same_kind() -> None:
    (found,) = sources(replace(BY_INPUT, alternative=replace(BY_INPUT, name="other", stack=(1, 4))), "weight_scale")
    assert found.alternative is not None
    assert (found.name, found.alternative.name) == ("m.weight_scale", "other_weight_scale")


def test_one_rank_of_several_has_the_bias_of_a_sum() -> None:
    assert [tensor.taken for tensor in bias_sources(BY_OUTPUT)] == [range(64, 160), range(192, 224)]
    (other,) = bias_sources(BY_INPUT)
    (first,) = bias_sources(replace(BY_INPUT, columns=range(32)))
    assert (other.taken, other.rows) == (range(0), 256)
    assert (first.taken, first.rows) == (range(256), 256)


def test_ranges_are_joined() -> None:
    assert joined([range(2), range(2, 4), range(4, 4), range(6, 8)]) == (range(4), range(6, 8))
