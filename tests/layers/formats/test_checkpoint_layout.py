"""Quantized weights of every format become codes whose values are those of the producer's arithmetic, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from radixrt.errors import ModelLoadError
from radixrt.kernels.build import load_kernels
from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.checkpoint import Projection, split_by_input, split_by_output, whole_weight
from radixrt.layers.formats.codes import Codes, dequantize
from radixrt.layers.formats.registry import read_quantization
from radixrt.layers.formats.reordered import ReorderedWeight
from radixrt.layers.linear import Linear
from radixrt.layers.ops import CpuOps, LayerOps, TorchOps
from radixrt.models.decoder_spec import TensorNames
from radixrt.models.loading.weights import Checkpoint, _read_parameter
from tests.layers.formats.formats import CASES, fp8_blocks
from tests.layers.formats.packers import Packed

PATH = "model.layers.0.self_attn.q_proj"
CPU = torch.device("cpu")


def read(config: dict[str, Any], **fields: Any) -> Quantization:
    found = read_quantization(
        {"num_hidden_layers": 1, "quantization_config": config, **fields}, decodes=True, stacked_experts=False
    )
    assert found is not None
    return found


def save(folder: Path, weights: dict[str, Packed]) -> None:
    tensors = {f"{path}.{kind}": t for path, packed in weights.items() for kind, t in packed.tensors.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def load(
    folder: Path, config: dict[str, Any], projections: Sequence[Projection], ops: LayerOps | None = None
) -> Linear:
    quantization = read(config)
    with Checkpoint(folder, TensorNames()) as checkpoint:
        found = quantization.of_files(checkpoint.dtypes).linear(projections, ops or TorchOps())
        assert found is not None
        layer = Linear(projections, False, torch.float32, found)
        for name, tensors in layer.sources.items():
            for part in (part for tensor in tensors for part in tensor.stored):
                assert part.fits(checkpoint.shape(part.name)), part
            setattr(layer, name, _read_parameter(checkpoint, tensors, layer.get_parameter(name), CPU))
    layer.process_weights_after_loading()
    return layer


def values(layer: Linear) -> torch.Tensor:
    """The weight of a layer, float32, with the columns in the checkpoint's order."""
    weight = layer._weight
    if not isinstance(weight, ReorderedWeight):
        return dequantize(weight)
    found = dequantize(weight.weight)
    if weight.order is None:
        return found
    return torch.empty_like(found).index_copy_(1, weight.order.long(), found)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=8, deadline=None, derandomize=True)
