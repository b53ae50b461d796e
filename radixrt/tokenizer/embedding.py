"""`EmbedState`: state of one live embedding request, from its prompts to the finished vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixrt.errors import RequestError
from radixrt.messages.client import EmbedReq, RequestOutput
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError
from radixrt.messages.scheduler import TokenDelta, TokenizedEmbedReq
from radixrt.messages.wire import Float32Array, pack_f32, unpack_f32
from radixrt.models.embedding_spec import EmbeddingSpec

MAX_PROMPTS = 2048
"""Largest number of prompts in one embedding request."""

MAX_VECTORS_BYTES = 128 * 1024 * 1024
"""Largest answer to one embedding request, below `channel.MAX_FRAME_BYTES`."""


def check_embedding(req: EmbedReq, spec: EmbeddingSpec) -> None:
    """Check everything of an embedding request but its prompts' contents.

    Raises:
        RequestError: naming the field.
    """
    given = req.prompts if req.input_ids is None else req.input_ids
    name = "prompts" if req.input_ids is None else "input_ids"
    if given is None or (req.prompts is not None and req.input_ids is not None):
        raise RequestError("exactly one of prompts and input_ids must be given", param="prompts")
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise RequestError(f"{name} must hold 1 to {MAX_PROMPTS} prompts, not {len(given)}", param=name)
    most = MAX_VECTORS_BYTES // (4 * (spec.size or 1))
    if len(given) > most:
        raise RequestError(
            f"{name} must hold at most {most} prompts, because a vector has {spec.size} numbers", param=name
        )
    if req.dimensions is not None:
        _check_dimensions(req.dimensions, spec.size)


def _check_dimensions(dimensions: int, size: int | None) -> None:
    if dimensions < 1 or (size is not None and dimensions > size):
        most = "" if size is None else f" and at most {size}, the size of this model's vectors"
        raise RequestError(f"dimensions must be at least 1{most}, not {dimensions}", param="dimensions")


class EmbedState:
    """Converts a request's pooled hidden states to its RequestOutput.

    Attributes:
        stop_found: always False; see `RequestState`.
    """

    stop_found = False

    def __init__(self, req: EmbedReq, prompts: Sequence[bytes], spec: EmbeddingSpec) -> None:
        self._req = req
        self._prompts = list(prompts)
        self._spec = spec

    def request(self) -> TokenizedEmbedReq:
        """Build the request to the scheduler."""
        req = self._req
        return TokenizedEmbedReq(
            req.rid, self._prompts, self._spec.pooling, req.priority, req.cache_salt, req.timeout_s, req.program
        )

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """Return the output to send to the client, or None before the finish."""
        finish = delta.finish
        if finish is None:
            return None
        embeddings = None
        if finish.reason == FINISH_STOP and delta.values is not None:
            try:
                embeddings = pack_f32(self._vectors(unpack_f32(delta.values).reshape(len(self._prompts), -1)))
            except RequestError as error:
                finish = Finish("error", error=FinishError(error.message, error.param, error.code, error.status))
        return RequestOutput(
            self._req.rid, finish=finish, usage=delta.usage, timings=delta.timings, embeddings=embeddings
        )

    def _vectors(self, hidden: Float32Array) -> Float32Array:
        """Cut and normalize pooled hidden states: [n, hidden size] -> [n, dimensions]."""
        if not np.isfinite(hidden).all():
            raise RequestError("the model's hidden states hold NaN or infinity", status=500)
        dimensions = self._req.dimensions
        if dimensions is not None:
            _check_dimensions(dimensions, hidden.shape[1])
            hidden = hidden[:, :dimensions]
        wanted = self._req.normalize
        if not (self._spec.normalize if wanted is None else wanted):
            return hidden
        norms = np.linalg.norm(hidden.astype(np.float64), axis=1, keepdims=True)
        unit: Float32Array = (hidden / np.maximum(norms, 1e-12)).astype(np.float32)
        return unit

    def fail(self, message: str) -> RequestOutput:
        """End the request with an error (status 500)."""
        return RequestOutput(self._req.rid, finish=Finish("error", error=FinishError(message)))
