"""A decoder layer's mixer and feed-forward are chosen by the spec, through the tables alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixrt.distributed.partial_sum import PartialSum
from radixrt.errors import ModelLoadError
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.layers.formats.checkpoint import ParameterSources, replicated
from radixrt.layers.linear import meta_parameter
from radixrt.models.decoder import FEED_FORWARDS, MIXERS, Decoder
from radixrt.models.decoder_layer import FeedForward, LayerContext, Mixer, MixerInputs
from radixrt.models.decoder_spec import LayerSpec
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import ModelSpec, load_model_spec
from tests.models.dense_attention import run_in_steps
from tests.models.test_decoder import sequences
from tests.tiny_models import make_tiny_model


class DecayMixer(Mixer):
    """A recurrence: the state of a sequence is halved, then a token's row is added to it."""

    def __init__(self, context: LayerContext, layer: LayerSpec, index: int) -> None:
        super().__init__()
        self.index, self._prefix = index, context.prefix
        self.scale = meta_parameter(context.spec.hidden_size, dtype=context.dtype)
        self._states: dict[int, torch.Tensor] = {}

    def mix(self, x: torch.Tensor, inputs: MixerInputs, narrowed: ForwardBatch | None) -> torch.Tensor:
        batch, out, at = inputs.batch, torch.empty_like(x), 0
        for row, count in zip(batch.req_pool_indices.tolist(), batch.extend_lens_cpu.tolist(), strict=True):
            state = self._states.get(row, torch.zeros_like(x[0]))
            for i in range(at, at + count):
                state = state / 2 + x[i]
                out[i] = state
            self._states[row], at = state, at + count
        return out

    def project(self, mixed: torch.Tensor) -> PartialSum:
        return PartialSum(mixed * self.scale)

    def checkpoint_tensors(self) -> ParameterSources:
        return {"scale": replicated(f"{self._prefix}.decay.scale", tuple(self.scale.shape))}


class ScaledFeedForward(FeedForward):
    def __init__(self, context: LayerContext, layer: LayerSpec) -> None:
        super().__init__()
        self._prefix = context.prefix
        self.scale = meta_parameter(context.spec.hidden_size, dtype=context.dtype)

    def forward(self, x: torch.Tensor) -> PartialSum:
        return PartialSum(torch.tanh(x) * self.scale)

    def checkpoint_tensors(self) -> ParameterSources:
        return {"scale": replicated(f"{self._prefix}.mlp.scale", tuple(self.scale.shape))}


def with_decoder(spec: ModelSpec, **changes: object) -> ModelSpec:
    assert spec.decoder is not None
    return dataclasses.replace(spec, decoder=dataclasses.replace(spec.decoder, **changes))  # type: ignore[arg-type]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_layers_of_several_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXERS, "decay", DecayMixer)
    monkeypatch.setitem(FEED_FORWARDS, "scaled", ScaledFeedForward)
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=2)
    kinds = (LayerSpec("decay", "scaled"), LayerSpec("attention", "scaled"), LayerSpec("decay"), LayerSpec())
    spec = with_decoder(load_model_spec(folder), layers=kinds)
    model = load_model(folder, spec, dtype="float32", device="cpu", load_format="dummy")
    assert isinstance(model, Decoder)
    mixers = [layer.mixer for layer in model.layers]
    assert [mixer.index for mixer in mixers if isinstance(mixer, DecayMixer)] == [0, 1]
    assert [layer.layer_id for layer in model.attention_layers] == [0, 1]  # one after the other in the KV pool
    assert all(torch.isfinite(logits).all() for logits in run_in_steps(model, sequences()))


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_kind_loads_and_computes_what_it_names(
    spoiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIXERS, "decay", DecayMixer)
    monkeypatch.setitem(FEED_FORWARDS, "scaled", ScaledFeedForward)
    folder = make_tiny_model(tmp_path / "m", num_hidden_layers=1)
    spec = with_decoder(load_model_spec(folder), layers=(LayerSpec("decay", "scaled"),))
    tensors = {name: t for name, t in load_file(folder / "model.safetensors").items() if ".layers.0." not in name}
    generator = torch.Generator().manual_seed(7)
    norms = ("input_layernorm.weight", "post_attention_layernorm.weight")
    for name in ("decay.scale", *(("mlp.other",) if spoiled else ("mlp.scale",)), *norms):
        tensors[f"model.layers.0.{name}"] = torch.randn(64, generator=generator)
    save_file(tensors, folder / "model.safetensors")
    if spoiled:
        with pytest.raises(ModelLoadError, match=r"missing: model\.layers\.0\.mlp\.scale; unexpected: .*mlp\.other"):
            load_model(folder, spec, dtype="float32", device="cpu")
        return
    model = load_model(folder, spec, dtype="float32", device="cpu")
    inputs, eps = sequences(2), 1e-6
    for ids, found in zip(inputs, run_in_steps(model, inputs), strict=True):
        residual = tensors["model.embed_tokens.weight"][ids]
        x = rms_norm(residual, tensors["model.layers.0.input_layernorm.weight"], eps)
        mixed = [x[0]]
        for row in x[1:]:
            mixed.append(mixed[-1] / 2 + row)
        residual = residual + torch.stack(mixed) * tensors["model.layers.0.decay.scale"]
        x = rms_norm(residual, tensors["model.layers.0.post_attention_layernorm.weight"], eps)
        residual = residual + torch.tanh(x) * tensors["model.layers.0.mlp.scale"]
        expected = rms_norm(residual, tensors["model.norm.weight"], eps) @ tensors["lm_head.weight"].T
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
