"""MXFP4 checkpoints of gpt-oss load as transformers dequantizes them, on any number of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from radixrt.errors import ModelLoadError
from radixrt.kernels.packed_weights import PackedWeights
from radixrt.kernels.triton.mxfp4 import FACTOR, PLACES
from radixrt.kernels.triton.weight_formats import from_fragment_order
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats import mxfp4
from radixrt.layers.formats.checkpoint import whole_weight
from radixrt.layers.formats.mxfp4 import GROUP, Mxfp4, dequantize
from radixrt.layers.formats.plain import Plain
from radixrt.layers.ops import TorchOps
from radixrt.layers.swiglu import BiasedSwiGLU
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec, parse_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.test_gpt_oss_config import GPT_OSS_20B
from tests.tiny_models import make_tiny_model, save_tokenizer

PUBLISHED = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
    "quant_method": "mxfp4",
}  # fmt: skip


def random_mxfp4(*rows: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks and scales whose numbers are below one."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(120, 125, blocks.shape[:-1], generator=generator, dtype=torch.uint8)


def make_mxfp4_models(packed: Path, plain: Path, **changes: Any) -> tuple[Path, Path]:
    """Make a tiny model with its experts in MXFP4, and the same one as transformers dequantizes it."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    make_tiny_model(plain, "gpt_oss", num_hidden_layers=2, intermediate_size=96, **changes)
    packed.mkdir(exist_ok=True)
    save_tokenizer(packed)
    config = json.loads((plain / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps({**config, "quantization_config": PUBLISHED}))
    tensors = load_file(plain / "model.safetensors")
    stored = dict(tensors)
    for seed, name in enumerate(sorted(name for name in tensors if name.endswith(("gate_up_proj", "down_proj")))):
        count, inputs, outputs = tensors[name].shape
        blocks, scales = random_mxfp4(count, outputs, columns=inputs, seed=seed)
        del stored[name]
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16).float()
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    return packed, plain


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_mxfp4_models(tmp_path_factory.mktemp("packed"), tmp_path_factory.mktemp("plain"))


def test_equals_transformers_for_every_scale_and_number() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    scales = torch.arange(1, 253, dtype=torch.uint8).view(1, 4, 63)
    blocks = torch.arange(4 * 63 * 16).to(torch.uint8).view(1, 4, 63, 16)
    assert len(blocks.unique()) == 256
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)[0].T
    found = dequantize(blocks[0], scales[0])
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


