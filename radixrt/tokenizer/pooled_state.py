"""`PooledState`: state of one live request that reads values from forward passes over its prompts, and generates
nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from radixrt.errors import RequestError
from radixrt.messages.client import ClassifyReq, EmbedReq, RelevanceReq, RequestOutput
from radixrt.messages.parts import FINISH_STOP, Finish, FinishError, Pooling, ReadValues
from radixrt.messages.request import Envelope, Request, pooled_row
from radixrt.messages.scheduler import TokenDelta
from radixrt.messages.wire import Float32Array, unpack_f32
from radixrt.models.classifier_spec import Activation

MAX_PROMPTS = 2048
"""Largest number of prompts in one request."""


class PooledState(ABC):
    """Converts the values that the scheduler returns to the request's one RequestOutput.

    Attributes:
        stop_found: always False; see `RequestState`.
    """

    stop_found = False

    def __init__(self, rid: str) -> None:
        self._rid = rid

    @abstractmethod
    def request(self) -> Request:
        """Build the request to the scheduler."""

    @abstractmethod
    def read(self, values: Float32Array) -> Mapping[str, Any]:
        """Return the fields of the RequestOutput that answer the request; raises RequestError if there is no answer."""

    def take(self, delta: TokenDelta) -> RequestOutput | None:
        """Return the output to send to the client, or None before the finish."""
        finish = delta.finish
        if finish is None:
            return None
        fields: Mapping[str, Any] = {}
        if finish.reason == FINISH_STOP and delta.values is not None:
            try:
                fields = self.read(unpack_f32(_column(delta.values)))
            except RequestError as error:
                finish = Finish("error", error=FinishError(error.message, error.param, error.code, error.status))
        return RequestOutput(self._rid, finish=finish, usage=delta.usage, timings=delta.timings, **fields)

    def fail(self, message: str) -> RequestOutput:
        """End the request with an error (status 500)."""
        return RequestOutput(self._rid, finish=Finish("error", error=FinishError(message)))


def _column(values: ReadValues) -> bytes:
    """Return the float32 column of what the request's rows read: log-probabilities or pooled hidden states."""
    return values.logprobs[0].token_logprobs if values.logprobs else values.hidden


def pooled_request(
    req: EmbedReq | ClassifyReq | RelevanceReq, prompts: Sequence[bytes], pooling: Pooling
) -> Request:  # fmt: skip
    """Build the request to the scheduler that pools the prompts of a client's request.

    Args:
        prompts: int32 columns of token ids.
    """
    envelope = Envelope(req.rid, req.priority, req.cache_salt, req.timeout_s, req.program)
    return Request(envelope, [pooled_row(ids, pooling) for ids in prompts])


def check_prompts(prompts: Sequence[str] | None, input_ids: Sequence[bytes] | None) -> None:
    """Check that prompts are given in exactly one form, and their number; raises RequestError naming the field."""
    given = prompts if input_ids is None else input_ids
    name = "prompts" if input_ids is None else "input_ids"
    if given is None or (prompts is not None and input_ids is not None):
        raise RequestError("exactly one of prompts and input_ids must be given", param="prompts")
    if not 1 <= len(given) <= MAX_PROMPTS:
        raise RequestError(f"{name} must hold 1 to {MAX_PROMPTS} prompts, not {len(given)}", param=name)


def check_finite(values: Float32Array) -> Float32Array:
    """Return the values; raises RequestError (status 500) if one is not a finite number."""
    if not np.isfinite(values).all():
        raise RequestError("the model's hidden states hold NaN or infinity", status=500)
    return values


def unit_vectors(vectors: Float32Array) -> Float32Array:
    """Return the rows of [n, dimensions] scaled to length 1; zeros stay zeros."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: Float32Array = (vectors / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit


def activate(logits: Float32Array, activation: Activation) -> Float32Array:
    """Apply an activation to [n, labels], computed in float64."""
    if activation == "none":
        return logits
    values = logits.astype(np.float64)
    if activation == "sigmoid":
        scores = 0.5 * (1.0 + np.tanh(0.5 * values))  # never overflows
    else:
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        scores = exponents / exponents.sum(axis=1, keepdims=True)
    return np.asarray(scores, np.float32)
