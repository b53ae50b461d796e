"""A decoder split over ranks computes what the whole one computes, from its own slices of the checkpoint alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.errors import ConfigError, ModelLoadError
from radixrt.layers.formats.checkpoint import CheckpointTensor
from radixrt.models.decoder import Decoder
from radixrt.models.loading.weights import Checkpoint, load_model
from radixrt.models.model_config import load_model_spec
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import CASES, sequences
from tests.tiny_models import KINDS, make_tiny_model


def logits(folder: Path, group: ThreadGroup | None = None, **options: Any) -> list[torch.Tensor]:
    model = load_model(
        folder, load_model_spec(folder), **{"dtype": "float32", "device": "cpu", "group": group, **options}
    )
    return run_in_steps(model, sequences())


def assert_equal(folder: Path, size: int, **options: Any) -> None:
    whole = logits(folder, **options)
    for of_rank in on_ranks(size, lambda group: logits(folder, group, **options)):
        for split, expected in zip(of_rank, whole, strict=True):
            assert split.shape == expected.shape
            torch.testing.assert_close(split, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(case: str, tmp_path: Path) -> None:
    kind, overrides = CASES[case]
    assert_equal(make_tiny_model(tmp_path / "m", kind, **overrides), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_more_ranks_than_key_value_heads(kind: str, tmp_path: Path) -> None:
    assert_equal(make_tiny_model(tmp_path / "m", kind), 4)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab_size", [500, 509, 129])
def test_a_vocabulary_that_does_not_divide(vocab_size: int, tied: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", vocab_size=vocab_size, tie_word_embeddings=tied)
    whole = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu")
    inputs = [[token % vocab_size for token in ids] for ids in sequences()]
    expected = run_in_steps(whole, inputs)

    def split(group: ThreadGroup) -> list[torch.Tensor]:
        model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=group)
        return run_in_steps(model, inputs)

    for of_rank in on_ranks(4, split):
        for ours, theirs in zip(of_rank, expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "qwen3_moe", "lfm2", "qwen3_next", "gpt_oss"])
def test_dummy_weights_are_slices_of_one_model(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", kind, vocab_size=500)
    (folder / "model.safetensors").unlink()
    assert_equal(folder, 2, load_format="dummy", seed=7)


def test_bfloat16_is_close(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", attention_bias=True, mlp_bias=True)
    whole = logits(folder)
    for split, expected in zip(on_ranks(2, lambda g: logits(folder, g, dtype="bfloat16"))[1], whole, strict=True):
        assert (split - expected).abs().mean() < 0.02 * expected.abs().mean() + 0.02


def test_a_step_has_two_sums_a_layer_and_one_gather(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    spec = load_model_spec(folder)
    assert spec.decoder is not None

    def one(group: ThreadGroup) -> list[str]:
        model = load_model(folder, spec, dtype="float32", device="cpu", group=group)
        run_in_steps(model, sequences(1))
        return group.calls

    layers = len(spec.decoder.layers)
    assert on_ranks(2, one)[0] == 3 * ["all_reduce", *(2 * layers * ["all_reduce"]), "all_gather_columns"]


def test_a_rank_reads_its_slices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_model(tmp_path / "m", attention_bias=True)
    parts: list[tuple[CheckpointTensor, torch.Tensor]] = []
    read = Checkpoint.read

    def noted(self: Checkpoint, wanted: CheckpointTensor, device: torch.device) -> torch.Tensor:
        parts.append((wanted, read(self, wanted, device)))
        return parts[-1][1]

    whole = held(folder, None)
    monkeypatch.setattr(Checkpoint, "read", noted)
    sizes = on_ranks(4, lambda g: held(folder, g))
    assert len(set(sizes)) == 1
    assert sizes[0] < 0.3 * whole
    for wanted, part in parts:
        if len(wanted.shape) == 2:  # of four ranks two share a key-value head
            assert part.numel() * (2 if "k_proj" in wanted.name or "v_proj" in wanted.name else 4) == math.prod(
                wanted.shape
            )


def held(folder: Path, group: ThreadGroup | None) -> int:
    model = load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=group)
    assert isinstance(model, Decoder)
    return sum(p.numel() for p in model.parameters())


def test_what_does_not_fit_is_named_as_for_one_rank(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=2)
    spec = load_model_spec(make_tiny_model(tmp_path / "other", num_hidden_layers=2, intermediate_size=128))
    with pytest.raises(ModelLoadError, match=r"down_proj.weight \[64, 112\] instead of \[64, 128\]"):
        on_ranks(2, lambda g: load_model(folder, spec, dtype="float32", device="cpu", group=g))


def test_sizes_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m")
    with pytest.raises(ConfigError, match=r"tp=3 .* tp may be 1, 2, 4"):
        on_ranks(3, lambda g: load_model(folder, load_model_spec(folder), dtype="float32", device="cpu", group=g))
