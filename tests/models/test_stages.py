"""Pipeline stages of a decoder: which layers each gets, what it reads, and that all of them are the whole model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.common.model_shapes import CONFIGS
from radixrt.distributed.parallel import TPGroup
from radixrt.distributed.partial_sum import PartialSum
from radixrt.errors import ConfigError, ModelLoadError
from radixrt.layers.formats.checkpoint import CheckpointTensor
from radixrt.layers.ops import TorchOps
from radixrt.models.decoder import Decoder
from radixrt.models.decoder_spec import LayerSpec, RecurrentSpec
from radixrt.models.loading.weights import Checkpoint, load_model
from radixrt.models.model_config import ModelSpec, load_model_spec, parse_model_spec
from radixrt.models.stages import Stage, divide_layers, stage_of
from tests.distributed.rank_threads import ThreadGroup, on_ranks
from tests.models.dense_attention import DenseAttention, make_batch, run_in_steps, steps_of
from tests.models.test_decoder import CASES, sequences
from tests.tiny_models import make_tiny_model


def load(folder: Path, stage: Stage | None = None, **options: Any) -> Decoder:
    model = load_model(
        folder, load_model_spec(folder), **{"dtype": "float32", "device": "cpu", "stage": stage, **options}
    )
    assert isinstance(model, Decoder)
    return model


@torch.inference_mode()
def run_stages(stages: Sequence[Decoder]) -> list[torch.Tensor]:
    """Logits of every position of each step, computed by the stages one after another."""
    attentions, logits = [DenseAttention() for _ in stages], []
    for lens, ids in steps_of(sequences()):
        batch, sent = make_batch(lens, ids), None
        for model, attention in zip(stages, attentions, strict=True):
            sent = model.forward(batch.input_ids, batch.positions, batch, attention, sent)
            if model is not stages[-1]:
                assert sent.is_contiguous()
                expected = stages[-1].stage_input(len(ids))
                assert expected is not None
                assert (sent.shape, sent.dtype) == (expected.shape, expected.dtype)
        assert sent is not None
        logits.append(stages[-1].compute_logits(sent))
    return logits


@pytest.mark.parametrize("case", CASES)
def test_stages_compute_what_the_whole_model_does_to_the_bit(case: str, tmp_path: Path) -> None:
    kind, overrides = CASES[case]
    folder = make_tiny_model(tmp_path / "m", kind, **{"num_hidden_layers": 4, **overrides, **of_four(kind, overrides)})
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    whole = run_stages([load(folder)])
    divisions = [divide_layers(spec, 2)] if spec.decoder.recurrent is None else [(2, 2)]
    divisions += [(1, 2, 1)] if spec.decoder.recurrent is None else []
    for layers in divisions:
        split = run_stages([load(folder, stage_of(i, layers)) for i in range(len(layers))])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(split, whole, strict=True))


def of_four(kind: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Fields that give a model four layers, and a hybrid one attention in both halves."""
    if kind == "lfm2":
        return {"layer_types": ["conv", "full_attention", "full_attention", "conv"]}
    if kind.startswith("qwen3_5") or kind == "qwen3_next":
        return {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]}
    if "layer_types" in overrides:
        return {"layer_types": [*overrides["layer_types"], "sliding_attention"]}
    return {}


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_reads_its_own_tensors_alone(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=4, tie_word_embeddings=tied)
    names: list[str] = []
    read = Checkpoint.read

    def noted(self: Checkpoint, wanted: CheckpointTensor, device: torch.device) -> torch.Tensor:
        names.append(wanted.name)
        return read(self, wanted, device)

    monkeypatch.setattr(Checkpoint, "read", noted)
    found = []
    for i in range(3):
        names.clear()
        load(folder, stage_of(i, (1, 2, 1)))
        found.append({name.partition("model.")[2].removeprefix("layers.").partition(".")[0] or name for name in names})
    embedding = {"embed_tokens"}
    assert found == [{"0"} | embedding, {"1", "2"}, {"3", "norm"} | (embedding if tied else {"lm_head.weight"})]


@pytest.mark.parametrize("tied", [False, True])
def test_dummy_stages_are_parts_of_one_model(tied: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", "qwen3_moe", num_hidden_layers=4, tie_word_embeddings=tied)
    (folder / "model.safetensors").unlink()
    dummy = {"load_format": "dummy", "seed": 5}
    whole = run_stages([load(folder, **dummy)])
    split = run_stages([load(folder, stage_of(i, (3, 1)), **dummy) for i in range(2)])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(split, whole, strict=True))


def test_a_tensor_that_no_stage_knows_is_named(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=4)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 4', '"num_hidden_layers": 3'))
    for i in range(2):
        with pytest.raises(ModelLoadError, match=r"unexpected: model\.layers\.3\.input_layernorm\.weight"):
            load(folder, stage_of(i, (2, 1)))


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_two_ranks_in_each_of_two_stages(kind: str, tmp_path: Path) -> None:
    """Each rank hands its own addend to its counterpart, and the next stage's first norm sums them."""
    folder = make_tiny_model(tmp_path / "m", kind, num_hidden_layers=4, attention_bias=True)
    expected = run_in_steps(load(folder), sequences())

    def chain(group: ThreadGroup) -> list[torch.Tensor]:
        return run_stages([load(folder, stage_of(i, (2, 2)), group=group) for i in range(2)])

    def whole(group: ThreadGroup) -> list[torch.Tensor]:
        return run_stages([load(folder, group=group)])

    for split, unsplit in zip(on_ranks(2, chain), on_ranks(2, whole), strict=True):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(split, unsplit, strict=True))
        rows = torch.cat([step[: lens[0][2]] for step, (lens, _) in zip(split, steps_of(sequences()), strict=True)])
        torch.testing.assert_close(rows, expected[0], atol=1e-4, rtol=0)