@pytest.mark.parametrize("size", [1, 2, 4])  # 96 columns are 24 on each of four ranks: three quarters of a group
def test_parameters_equal_those_of_the_dequantized_checkpoint(size: int, folders: tuple[Path, Path]) -> None:
    def both(group: ThreadGroup) -> None:
        models = []
        for folder in folders:
            model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=group)
            assert isinstance(model, Decoder)
            models.append(dict(model.named_parameters()))
        one, other = models
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert one["layers.1.feed_forward.experts.down_proj"].shape == (8, 64, 96 // size)

    on_ranks(size, both)


class PackedOps(TorchOps):
    """Operations of a device with a kernel for MXFP4 numbers, which computes with the dequantized weights here."""

    def run_packed(
        self,
        x: torch.Tensor,
        experts: torch.Tensor,
        weights: torch.Tensor,
        gate_up: PackedWeights,
        down: PackedWeights,
        biased: BiasedSwiGLU | None = None,
    ) -> torch.Tensor:
        assert biased is not None
        count, hidden, columns = down.shape
        shapes = [whole_weight("", 2 * columns, hidden)] * count, [whole_weight("", hidden, columns)] * count
        plain = FusedExperts(count, *shapes, x.dtype, Plain(TorchOps()), biased.swiglu)
        for name, values in (
            ("gate_up_proj", plain_weights(gate_up)),
            ("down_proj", plain_weights(down)),
            ("gate_up_bias", biased.gate_up),
            ("down_bias", biased.down),
        ):
            setattr(plain, name, nn.Parameter(values.to(x.dtype), requires_grad=False))
        plain.process_weights_after_loading()
        found: torch.Tensor = plain(x, experts, weights)
        return found


@pytest.fixture(autouse=True)
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """PackedOps have the kernel that the format looks for."""
    monkeypatch.setattr(mxfp4, "find_kernel", lambda ops: ops.run_packed if isinstance(ops, PackedOps) else None)


def plain_weights(packed: PackedWeights) -> torch.Tensor:
    """Undo what is done to the codes and scales of a checkpoint."""
    assert packed.numbers == "mxfp4"
    words = torch.zeros_like(packed.words)
    for half in (0, 16):
        for i, (bits, sign) in enumerate(PLACES):
            code = (packed.words >> (half + bits)) & 7 | ((packed.words >> (half + sign)) & 1) << 3
            words |= code << (half + 4 * i)
    codes = from_fragment_order(words.flatten(0, 1), 4).view(*packed.words.shape[:2], -1)[..., : packed.columns // 2]
    groups = packed.columns // GROUP
    scales = ((packed.scales[..., :groups].double() / FACTOR).log2() + 127).to(torch.uint8)
    values = dequantize(codes.reshape(-1, groups, GROUP // 2), scales.reshape(-1, groups))
    return values.view(*packed.shape)


@pytest.mark.parametrize("size", [1, 2, 4])  # three groups: four ranks divide them, and dequantize
def test_numbers_stay_as_they_are_stored_where_there_is_a_kernel(size: int, folders: tuple[Path, Path]) -> None:
    """A rank has whole groups of columns."""
    packed, plain = folders
    whole = dict(load_model(plain, load_model_spec(plain), dtype="float32", device="cpu").named_parameters())

    def check(group: ThreadGroup) -> None:
        model = load_model(packed, load_model_spec(packed), dtype="float32", device="cpu", ops=PackedOps(), group=group)
        taken = range(group.rank * 3 // size * GROUP, (group.rank + 1) * 3 // size * GROUP)
        for i, layer in enumerate(model.layers):
            experts, name = layer.feed_forward.experts, f"layers.{i}.feed_forward.experts"
            gate, up = whole[f"{name}.gate_up_proj"].chunk(2, dim=1)
            if size > 3:
                assert isinstance(experts.format, Plain)
                assert torch.equal(experts.down_proj, whole[f"{name}.down_proj"][:, :, group.rank * 24 :][:, :, :24])
                continue
            assert isinstance(experts.format, Mxfp4)
            part = slice(taken.start, taken.stop)
            found = plain_weights(experts._gate_up).float()
            assert torch.equal(found, torch.cat((gate[:, part], up[:, part]), dim=1))
            found = plain_weights(experts._down).float()
            assert torch.equal(found, whole[f"{name}.down_proj"][:, :, part])
            gate, up = whole[f"{name}.gate_up_bias"].chunk(2, dim=1)
            assert torch.equal(experts.gate_up_bias, torch.cat((gate[:, part], up[:, part]), dim=1))

    on_ranks(size, check)


@pytest.mark.parametrize("size", [1, 2])
def test_packed_experts_compute_what_dequantized_ones_do(size: int, folders: tuple[Path, Path]) -> None:
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(0))
    whole = load_model(folders[0], load_model_spec(folders[0]), dtype="float32", device="cpu")
    expected = whole.layers[1].feed_forward(x).x
    addends: list[torch.Tensor] = []

    def run(group: ThreadGroup) -> None:
        spec = load_model_spec(folders[0])
        model = load_model(folders[0], spec, dtype="float32", device="cpu", ops=PackedOps(), group=group)
        addends.append(model.layers[1].feed_forward(x).x)

    on_ranks(size, run)
    torch.testing.assert_close(torch.stack(addends).sum(0), expected, atol=1e-5, rtol=1e-5)


def test_greedy_equals_transformers_on_the_mxfp4_checkpoint(folders: tuple[Path, Path]) -> None:
    """transformers reads the packed folder by itself."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    import radixrt

    theirs = AutoModelForCausalLM.from_pretrained(
        folders[0], dtype=torch.float32, attn_implementation="eager", quantization_config=Mxfp4Config(dequantize=True)
    ).eval()
    prompt = [(7 * i) % 500 + 3 for i in range(40)]
    options: dict[str, Any] = {"kv_cache_tokens": 512, "executor": "uni", "dtype": "float32", "num_threads": 1}
    with radixrt.Engine(str(folders[0]), skip_tokenizer_init=True, show_progress=False, **options) as engine:
        found = engine.generate(prompt, {"temperature": 0, "max_tokens": 8, "min_tokens": 8, "logprobs": 1})
    with torch.inference_mode():
        logits = theirs(torch.tensor([prompt + found.token_ids])).logits[0].log_softmax(-1)
    answers = logits[len(prompt) - 1 : -1]
    assert found.token_ids == answers.argmax(-1).tolist()
    ours = torch.tensor([entry.logprob for entry in found.logprobs])
    torch.testing.assert_close(ours, answers.max(-1).values, atol=1e-4, rtol=0)


def test_random_weights_need_no_checkpoint(folders: tuple[Path, Path]) -> None:
    spec = load_model_spec(folders[0])
    load_model(folders[0], spec, dtype="float32", device="cpu", load_format="dummy")
    model = load_model(folders[0], spec, dtype="float32", device="cpu", load_format="dummy", ops=PackedOps())
    experts = model.layers[0].feed_forward.experts
    drawn = plain_weights(experts._gate_up).float()
    assert drawn.std() == pytest.approx(0.02, rel=0.2)
    assert len(drawn.unique()) == 15


def with_tensors(folder: Path, source: Path, **changes: torch.Tensor | None) -> Path:
    tensors = load_file(source / "model.safetensors")
    for name, value in changes.items():
        name = f"model.layers.1.mlp.experts.{name}"
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    (folder / "config.json").write_text((source / "config.json").read_text())
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_tensors_that_do_not_fit_are_named(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    cases: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"down_proj_scales": None}, r"missing: \S*layers\.1\.mlp\.experts\.down_proj_scales$"),
        (
            {"down_proj_blocks": torch.zeros(8, 64, 3, 8, dtype=torch.uint8)},
            r"down_proj_blocks \[8, 64, 3, 8\] instead",
        ),
        ({"down_proj_scales": torch.zeros(8, 64, 3)}, r"down_proj_scales holds torch\.float32, but MXFP4"),
    ]
    for i, (changes, message) in enumerate(cases):
        (tmp_path / str(i)).mkdir()
        folder = with_tensors(tmp_path / str(i), folders[0], **changes)
        for ops in (TorchOps(), PackedOps()):
            with pytest.raises(ModelLoadError, match=message):
                load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", ops=ops)
    config = json.loads((folders[0] / "config.json").read_text())
    del config["quantization_config"]  # the files decide nothing by themselves
    (tmp_path / "0" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=r"missing: \S*\.experts\.down_proj, .*unexpected: \S*_blocks"):
        load_model(tmp_path / "0", load_model_spec(tmp_path / "0"), dtype="float32", device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantization_config": {**PUBLISHED, "group_size": 64}}, "quantization_config: group_size is not supported"),
        (
            {"quantization_config": {**PUBLISHED, "modules_to_not_convert": ["model.layers.0.mlp.experts"]}},
            "other than",
        ),
        ({"quantization_config": PUBLISHED, "hidden_size": 2896}, "hidden_size 2896 is no multiple of 32"),
        ({"quantization_config": PUBLISHED, "architectures": ["LlamaForCausalLM"]}, "mxfp4"),
        ({"quantization_config": "mxfp4"}, "quantization_config"),
    ],
)
def test_other_quantizations_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_model_spec({**GPT_OSS_20B, **changes}, {})
    published = parse_model_spec({**GPT_OSS_20B, "quantization_config": PUBLISHED}, {}).decoder
    assert published is not None
    assert published.quantization == mxfp4.Mxfp4Quantization()


def test_the_configuration_is_read_without_torch(folders: tuple[Path, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from radixrt.models.model_config import load_model_spec;"
        " spec = load_model_spec(Path(sys.argv[1])); assert spec.decoder.quantization is not None;"
        " sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(folders[0])], check=True)
