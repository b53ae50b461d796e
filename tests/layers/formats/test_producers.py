"""Weights that the producers' own programs packed have the values of those programs' arithmetic.

golden/producers.safetensors was made once: by the compressors of compressed-tensors 0.20, `WQLinear_GEMM.from_linear`
and `dequantize_gemm` of AutoAWQ 0.2.9, and `pack_original` of GPTQModel 7.7, whose version 1 is version 2 with
0x11111111 subtracted from each int32 of zeros.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from radixrt.layers.formats.checkpoint import whole_weight
from tests.layers.formats.formats import CASES, gptq
from tests.layers.formats.packers import Packed
from tests.layers.formats.test_checkpoint_layout import PATH, load, save, values

GOLDEN = load_file(Path(__file__).parent / "golden" / "producers.safetensors")
CONFIGS = {name: case.config for name, case in CASES.items()} | {
    "gptq-v2-ordered": gptq(4, 16, sym=False, desc_act=True, checkpoint_format="gptq_v2"),
    "gptq-v2-int8": gptq(8, 16, sym=False, checkpoint_format="gptq_v2"),
}
NAMES = sorted({name.partition(".")[0] for name in GOLDEN})


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_producer(name: str, tmp_path: Path) -> None:
    tensors = {key.partition(".")[2]: t for key, t in GOLDEN.items() if key.startswith(f"{name}.")}
    expected = tensors.pop("values")
    save(tmp_path, {PATH: Packed(tensors, expected)})
    found = values(load(tmp_path, CONFIGS[name], [whole_weight(PATH, *expected.shape)]))
    if "nvfp4" in name:  # compressed-tensors rounds its scales to bfloat16 before it multiplies
        torch.testing.assert_close(found, expected.float(), rtol=2**-7, atol=0)
    elif name.startswith("gptq-v2-int8"):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    else:
        assert torch.equal(found.to(expected.dtype), expected)
