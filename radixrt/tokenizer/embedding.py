"""`EmbedState`: state of one live embedding request, from its prompts to the finished vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radixrt.errors import RequestError, shown
from radixrt.messages.client import EmbedReq
from radixrt.messages.request import Request
from radixrt.messages.wire import Float32Array, pack_f32
from radixrt.models.embedding_spec import EmbeddingSpec
from radixrt.tokenizer.pooled_state import PooledState, check_finite, check_prompts, pooled_request, unit_vectors

MAX_VECTORS_BYTES = 128 * 1024 * 1024
"""Largest answer to one embedding request, below `channel.MAX_FRAME_BYTES`."""


def check_embedding(req: EmbedReq, spec: EmbeddingSpec) -> None:
    """Check everything of an embedding request but its prompts' contents.

    Raises:
        RequestError: naming the field.
    """
    check_prompts(req.prompts, req.input_ids)
    given, name = (req.prompts, "prompts") if req.input_ids is None else (req.input_ids, "input_ids")
    most = MAX_VECTORS_BYTES // (4 * (spec.size or 1))
    if len(given or ()) > most:
        raise RequestError(
            f"{name} must hold at most {most} prompts, because a vector has {spec.size} numbers", param=name
        )
    if req.dimensions is not None:
        _check_dimensions(req.dimensions, spec.size)


def text_prompt(req: EmbedReq, spec: EmbeddingSpec) -> str:
    """Return the text that is written before each text of a request: the one that it gives or names, or the model's
    default; token ids get none.

    Raises:
        RequestError: the model has no prompt of that name, both are given, or one is given for token ids.
    """
    named = "prompt_name" if req.prompt_name is not None else "prompt" if req.prompt_text is not None else None
    if named is not None and req.input_ids is not None:
        raise RequestError(
            f"{named} is for texts, and the prompts are token ids; write its ids into these", param=named
        )
    if req.prompt_name is not None and req.prompt_text is not None:
        raise RequestError("prompt and prompt_name exclude each other; give one", param="prompt_name")
    if req.prompt_text is not None:
        return req.prompt_text
    prompts = spec.prompts.by_name
    if req.prompt_name is not None:
        if req.prompt_name not in prompts:
            known = ", ".join(map(shown, prompts)) if prompts else "it has none"
            raise RequestError(
                f"prompt_name {shown(req.prompt_name)} is not the name of a prompt of this model: {known}",
                param="prompt_name",
            )
        return prompts[req.prompt_name]
    return "" if req.input_ids is not None or spec.prompts.default is None else prompts[spec.prompts.default]


def _check_dimensions(dimensions: int, size: int | None) -> None:
    if dimensions < 1 or (size is not None and dimensions > size):
        most = "" if size is None else f" and at most {size}, the size of this model's vectors"
        raise RequestError(f"dimensions must be at least 1{most}, not {dimensions}", param="dimensions")


class EmbedState(PooledState):
    """Converts a request's pooled hidden states to its vectors."""

    def __init__(self, req: EmbedReq, prompts: Sequence[bytes], spec: EmbeddingSpec) -> None:
        super().__init__(req.rid)
        self._req = req
        self._prompts = list(prompts)
        self._spec = spec

    def request(self) -> Request:
        return pooled_request(self._req, self._prompts, self._spec.pooling)

    def read(self, values: Float32Array) -> Mapping[str, Any]:
        """Cut and normalize pooled hidden states: [n * hidden size] -> `embeddings`, [n, dimensions]."""
        hidden = check_finite(values).reshape(len(self._prompts), -1)
        dimensions = self._req.dimensions
        if dimensions is not None:
            _check_dimensions(dimensions, hidden.shape[1])
            hidden = hidden[:, :dimensions]
        wanted = self._req.normalize
        normalizes = self._spec.normalize if wanted is None else wanted
        return {"embeddings": pack_f32(unit_vectors(hidden) if normalizes else hidden)}
