"""`TransformersModel`: transformers' own modeling code with our attention, for architectures without a class of ours.

All tokens of a step pass as one sequence with explicit position ids and no mask. That is right only for models whose
tokens meet in attention alone, through transformers' attention interface; loading probes that and refuses the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AttentionInterface

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.errors import ModelLoadError
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.models.model_config import ModelSpec
from radixrt.models.transformers_probe import AttentionCall, check_calls, check_config, check_no_other_mixing

INTERFACE = "radixrt"


@dataclass(frozen=True)
class StepContext:
    """What a forward pass carries down to every attention call."""

    batch: ForwardBatch
    attention: AttentionBackend
    layers: list[AttentionLayer]


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """The function in transformers' attention interface: query [1, heads, T, D] -> [1, T, heads, D]."""
    context = kwargs.pop("radixrt_context", None)
    if isinstance(context, _Probe):
        return context.record(module, query, key, value, mask, kwargs), None
    if not isinstance(context, StepContext):
        raise ModelLoadError(f"{type(module).__name__} does not get the arguments of the forward pass")
    layer = context.layers[module.layer_idx]  # type: ignore[index]
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    out = context.attention.attend(layer, q, k, v, context.batch)
    return out.view(1, q.shape[0], layer.num_heads, layer.head_dim), None


AttentionInterface.register(INTERFACE, _attend)


class _Probe:
    """Stands in for the context while a model is probed: attention returns zeros, calls are recorded."""

    def __init__(self) -> None:
        self.calls: list[AttentionCall] = []

    def record(
        self, module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, kwargs: Any
    ) -> torch.Tensor:
        self.calls.append(
            AttentionCall(module, tuple(query.shape), tuple(key.shape), tuple(value.shape), mask, dict(kwargs))
        )
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


class _GivenHidden(nn.Module):
    """Takes the place of the base model when only the head is wanted: returns the hidden states that it is given."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _HiddenOnly:
        return _HiddenOnly(inputs_embeds)


class _HiddenOnly:
    """A base model's output in which every optional part (past keys, router logits, ...) is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class TransformersModel(nn.Module):
    """A causal language model of transformers. Build one with `from_folder`."""

    narrows = False  # its layers are transformers' and take all tokens alike

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        prefix = model.base_model_prefix
        base = getattr(model, prefix, None)
        if not isinstance(base, nn.Module) or base is model:
            raise ModelLoadError(f"{type(model).__name__} has no base model {prefix!r} apart from its head")
        # The head keeps whatever the class does to its logits (scaling, soft caps): its forward runs over a base model
        # that returns the hidden states given to it.
        self._base = base
        self._head = model
        setattr(model, prefix, _GivenHidden())
        self.attention_layers = self._probe()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        spec: ModelSpec,
        dtype: torch.dtype,
        device: torch.device,
        dummy: bool,
        seed: int,
        show_progress: bool,
    ) -> TransformersModel:
        """Load the weights (safetensors alone), or make random ones, and probe the model.

        Raises:
            ModelLoadError: transformers does not know or cannot load the model, tensors do not fit, or the model needs
                what this engine does not do; names it.
        """
        transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        if not show_progress:
            transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            check_config(config, spec.context_length)
            if dummy:
                model = _random_model(config, dtype, device, seed)
            else:
                model = _load(folder, config, spec, dtype)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            # Some classes look their attention up in a table of their own.
            if isinstance(error, KeyError) and error.args == (INTERFACE,):
                raise ModelLoadError(f"{spec.architecture} does not use transformers' attention interface") from error
            raise ModelLoadError(f"transformers cannot load {spec.architecture} from {folder}: {error}") from error
        if type(model).__name__ != spec.architecture:
            raise ModelLoadError(f"{spec.architecture} is not a causal language model in transformers")
        return cls(model.to(device).eval())

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: AttentionBackend
    ) -> torch.Tensor:
        """int64 [T] token ids and positions -> [T, hidden], the final norm applied."""
        return self._run(input_ids, positions, StepContext(batch, attention, self.attention_layers))

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab]."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def compute_local_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """None: there is one rank."""
        return None

    def _run(self, input_ids: torch.Tensor, positions: torch.Tensor, context: StepContext | _Probe) -> torch.Tensor:
        output = self._base(
            input_ids=input_ids[None], position_ids=positions[None], use_cache=False, radixrt_context=context
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden[0]

    @torch.inference_mode()
    def _probe(self) -> list[AttentionLayer]:
        """Run a few tokens without attention, twice, and learn each layer's attention from its calls.

        Raises:
            ModelLoadError: what the model does cannot be served; names it.
        """
        device = next(self._base.parameters()).device
        outputs, probe = [], _Probe()
        for first in (3, 4):
            probe = _Probe()
            ids = torch.tensor([first, 5, 6, 5], device=device)
            try:
                outputs.append(self._run(ids, torch.tensor([0, 1, 2, 3], device=device), probe))
            except (TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise ModelLoadError(f"{type(self._head).__name__} cannot run step by step: {error}") from error
        check_no_other_mixing(self._head, *outputs)
        layers = check_calls(self._head, probe.calls)
        logits = self.compute_logits(outputs[0][:2])
        if logits.dim() != 2 or logits.shape[0] != 2:
            raise ModelLoadError(f"{type(self._head).__name__} makes logits of shape {list(logits.shape)}")
        return layers


def _random_model(config: Any, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with torch.device(device):
            auto: Any = transformers.AutoModelForCausalLM
            return auto.from_config(config, dtype=dtype, attn_implementation=INTERFACE)


def _load(folder: Path, config: Any, spec: ModelSpec, dtype: torch.dtype) -> Any:
    auto: Any = transformers.AutoModelForCausalLM
    model, info = auto.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        attn_implementation=INTERFACE,
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    problems = [f"{kind.replace('_', ' ')}: {sorted(map(str, names))[:12]}" for kind, names in info.items() if names]
    if problems:
        raise ModelLoadError(f"the tensors in {folder} do not fit {spec.architecture}; {'; '.join(problems)}")
    return model
