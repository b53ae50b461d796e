"""Which class runs an architecture."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol

from radixrt.errors import ModelLoadError
from radixrt.models.model_config import DECODER_ARCHITECTURES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

    from radixrt.attention.base import AttentionBackend, AttentionLayer
    from radixrt.forward_batch.forward_batch import ForwardBatch

DECODER = "radixrt.models.decoder:Decoder"
TRANSFORMERS = "radixrt.models.transformers_model:TransformersModel"
"""Runs transformers' own modeling code, for every architecture without a class of ours."""

MODEL_CLASSES: dict[str, str] = dict.fromkeys(DECODER_ARCHITECTURES, DECODER)


class Model(Protocol):
    """What the runner needs of a model."""

    attention_layers: list[AttentionLayer]
    """One for each layer, in order; their layer_ids count from 0."""

    narrows: bool
    """Whether `forward` goes by `batch.narrowed`; if not, no batch it gets has one."""

    def modules(self) -> Iterator[nn.Module]:
        """As torch's: of what it is made."""

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        batch: ForwardBatch,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """int64 [T] token ids and positions -> [T, hidden], the final norm applied; where `batch.narrowed` is set,
        [P, hidden], its tokens' alone."""

    def compute_logits(self, hidden: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """[S, hidden] -> float32 [S, vocab], in `out` (contiguous) if that saves a copy, else anywhere."""

    def compute_local_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> float32 [S, columns of this rank], where the ranks can sample from them together (see
        `DeviceCommunicator.sample_buffer`); None where they cannot, or there is one rank."""


def model_class(architecture: str) -> Any:
    """The class for an architecture, imported only now.

    Raises:
        ModelLoadError: its module cannot be imported; carries the cause.
    """
    module_name, class_name = MODEL_CLASSES.get(architecture, TRANSFORMERS).split(":")
    try:
        return getattr(importlib.import_module(module_name), class_name)
    except ImportError as error:
        raise ModelLoadError(f"{architecture} needs {module_name}, which cannot be imported: {error}") from error