def test_values_are_those_of_the_checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    case, folder = CASES[name], tmp_path_factory.mktemp("weights")
    # Neither outputs nor inputs need be multiples of blocks and groups, and inputs may be odd.
    outputs = data.draw(st.integers(1, 40)) * case.outputs
    inputs = data.draw(st.integers(1, 140)) * case.inputs
    packed = case.packer(np.random.default_rng(outputs * 1000 + inputs), outputs, inputs)
    save(folder, {PATH: packed})
    layer = load(folder, case.config, [whole_weight(PATH, outputs, inputs)])
    torch.testing.assert_close(values(layer), packed.values, rtol=0, atol=0)
    x = torch.randn(3, inputs)
    torch.testing.assert_close(layer(x), x @ packed.values.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
@given(data=st.data())
@settings(max_examples=6, deadline=None, derandomize=True)
def test_ranks_have_slices_of_the_values(name: str, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    case, folder = CASES[name], tmp_path_factory.mktemp("weights")
    outputs, inputs = 8 * data.draw(st.integers(1, 8)), 8 * data.draw(st.integers(1, 20))
    packed = case.packer(np.random.default_rng(outputs * 1000 + inputs), outputs, inputs)
    save(folder, {PATH: packed})
    # Rows in any order, as a rotary embedding of a part of each head needs them, and ranks of any size.
    cuts = sorted(data.draw(st.sets(st.integers(1, outputs - 1), max_size=4)))
    ranges = [range(a, b) for a, b in zip([0, *cuts], [*cuts, outputs], strict=True)]
    ranges = data.draw(st.permutations(ranges))[: data.draw(st.integers(1, len(ranges)))]
    layer = load(folder, case.config, [split_by_output(PATH, outputs, inputs, ranges)])
    expected = torch.cat([packed.values[each.start : each.stop] for each in ranges])
    torch.testing.assert_close(values(layer), expected, rtol=0, atol=0)
    if name.endswith("ordered"):
        with pytest.raises(ModelLoadError, match=f"{PATH}: .*desc_act"):
            load(folder, case.config, [split_by_input(PATH, outputs, inputs, range(inputs // 2))])
        return
    start = 2 * data.draw(st.integers(0, inputs // 2 - 1))
    stop = 2 * data.draw(st.integers(start // 2 + 1, inputs // 2))
    layer = load(folder, case.config, [split_by_input(PATH, outputs, inputs, range(start, stop))])
    torch.testing.assert_close(values(layer), packed.values[:, start:stop], rtol=0, atol=0)


@pytest.fixture(scope="module")
def cpu(cache_folder: Path) -> CpuOps:
    return CpuOps(load_kernels(cache_folder / "kernels"))


@pytest.mark.parametrize("shape", [(40, 63), (72, 112), (96, 256)])
@pytest.mark.parametrize("name", CASES)
def test_kernels_of_the_cpu_multiply_the_same_values(
    name: str, shape: tuple[int, int], cpu: CpuOps, tmp_path: Path
) -> None:
    case, (outputs, inputs) = CASES[name], shape
    inputs -= inputs % case.inputs
    packed = case.packer(np.random.default_rng(0), outputs, inputs)
    save(tmp_path, {PATH: packed})
    layer = load(tmp_path, case.config, [whole_weight(PATH, outputs, inputs)], cpu)
    x = torch.randn(5, inputs)
    error = layer(x) - x @ packed.values.T
    # Activations that e4m3 numbers are multiplied by are rounded to bfloat16.
    limit = 2**-7 if read(case.config).scheme.startswith("fp8") else 2**-11
    assert error.norm() < limit * (x @ packed.values.T).norm()


@pytest.mark.parametrize("name", CASES)
def test_shards_of_a_layer_keep_their_own_scales(name: str, tmp_path: Path) -> None:
    case, rng = CASES[name], np.random.default_rng(0)
    shards = {f"model.layers.0.self_attn.{which}_proj": case.packer(rng, 32, 64) for which in "qkv"}
    save(tmp_path, shards)
    layer = load(tmp_path, case.config, [whole_weight(path, 32, 64) for path in shards])
    expected = torch.cat([packed.values for packed in shards.values()])
    torch.testing.assert_close(values(layer), expected, rtol=0, atol=0)


def test_blocks_stay_blocks_where_no_cut_divides_them(tmp_path: Path) -> None:
    packed = CASES["fp8-block"].packer(np.random.default_rng(0), 64, 96)
    save(tmp_path, {PATH: packed})
    config = fp8_blocks(16, 32)

    def scales(projection: Projection) -> torch.Tensor:
        weight = load(tmp_path, config, [projection])._weight
        assert isinstance(weight, Codes)
        return weight.scales

    assert torch.equal(scales(whole_weight(PATH, 64, 96)), packed.tensors["weight_scale_inv"])
    assert scales(split_by_output(PATH, 64, 96, [range(16, 48)])).shape == (2, 3)
    assert scales(split_by_output(PATH, 64, 96, [range(8, 40)])).shape == (32, 3)  # one for each row
    assert scales(split_by_input(PATH, 64, 96, range(32, 64))).shape == (4, 1)
    assert scales(split_by_input(PATH, 64, 96, range(48, 96))).shape == (4, 3)  # of 16 columns


def test_groups_of_unequal_size_are_refused(tmp_path: Path) -> None:
    case = CASES["gptq-ordered"]
    packed = case.packer(np.random.default_rng(0), 8, 64)
    packed.tensors["g_idx"][:] = 0
    save(tmp_path, {PATH: packed})
    with pytest.raises(ModelLoadError, match=f"{PATH}.g_idx: each group must have 16 columns"):
        load(tmp_path, case.config, [whole_weight(PATH, 8, 64)])


def test_shards_in_different_orders_are_refused(tmp_path: Path) -> None:
    case = CASES["gptq-ordered"]
    shards = {
        f"model.layers.0.mlp.{which}_proj": case.packer(np.random.default_rng(0), 8, 64) for which in ("gate", "up")
    }
    shards["model.layers.0.mlp.up_proj"].tensors["g_idx"][:] = torch.arange(64) // 16
    save(tmp_path, shards)
    with pytest.raises(ModelLoadError, match="orders the columns of q, k and v, or of gate and up, in several ways"):
        load(tmp_path, case.config, [whole_weight(path, 8, 64) for path in shards])


def test_codes_of_another_dtype_are_refused(tmp_path: Path) -> None:
    packed = CASES["fp8-block"].packer(np.random.default_rng(0), 16, 32)
    packed.tensors["weight"] = packed.tensors["weight"].view(torch.uint8).view(torch.int8)
    save(tmp_path, {PATH: packed})
    with pytest.raises(ModelLoadError, match=f"{PATH}.weight holds torch.int8, but codes are stored as torch.float8"):
        load(tmp_path, fp8_blocks(16, 32), [whole_weight(PATH, 16, 32)])


def test_projection_heights_are_padded_with_zeros(tmp_path: Path) -> None:
    case = CASES["gptq"]
    packed = case.packer(np.random.default_rng(0), 24, 64)
    save(tmp_path, {PATH: packed})
    projection = replace(split_by_output(PATH, 24, 64, [range(24)]), height=32)
    found = values(load(tmp_path, case.config, [projection]))
    assert torch.equal(found[:24], packed.values)
    assert not found[24:].any()
