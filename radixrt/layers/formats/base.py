"""`WeightFormat`, how parameters keep weights and layers multiply by them, and `Quantization`, which of the formats a
checkpoint has. Importing this module imports no torch: a model's spec is read in processes that have no tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from radixrt.distributed.partial_sum import PartialSum
from radixrt.layers.formats.checkpoint import CheckpointTensor, Projection, Shape

if TYPE_CHECKING:
    import torch

    from radixrt.distributed.parallel import TPGroup
    from radixrt.kernels.float8_rows import Activations
    from radixrt.layers.ops import LayerOps
    from radixrt.layers.swiglu import BiasedSwiGLU

Tensors = Mapping[str, "torch.Tensor"]
"""Parameters of a weight, by name: see `WeightFormat.parameters`."""


@dataclass(frozen=True)
class StoredParameter:
    """A parameter in which a format keeps a weight, or part of one.

    Attributes:
        shape: [rows, ...]; a mixture of experts has the rows of all experts in one parameter.
        sources: the tensors that fill the rows, in order.
    """

    shape: Shape
    dtype: torch.dtype
    sources: tuple[CheckpointTensor, ...]


class WeightFormat(ABC):
    """Storage of the weights of linear layers and experts on a device, and the products with them.

    A format has no state and is shared by many layers. `prepare` makes, from the loaded parameters, the weight that the
    products take: a tensor, or a named tuple of tensors and other values, of a type that the format chooses.

    Args:
        ops: kernels for the device.

    Attributes:
        loads_plain: the parameter "weight" is a plain weight [rows, columns], which `prepare` may replace. An output
            head may then be tied to the embedding, and recomputes its largest logits from the plain weight where the
            other weight rounds.
    """

    loads_plain: bool = False

    def __init__(self, ops: LayerOps) -> None:
        self._ops = ops

    @abstractmethod
    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        """Return the parameters, by name, of a weight whose rows are those of several projections.

        The loader may multiply a projection by a number. That multiplies every parameter whose numbers are floating and
        have at least 16 bits, and leaves all others, which are codes.

        Args:
            projections: of the same inputs, in the order of the rows.
            dtype: of plain weights.

        Raises:
            ModelLoadError: the ranks cannot share a weight in this format; names it.
        """

    @abstractmethod
    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> Any:
        """Return the weight that `linear` and `silu_and_mul` take. Called once, after the parameters are set.

        The layer drops each parameter whose tensor the result does not contain.

        Args:
            tensors: the parameters: of a linear layer [rows, ...], of experts [E, rows, ...].
            bias: of the layer.
            gated: only `silu_and_mul` is called: the rows are those of gate, then those of up.
        """

    def float8_group(self, weight: Any, tokens: int, dtype: torch.dtype) -> int | None:
        """Return the number of columns that share a scale where products with so many tokens quantize activations to
        float8, 0 for whole rows; None where activations keep their dtype. `linear`, `silu_and_mul` and `partial_sum`
        then take an x of `Float8Rows` with such groups, too.

        Args:
            weight: from `prepare`.
            dtype: of activations.
        """
        return None

    @abstractmethod
    def linear(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias [T, rows] in the dtype of activations.

        Args:
            weight: from `prepare`.
            x: activations [T, columns]; in float8 only where `float8_group` says so.
        """

    def silu_and_mul(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        """Return silu(gate) * up [T, rows / 2], where `linear` returns [gate, up]. Override to fuse the two."""
        return self._ops.silu_and_mul(self.linear(weight, x, bias))

    def silu_and_mul_float8(self, weight: Any, x: Any, bias: torch.Tensor | None, group: int) -> Activations:
        """Return `silu_and_mul`, perhaps in float8, for a layer whose `float8_group` is `group`. Override to quantize.

        Args:
            group: columns that share a scale; 0 for whole rows.
        """
        return self.silu_and_mul(weight, x, bias)

    def refine_top(self, logits: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor) -> None:
        """Recompute a head's largest logits, in place, from its plain weight; see `LayerOps.refine_top`."""
        self._ops.refine_top(logits, hidden, weight)

    def partial_sum(self, weight: Any, x: Any, bias: torch.Tensor | None, group: TPGroup | None) -> PartialSum:
        """Return `linear` as this rank's addend of the next all-reduce. Override to write it to the other ranks."""
        return PartialSum(self.linear(weight, x, bias))

    def kernels(self, weight: Any) -> str:
        """Return the name, for people, of the kernels that multiply by a quantized weight; empty for a plain one.

        Args:
            weight: from `prepare`.
        """
        return ""

    def is_compiled(self, weight: Any) -> bool:
        """Return True where the compiled CPU kernels multiply by a weight, and torch does not.

        Args:
            weight: from `prepare`.
        """
        return False

    def prepare_experts(self, gate_up: Tensors, down: Tensors, *, biased: bool) -> tuple[Any, Any]:
        """Return both weights of a mixture of experts, as `prepare` does for one.

        Args:
            biased: the experts have biases and a clamped gate.
        """
        return self.prepare(gate_up, gated=not biased), self.prepare(down)

    def expert(self, weight: Any, index: int) -> Any:
        """Return the weight of one expert, for `linear` and `silu_and_mul`, from that of all experts."""
        return weight[index]

    def experts(
        self,
        gate_up: Any,
        down: Any,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        biased: BiasedSwiGLU | None,
    ) -> torch.Tensor | None:
        """Return the result of `FusedExperts.forward`; None where no kernel computes it, and experts run one by one.

        Args:
            gate_up, down: from `prepare_experts`.
            biased: of experts with biases; None for SiLU-gated ones without.
        """
        return None


class Quantization:
    """The formats of quantized weights: as a checkpoint's quantization_config describes them, or as a user wants them.

    Implementations are values that compare equal if they say the same: a `DecoderSpec` contains one. They import torch
    only in the methods that make formats.

    Attributes:
        scheme: short name of the formats, for people; e.g. "int8 rows".
    """

    scheme: str = ""

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        """Return the format of a linear layer, or of the output head, whose rows are those of some projections; None if
        they are not quantized.

        Raises:
            ModelLoadError: some of the projections are quantized and others are not.
        """
        return None

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        """Return the format of the experts of a layer; None if they are not quantized."""
        return None

    def of_files(self, dtypes: Mapping[str, str]) -> Quantization:
        """Return this quantization with what the checkpoint's files say that its config does not.

        Args:
            dtypes: the dtype of each tensor, by its name, as safetensors files name dtypes, e.g. "BF16".

        Raises:
            ModelLoadError: files and config contradict each other; names the tensor.
        """
        return self

    def ignored(self, name: str) -> bool:
        """Return True for a tensor that a checkpoint may contain and nobody reads, e.g. a scale of activations, or a
        bias of zeros."""
        return False

    def expert_columns(self, ops: LayerOps) -> int:
        """Return the number of neighbouring columns of an expert that one rank has, if there are enough for all."""
        return 1

    def num_bytes(self, what: Literal["linear", "experts"], numbers: int, item: int, device: str) -> int:
        """Return the bytes that weights take in memory, about.

        Args:
            what: the weights of all linear layers but the output head, or of all experts.
            numbers: of these weights.
            item: bytes of a plain one.
            device: "cpu" or "cuda".
        """
        return numbers * item

    def head_copy_bytes(self, numbers: int, device: str) -> int:
        """Return the bytes of a quantized copy of the output head, which a step reads in place of the plain one; 0 if
        there is none.

        Args:
            numbers: of the head.
        """
        return 0

    def note(self, file_bytes: int, device: str) -> str:
        """Return what a user should know of the model's weights; empty if there is nothing.

        Args:
            file_bytes: size of the checkpoint.
        """
        return ""
