"""`Model`, the runner's view of a model, and the class of each architecture."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from radixrt.errors import ModelLoadError
from radixrt.models.families import FAMILIES, decoder_architectures, find_family
from radixrt.suggestions import similar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch import nn

    from radixrt.attention.base import AttentionBackend, AttentionLayer
    from radixrt.attention.state_pool import StateShape
    from radixrt.forward_batch.forward_batch import ForwardBatch
    from radixrt.layers.classification_head import ClassificationHead

DECODER = "radixrt.models.decoder:Decoder"
TRANSFORMERS = "radixrt.models.transformers_model:TransformersModel"
"""Runs transformers' modeling code, for every architecture that no family has."""

TESTED_ARCHITECTURES = (
    "CohereForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "Gemma3ForCausalLM",
    "GemmaForCausalLM",
    "GraniteForCausalLM",
    "Olmo2ForCausalLM",
    "Phi3ForCausalLM",
    "SmolLM3ForCausalLM",
    "Starcoder2ForCausalLM",
)
"""Architectures that are tested to run through transformers' modeling code; others may run too."""

NEAREST = {
    "cohere": "CohereForCausalLM",
    "gemma": "Gemma3ForCausalLM",
    "gpt": "GPT2LMHeadModel",
    "gptneo": "GPTNeoXForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo": "Olmo2ForCausalLM",
    "phi": "Phi3ForCausalLM",
    "smol": "SmolLM3ForCausalLM",
    "starcoder": "Starcoder2ForCausalLM",
}
"""Nearest of these by the beginning of a name, in lower case; families of the decoder have such beginnings too."""


def no_progress() -> None:
    """`Model.progress` of a model whose steps nobody watches."""


class Model(Protocol):
    """Interface of a model to the runner."""

    attention_layers: list[AttentionLayer]
    """One entry per layer with keys and values, in order; their layer_ids count from 0."""

    states: list[StateShape]
    """One entry per recurrent layer, in order; their layer_ids count from 0."""

    narrows: bool
    """True if `forward` supports `batch.narrowed`; if not, it must be None. Only the last pipeline stage may."""

    classifier: ClassificationHead | None
    """Head that is applied to pooled hidden states; None for a model that is not one of sequence classification."""

    progress: Callable[[], None]
    """Called by `forward` after each layer; does nothing unless the runner sets it."""

    def modules(self) -> Iterator[nn.Module]:
        """As `nn.Module.modules`."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
        received: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """int64 [T] token ids and positions -> [T, hidden], the final norm applied; where `batch.narrowed` is set,
        [P, hidden] of its tokens.

        A pipeline stage before the last returns [T, 2, hidden], contiguous, for the next one: of each token the
        residual stream, and the addend that the next norm adds to it. A stage behind the first gets this as `received`,
        which it may overwrite.
        """

    def stage_input(self, tokens: int) -> torch.Tensor | None:
        """Return memory for `forward`'s `received`, [tokens, 2, hidden], not initialized; None on the first stage."""

    def stage_output(self, tokens: int) -> torch.Tensor | None:
        """Return memory for `forward`'s result on a stage before the last, likewise; None on the last stage."""

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], in `out` (contiguous) if that saves a copy, else anywhere."""

    def compute_local_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> float32 [S, columns of this rank], in a `DeviceCommunicator.sample_buffer`; None where the
        ranks cannot sample from sharded logits, or there is one rank."""


def alternatives(architecture: str) -> str:
    """Return part of a sentence that names the nearest architecture that runs; empty if the given one runs."""
    known = (*decoder_architectures(), *TESTED_ARCHITECTURES)
    if architecture in known:
        return ""
    name = architecture.lower()
    classes = NEAREST | {begin: family.architectures[0] for family in FAMILIES for begin in family.nearest}
    begin = max((each for each in classes if name.startswith(each)), key=len, default=None)  # the longest one counts
    stems = {each.replace("ForCausalLM", ""): each for each in known}
    alike = similar(architecture.replace("ForCausalLM", ""), stems)
    nearest = stems.get(alike or "") if begin is None else classes[begin]
    if nearest is not None:
        return f"; the nearest architecture that runs is {nearest}"
    return f"; architectures that run are {', '.join(known)}"


def model_class(architecture: str) -> Any:
    """Import and return the class of an architecture.

    Raises:
        ModelLoadError: its module cannot be imported; the message has the cause.
    """
    module_name, class_name = (TRANSFORMERS if find_family(architecture) is None else DECODER).split(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ModelLoadError(f"{architecture} needs {module_name}, which cannot be imported: {error}") from error
