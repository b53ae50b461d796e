"""`TransformersModel`: transformers' modeling code with this engine's attention, for architectures without a class
here.

All tokens of a step pass as one sequence with explicit position ids and no mask. That is correct only for models whose
tokens interact in attention alone, through transformers' attention interface. Loading probes the model by a forward
pass and refuses every other model by name (`radixrt.models.transformers_checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AttentionInterface

from radixrt.attention.base import AttentionBackend, AttentionLayer
from radixrt.attention.state_pool import StateShape
from radixrt.errors import ModelLoadError
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.models.loading.model_files import shorten
from radixrt.models.model_config import ModelSpec
from radixrt.models.registry import alternatives, no_progress
from radixrt.models.transformers_checks import (
    AttentionCall,
    check_calls,
    check_config,
    check_no_other_mixing,
    layer_of,
)

INTERFACE = "radixrt"
"""Name of this engine in transformers' attention interface."""


@dataclass(frozen=True)
class StepContext:
    """Argument of a forward pass that every attention call receives."""

    batch: ForwardBatch
    attention: AttentionBackend
    layers: list[AttentionLayer]
    progress: Callable[[], None]


def _attend(
    module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Implement transformers' attention interface: query [1, heads, T, D] -> [1, T, heads, D]."""
    context = kwargs.pop("radixrt_context", None)
    if isinstance(context, _Probe):
        return context.record(module, query, key, value, mask, kwargs), None
    if not isinstance(context, StepContext):
        raise ModelLoadError(f"{type(module).__name__} does not get the arguments of the forward pass")
    layer = context.layers[module.layer_idx]  # type: ignore[index]
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    out = context.attention.attend(layer, q, k, v, context.batch)
    context.progress()
    return out.view(1, q.shape[0], layer.num_heads, layer.head_dim), None


AttentionInterface.register(INTERFACE, _attend)


class _Probe:
    """Takes the place of the context while a model is probed: attention returns zeros and is recorded."""

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
    """Takes the place of the base model in front of the head: returns the hidden states that it is given."""

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

    narrows = False  # transformers' layers compute all tokens
    classifier = None

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        super().__init__()
        prefix = model.base_model_prefix
        base = getattr(model, prefix, None)
        if not isinstance(base, nn.Module) or base is model:
            raise ModelLoadError(f"{type(model).__name__} has no base model {prefix!r} apart from its head")
        # The class's own forward computes the logits (with scaling, soft caps), over a base model that returns the
        # hidden states given to it.
        self._base = base
        self._head = model
        setattr(model, prefix, _GivenHidden())
        self.progress: Callable[[], None] = no_progress
        self.attention_layers = self._probe()
        self.states: list[StateShape] = []  # recurrent layers of transformers are refused

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
            a feature that this engine lacks; the message names it.
        """
        transformers.utils.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        if not show_progress:
            transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            config = cls._checked_config(folder, spec, dtype)
        except ModelLoadError as error:
            raise ModelLoadError(f"{error}{alternatives(spec.architecture)}") from error
        with _named_errors(folder, spec):
            model = _random_model(config, dtype, device, seed) if dummy else _load(folder, config, spec, dtype)
        return cls(model.to(device).eval())

    @classmethod
    def _checked_config(cls, folder: Path, spec: ModelSpec, dtype: torch.dtype) -> Any:
        """Read the configuration and refuse architectures that cannot run, by a model without weights.

        Raises:
            ModelLoadError: as `from_folder`.
        """
        with _named_errors(folder, spec):
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            check_config(config, spec.context_length)
            skeleton = _random_model(config, dtype, torch.device("meta"), seed=0)
        if type(skeleton).__name__ != spec.architecture:
            raise ModelLoadError(f"{spec.architecture} is not a causal language model in transformers")
        with suppress(_NeedsValues):
            cls(skeleton.eval())
        return config

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, batch: ForwardBatch, attention: AttentionBackend,
        received: None = None,
    ) -> torch.Tensor:  # fmt: skip
        """int64 [T] token ids and positions -> [T, hidden], the final norm applied."""
        return self._run(input_ids, positions, StepContext(batch, attention, self.attention_layers, self.progress))

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab]."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits
        return logits[0].float()

    def stage_input(self, tokens: int) -> torch.Tensor | None:
        """Return None: the model is not divided into stages."""

    stage_output = stage_input

    def compute_local_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Return None: the model is not split."""
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
            ModelLoadError: the model cannot be served; the message names the feature.
        """
        device = next(self._base.parameters()).device
        outputs, probe = [], _Probe()
        for first in (3, 4):
            probe = _Probe()
            ids = torch.tensor([first, 5, 6, 5], device=device)
            try:
                outputs.append(self._run(ids, torch.tensor([0, 1, 2, 3], device=device), probe))
            except (TypeError, ValueError, AttributeError, RuntimeError) as error:
                if device.type == "meta":
                    for i, call in enumerate(probe.calls):
                        layer_of(type(self._head).__name__, i, call)
                    raise _NeedsValues from error
                raise ModelLoadError(f"{type(self._head).__name__} cannot run step by step: {error}") from error
        if device.type != "meta":
            check_no_other_mixing(self._head, *outputs)
        layers = check_calls(self._head, probe.calls)
        logits = self.compute_logits(outputs[0][:2])
        if logits.dim() != 2 or logits.shape[0] != 2:
            raise ModelLoadError(f"{type(self._head).__name__} makes logits of shape {list(logits.shape)}")
        return layers


class _NeedsValues(Exception):
    """A model cannot run without weights, because an operation depends on the values of its input."""


@contextmanager
def _named_errors(folder: Path, spec: ModelSpec) -> Iterator[None]:
    """Raise errors of transformers as ModelLoadErrors that name the architecture."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        # Some classes look attention up in a table of their own.
        if isinstance(error, KeyError) and error.args == (INTERFACE,):
            raise ModelLoadError(f"{spec.architecture} does not use transformers' attention interface") from error
        if "does not recognize this architecture" in str(error):
            raise ModelLoadError(
                f"transformers {transformers.__version__} does not know the architecture {spec.architecture}"
            ) from error
        reason = " ".join(str(error).split())  # some of these errors are paragraphs
        raise ModelLoadError(f"transformers cannot load {spec.architecture} from {folder}: {reason}") from error


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
        ignore_mismatched_sizes=True,  # they are among the problems, where an exception would not name them
    )
    wrong = [
        f"{name} {list(found)} instead of {list(expected)}"
        for name, found, expected in sorted(info.pop("mismatched_keys", ()))
    ]
    problems = [
        f"{kind.replace('_', ' ')}: {shorten(sorted(map(str, names)))}" for kind, names in info.items() if names
    ]
    if wrong:
        problems.append(f"of another shape: {shorten(wrong, 1)}")
    if problems:
        raise ModelLoadError(f"the tensors in {folder} do not fit {spec.architecture}; {'; '.join(problems)}")
    return model
