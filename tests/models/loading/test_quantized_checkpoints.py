"""Models of quantized checkpoints are those of the dequantized ones: text, ranks, experts, and what is refused."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import radixrt
from radixrt.errors import ModelLoadError
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats import quantized
from radixrt.layers.formats.codes import Codes, dequantize
from radixrt.layers.formats.quantized import Quantized
from radixrt.layers.formats.reordered import ReorderedWeight
from radixrt.layers.linear import Linear
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.layers.formats import packers
from tests.layers.formats.formats import CASES, Case, awq, compressed_int, gptq
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

ROUTERS = (".mlp.gate.weight", ".shared_expert_gate.weight", ".block_sparse_moe.gate.weight")
MODELS = ["ct-int4-asymmetric", "fp8-block", "gptq-ordered", "modelopt-nvfp4"]
"""Cases of which a model generates text: each kind of numbers, of scales, and of packing."""


def is_quantized(name: str, tensor: torch.Tensor) -> bool:
    linear = name.startswith("model.layers.") and name.endswith(".weight") and tensor.dim() == 2
    return linear and not name.endswith(ROUTERS)


def make_models(
    folder: Path, case: Case, kind: str = "llama", *, unquantized: str = "$^", **overrides: Any
) -> tuple[Path, Path]:
    """Folders of a model in the format of a case, and of the same one in float32.

    Args:
        unquantized: expression of names of modules that stay plain.
    """
    packed, plain = (make_tiny_model(folder / name, kind, **overrides) for name in ("packed", "plain"))
    rng, values = np.random.default_rng(0), load_file(plain / "model.safetensors")
    stored = dict(values)
    for name, tensor in sorted(values.items()):
        path = name.removesuffix(".weight")
        if is_quantized(name, tensor) and not re.search(unquantized, path):
            made = case.packer(rng, *tensor.shape)
            del stored[name]
            stored |= {f"{path}.{part}": t for part, t in made.tensors.items()}
            values[name] = made.values
    for path, tensors in ((packed, stored), (plain, values)):
        save_file(tensors, path / "model.safetensors", {"format": "pt"})
    change_config(packed, quantization_config=case.config)
    return packed, plain


def change_config(folder: Path, **fields: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def load(folder: Path, group: ThreadGroup | None = None, **options: Any) -> Decoder:
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=group, **options)
    assert isinstance(model, Decoder)
    return model


def weights(model: Decoder) -> dict[str, Codes]:
    """The quantized weights of a model, by path."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, Linear):
            found[path] = module._weight
        elif isinstance(module, FusedExperts):
            found |= {f"{path}.gate_up": module._gate_up, f"{path}.down": module._down}
    found = {path: w.weight if isinstance(w, ReorderedWeight) else w for path, w in found.items()}
    return {path: weight for path, weight in found.items() if isinstance(weight, Codes)}


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products without kernels: they may round activations, which is not what is tested here."""
    monkeypatch.setattr(quantized, "quantized_format", Quantized)


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 500) for _ in range(rng.randrange(1, 9))] for _ in range(200)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("reference")
def test_text_is_that_of_the_dequantized_model(name: str, tmp_path: Path) -> None:
    def texts(folder: Path) -> list[list[int]]:
        options: dict[str, Any] = {"kv_cache_tokens": 8192, "executor": "uni", "dtype": "float32", "num_threads": 1}
        with radixrt.Engine(str(folder), show_progress=False, max_running_requests=64, **options) as engine:
            results = engine.generate(prompts(), {"temperature": 0, "max_tokens": 6, "min_tokens": 6})
        return [result.token_ids for result in results]

    packed, plain = make_models(tmp_path, CASES[name], num_hidden_layers=2)
    found = texts(packed)
    assert found == texts(plain)
    assert len({tuple(ids) for ids in found}) > 100


KINDS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "mixtral": {},
    "qwen3_next": {},  # q and k in another order, rows of a recurrent layer in blocks, and a shared expert
}


@pytest.mark.parametrize(
    ("name", "kind", "ranks"),
    [
        *itertools.product(["fp8-block"], KINDS, [1, 2]),
        *itertools.product(["ct-int4-asymmetric"], KINDS, [2]),
        *itertools.product(["modelopt-nvfp4", "ct-fp8-tensor"], ["qwen3_next"], [2]),
    ],
)
@pytest.mark.usefixtures("reference")
def test_logits_are_those_of_the_dequantized_model(name: str, kind: str, ranks: int, tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, CASES[name], kind, **KINDS[kind])
    expected = run_in_steps(load(plain), sequences(2))
    for found in on_ranks(ranks, lambda group: run_in_steps(load(packed, group), sequences(2))):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *itertools.product([name for name in CASES if not name.endswith("ordered")], [4]),
        *itertools.product(["fp8-block", "awq", "ct-int4-asymmetric", "modelopt-nvfp4"], [2]),
    ],
)
def test_ranks_have_parts_of_the_values(name: str, size: int, tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, CASES[name], num_hidden_layers=1)
    expected = on_ranks(size, lambda group: dict(load(plain, group).named_parameters()))
    for codes, theirs in zip(on_ranks(size, lambda group: weights(load(packed, group))), expected, strict=True):
        assert len(codes) == 4
        for path, weight in codes.items():
            assert torch.equal(dequantize(weight), theirs[f"{path}.weight"]), path


def test_desc_act_is_refused_on_several_ranks(tmp_path: Path) -> None:
    packed, _ = make_models(tmp_path, CASES["gptq-ordered"], num_hidden_layers=1)
    with pytest.raises(ModelLoadError, match=r"self_attn.o_proj: .*desc_act.*--tp 1"):
        on_ranks(2, lambda group: load(packed, group))


def test_awq_gptq_and_compressed_tensors_of_the_same_weights_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    codes, zeros = rng.integers(0, 16, (64, 64)), rng.integers(0, 16, (64, 4))
    scales = packers.random_scales(rng, 64, 4, dtype=torch.float16)

    def packer(tensors: dict[str, torch.Tensor]) -> Callable[..., packers.Packed]:
        values = packers.product(codes, zeros, scales, np.arange(64) // 16)
        return lambda rng, outputs, inputs: packers.Packed(
            {name: t.clone() for name, t in tensors.items()}, values.clone()
        )

    transposed = scales.T.contiguous()
    cases = {
        "awq": Case(
            awq(16),
            packer({"qweight": packers.awq_words(codes.T), "qzeros": packers.awq_words(zeros.T), "scales": transposed}),
        ),
        "gptq": Case(
            gptq(4, 16, sym=False),
            packer({
                "qweight": packers.words(codes, 4).T.contiguous(),
                "qzeros": packers.less_one(packers.words(zeros.T, 4), 4),
                "scales": transposed,
                "g_idx": torch.arange(64, dtype=torch.int32) // 16,
            }),
        ),
        "compressed-tensors": Case(
            compressed_int(4, 16, symmetric=False),
            packer({
                "weight_packed": packers.words(codes, 4),
                "weight_zero_point": packers.words(zeros.T, 4).T.contiguous(),
                "weight_scale": scales,
                "weight_shape": torch.tensor([64, 64]),
            }),
        ),
    }  # fmt: skip
    shape = {"intermediate_size": 64, "num_key_value_heads": 4, "num_hidden_layers": 1}
    found = {name: weights(load(make_models(tmp_path / name, case, **shape)[0])) for name, case in cases.items()}
    for path, weight in found["awq"].items():
        for other in (found["gptq"][path], found["compressed-tensors"][path]):
            assert weight.scheme == other.scheme
            for ours, theirs in zip(weight[:4], other[:4], strict=True):
                assert (ours is None and theirs is None) or torch.equal(ours, theirs)  # type: ignore[arg-type]


def test_stacked_experts_load_as_those_with_a_name_each(tmp_path: Path) -> None:
    """transformers names the tensors of its own fp8 experts gate_up_proj and gate_up_proj_scale_inv."""
    # Blocks of 16 rows: 48 rows of gate, then 48 of up, divide none.
    packed, _ = make_models(tmp_path, CASES["fp8-block"], "qwen3_moe", num_hidden_layers=2)
    expected = weights(load(packed))
    tensors = load_file(packed / "model.safetensors")
    for kind, ending in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
        module = "model.layers.1.mlp.experts"
        parts = {
            name: [tensors.pop(f"{module}.{i}.{name}.{kind}") for i in range(8)]
            for name in ("gate_proj", "up_proj", "down_proj")
        }
        both = zip(parts["gate_proj"], parts["up_proj"], strict=True)
        tensors[f"{module}.gate_up_proj{ending}"] = torch.stack([torch.cat(pair) for pair in both])
        tensors[f"{module}.down_proj{ending}"] = torch.stack(parts["down_proj"])
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    found = weights(load(packed))
    assert found.keys() == expected.keys()
    for path, weight in found.items():
        assert torch.equal(dequantize(weight), dequantize(expected[path]))


def test_a_quantized_head_loads_on_any_number_of_ranks(tmp_path: Path) -> None:
    case = Case(gptq(4, 16, lm_head=True), packers.gptq(4, 16))
    packed, plain = make_models(tmp_path, case, num_hidden_layers=1)
    made = case.packer(np.random.default_rng(1), 512, 64)
    for folder in (packed, plain):
        tensors = load_file(folder / "model.safetensors")
        del tensors["lm_head.weight"]
        if folder == packed:
            tensors |= {f"lm_head.{kind}": tensor for kind, tensor in made.tensors.items()}
        else:
            tensors["lm_head.weight"] = made.values
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    expected = run_in_steps(load(plain), sequences(1))[0]
    for size in (1, 2):
        for found in on_ranks(size, lambda group: run_in_steps(load(packed, group), sequences(1))):
            torch.testing.assert_close(found[0], expected, atol=2e-4, rtol=0)


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, CASES["modelopt-fp8"], num_hidden_layers=1, tie_word_embeddings=True)
    change_config(packed, quantization_config={**CASES["modelopt-fp8"].config, "ignore": []})
    expected = run_in_steps(load(plain), sequences(1))[0]
    torch.testing.assert_close(run_in_steps(load(packed), sequences(1))[0], expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", ["fp8-block", "ct-int4-asymmetric", "gptq-int8-asymmetric", "gptq-ordered", "awq"])
def test_random_models_need_no_files(name: str, tmp_path: Path) -> None:
    folder, _ = make_models(tmp_path, CASES[name], num_hidden_layers=1)
    (folder / "model.safetensors").unlink()
    whole = run_in_steps(load(folder, load_format="dummy"), sequences(1))[0]
    assert whole.isfinite().all()
    assert whole.std() > 0


def test_tensors_that_nobody_reads_may_be_there(tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, CASES["modelopt-nvfp4"], num_hidden_layers=1)
    tensors = load_file(packed / "model.safetensors")
    layer = "model.layers.0.self_attn.q_proj"
    extra = {f"{layer}.input_scale": torch.tensor(0.1)}
    save_file(tensors | extra, packed / "model.safetensors", {"format": "pt"})
    expected = run_in_steps(load(plain), sequences(1))[0]
    torch.testing.assert_close(run_in_steps(load(packed), sequences(1))[0], expected, atol=2e-4, rtol=0)
    extra = {f"{layer}.pre_quant_scale": torch.ones(64)}  # which changes the result
    save_file(tensors | extra, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"unexpected: {layer}.pre_quant_scale"):
        load(packed)


def test_biases_of_zeros_may_be_there(tmp_path: Path) -> None:
    packed, plain = make_models(tmp_path, CASES["gptq"], num_hidden_layers=1)
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.bias"
    save_file(tensors | {name: torch.zeros(64)}, packed / "model.safetensors", {"format": "pt"})
    expected = run_in_steps(load(plain), sequences(1))[0]
    torch.testing.assert_close(run_in_steps(load(packed), sequences(1))[0], expected, atol=2e-4, rtol=0)
    save_file(tensors | {name: torch.ones(64)}, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"unexpected: {name}"):
        load(packed)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("kind", "ending"), [("qwen3_next", "in_proj_ba"), ("qwen3_5", "in_proj_[ab]")])
@pytest.mark.usefixtures("reference")
def test_a_gated_delta_net_may_have_plain_projections(kind: str, ending: str, ranks: int, tmp_path: Path) -> None:
    case = CASES["ct-int4"]
    config = {**case.config, "ignore": ["lm_head", f"re:.*{ending}$"]}
    packed, plain = make_models(tmp_path, Case(config, case.packer), kind, unquantized=ending)
    expected = run_in_steps(load(plain), sequences(2))
    for found in on_ranks(ranks, lambda group: run_in_steps(load(packed, group), sequences(2))):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)
    (packed / "model.safetensors").unlink()
    assert run_in_steps(load(packed, load_format="dummy"), sequences(1))[0].isfinite().all()


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    packed, _ = make_models(tmp_path, CASES["fp8-block"], num_hidden_layers=1)
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight_scale_inv"
    scale = tensors.pop(name)
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"missing: {name}"):
        load(packed)
    save_file(tensors | {name: scale[:, :1].clone()}, packed / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=rf"of another shape: {name} \[7, 1\] instead of \[7, 2\]"):
        load(packed)


def test_a_checkpoint_of_gpt_oss_is_refused_in_other_formats(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "gpt_oss")
    change_config(folder, quantization_config=CASES["fp8-block"].config)
    with pytest.raises(ModelLoadError, match="stacked and transposed can be quantized by mxfp4 alone"):
        load(folder, load_format="dummy")
