"""A norm and an activation hand their results over in float8 where the only layer that reads them asks for it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from radixrt.distributed.partial_sum import PartialSum
from radixrt.kernels.float8_rows import Activations, Float8Rows
from radixrt.layers.formats import registry
from radixrt.layers.formats.base import Quantization, WeightFormat
from radixrt.layers.formats.checkpoint import Projection
from radixrt.layers.formats.plain import Plain
from radixrt.layers.ops import LayerOps
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

MIN_TOKENS, GROUP = 12, 16
"""Steps of fewer tokens keep the dtype of activations; columns that share a scale divide those of every layer."""


def quantize(x: torch.Tensor) -> Float8Rows:
    groups = x.view(x.shape[0], -1, GROUP)
    scales = groups.abs().amax(dim=2).clamp(min=1e-9) / 448
    codes = (groups / scales[:, :, None]).view_as(x).to(torch.float8_e4m3fn)
    return Float8Rows(codes, scales.t(), GROUP, x.dtype)


def dequantize(x: Float8Rows) -> torch.Tensor:
    return x.codes.float() * x.scales.t().repeat_interleave(x.group, dim=1)


class Float8Inputs(Plain):
    """A plain weight; activations of larger steps are rounded to float8. Counts the inputs that already are."""

    given: ClassVar[Counter[str]] = Counter()

    def float8_group(self, weight: Any, tokens: int, dtype: torch.dtype) -> int | None:
        return GROUP if tokens >= MIN_TOKENS else None

    def linear(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        self.given[type(x).__name__] += 1
        if isinstance(x, torch.Tensor):
            x = x if self.float8_group(weight, x.shape[0], x.dtype) is None else dequantize(quantize(x))
        else:
            assert x.shape[0] >= MIN_TOKENS
            x = dequantize(x)
        return super().linear(weight, x, bias)

    def silu_and_mul(self, weight: Any, x: Any, bias: torch.Tensor | None) -> torch.Tensor:
        return self._ops.silu_and_mul(self.linear(weight, x, bias))

    def partial_sum(self, weight: Any, x: Any, bias: torch.Tensor | None, group: Any) -> PartialSum:
        return PartialSum(self.linear(weight, x, bias))


class Handed(Float8Inputs):
    """The same, whose gate and up hand their product over in float8."""

    def silu_and_mul_float8(self, weight: Any, x: Any, bias: torch.Tensor | None, group: int) -> Activations:
        assert group == GROUP
        return quantize(self.silu_and_mul(weight, x, bias))


class OfFormat(Quantization):
    made: type[WeightFormat] = Float8Inputs

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        return None if projections[0].name == "lm_head" else self.made(ops)


def read(config: Mapping[str, Any], *, stacked_experts: bool) -> Quantization:
    return OfFormat()


def handed_norm(self: LayerOps, *arguments: Any) -> Activations:
    *others, columns = arguments
    assert columns == GROUP
    return quantize(self.all_reduce_add_rms_norm(*others))


def logits(folder: Path) -> list[torch.Tensor]:
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")
    Float8Inputs.given.clear()
    return run_in_steps(model, sequences())


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [("llama", 9), ("qwen3_moe", 5), ("lfm2", 12), ("qwen3_next", 6)],
)
def test_handed_over_is_quantized_by_the_reader(
    kind: str, inputs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logits are the same bits, and no norm or activation is quantized twice.

    inputs: of linear layers in one step, but for outputs of mixers and inputs of experts.
    """
    monkeypatch.setitem(registry.READERS, "float8-inputs", f"{__name__}:read")
    folder = make_tiny_model(tmp_path, kind)
    plain = logits(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "float8-inputs"}}))
    expected = logits(folder)
    assert not Float8Inputs.given["Float8Rows"]
    calls = Float8Inputs.given["Tensor"]
    assert any(not torch.equal(a, b) for a, b in zip(plain, expected, strict=True))
    monkeypatch.setattr(OfFormat, "made", Handed)
    monkeypatch.setattr(LayerOps, "all_reduce_add_rms_norm_float8", handed_norm)
    found = logits(folder)
    assert Float8Inputs.given["Float8Rows"] == 2 * inputs  # the last of three steps has too few tokens
    assert Float8Inputs.given.total() == calls
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
