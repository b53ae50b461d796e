"""A GGUF file whose weights stay packed is the same model, bit by bit in float32, in every place that it is read."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors import safe_open

from radixrt.errors import ModelLoadError
from radixrt.layers.formats import gguf as gguf_format
from radixrt.layers.formats.gguf_types import PACKED_TYPES
from radixrt.layers.formats.joined import Joined
from radixrt.layers.formats.plain import Plain
from radixrt.layers.formats.quantized import Quantized
from radixrt.models.decoder import Decoder
from radixrt.models.loading.gguf import convert_gguf
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.runner.weights_info import weights_info
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.dense_attention import run_in_steps
from tests.models.loading.test_gguf import write_gguf
from tests.models.loading.test_gguf_blocks import random_blocks
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
Q4_K_M = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "token_embd": "Q4_K"}
"""The types of llama.cpp's most usual mixture that are not Q4_K."""


def quantized(kind: str, others: dict[str, str] | None = None) -> Callable[[str, np.ndarray], tuple[np.ndarray, str]]:
    """Return a `quantize` of `write_gguf`: weights in one type but for some parts of the model."""

    def quantize(name: str, values: np.ndarray) -> tuple[np.ndarray, str]:
        own = (others or {}).get(name.split(".")[-2], kind)
        number = gguf.GGMLQuantizationType[own]
        if own in ("F32", "F16"):
            return values.astype({"F32": np.float32, "F16": np.float16}[own]), own
        try:
            return gguf.quants.quantize(values, number), own
        except NotImplementedError:  # of the K types the package only reads blocks
            return small_blocks(own, *values.shape), own

    return quantize


