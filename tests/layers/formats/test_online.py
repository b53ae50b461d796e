"""Plain weights that are quantized while they load: the model of the rounded weights, on any number of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from radixrt.errors import ModelLoadError
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.codes import Codes, Scheme, dequantize
from radixrt.layers.formats.online import Kind, OnlineQuantization, group_size
from radixrt.layers.formats.online_layout import quantize
from radixrt.layers.linear import Linear
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

KINDS: tuple[Kind, ...] = ("fp8", "int8", "int4")
MODELS = ("llama", "qwen3_moe", "qwen3_5_moe", "gpt_oss", "lfm2")


def load(folder: Path, kind: Kind | None, group: ThreadGroup | None = None, dtype: str = "float32") -> Decoder:
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    if kind is not None:
        spec = replace(spec, decoder=replace(spec.decoder, quantization=OnlineQuantization(kind)))
    model = load_model(folder, spec, dtype=dtype, device="cpu", group=group)
    assert isinstance(model, Decoder)
    return model


def weights(model: Decoder) -> dict[str, Codes]:
    """The quantized weights of a model, by path."""
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, Linear) and isinstance(module._weight, Codes):
            found[path] = module._weight
        elif isinstance(module, FusedExperts):
            found |= {f"{path}.gate_up": module._gate_up, f"{path}.down": module._down}
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_that_of_the_rounded_weights(kind: Kind, name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", name)
    quantized, plain = load(folder, kind), load(folder, None)
    codes = weights(quantized)
    linear = [path for path, module in plain.named_modules() if isinstance(module, Linear) and path != "lm_head"]
    assert set(linear) <= set(codes)
    for path, module in plain.named_modules():
        if path in codes:
            weight = module._weight  # type: ignore[union-attr]
            rounded = dequantize(codes[path])
            # The error of a code is at most half a step; int4 codes clamp values, too.
            step = {"fp8": 1 / 14, "int8": 1 / 254, "int4": 1 / 7}[kind]
            assert (rounded - weight).abs().max() <= weight.abs().max() * step
            weight.copy_(rounded)
        elif isinstance(module, FusedExperts):
            module._gate_up.copy_(dequantize(codes[f"{path}.gate_up"]))
            module._down.copy_(dequantize(codes[f"{path}.down"]))
    for made, expected in zip(run_in_steps(quantized, sequences()), run_in_steps(plain, sequences()), strict=True):
        torch.testing.assert_close(made, expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_have_parts_of_the_codes_of_one(kind: Kind, size: int, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", intermediate_size=256, hidden_size=128, num_attention_heads=4)
    whole = weights(load(folder, kind))
    ranks = on_ranks(size, lambda group: weights(load(folder, kind, group)))
    for path, weight in whole.items():
        if not path.endswith(("o_proj", "down_proj")):  # the rows of the others are whole
            continue
        joined = torch.cat([dequantize(rank[path]) for rank in ranks], dim=1)
        torch.testing.assert_close(joined, dequantize(weight), atol=0, rtol=0)
        for rank in ranks if weight.scheme.columns == 0 else []:
            torch.testing.assert_close(rank[path].scales, weight.scales, atol=0, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_and_large_values(kind: Kind) -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    weight[1] = 0
    weight[2] *= 1e4
    weight[3] *= 1e-4
    codes = quantize(weight, kind, group_size(64))
    assert codes.shape == (8, 64)
    rounded = dequantize(codes)
    assert rounded[1].abs().max() == 0
    for row in (0, 2, 3):
        error = (rounded[row] - weight[row]).norm() / weight[row].norm()
        assert error < {"fp8": 0.04, "int8": 0.02, "int4": 0.12}[kind]


def test_groups_that_do_not_divide_a_row_are_refused(tmp_path: Path) -> None:
    assert group_size(4096) == 128
    assert group_size(576) == 32
    folder = make_tiny_model(tmp_path / "m", "llama", intermediate_size=72)
    with pytest.raises(
        ModelLoadError, match=r"down_proj has 72 columns, which int4 groups of 16 do not divide; use int8"
    ):
        load(folder, "int4")


def test_ranks_do_not_divide_groups(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", intermediate_size=96)
    with pytest.raises(ModelLoadError, match=r"divides int4 groups of 32; use fewer ranks, or int8"):
        on_ranks(4, lambda group: weights(load(folder, "int4", group)))


def test_schemes_say_what_codes_are() -> None:
    assert str(Scheme("e4m3")) == "e4m3 rows"
    assert str(Scheme("int4", columns=128)) == "int4 groups of 128"
    assert str(Scheme("e4m3", rows=128, columns=128)) == "e4m3 blocks of 128 x 128"
