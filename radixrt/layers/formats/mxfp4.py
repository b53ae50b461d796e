"""MXFP4 numbers (OCP Microscaling Formats 1.0): 4-bit floats in groups of 32 that share a power of two as their scale.

A byte holds two numbers, the first one in its low half: a sign, two bits of exponent, and one of mantissa. A scale is a
byte, the exponent plus 127. bfloat16 represents the numbers exactly. Importing this module imports no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from radixrt.errors import ModelLoadError
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.layers.formats.base import Quantization, StoredParameter, Tensors, WeightFormat
from radixrt.layers.formats.checkpoint import CheckpointTensor, Encoding, Projection, Units, sources

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from radixrt.layers.ops import LayerOps
    from radixrt.layers.swiglu import BiasedSwiGLU

GROUP = 32
"""Numbers along a row that share a scale."""
BLOCKS, SCALES = Units(1, GROUP, trailing=(GROUP // 2,)), Units(1, GROUP)
DUMMY_SCALE = 120
"""Scale of random numbers, 2^-7, at which they have the deviation of other random weights, about."""
NUMBERS = "MXFP4 numbers"
CONFIG_KEYS = {"quant_method", "modules_to_not_convert", "dequantize"}


def read_mxfp4(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    """Read a quantization_config of experts in MXFP4 numbers, with everything else unquantized.

    Args:
        config: config.json.
        stacked_experts: see `registry.read_quantization`.

    Raises:
        ModelLoadError: a field is not supported; names it.
    """
    quantization = config["quantization_config"]
    if not stacked_experts:
        raise ModelLoadError("config.json: quantization_config (mxfp4) is not supported; use unquantized weights")
    if unknown := sorted(set(quantization) - CONFIG_KEYS):
        raise ModelLoadError(f"config.json: quantization_config: {', '.join(unknown)} is not supported for mxfp4")
    plain = quantization.get("modules_to_not_convert") or []
    if not isinstance(plain, list) or any("experts" in str(name) for name in plain):
        raise ModelLoadError(
            "config.json: quantization_config: modules_to_not_convert must list modules other than experts, not"
            f" {plain!r}"
        )
    for name in ("hidden_size", "intermediate_size"):
        if isinstance(config.get(name), int) and config[name] % GROUP:
            raise ModelLoadError(f"config.json: {name} {config[name]} is no multiple of {GROUP}, as MXFP4 needs")
    return Mxfp4Quantization()


@dataclass(frozen=True)
class Mxfp4Quantization(Quantization):
    """All experts are MXFP4 numbers. Where there is no kernel for them, or a rank has a part of a group, they are
    dequantized while they load."""

    scheme: str = "mxfp4 experts"

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection], ops: LayerOps) -> WeightFormat:
        columns = down[0].columns
        if find_kernel(ops) is not None and not (columns.start % GROUP or columns.stop % GROUP):
            return Mxfp4(ops)
        from radixrt.layers.formats.panels import plain_format

        return plain_format(ops, Mxfp4Encoding())

    def expert_columns(self, ops: LayerOps) -> int:
        return 1 if find_kernel(ops) is None else GROUP

    def num_bytes(self, what: Literal["linear", "experts"], numbers: int, item: int, device: str) -> int:
        if what == "experts" and device == "cuda":
            return numbers * 37 // 64  # 18 bits for four, and padding
        return numbers * item

    def note(self, file_bytes: int, device: str) -> str:
        when = "in registers, when they are read" if device == "cuda" else "while they load"
        return f"its experts are {NUMBERS} ({file_bytes / 2**30:.1f} GiB of files), dequantized {when}"


def find_kernel(ops: LayerOps) -> Callable[..., torch.Tensor | None] | None:
    """Return `LayerOps.run_experts` for `PackedWeights` of these numbers and an x of any floating dtype; None where the
    device has no such kernel."""
    from radixrt.layers.cuda_ops import CudaOps

    return ops.run_experts if isinstance(ops, CudaOps) else None


class Mxfp4(WeightFormat):
    """Experts whose weights take 18 bits for four numbers. Kernels dequantize them in registers and multiply in the
    dtype of activations. Linear layers have no kernel."""

    def parameters(self, projections: Sequence[Projection], dtype: torch.dtype) -> dict[str, StoredParameter]:
        """Return codes [rows, columns / 2], named "weight", and scales [rows, groups], both uint8."""
        import torch

        rows, columns = sum(each.height for each in projections), projections[0].width
        assert columns % GROUP == 0
        codes: list[CheckpointTensor] = []
        scales: list[CheckpointTensor] = []
        for each in projections:
            codes += sources(each, "blocks", BLOCKS, dtype="uint8", numbers=NUMBERS)
            scales += sources(each, "scales", SCALES, dtype="uint8", numbers=NUMBERS, dummy=DUMMY_SCALE)
        return {
            "weight": StoredParameter((rows, columns // 2), torch.uint8, tuple(codes)),
            "scales": StoredParameter((rows, columns // GROUP), torch.uint8, tuple(scales)),
        }

    def prepare(self, tensors: Tensors, bias: torch.Tensor | None = None, *, gated: bool = False) -> PackedWeights:
        from radixrt.layers.formats.codes import Codes, Scheme
        from radixrt.layers.formats.cuda_expert_codes import packed_weights

        scales = factors(tensors["scales"])
        packed = packed_weights(Codes(tensors["weight"], scales, None, None, Scheme("e2m1", columns=GROUP)))
        assert packed is not None
        return packed

    def kernels(self, weight: Any) -> str:
        return "Triton"

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise NotImplementedError(f"linear layers of {NUMBERS} have no kernel")

    def experts(
        self,
        gate_up: PackedWeights,
        down: PackedWeights,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        biased: BiasedSwiGLU | None,
    ) -> torch.Tensor | None:
        kernel = find_kernel(self._ops)
        assert kernel is not None
        return kernel(x, experts, weights, gate_up, down, biased)


@dataclass(frozen=True)
class Mxfp4Encoding(Encoding):
    """A tensor is stored as its numbers, sixteen bytes for each group, and the scales of the groups."""

    def parts(self, wanted: CheckpointTensor) -> tuple[CheckpointTensor, ...]:
        groups, taken = (*wanted.shape[:-1], wanted.shape[-1] // GROUP), wanted.taken
        if wanted.dim == 1:  # groups lie along rows; those at the ends may be another rank's in part
            taken = range(taken.start // GROUP, -(-taken.stop // GROUP))
        return tuple(
            CheckpointTensor(
                f"{wanted.name}_{kind}", shape, wanted.dim, taken, 0, wanted.index, dtype="uint8", numbers=NUMBERS
            )
            for kind, shape in (("blocks", (*groups, GROUP // 2)), ("scales", groups))
        )

    def decode(self, wanted: CheckpointTensor, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        values = dequantize(*parts)
        return values.narrow(1, wanted.taken.start % GROUP, len(wanted.taken)) if wanted.dim == 1 else values


def factors(scales: torch.Tensor) -> torch.Tensor:
    """Return what scales multiply numbers by, in bfloat16, exactly."""
    import torch

    return torch.exp2(scales.float() - 127).to(torch.bfloat16)


def dequantize(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the numbers in bfloat16, which represents them exactly.

    Args:
        blocks: uint8 [rows, groups, 16].
        scales: uint8 [rows, groups].

    Returns:
        [rows, groups * 32].
    """
    import torch

    pairs = _pairs(blocks.device).index_select(0, blocks.flatten().int())
    values = pairs.view(torch.bfloat16).view(*scales.shape, -1)
    values *= factors(scales)[..., None]
    return values.flatten(1)


@functools.cache
def _pairs(device: torch.device) -> torch.Tensor:
    """Return int32 [256]: for each byte, its two numbers in bfloat16, side by side in memory."""
    import torch

    from radixrt.layers.formats.codes import E2M1

    numbers = torch.tensor(E2M1, dtype=torch.bfloat16)
    byte = torch.arange(256)
    return torch.stack((numbers[byte & 15], numbers[byte >> 4]), dim=1).view(torch.int32).flatten().to(device)
