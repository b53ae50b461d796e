"""Online quantization against checkpoints that were quantized before, and the memory that it needs while it loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common.quantized_folders import write_quantized
from radixrt.layers.formats.codes import Codes
from radixrt.layers.linear import Linear
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.tiny_models import make_tiny_model

SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in bfloat16, as checkpoints are."""
    folder = make_tiny_model(tmp_path_factory.mktemp("plain") / "m", "llama", num_hidden_layers=24, **SIZES)
    file = folder / "model.safetensors"
    save_file({name: each.bfloat16() for name, each in load_file(file).items()}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    return folder


def load(folder: Path, quantization: str, group: ThreadGroup | None = None) -> dict[str, Codes]:
    """Return the quantized weights of a model, by path."""
    model = load_model(folder, load_model_spec(folder, quantization), dtype="bfloat16", device="cpu", group=group)
    assert isinstance(model, Decoder)
    layers = [(path, module) for path, module in model.named_modules() if isinstance(module, Linear)]
    return {path: module._weight for path, module in layers if isinstance(module._weight, Codes)}


def assert_equal(found: dict[str, Codes], expected: dict[str, Codes]) -> None:
    assert found.keys() == expected.keys()
    assert found
    for path, codes in found.items():
        other = expected[path]
        assert codes.scheme == other.scheme
        assert torch.equal(codes.codes.view(torch.uint8), other.codes.view(torch.uint8)), path
        assert torch.equal(codes.scales.float(), other.scales.float()), path


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("kind", "written"), [("fp8", "fp8-rows"), ("int8", "int8-rows")])
def test_online_codes_are_those_of_a_quantized_checkpoint(
    kind: str, written: str, size: int, plain: Path, tmp_path: Path
) -> None:
    folder = write_quantized(plain, tmp_path / "q", written)
    if size == 1:
        assert_equal(load(plain, kind), load(folder, "auto"))
        return
    online = on_ranks(size, lambda group: load(plain, kind, group))
    offline = on_ranks(size, lambda group: load(folder, "auto", group))
    for found, expected in zip(online, offline, strict=True):
        assert_equal(found, expected)


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations have made, after each operation.

    Attributes:
        peak, last: the most bytes that were in use at a time, and those in use after the last operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self.last = 0
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
                storage = tensor.untyped_storage()
                self._live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.count()
        return made

    def count(self) -> None:
        self._live = {key: each for key, each in self._live.items() if not each[0].expired()}
        self.last = sum(size for _, size in self._live.values())
        self.peak = max(self.peak, self.last)


@pytest.mark.parametrize("kind", ["fp8", "int8", "int4"])
def test_loading_needs_the_quantized_model_and_one_layer(kind: str, plain: Path) -> None:
    spec = load_model_spec(plain, kind)
    with LiveBytes() as bytes_of:
        model = load_model(plain, spec, dtype="bfloat16", device="cpu")
        bytes_of.count()
    assert isinstance(model, Decoder)
    largest = max(each.num_weights for each in model.modules() if isinstance(each, Linear))
    # A layer is rounded in float32, of which int4 codes, that are chosen among several, have some copies.
    one_layer = largest * (28 if kind == "int4" else 16)
    assert bytes_of.peak - bytes_of.last < one_layer
    assert spec.decoder is not None
    assert bytes_of.last + one_layer < 2 * spec.decoder.num_linear_parameters
