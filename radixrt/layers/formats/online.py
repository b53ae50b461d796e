"""`OnlineQuantization`: plain weights of a checkpoint become `Codes` while they load, one layer at a time.

Importing this module imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import Quantization, WeightFormat
from radixrt.layers.formats.checkpoint import Projection

if TYPE_CHECKING:
    from radixrt.layers.ops import LayerOps

Kind = Literal["fp8", "int8", "int4"]

WIDE_COLUMNS, WIDE_GROUP = 2048, 128
"""int4 groups have 128 columns where rows have at least 2,048: the more columns a sum has, the less the rounding of one
counts, and large models lose less than small ones anyway."""
GROUPS = (32, 16)
"""Columns of an int4 group of shorter rows: the first number that divides a row."""

SCHEMES: dict[Kind, str] = {"fp8": "fp8 rows", "int8": "int8 rows", "int4": "int4 groups"}


@dataclass(frozen=True)
class OnlineQuantization(Quantization):
    """All linear layers and experts are quantized; the embedding and routers stay plain.

    The output head stays plain but for int8 and int4 on a CPU, where it has int8 codes, and its largest logits are
    recomputed from the plain head: see `LMHead`.

    fp8 and int8 weights have a scale for each row, int4 weights one for each group of columns. Codes and scales do not
    depend on the number of ranks.
    """

    kind: Kind

    @property
    def scheme(self) -> str:  # type: ignore[override]
        return SCHEMES[self.kind]

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        if projections[0].name == "lm_head":
            return self._head(ops)
        return self._format(projections, ops)

    def _head(self, ops: LayerOps) -> WeightFormat | None:
        from radixrt.layers.formats.online_layout import OnlineLayout
        from radixrt.layers.formats.quantized import quantized_format
        from radixrt.layers.ops import CpuOps

        if self.kind == "fp8" or not isinstance(ops, CpuOps):
            return None
        return quantized_format(ops, OnlineLayout("int8"))

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        return self._format([*gate_up, *down], ops)

    def _format(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat:
        from radixrt.layers.formats.online_layout import OnlineLayout
        from radixrt.layers.formats.quantized import quantized_format

        group = 0
        if self.kind == "int4":
            # Both weights of experts have groups of one size.
            group = min(group_size(each.inputs) for each in projections)
            for each in projections:
                _check_groups(each, group)
        return quantized_format(ops, OnlineLayout(self.kind, group))

    def expert_columns(self, ops: LayerOps) -> int:
        return max(GROUPS) if self.kind == "int4" else 1

    def num_bytes(self, what: Literal["linear", "experts"], numbers: int, item: int, device: str) -> int:
        if self.kind == "fp8" and device == "cpu":
            return 2 * numbers  # in bfloat16
        if self.kind != "int4":
            return numbers
        return numbers // 2 + numbers * 2 // GROUPS[0]

    def head_copy_bytes(self, numbers: int, device: str) -> int:
        return 0 if self.kind == "fp8" or device != "cpu" else numbers


def group_size(columns: int) -> int:
    """Return the columns of an int4 group of a whole row with so many columns; 0 where no group divides the row."""
    if columns >= WIDE_COLUMNS and columns % WIDE_GROUP == 0:
        return WIDE_GROUP
    return next((group for group in GROUPS if columns % group == 0), 0)


def _check_groups(projection: Projection, group: int) -> None:
    taken = projection.columns
    if not group:
        raise ModelLoadError(
            f"{projection.name} has {projection.inputs} columns, which int4 groups of {GROUPS[-1]} do not divide; use"
            " int8"
        )
    if taken.start % group or taken.stop % group:
        raise ModelLoadError(
            f"{projection.name}: a rank would have columns {taken.start} to {taken.stop}, which divides int4 groups of"
            f" {group}; use fewer ranks, or int8"
        )
