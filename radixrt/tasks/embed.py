"""Embedding: prompts become vectors, their pooled final hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.errors import RequestError, shown
from radixrt.messages.client import EmbeddingInfo, EngineReady, Input, RequestOutput, TextInput, TokenInput
from radixrt.messages.parts import Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Float32Array
from radixrt.tasks.run import ROWS_PER_REQUEST, check_types, pooled_requests, unit_vectors, usage_of, values_of

MAX_VECTORS_BYTES = 128 * 1024 * 1024
"""Largest answer to one request, below `channel.MAX_FRAME_BYTES`."""


@dataclass(frozen=True)
class Embedding:
    """Embedded prompts.

    Attributes:
        vectors: float32 [n, dimensions], in the order of the prompts.
        usage: token counts of all prompts together.
    """

    vectors: Float32Array
    usage: Usage


class Embed:
    """A call of the task; see `TaskCall`.

    Args:
        inputs: texts and token ids.
        name: the caller's name of the list of prompts.
        dimensions: cut vectors to their first `dimensions` numbers (Matryoshka embeddings); None for whole vectors.
        normalize: scale vectors to length 1, after the cut; None to do as the model's own files define.
        prompt_name: name of the model's prompt that is written before each text; None for the model's default prompt.
        prompt: text that is written before each text, instead of a prompt of the model; "" for no text.
        at_once: number of prompts of each request.

    Raises:
        RequestError: an argument is not valid, or the model computes no embeddings; the error names the argument.
    """

    def __init__(
        self,
        info: EngineReady,
        inputs: Sequence[Input],
        envelope: Envelope,
        *,
        name: str = "prompts",
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        at_once: int = ROWS_PER_REQUEST,
    ) -> None:
        if not inputs:
            raise RequestError(f"{name} must hold at least one prompt", param=name)
        given = {"dimensions": dimensions, "normalize": normalize, "prompt_name": prompt_name, "prompt": prompt}
        check_types(given, {"dimensions": int, "normalize": bool, "prompt_name": str, "prompt": str})
        if dimensions is not None and not 1 <= dimensions < 2**31:
            raise RequestError(f"dimensions must be at least 1, not {dimensions}", param="dimensions")
        if info.labels:
            raise RequestError(
                f"{info.model} is a sequence classification model, which embeds nothing; it classifies (/classify, "
                "Engine.classify)",
                param="model",
                code="not_an_embedding_model",
            )
        spec = info.embedding
        most = MAX_VECTORS_BYTES // (4 * (spec.size or 1))
        if min(len(inputs), at_once) > most:
            raise RequestError(
                f"{name} must hold at most {most} prompts, because a vector has {spec.size} numbers", param=name
            )
        if dimensions is not None:
            _check_dimensions(dimensions, spec.size)
        before = _text_before(spec, inputs, prompt_name, prompt)
        if before:
            inputs = [
                TextInput(each.text, each.param, before=0) if isinstance(each, TextInput) else each for each in inputs
            ]
        texts = [TextInput(before)] if before else []
        self._dimensions = dimensions
        self._normalizes = spec.normalize if normalize is None else normalize
        self.requests = pooled_requests(envelope, "embed", inputs, spec.pooling, texts, at_once)

    def answer(self, outputs: Sequence[RequestOutput]) -> Embedding:
        """Cut and normalize the pooled hidden states."""
        vectors = values_of(self.requests, outputs)
        if self._dimensions is not None:
            _check_dimensions(self._dimensions, vectors.shape[1])
            vectors = vectors[:, : self._dimensions]
        return Embedding(unit_vectors(vectors) if self._normalizes else vectors, usage_of(outputs))


def _text_before(spec: EmbeddingInfo, inputs: Sequence[Input], prompt_name: str | None, prompt: str | None) -> str:
    """Return the text to write before each text: `prompt`, the model's prompt `prompt_name`, or the model's default
    prompt. Nothing is written before token ids.

    Raises:
        RequestError: the model has no prompt of that name, both arguments are given, or a prompt is given for token
            ids.
    """
    named = "prompt_name" if prompt_name is not None else "prompt" if prompt is not None else None
    if named is not None and any(isinstance(each, TokenInput) for each in inputs):
        raise RequestError(
            f"{named} is for texts, and the prompts are token ids; write its ids into these", param=named
        )
    if prompt_name is not None and prompt is not None:
        raise RequestError("prompt and prompt_name exclude each other; give one", param="prompt_name")
    if prompt is not None:
        return prompt
    if prompt_name is not None:
        if prompt_name not in spec.prompts:
            known = ", ".join(map(shown, spec.prompts)) if spec.prompts else "it has none"
            raise RequestError(
                f"prompt_name {shown(prompt_name)} is not the name of a prompt of this model: {known}",
                param="prompt_name",
            )
        return spec.prompts[prompt_name]
    return "" if spec.default_prompt is None else spec.prompts[spec.default_prompt]


def _check_dimensions(dimensions: int, size: int | None) -> None:
    if dimensions < 1 or (size is not None and dimensions > size):
        most = "" if size is None else f" and at most {size}, the size of this model's vectors"
        raise RequestError(f"dimensions must be at least 1{most}, not {dimensions}", param="dimensions")