def small_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Return random blocks of weights around 0.05."""
    blocks = random_blocks(kind, rows, columns, seed=rows)
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    view = blocks.reshape(rows, -1, size)
    scale = {"Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 2e-5, "Q2_K": 1e-3, "Q3_K": 1e-3}[kind]
    draw = np.random.default_rng(rows)
    for at, factor in {"Q6_K": [(208, 1)], "Q2_K": [(80, 1), (82, 1)], "Q3_K": [(108, 0.05)]}.get(
        kind, [(0, 1), (2, 8 if kind == "Q4_K" else 16)]
    ):
        values = (draw.uniform(0.5, 1.5, view.shape[:2]) * scale * factor).astype(np.float16)
        view[..., at : at + 2] = values[..., None].view(np.uint8)
    return blocks


def converted(
    folder: Path,
    quantize: Callable[[str, np.ndarray], tuple[np.ndarray, str]],
    dtype: str = "float32",
    arch: str = "llama",
    **overrides: Any,
) -> tuple[Path, Path]:
    """Write a tiny model as a GGUF file, and return the folders of its expanded and of its packed conversion."""
    made = make_tiny_model(folder / "hf", arch, **{**SIZES, **overrides})
    write_gguf(made, folder / "model.gguf", arch, quantize=quantize)
    for name in ("expanded", "packed"):
        (folder / name).mkdir()
        convert_gguf(folder / "model.gguf", folder / name, dtype, packed=name == "packed", show_progress=False)
    return folder / "expanded", folder / "packed"


def logits(
    folder: Path, group: ThreadGroup | None = None, dtype: str = "float32"
) -> tuple[list[torch.Tensor], Decoder]:
    model = load_model(folder, load_model_spec(folder), dtype=dtype, device="cpu", group=group)
    assert isinstance(model, Decoder)
    return run_in_steps(model, sequences()), model


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor], *, biased: bool = False) -> None:
    """Compare logits bit by bit, or almost where layers have biases: a product that begins with its bias rounds
    otherwise than a product whose bias is added behind it, and processors differ in which one torch computes."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.isfinite().all()
        tolerance = 1e-4 if biased else 0.0
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@pytest.fixture
def keeps_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference of quantized weights multiplies, as if it were a kernel."""
    monkeypatch.setattr(gguf_format, "_has_kernels", lambda _: True)


def attention(model: Decoder) -> Any:
    layer: Any = model.layers[0]
    return layer.mixer.qkv_proj.format


@pytest.mark.usefixtures("keeps_codes")
@pytest.mark.parametrize("kind", PACKED_TYPES)
def test_a_packed_model_is_the_expanded_one(kind: str, tmp_path: Path) -> None:
    expanded, packed = converted(tmp_path, quantized(kind))
    theirs, _ = logits(expanded)
    ours, model = logits(packed)
    assert type(attention(model)) is Quantized
    assert type(model.lm_head.format) is Quantized  # type: ignore[union-attr]
    assert_same(ours, theirs)
    spec = load_model_spec(packed).decoder
    assert spec is not None
    assert spec.quantization is not None
    assert spec.quantization.scheme == f"gguf {kind}"
    assert spec.quantization.num_bytes("linear", 8000, 2, "cpu") == 1000 * PACKED_TYPES[kind].bits


@pytest.mark.usefixtures("keeps_codes")
@pytest.mark.parametrize("others", [Q4_K_M, {"attn_k": "Q2_K", "ffn_up": "F16", "attn_output": "F32"}])
def test_layers_may_mix_types(others: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="radixrt")
    expanded, packed = converted(tmp_path, quantized("Q4_K", others), attention_bias=True)
    theirs, _ = logits(expanded)
    ours, model = logits(packed)
    assert type(attention(model)) is Joined
    assert_same(ours, theirs, biased=True)
    info = weights_info(model, load_model_spec(packed))
    assert info.kernels == ("plain torch",)
    assert info.quantized > 0.6
    said = [record.getMessage() for record in caplog.records if "expanded" in record.getMessage()]
    assert said == (["model.gguf: tensors of type Q2_K are expanded"] if "attn_k" in others else [])


def test_without_kernels_it_is_expanded_while_it_loads(tmp_path: Path) -> None:
    expanded, packed = converted(tmp_path, quantized("Q4_1", {"attn_v": "F16", "ffn_down": "Q6_K"}), "bfloat16")
    theirs, _ = logits(expanded, dtype="bfloat16")
    ours, model = logits(packed, dtype="bfloat16")
    assert isinstance(attention(model), Plain)
    assert_same(ours, theirs)


@pytest.mark.usefixtures("keeps_codes")
@pytest.mark.parametrize(("arch", "columns"), [("llama", 512), ("qwen2", 96)])
def test_a_tied_head_is_packed_beside_the_embedding(arch: str, columns: int, tmp_path: Path) -> None:
    sizes = {"intermediate_size": columns, "tie_word_embeddings": True}
    expanded, packed = converted(tmp_path, quantized("Q8_0"), arch=arch, **sizes)
    theirs, _ = logits(expanded)
    ours, model = logits(packed)
    assert type(model.lm_head.format) is Quantized  # type: ignore[union-attr]
    assert model.embed_tokens is not None
    quantization = load_model_spec(packed).decoder.quantization  # type: ignore[union-attr]
    assert quantization is not None
    assert quantization.head_copy_bytes(3200, "cpu") == 3400
    assert model.embed_tokens.dtype == torch.float32
    assert_same(ours, theirs, biased=arch == "qwen2")
    random = load_model(packed, load_model_spec(packed), dtype="float32", device="cpu", load_format="dummy")
    assert all(step.isfinite().all() for step in run_in_steps(random, sequences()))


@pytest.mark.usefixtures("keeps_codes")
@pytest.mark.parametrize("columns", [256, 96])
def test_ranks_share_it_and_expand_what_they_would_divide(columns: int, tmp_path: Path) -> None:
    """Two ranks have 128 or 48 columns each of the projection down, in groups of 32."""
    expanded, packed = converted(tmp_path, quantized("Q4_1"), intermediate_size=columns)
    theirs = on_ranks(2, lambda group: logits(expanded, group))
    ours = on_ranks(2, lambda group: logits(packed, group))
    for (mine, model), (other, _) in zip(ours, theirs, strict=True):
        assert_same(mine, other)
        layer: Any = model.layers[0]
        assert type(layer.feed_forward.down_proj.format) is (Plain if columns == 96 else Quantized)


def test_the_folder_holds_the_file_and_no_more(tmp_path: Path) -> None:
    expanded, packed = converted(tmp_path, quantized("Q4_K", Q4_K_M))
    with safe_open(packed / "model.safetensors", "pt") as file:
        names = set(file.keys())
        q, v = (f"model.layers.0.self_attn.{name}_proj.weight" for name in "qv")
        assert {q, f"{q}_scale", f"{q}_minimum", v, f"{v}_scale", "model.embed_tokens.weight"} <= names
        assert f"{v}_minimum" not in names
        assert file.get_slice(q).get_dtype() == "U8"
        assert file.get_slice("model.embed_tokens.weight").get_dtype() == "F32"
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (packed, expanded)]
    assert sizes[0] < 0.45 * sizes[1]
    assert "quantization_config" not in json.loads((expanded / "config.json").read_text())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"types": {"lm_head": "IQ2_XXS"}}, "lm_head has the type 'IQ2_XXS'"),
        ({"types": []}, "types must name"),
        ({"bits_per_weight": "many"}, "bits_per_weight"),
        ({"desc_act": True}, "desc_act"),
    ],
)
def test_a_config_that_it_does_not_write_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    _, packed = converted(tmp_path, quantized("Q8_0"), num_hidden_layers=1)
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"] |= change
    (packed / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=named):
        load_model_spec(packed)


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "hf", **SIZES)
    write_gguf(folder, tmp_path / "model.gguf", "llama", quantize=quantized("Q8_0"))
    data = bytearray((tmp_path / "model.gguf").read_bytes())
    place = data.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4
    data[place : place + 8] = (250).to_bytes(8, "little")
    (tmp_path / "model.gguf").write_bytes(data)
    for packed in (True, False):
        with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q\.weight"):
            convert_gguf(tmp_path / "model.gguf", tmp_path, "float32", packed=packed, show_progress=False)