def test_the_addends_that_a_stage_sends_are_plain_tensors(tmp_path: Path) -> None:
    """No kernel of the stage sends them to the other ranks: the next stage adds them up."""
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=4)

    class Noting(TorchOps):
        def __init__(self) -> None:
            self.shared: list[bool] = []

        def linear_partial_sum(
            self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: TPGroup | None
        ) -> PartialSum:
            self.shared.append(group is not None)
            return super().linear_partial_sum(x, weight, bias, group)

    def of_stages(group: ThreadGroup) -> list[list[bool]]:
        ops = [Noting(), Noting()]
        run_stages([load(folder, stage_of(i, (2, 2)), group=group, ops=ops[i]) for i in range(2)])
        return [each.shared[:4] for each in ops]

    assert on_ranks(2, of_stages)[1] == [[True, True, True, False], [True] * 4]


# --- which layers a stage gets ---


def spec_of(shape: str, *, recurrent: Sequence[int] = (), **fields: Any) -> ModelSpec:
    """The spec of a public model, with some of its layers recurrent instead."""
    spec = parse_model_spec({**CONFIGS[shape], **fields}, {})
    assert spec.decoder is not None
    conv = LayerSpec(mixer="short_conv")
    layers = tuple(conv if i in recurrent else layer for i, layer in enumerate(spec.decoder.layers))
    decoder = dataclasses.replace(spec.decoder, layers=layers, recurrent=RecurrentSpec(3) if recurrent else None)
    return dataclasses.replace(spec, decoder=decoder)


def test_layers_are_divided_by_cost() -> None:
    llama = spec_of("llama-3.1-8b")
    assert divide_layers(llama, 1) == (32,)
    assert divide_layers(llama, 2) == (16, 16)
    assert divide_layers(llama, 3) == (11, 11, 10)
    # The head of a small model with many tokens weighs as much as layers do; a quarter of it counts.
    assert divide_layers(spec_of("qwen3-0.6b"), 2) == (15, 13)
    assert divide_layers(spec_of("qwen3-0.6b", vocab_size=1000), 2) == (14, 14)


def test_every_stage_has_attention() -> None:
    hybrid = spec_of("llama-3.1-8b", num_hidden_layers=8, vocab_size=1000, recurrent=[1, 2, 3, 4, 5, 6])
    assert divide_layers(hybrid, 2) == (4, 4)
    last = spec_of("llama-3.1-8b", num_hidden_layers=8, vocab_size=1000, recurrent=[0, 1, 2, 3, 4, 5])
    assert divide_layers(last, 2) == (7, 1)
    with pytest.raises(ConfigError, match=r"pp=3: LlamaForCausalLM has 2 layers with attention.* pp may be 1 to 2"):
        divide_layers(hybrid, 3)


def test_the_first_stage_adds_the_deepstack_rows_of_images() -> None:
    spec = parse_model_spec(CONFIGS["qwen3-vl-2b"], {})
    assert divide_layers(spec, 2) == (15, 13)
    assert divide_layers(spec, 26) == (3, *[1] * 25)
    with pytest.raises(ConfigError, match=r"28 layers with attention.* the first 3 layers.* pp may be 1 to 26"):
        divide_layers(spec, 27)
    assert divide_layers(spec, 2, "3,25") == (3, 25)
    with pytest.raises(ConfigError, match="give stage 0 at least 3 layers, not 2"):
        divide_layers(spec, 2, "2,26")


def test_layers_may_be_given() -> None:
    hybrid = spec_of("llama-3.1-8b", num_hidden_layers=8, recurrent=[2, 3, 4, 5, 6])
    assert divide_layers(hybrid, 2, "1, 7") == (1, 7)
    for wanted in ("8", "4,5", "0,8", "a,4", "4,4,0", "-1,9", ""):
        with pytest.raises(ConfigError, match=r"pp_layers=.* must be 2 numbers above 0.* that make 8 layers"):
            divide_layers(hybrid, 2, wanted)
    with pytest.raises(ConfigError, match="stage 1 would have no layer with attention"):
        divide_layers(hybrid, 3, "2,5,1")
    with pytest.raises(ConfigError, match="pp is 1; set pp"):
        divide_layers(hybrid, 1, "8")


def test_a_model_of_transformers_code_has_no_stages() -> None:
    spec = dataclasses.replace(spec_of("llama-3.1-8b"), decoder=None, architecture="GPT2LMHeadModel")
    assert divide_layers(spec, 1) == (0,)
    with pytest.raises(ConfigError, match="pp=2: GPT2LMHeadModel runs through transformers"):
        divide_layers(spec, 2)
